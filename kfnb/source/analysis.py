"""Which names a piece of code uses and does not define: Python's scope rules, with the line of each first use.

A use is *eager* where it runs as the code runs (module level, class bodies, decorators, defaults, comprehensions
there), and *deferred* inside a function, which may be called when the name has long been defined.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

#: Names that every module has without defining them. Not taken from dir(builtins) as it is: notebooks add theirs to it.
GIVEN = (
    {name for name in dir(builtins) if getattr(getattr(builtins, name), "__module__", "builtins") == "builtins"}
    | {"exit", "quit", "copyright", "credits", "license", "__builtins__", "__name__", "__file__", "__doc__", "__spec__"}
    | {"__package__", "__loader__", "__annotations__", "__debug__", "open", "input", "help"}
) - {"__IPYTHON__", "display", "get_ipython"}
_ANNOTATIONS_ARE_LAZY = sys.version_info >= (3, 14)
_LOOKUPS = {"globals", "locals", "vars", "dir"}


@dataclass(frozen=True)
class Use:
    """The first use of a name: its line, and whether it is eager."""

    line: int
    eager: bool


@dataclass
class Names:
    """What a piece of code has to do with the names around it.

    ``free``: used at module scope or below and not defined here. ``builtin``: used as Python's own, with the line.
    ``guarded``: the code provides for its absence. ``bound``: defined at module scope. ``inner``:
    assigned in a function only, with its name. ``modules``: what it imports, with the line. ``stars``: modules of
    `import *`. ``commands``: texts of `!` commands and magics, with the line. ``dynamic``: it may define names that
    nobody can see here.
    """

    free: dict[str, Use] = field(default_factory=dict)
    builtin: dict[str, int] = field(default_factory=dict)
    guarded: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    inner: dict[str, str] = field(default_factory=dict)
    modules: dict[str, int] = field(default_factory=dict)
    stars: dict[str, int] = field(default_factory=dict)
    commands: list[tuple[str, int]] = field(default_factory=list)
    dynamic: bool = False


@dataclass
class _Scope:
    kind: str  # "module", "class", "function", "comprehension"
    name: str
    parent: _Scope | None
    bound: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)  # bound by now, in the order of the text
    outer: set[str] = field(default_factory=set)  # declared global
    nonlocals: set[str] = field(default_factory=set)
    uses: list[tuple[str, int, bool]] = field(default_factory=list)  # name, line, there by then


def analyse(tree: ast.Module) -> Names:
    """The names of a module's tree."""
    return _Analyser(tree).names


class _Analyser(ast.NodeVisitor):
    def __init__(self, tree: ast.Module) -> None:
        self.names = Names()
        self.module = self.scope = _Scope("module", "", None)
        self.scopes = [self.module]
        self.by_global: set[str] = set()  # names that functions define by `global`
        self.rounds: list[set[str]] = []  # for each loop around: what its body binds
        self.conditions = 0  # depth of what may be left out in the first round of a loop
        self.guarded: set[str] = set()  # names whose absence the code itself provides for
        self.guards = 0  # depth of `try` bodies with an `except NameError`
        self.lazy_annotations = _ANNOTATIONS_ARE_LAZY or any(
            isinstance(node, ast.ImportFrom)
            and node.module == "__future__"
            and any(a.name == "annotations" for a in node.names)
            for node in tree.body
        )
        self._statements(tree.body)
        self._resolve()

    # ---- scopes

    def _resolve(self) -> None:
        found: dict[str, Use] = {}
        for scope in self.scopes:
            eager = _runs_with_the_module(scope)
            for name, line, present in scope.uses:
                if name in self.guarded or _is_local(scope, name, present):
                    continue
                if present if eager and name not in self.by_global else name in self.module.bound:
                    continue
                known = found.get(name, Use(line, eager))
                found[name] = Use(min(line, known.line), eager or known.eager)
            if scope.kind == "function":
                for name in scope.bound - scope.nonlocals:
                    self.names.inner.setdefault(name, scope.name)
        self.names.free = dict(sorted(found.items(), key=lambda item: (item[1].line, item[0])))
        self.names.bound = self.module.bound
        self.names.guarded = self.guarded

    def _push(self, kind: str, name: str = "") -> _Scope:
        self.scope = _Scope(kind, name, self.scope)
        self.scopes.append(self.scope)
        return self.scope

    def _pop(self) -> None:
        assert self.scope.parent is not None
        self.scope = self.scope.parent

    def _bind(self, name: str) -> None:
        if name in self.scope.outer:
            self.module.bound.add(name)
            self.by_global.add(name)
        else:
            self.scope.bound.add(name)
            self.scope.seen.add(name)

    def _use(self, name: str, line: int) -> None:
        if name in GIVEN:
            self.names.builtin.setdefault(name, line)
            return  # one that the code defines anew is there either way
        if self.guards:
            self.guarded.add(name)
            return
        scope = self.scope
        while scope.kind == "comprehension":  # it runs where it stands, and does not see the class that it stands in
            if name in scope.bound or scope.parent is None:
                return
            scope = scope.parent
            while scope.kind == "class" and scope.parent is not None:
                scope = scope.parent
        present = name in scope.seen or (_runs_with_the_module(scope) and name in self.module.seen)
        in_a_later_round = self.conditions > 0 and any(name in names for names in self.rounds)
        scope.uses.append((name, line, present or in_a_later_round))

    # ---- statements

    def _statements(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self.visit(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._defaults(node.args)
        self._bind(node.name)
        with_parameters = self._type_parameters(node)
        for argument in _arguments(node.args):
            self._annotation(argument.annotation)
        self._annotation(node.returns)
        guards, self.guards = self.guards, 0
        self._push("function", node.name)
        for argument in _arguments(node.args):
            self._bind(argument.arg)
        self._declarations(node.body)
        self._statements(node.body)
        self._pop()
        self.guards = guards
        if with_parameters:
            self._pop()

    visit_FunctionDef = _function  # noqa: N815 - the names that ast calls
    visit_AsyncFunctionDef = _function  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._defaults(node.args)
        guards, self.guards = self.guards, 0
        self._push("function", "a lambda")
        for argument in _arguments(node.args):
            self._bind(argument.arg)
        self.visit(node.body)
        self._pop()
        self.guards = guards

    def _defaults(self, arguments: ast.arguments) -> None:
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            if default is not None:
                self.visit(default)

    def _type_parameters(self, node: ast.AST) -> bool:
        parameters = getattr(node, "type_params", [])
        if parameters:
            self._push("comprehension")  # a scope that runs where it stands
            for parameter in parameters:
                self._bind(parameter.name)
        return bool(parameters)

    def _declarations(self, body: Iterable[ast.stmt]) -> None:
        """`global` and `nonlocal` hold for the whole function, wherever they stand."""
        for node in _within(body):
            if isinstance(node, ast.Global):
                self.scope.outer.update(node.names)
            elif isinstance(node, ast.Nonlocal):
                self.scope.nonlocals.update(node.names)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        with_parameters = self._type_parameters(node)
        for part in [*node.bases, *node.keywords]:
            self.visit(part)
        self._push("class", node.name)
        self._declarations(node.body)
        self._statements(node.body)
        self._pop()
        if with_parameters:
            self._pop()
        self._bind(node.name)

    def visit_TypeAlias(self, node: ast.AST) -> None:
        self._bind(node.name.id)  # type: ignore[attr-defined]  # its value is evaluated when somebody asks for it

    def _declared(self, node: ast.Global | ast.Nonlocal) -> None:
        """Read by _declarations."""

    visit_Global = visit_Nonlocal = _declared  # noqa: N815

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        self.visit(node.test if isinstance(node, ast.While) else node.iter)
        self.conditions += bool(self.rounds)  # an inner loop may have no round in the first of the outer one
        self.rounds.append(set(_stored(node.body)))
        if not isinstance(node, ast.While):
            self.visit(node.target)
        self._statements(node.body)
        self.rounds.pop()
        self.conditions -= bool(self.rounds)
        self._statements(node.orelse)

    visit_For = visit_AsyncFor = visit_While = _loop  # noqa: N815

    def _conditional(self, node: ast.If | ast.IfExp | ast.BoolOp | ast.Match) -> None:
        self.conditions += 1
        self.generic_visit(node)
        self.conditions -= 1

    visit_If = visit_IfExp = visit_BoolOp = visit_Match = _conditional  # noqa: N815

    def visit_Try(self, node: ast.Try) -> None:
        catches = any(_catches_name_error(handler.type) for handler in node.handlers)
        self.conditions += 1
        self.guards += catches
        self._statements(node.body)
        self.guards -= catches
        for handler in node.handlers:
            if handler.type is not None:
                self.visit(handler.type)
            if handler.name:
                self._bind(handler.name)
            self._statements(handler.body)
        self._statements(node.orelse)
        self._statements(node.finalbody)
        self.conditions -= 1

    visit_TryStar = visit_Try  # noqa: N815

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._use(node.target.id, node.lineno)
        self.visit(node.value)
        self.visit(node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
        if self.scope.kind != "function":  # those of local variables are never evaluated
            self._annotation(node.annotation)
        if node.value is not None or self.scope.kind == "function" or not isinstance(node.target, ast.Name):
            self.visit(node.target)

    def _annotation(self, node: ast.expr | None) -> None:
        if node is not None and not self.lazy_annotations:
            self.visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        inner = self.scope
        while self.scope.kind == "comprehension" and self.scope.parent is not None:
            self.scope = self.scope.parent
        self._bind(node.target.id)
        self.scope = inner

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.names.modules.setdefault(alias.name, node.lineno)
            self._bind(alias.asname or alias.name.partition(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if not node.level and module != "__future__":
            self.names.modules.setdefault(module, node.lineno)
        for alias in node.names:
            if alias.name == "*":
                self.names.stars.setdefault(module, node.lineno)
            else:
                if not node.level and module != "__future__":
                    self.names.modules.setdefault(f"{module}.{alias.name}", node.lineno)
                self._bind(alias.asname or alias.name)

    # ---- expressions

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._use(node.id, node.lineno)
        elif isinstance(node.ctx, ast.Store) or self.scope.kind == "function":
            self._bind(node.id)
        else:
            self._use(node.id, node.lineno)  # `del x` wants an x

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.visit(node.generators[0].iter)
        self._push("comprehension")
        for n, generator in enumerate(node.generators):
            if n:
                self.visit(generator.iter)
            self.visit(generator.target)
            for condition in generator.ifs:
                self.visit(condition)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.visit(part)
        self._pop()

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension  # noqa: N815

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
                    self.guarded.add(node.left.value)
                    return
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in ("exec", "globals"):
            self.names.dynamic = True
        if _is_shell(node.func):
            texts = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            self.names.commands += [(text, node.lineno) for text in texts[-1:]]
        self.generic_visit(node)


def _runs_with_the_module(scope: _Scope | None) -> bool:
    while scope is not None:
        if scope.kind == "function":
            return False
        scope = scope.parent
    return True


def _is_local(scope: _Scope, name: str, present: bool) -> bool:
    """Whether the name belongs to a scope below the module's."""
    if name in scope.outer or scope.kind == "module":
        return False
    if scope.kind == "class":
        if (present and name in scope.bound) or name in ("__module__", "__qualname__"):
            return True
    elif name in scope.bound - scope.nonlocals:
        return True
    at = scope.parent
    while at is not None and at.kind != "module":
        if (at.kind != "class" and name in at.bound) or (name == "__class__" and at.kind == "class"):
            return True
        at = at.parent
    return False


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    yield from filter(None, [arguments.vararg, arguments.kwarg])


def _within(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes of a body without those of functions and classes in it."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))


def _stored(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in _within(body):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _catches_name_error(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(one, ast.Name) and one.id in ("NameError", "UnboundLocalError") for one in kinds)


def _is_shell(function: ast.expr) -> bool:
    """Whether a call is `get_ipython().something(...)`."""
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Call)
        and isinstance(function.value.func, ast.Name)
        and function.value.func.id == "get_ipython"
    )
