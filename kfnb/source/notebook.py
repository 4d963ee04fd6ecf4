"""The notebook around a cell: what its names are, and the source of what it defines."""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kfnb.errors import SourceError
from kfnb.source.analysis import Names, analyse
from kfnb.source.translate import parse, translate
from kfnb_worker.encoding import a

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Definition:
    """A function, class or import of the notebook as source that stands alone, and the names that it needs."""

    name: str
    text: str
    names: Names
    is_import: bool = False


@dataclass(frozen=True)
class _Cell:
    lines: list[str]
    tree: ast.Module

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """The statements at module level, also those in its `if`, `try` and `with`."""
        return list(_module_level(self.tree.body))

    @property
    def lazy_annotations(self) -> bool:
        return any(
            isinstance(node, ast.ImportFrom)
            and node.module == "__future__"
            and any(a.name == "annotations" for a in node.names)
            for node in self.tree.body
        )


class Notebook:
    """``namespace`` has the notebook's values; ``history`` the sources of its cells, oldest first."""

    def __init__(self, namespace: Mapping[str, object], history: Sequence[str] = ()) -> None:
        self.namespace = namespace
        self.history = history

    def find(self, name: str) -> Definition | None:
        """The source of `name`; None where it is data, or not there.

        Raises SourceError for code that has no source to ship.
        """
        if name not in self.namespace:
            return None
        value = self.namespace[name]
        line = self.import_line(name)
        if line is not None:
            return Definition(name, line + "\n", analyse(parse(line)), is_import=True)
        if not is_code(value):
            return None
        return self.definition(name, value)

    # ---- where names are imported from

    def import_line(self, name: str) -> str | None:
        """The import that gives `name` the value that it has in the notebook; None where it has no such origin."""
        value = self.namespace.get(name)
        written = self._imports.get(name, [])
        for module, attribute, text in reversed(written):
            origin = sys.modules.get(module)
            if origin is not None and (origin if attribute is None else getattr(origin, attribute, None)) is value:
                # `import a.b` and `import a.c` both bind a, and both are needed
                return "\n".join(dict.fromkeys([*self._dotted(name, value), text])) if attribute is None else text
        if isinstance(value, types.ModuleType) and value.__name__ != "__main__":
            return f"import {value.__name__}" + ("" if name == value.__name__ else f" as {name}")
        home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not is_code(value) or home in (None, "__main__") or not isinstance(own, str) or not own.isidentifier():
            return None
        if getattr(sys.modules.get(str(home)), own, None) is not value:
            return None
        return f"from {home} import {own}" + ("" if name == own else f" as {name}")

    def _dotted(self, name: str, value: object) -> list[str]:
        return [text for module, _, text in self._imports[name] if module.startswith(name) and " as " not in text]

    @cached_property
    def _imports(self) -> dict[str, list[tuple[str, str | None, str]]]:
        """For each name that a cell imports: (module, attribute of it or None, the statement), oldest first."""
        found: dict[str, list[tuple[str, str | None, str]]] = {}
        for cell in self._cells:
            for node in cell.statements:
                if isinstance(node, ast.Import):
                    for alias in node.names:
                        top = alias.asname or alias.name.partition(".")[0]
                        bound = alias.name if alias.asname else top
                        found.setdefault(top, []).append((bound, None, ast.unparse(ast.Import([alias]))))
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    for alias in node.names:
                        text = ast.unparse(ast.ImportFrom(node.module, [alias], 0))
                        full = f"{node.module}.{alias.name}"
                        where = (full, None) if full in sys.modules else (node.module, alias.name)
                        found.setdefault(alias.asname or alias.name, []).append((*where, text))
        return found

    # ---- definitions

    def definition(self, name: str, value: object) -> Definition:
        """The source of a function or class that is defined in the notebook. Raises SourceError where there is none."""
        cell, node, lazy = self._locate(name, value)
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        text = _dedented(cell.lines[first - 1 : node.end_lineno], first, node)
        if not text.endswith("\n"):
            text += "\n"
        if lazy:
            text = "from __future__ import annotations\n\n" + text
        if name != node.name:  # another name for it; its own may mean something else by now
            text = re.sub(
                rf"^((?:async )?(?:def|class) +){node.name}\b", rf"\g<1>{name}", text, count=1, flags=re.MULTILINE
            )
        return Definition(name, text, analyse(parse(text)))

    def _locate(self, name: str, value: object) -> tuple[_Cell, _Definition, bool]:
        """The cell that defined a value, the statement, and whether its annotations are lazy. Raises SourceError."""
        function = inspect.unwrap(value) if callable(value) else value
        own = getattr(value, "__qualname__", name)
        codes = [function.__code__] if isinstance(function, types.FunctionType) else list(_codes_of_class(value))
        lazy = any(code.co_flags & __future__.annotations.compiler_flag for code in codes)
        if isinstance(function, types.FunctionType) and function.__name__ == "<lambda>":
            raise SourceError(
                f"{name} is a lambda, which has no source of its own to ship.", "", f"Write it as `def {name}(...):`."
            )
        for code in codes if "<locals>" not in own else ():
            cell = _cell("".join(linecache.getlines(code.co_filename)))
            node = cell and _around(cell, code, own)
            if cell and node:
                return cell, node, lazy or cell.lazy_annotations
        for cell in reversed(self._cells):
            bindings = [node for node in cell.statements if name in analyse(ast.Module([node], [])).bound]
            if bindings:
                last = bindings[-1]
                if isinstance(last, _Definition):
                    return cell, last, lazy or cell.lazy_annotations
                break
        if "<locals>" in own:
            raise SourceError(
                f"{name} is defined inside the function {own.partition('.')[0]} and cannot be shipped alone.",
                "What it takes from that function would be missing.",
                "Define it at the top level of a cell.",
            )
        raise SourceError(
            f"The source of {name} is not in the notebook's history.",
            f"It is {a(describe(value))}, and only what a cell defines by def or class can be shipped.",
            "Run the cell that defines it again; what a call makes (namedtuple, Enum, TypeVar) has to be in this cell.",
        )

    @cached_property
    def _cells(self) -> list[_Cell]:
        file = getattr(sys.modules.get("__main__"), "__file__", None)
        script = ["".join(linecache.getlines(file))] if file and self.namespace.get("__name__") == "__main__" else []
        return [cell for cell in map(_cell, [*script, *self.history]) if cell]


def _dedented(lines: Sequence[str], first: int, node: _Definition) -> str:
    """The text of a definition without its indentation; the lines inside of its strings are left as they are."""
    inside = {
        line
        for part in ast.walk(node)
        if isinstance(part, (ast.Constant, ast.JoinedStr))
        for line in range(part.lineno + 1, (part.end_lineno or part.lineno) + 1)
    }
    return "".join(
        line if number in inside else line[min(node.col_offset, len(line) - len(line.lstrip(" \t\f"))) :]
        for number, line in enumerate(lines, first)
    )


def is_code(value: object) -> bool:
    """Whether a value is a function or a class, also behind a decorator."""
    return isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)) or hasattr(value, "__wrapped__")


def describe(value: object) -> str:
    """What a value is, without saying what it holds: `float`, `function`, `module numpy`."""
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, type):
        return "class" if value.__module__ == "__main__" else f"class of {value.__module__}"
    if is_code(value):
        module = getattr(value, "__module__", None)
        return "function" if module in (None, "__main__") else f"function of {module}"
    kind = type(value)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def _cell(source: str) -> _Cell | None:
    """The cell of a source, None where it is no Python that can be read here."""
    try:
        translation = translate(source, 1)
    except SourceError:
        return None
    match translation.tree.body:
        case [ast.Expr(ast.Call(ast.Attribute(attr="run_cell_magic"), [ast.Constant("time" | "capture"), _, body]))]:
            return _cell(ast.literal_eval(body)) if isinstance(body, ast.Constant) else None
    return _Cell(translation.text.splitlines(keepends=True), translation.tree)


def _module_level(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for inner in ("body", "orelse", "finalbody", "handlers"):
            if not isinstance(node, _Definition):
                for part in getattr(node, inner, []):
                    yield from _module_level([part] if isinstance(part, ast.stmt) else part.body)


def _around(cell: _Cell, code: types.CodeType, qualname: str) -> _Definition | None:
    """The module-level definition of the cell that the code object belongs to."""
    for node in cell.statements:
        if isinstance(node, _Definition) and node.name == qualname.partition(".")[0] and node.end_lineno is not None:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= code.co_firstlineno <= node.end_lineno:
                return node
    return None


def _codes_of_class(value: Any) -> Iterator[types.CodeType]:
    for member in vars(value).values() if isinstance(value, type) else ():
        function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        function = inspect.unwrap(function) if callable(function) else function
        if isinstance(function, types.FunctionType) and function.__qualname__.startswith(value.__qualname__ + "."):
            yield function.__code__
