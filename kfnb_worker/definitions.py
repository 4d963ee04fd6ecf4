"""The cell's definitions without its work: what a process that the cell spawns executes in place of the cell.

The child must find the cell's functions and classes, and must not train a second time. So it executes, of the cell,
only imports, definitions and assignments of plain expressions, each under main.py's name and line. Calls are not
made, apart from a few that only make a type or a constant. A statement that fails for want of another one is left
out; whoever asks for its name is told why.
"""

from __future__ import annotations
import __future__

import ast
import os
import sys
from typing import Any, Callable, Dict, List

from kfnb_worker.execute import Code

_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass)
_TYPE_ALIAS = getattr(ast, "TypeAlias", ast.Pass)  # `type X = ...`, Python 3.12

# Expressions that do nothing but give a value.
_PLAIN = (
    ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp,
    ast.Name,
    ast.Attribute, ast.Subscript, ast.Slice, ast.Starred, ast.JoinedStr, ast.FormattedValue, ast.operator, ast.unaryop,
    ast.boolop, ast.cmpop, ast.expr_context, getattr(ast, "Index", ast.Slice), getattr(ast, "ExtSlice", ast.Slice),
)  # fmt: skip
_MAKERS = {
    "namedtuple", "collections.namedtuple", "NamedTuple", "typing.NamedTuple", "TypedDict", "TypeVar", "typing.TypeVar",
    "NewType", "Enum", "enum.Enum", "Path", "pathlib.Path", "torch.device", "device", "range", "dict", "list", "set",
    "tuple", "frozenset",
}  # fmt: skip


def _is_plain(node: ast.expr) -> bool:
    if isinstance(node, ast.Lambda):
        return True
    if isinstance(node, ast.Call):
        arguments = node.args + [keyword.value for keyword in node.keywords]
        return _dotted(node.func) in _MAKERS and all(map(_is_plain, arguments))
    if not isinstance(node, _PLAIN):
        return False
    return all(_is_plain(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return _dotted(node.value) + "." + node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_target(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, (ast.Tuple, ast.List)) and all(map(_is_target, node.elts)))


def only_defines(node: ast.stmt) -> bool:
    """Whether a statement does no more than define names."""
    if isinstance(node, _DEFINITIONS) or (_TYPE_ALIAS is not ast.Pass and isinstance(node, _TYPE_ALIAS)):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        return all(map(_is_target, node.targets)) and _is_plain(node.value)
    if isinstance(node, ast.AnnAssign):
        return _is_target(node.target) and (node.value is None or _is_plain(node.value))
    if isinstance(node, ast.AugAssign):
        return _is_target(node.target) and _is_plain(node.value)
    if isinstance(node, ast.If):
        return all(map(only_defines, node.body + node.orelse))
    if isinstance(node, ast.Try):
        handlers: List[ast.stmt] = [statement for handler in node.handlers for statement in handler.body]
        return all(map(only_defines, node.body + handlers + node.orelse + node.finalbody))
    return False


def populate(namespace: Dict[str, Any]) -> None:
    """Executes the definitions of the cell of the bundle at $KFNB_CODE in `namespace`."""
    code = Code(os.environ["KFNB_CODE"])
    namespace["__file__"] = code.main
    code.define(namespace)
    tree = ast.parse(code.source(), code.main)
    flags = 0
    missing: Dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                flags |= getattr(__future__, alias.name).compiler_flag
        elif only_defines(node):
            try:
                module = ast.Module(body=[node], type_ignores=[])
                exec(compile(module, code.main, "exec", flags=flags, dont_inherit=True), namespace)
            except Exception as problem:
                why = "line %d of the cell failed there: %s: %s" % (node.lineno, type(problem).__name__, problem)
                missing.update((name, why) for name in _bound(node))
        else:
            why = "line %d of the cell does more than define it, and that is not done again in a child" % node.lineno
            missing.update((name, why) for name in _bound(node))
    namespace["__getattr__"] = _explain({name: why for name, why in missing.items() if name not in namespace})


def _bound(node: ast.stmt) -> List[str]:
    """Names that a statement defines or assigns."""
    found = [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]
    return found + [part.name for part in ast.walk(node) if isinstance(part, (ast.FunctionDef, ast.ClassDef))]


def _explain(missing: Dict[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`. Pickle replaces the words of an AttributeError, so the reason is printed too."""

    def explain(name: str) -> Any:
        text = "%s is not defined in a process that the cell has spawned" % name
        if name in missing:
            text = "%s: %s" % (text, missing.pop(name))
            print(text, file=sys.stderr, flush=True)
        raise AttributeError(text)

    return explain
