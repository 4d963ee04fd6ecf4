"""Which names a piece of code uses and does not define: Python's scope rules, with the line of each first use.

A use is *certain* where nothing can pass it by: it stands at module level (or in a class body, a decorator, a default
there), and in no branch, loop, `try` or `with`. Of every other use Python itself is the judge: a function may never be
called, a branch never taken. Where the order matters, it is the order of the text, and only for certain uses.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: Names that every module has without defining them. Not taken from dir(builtins) as it is: notebooks add theirs to it.
GIVEN = (
    {name for name in dir(builtins) if getattr(getattr(builtins, name), "__module__", "builtins") == "builtins"}
    | {"exit", "quit", "copyright", "credits", "license", "__builtins__", "__name__", "__file__", "__doc__", "__spec__"}
    | {"__package__", "__loader__", "__annotations__", "__debug__", "open", "input", "help"}
) - {"__IPYTHON__", "display", "get_ipython"}
_ANNOTATIONS_ARE_LAZY = sys.version_info >= (3, 14)
_LOOKUPS = {"globals", "locals", "vars", "dir"}
# Ways to a namespace in which code may define what cannot be seen here.
_NAMESPACES = {"exec", "eval", "globals", "__builtins__"}
_OWN_NAMESPACE = {"locals", "vars"}  # the module's at module level only
_NAMESPACE_ATTRIBUTES = {"__globals__", "f_globals", "f_locals", "f_builtins"}
_NAMESPACE_MEMBERS = {("sys", "modules"), ("gettext", "install")}
_NAMESPACE_MODULES = {"__main__", "builtins"}
_ENDS = {"exit", "quit", "_exit", "SystemExit"}  # what comes after one of these may never run


@dataclass(frozen=True)
class Use:
    """The first use of a name: its line, whether one of its uses is certain, and whether all are in a `try` that goes
    on after any error."""

    line: int
    certain: bool
    caught: bool = False


@dataclass
class Names:
    """What a piece of code has to do with the names around it.

    ``free``: used at module scope or below, and not defined here or, at module scope, not by then. ``builtin``: used as
    Python's own, with the line. ``guarded``: the code provides for its absence. ``bound``: defined at module scope.
    ``inner``: assigned in a function only, with its name. ``modules``: what it imports, with the line. ``tried``: those
    of them whose absence it provides for, or that it may find in a place of its own. ``stars``: modules of `import *`.
    ``commands``: texts of `!` commands and magics, with the line. ``dynamic``: it may define names that nobody can see
    here.
    """

    free: dict[str, Use] = field(default_factory=dict)
    builtin: dict[str, int] = field(default_factory=dict)
    guarded: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    inner: dict[str, str] = field(default_factory=dict)
    modules: dict[str, int] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)
    stars: dict[str, int] = field(default_factory=dict)
    commands: list[tuple[str, int]] = field(default_factory=list)
    dynamic: bool = False


@dataclass
class _Scope:
    kind: str  # "module", "class", "function", "comprehension", "parameters" (of types)
    name: str
    parent: _Scope | None
    bound: set[str] = field(default_factory=set)  # so far, in the order of the text
    outer: set[str] = field(default_factory=set)  # declared global
    nonlocals: set[str] = field(default_factory=set)


def analyse(tree: ast.Module) -> Names:
    """The names of a module's tree, which must be one that Python compiles."""
    try:
        return _Analyser(tree).names
    except RecursionError:  # deeper than can be read here, and Python runs it
        return Names(dynamic=True)


class _Analyser(ast.NodeVisitor):
    def __init__(self, tree: ast.Module) -> None:
        self.names = Names()
        self.module = self.scope = _Scope("module", "", None)
        self.scopes = [self.module]
        self.uses: list[tuple[_Scope, str, Use]] = []  # that were not defined by then
        self.passable = 0  # depth of what a run may pass by
        self.dead = 0  # depth of what no run executes
        self.caught = 0  # depth of `try` bodies that go on after any error,
        self.guards = 0  # of those with an `except NameError`,
        self.import_guards = 0  # and of those with an `except ImportError`
        self.needed: set[str] = set()  # modules that are imported outside of these
        self.extends_path = False
        self.lazy_annotations = _ANNOTATIONS_ARE_LAZY or any(
            isinstance(node, ast.ImportFrom)
            and node.module == "__future__"
            and any(a.name == "annotations" for a in node.names)
            for node in tree.body
        )
        self._all(tree.body)
        self._resolve()

    # ---- scopes

    def _resolve(self) -> None:
        names, found = self.names, self.names.free
        names.bound = self.module.bound
        for scope, name, use in self.uses:
            eager = _runs_with_the_module(scope)
            if name in names.guarded or (not use.certain and _is_local(scope, name)):
                continue
            if not eager and name in names.bound:
                continue
            if name in GIVEN:
                names.builtin.setdefault(name, use.line)
                names.dynamic |= name in _NAMESPACES or (eager and name in _OWN_NAMESPACE)
                continue
            known = found.get(name, use)
            found[name] = Use(
                min(use.line, known.line), use.certain or known.certain, caught=use.caught and known.caught
            )
        names.free = dict(sorted(found.items(), key=lambda item: (item[1].line, item[0])))
        names.tried = set(names.modules) - (set() if self.extends_path else self.needed)
        for scope in self.scopes:
            if scope.kind == "function":
                for name in scope.bound:
                    names.inner.setdefault(name, scope.name)

    @contextmanager
    def _inside(self, kind: str, name: str = "") -> Iterator[None]:
        outer, guards, caught = self.scope, self.guards, self.caught
        self.scope = _Scope(kind, name, outer)
        self.scopes.append(self.scope)
        if kind == "function":  # it is called from elsewhere
            self.guards = self.caught = 0
        yield
        self.scope, self.guards, self.caught = outer, guards, caught

    def _bind(self, name: str) -> None:
        if name in self.scope.outer:
            self.module.bound.add(name)
        elif name not in self.scope.nonlocals:
            self.scope.bound.add(name)

    def _use(self, name: str, line: int) -> None:
        if self.dead:
            return
        if name in _ENDS:
            self.passable += 1  # and never less again
        if self.guards and name not in GIVEN:
            self.names.guarded.add(name)
            return
        eager = _runs_with_the_module(self.scope)
        if not (eager and (name in self.module.bound or _is_local(self.scope, name))):
            self.uses.append((self.scope, name, Use(line, eager and not self.passable, self.caught > 0)))

    # ---- what may be passed by

    def _all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _perhaps(self, nodes: Iterable[ast.AST], *, never: bool = False) -> None:
        self.passable += 1
        self.dead += never
        self._all(nodes)
        self.dead -= never
        self.passable -= 1

    def _branches(self, node: ast.If | ast.IfExp | ast.While) -> None:
        self.visit(node.test)
        known = _constant(node.test)
        self._perhaps([node.body] if isinstance(node, ast.IfExp) else node.body, never=known is False)
        self._perhaps([node.orelse] if isinstance(node, ast.IfExp) else node.orelse, never=known is True)

    visit_If = visit_IfExp = visit_While = _branches  # noqa: N815 - the names that ast calls

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._perhaps([node.target, *node.body, *node.orelse])

    visit_For = visit_AsyncFor = _for  # noqa: N815

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        self._perhaps(node.cases)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._perhaps(node.values[1:])

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)
        self._perhaps([node.msg] if node.msg else [])

    @contextmanager
    def _guarded(self, kinds: Iterable[ast.expr | None]) -> Iterator[None]:
        """Around what is executed while errors of these kinds are caught; None is all."""
        names = {_last_part(one) if one else "Exception" for kind in kinds for one in _members(kind)}
        caught = bool(names & {"Exception", "BaseException"})
        guards = bool(names & {"NameError", "UnboundLocalError"})
        import_guards = caught or bool(names & {"ImportError", "ModuleNotFoundError"})
        self.caught += caught
        self.guards += guards
        self.import_guards += import_guards
        yield
        self.caught -= caught
        self.guards -= guards
        self.import_guards -= import_guards

    def visit_Try(self, node: ast.Try) -> None:
        with self._guarded(handler.type for handler in node.handlers if not _raises_again(handler)):
            self._perhaps(node.body)
        self._perhaps([*node.handlers, *node.orelse])
        self._all(node.finalbody)

    visit_TryStar = visit_Try  # noqa: N815

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._all([node.type] if node.type else [])
        if node.name:
            self._bind(node.name)
        self._all(node.body)

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        """Any context manager may end its body without an error; `contextlib.suppress` says for which."""
        first, *others = [part for item in node.items for part in (item.context_expr, item.optional_vars) if part]
        self.visit(first)
        calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
        with self._guarded(kind for call in calls if _last_part(call.func) == "suppress" for kind in call.args):
            self._perhaps([*others, *node.body])

    visit_With = visit_AsyncWith = _with  # noqa: N815

    # ---- definitions

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._all(node.decorator_list)
        self._defaults(node.args)
        self._bind(node.name)
        with self._inside("parameters"):
            self._type_parameters(node)
            for argument in _arguments(node.args):
                self._annotation(argument.annotation)
            self._annotation(node.returns)
            self._body(node.name, node.args, node.body)

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._defaults(node.args)
        self._body("a lambda", node.args, [node.body])

    def _body(self, name: str, arguments: ast.arguments, body: Iterable[ast.AST]) -> None:
        with self._inside("function", name):
            for argument in _arguments(arguments):
                self._bind(argument.arg)
            self._all(body)

    def _defaults(self, arguments: ast.arguments) -> None:
        self._all(filter(None, [*arguments.defaults, *arguments.kw_defaults]))

    def _type_parameters(self, node: ast.AST) -> None:
        for parameter in getattr(node, "type_params", []):
            self._bind(parameter.name)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._all(node.decorator_list)
        with self._inside("parameters"):
            self._type_parameters(node)
            self._all([*node.bases, *node.keywords])
            with self._inside("class", node.name):
                self.scope.bound |= {"__module__", "__qualname__"}
                self._all(node.body)
        self._bind(node.name)

    def visit_TypeAlias(self, node: ast.AST) -> None:
        self._bind(node.name.id)  # type: ignore[attr-defined]  # its value is evaluated when somebody asks for it

    def visit_Global(self, node: ast.Global) -> None:
        self.scope.outer.update(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.scope.nonlocals.update(node.names)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._all([node.value, *node.targets])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._use(node.target.id, node.lineno)
            self._all([node.value, node.target])
        else:
            self._all([node.target, node.value])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        local = self.scope.kind == "function"
        if node.value is not None:
            self.visit(node.value)
        if node.value is not None or local or not isinstance(node.target, ast.Name):
            self.visit(node.target)
        if not local:  # those of local variables are never evaluated
            self._annotation(node.annotation)

    def _annotation(self, node: ast.expr | None) -> None:
        if node is not None and not self.lazy_annotations:
            self.visit(node)

    def _imported(self, module: str, line: int) -> None:
        if not self.dead:
            self.names.modules.setdefault(module, line)
            if not self.import_guards:
                self.needed.add(module)
            self.names.dynamic |= module in _NAMESPACE_MODULES or tuple(module.split(".")) in _NAMESPACE_MEMBERS

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._imported(alias.name, node.lineno)
            self._bind(alias.asname or alias.name.partition(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        outside = not node.level and module != "__future__"
        if outside:
            self._imported(module, node.lineno)
        for alias in node.names:
            if alias.name == "*":
                self.names.stars.setdefault(module, node.lineno)
                continue
            if outside:
                self._imported(f"{module}.{alias.name}", node.lineno)
            self._bind(alias.asname or alias.name)

    # ---- expressions

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store) or (isinstance(node.ctx, ast.Del) and self.scope.kind == "function"):
            self._bind(node.id)
        else:
            self._use(node.id, node.lineno)  # `del x` wants an x

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        inner = self.scope
        while self.scope.kind in ("comprehension", "parameters") and self.scope.parent is not None:
            self.scope = self.scope.parent
        self._bind(node.target.id)
        self.scope = inner

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        first, *others = node.generators
        self.visit(first.iter)
        with self._inside("comprehension"):
            self._perhaps([first.target, *first.ifs])
            for generator in others:
                self._perhaps([generator.iter, generator.target, *generator.ifs])
            self._perhaps((node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,))

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension  # noqa: N815

    def visit_Dict(self, node: ast.Dict) -> None:
        for pair in zip(node.keys, node.values, strict=True):
            self._all(filter(None, pair))

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self.generic_visit(node)
        if node.name:
            self._bind(node.name)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name:
            self._bind(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        if node.rest:
            self._bind(node.rest)

    def visit_Compare(self, node: ast.Compare) -> None:
        """`"lr" in globals()`: the code provides for lr not being there."""
        if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            for other in node.comparators:
                if isinstance(other, ast.Call) and isinstance(other.func, ast.Name) and other.func.id in _LOOKUPS:
                    self.names.guarded.add(node.left.value)
                    return
        self._all([node.left, node.comparators[0]])
        self._perhaps(node.comparators[1:])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.visit(node.value)
        whose = node.value.id if isinstance(node.value, ast.Name) else ""
        self.names.dynamic |= node.attr in _NAMESPACE_ATTRIBUTES or (whose, node.attr) in _NAMESPACE_MEMBERS
        self.extends_path |= (whose, node.attr) == ("sys", "path")
        if node.attr in _ENDS and not self.dead:
            self.passable += 1  # and never less again

    def visit_Call(self, node: ast.Call) -> None:
        constants = [part.value for part in node.args if isinstance(part, ast.Constant)]
        self.names.dynamic |= any(value in _NAMESPACE_MODULES for value in constants if isinstance(value, str))
        if _is_shell(node.func) and not self.dead:
            self.names.commands += [(text, node.lineno) for text in constants[-1:] if isinstance(text, str)]
        if isinstance(node.func, ast.Name) and node.func.id == "vars" and node.args:  # of something else
            self._all([*node.args, *node.keywords])
        else:
            self.generic_visit(node)


def _runs_with_the_module(scope: _Scope | None) -> bool:
    while scope is not None:
        if scope.kind == "function":
            return False
        scope = scope.parent
    return True


def _is_local(scope: _Scope, name: str) -> bool:
    """Whether the name, used in this scope, is one of a scope below the module's, by what these bind so far."""
    at: _Scope | None = scope
    direct = True  # a class is seen by what stands in it, not by the functions in it
    while at is not None and at.kind != "module":
        if name in at.outer:
            return False
        if (name in at.bound and (direct or at.kind != "class")) or (name == "__class__" and at.kind == "class"):
            return True
        direct = direct and at.kind == "parameters"
        at = at.parent
    return False


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    yield from filter(None, [arguments.vararg, arguments.kwarg])


def _constant(test: ast.expr) -> bool | None:
    """What a condition is in every run, None where that depends."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _constant(test.operand)
        return None if inner is None else not inner
    return False if _last_part(test) == "TYPE_CHECKING" else None


def _last_part(node: ast.expr) -> str:
    """`c` of a.b.c."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _members(kind: ast.expr | None) -> list[ast.expr] | list[None]:
    return [None] if kind is None else kind.elts if isinstance(kind, ast.Tuple) else [kind]


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def _is_shell(function: ast.expr) -> bool:
    """Whether a call is `get_ipython().something(...)`."""
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Call)
        and isinstance(function.value.func, ast.Name)
        and function.value.func.id == "get_ipython"
    )
