"""From a cell, a function or a script to a Bundle.

Everything that can be refused is refused here, before anything starts.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kfnb.errors import SourceError
from kfnb.source import bundle, modules
from kfnb.source.analysis import analyse
from kfnb.source.bundle import Bundle
from kfnb.source.notebook import Notebook
from kfnb.source.shipping import Shipment, refusal
from kfnb.source.translate import Translation, not_python, parse, translate
from kfnb_worker.definitions import only_defines

_PIP = re.compile(r"get_ipython\(\)\.(system\(.\s*(python3? -m )?pip3? install|run_line_magic\('pip')")
_BY_OPTION = "--use {} ships what the notebook has"
_BY_ARGUMENT = "make {} a parameter of the function, and pass it in kwargs"


def cell_source(
    body: str,
    *,
    first_line: int,
    namespace: Mapping[str, object] | None,
    use: Sequence[str],
    out: Sequence[str],
    modules: Sequence[str],
    pip: Sequence[str],
    cwd: Path,
    history: Sequence[str] = (),
) -> Bundle:
    """The bundle of a cell's body.

    ``first_line`` is the cell's line that the body begins on. ``namespace`` is the notebook's, None where there is no
    notebook; ``history`` the sources of its cells. ``use`` names what to ship of it, ``out`` what to bring back,
    ``modules`` local files and packages (relative to ``cwd``), ``pip`` requirements. Raises SourceError, naming cell
    lines.
    """
    translation = translate(body, first_line)
    names = analyse(translation.tree)
    if not translation.tree.body:
        raise SourceError("The cell has no code to run.", "", "Write the training code below the %%kftrain line.")
    shipment = Shipment(names, Notebook(namespace or {}, history), use, first_line=first_line)
    notes = [*_only_defines(translation.tree), *_pip_in_ranks(translation, first_line)]
    return _finish(
        body.encode(),
        shipment,
        translation=translation,
        out=out,
        modules_=modules,
        pip=pip,
        cwd=cwd,
        folders=[cwd],
        notes=notes,
        ship=_BY_OPTION,
    )


def function_source(
    fn: Callable[..., object],
    kwargs: Mapping[str, object],
    *,
    namespace: Mapping[str, object] | None = None,
    use: Sequence[str] = (),
    out: Sequence[str] = (),
    modules: Sequence[str] = (),
    pip: Sequence[str] = (),
    cwd: Path,
    history: Sequence[str] = (),
) -> Bundle:
    """The bundle that calls ``fn(**kwargs)``; what it returns is the value ``result`` (for ``out``).

    A function of the notebook or of a script that runs travels as source, with what it uses; one of a module is
    imported in the job, and a local module is shipped. ``namespace`` is the function's own by default. Raises
    SourceError.
    """
    _check_function(fn, kwargs)
    name = fn.__name__
    arguments = ", ".join(f"{name}={name}" for name in kwargs)
    call = f"result = {'await ' if inspect.iscoroutinefunction(fn) else ''}{name}({arguments})\n"
    known: dict[str, Any] = dict(namespace if namespace is not None else fn.__globals__)
    book = Notebook({**known, name: fn}, history or _cells_of(known))
    shipped = list(modules)
    if fn.__module__ == "__main__":
        text = f"{book.definition(name, fn).text}\n\n{call}"
    else:
        text = f"from {fn.__module__} import {name}\n\n{call}"
        shipped += _own_module(fn, cwd, modules)
    tree = parse(text)
    shipment = Shipment(analyse(tree), book, use, where=name)
    shipment.values.update(kwargs)
    shipment.definitions.pop(name, None)
    return _finish(
        text.encode(),
        shipment,
        translation=None,
        out=out,
        modules_=shipped,
        pip=pip,
        cwd=cwd,
        folders=[cwd],
        notes=[],
        ship=_BY_ARGUMENT,
        automatic=True,
    )


def script_source(
    path: Path,
    *,
    out: Sequence[str] = (),
    modules: Sequence[str] = (),
    pip: Sequence[str] = (),
    cwd: Path,
) -> Bundle:
    """The bundle of a script, byte for byte. ``path`` is relative to ``cwd``. Raises SourceError."""
    path = cwd / path
    try:
        content = path.read_bytes()
        text = importlib.util.decode_source(content)
    except OSError as problem:
        raise SourceError(
            f"{path} cannot be read.", problem.strerror or "", "Give the path of a Python file."
        ) from None
    except (UnicodeError, SyntaxError) as problem:
        raise SourceError(f"{path} is not Python source.", str(problem), "Store it as UTF-8.") from None
    try:
        tree = parse(text)
    except SyntaxError as problem:
        raise not_python(problem, text, 1, path.name) from None
    names = analyse(tree)
    names.dynamic = True  # a script that runs elsewhere is not refused for a name; it is said
    shipment = Shipment(names, Notebook({}), (), where=path.name)
    return _finish(
        content,
        shipment,
        translation=None,
        out=out,
        modules_=modules,
        pip=pip,
        cwd=cwd,
        folders=[path.parent, cwd],
        notes=[],
        ship=_BY_OPTION,
    )


def _finish(
    main: bytes,
    shipment: Shipment,
    *,
    translation: Translation | None,
    out: Sequence[str],
    modules_: Sequence[str],
    pip: Sequence[str],
    cwd: Path,
    folders: Sequence[Path],
    notes: list[str],
    ship: str,
    automatic: bool = False,
) -> Bundle:
    """Resolves the names, collects the files, and makes the bundle.

    ``automatic``: code is shipped without being asked for.
    """
    shipment.resolve(automatic=automatic)
    captured = shipment.pack()
    files, left_out = modules.collect(modules_, cwd)
    shipment.check_modules(files, folders, cwd)
    if shipment.missing:
        raise refusal(list(shipment.missing.values()), shipment.where, ship)
    _check_out(out, shipment)
    changed = translation is not None and translation.changed
    return bundle.make(
        main,
        translated=translation.text if translation and changed else None,
        shell=shipment.shell,
        definitions=[definition.text for definition in shipment.definitions.values()],
        captured=captured,
        modules=files,
        requirements=_requirements(pip),
        out=tuple(out),
        first_line=shipment.first_line,
        notes=(*notes, *shipment.notes, *left_out),
        shipped=tuple(shipment.definitions),
    )


def _check_out(out: Sequence[str], shipment: Shipment) -> None:
    names = shipment.main
    for name in out:
        if (
            name in names.bound
            or name in shipment.values
            or name in shipment.definitions
            or names.dynamic
            or names.stars
        ):
            continue
        inner = names.inner.get(name)
        raise SourceError(
            f"--out {name}: {shipment.where} never assigns {name} at its top level.",
            f"It is assigned in {inner} only." if inner else "",
            f"Assign it outside of any function, such as `{name} = {inner}(...)`." if inner else "Correct --out.",
        )


def _requirements(pip: Sequence[str]) -> tuple[str, ...]:
    lines = tuple(dict.fromkeys(line.strip() for line in pip if line.strip()))
    for line in lines:
        if any(character in line for character in "\r\n\0"):
            raise SourceError(f"--pip {line!r} has more than one line.", "", "Name one requirement each.")
    return lines


def _only_defines(tree: ast.Module) -> list[str]:
    """The warning for a cell in which nothing does any work."""
    try:
        if not all(map(only_defines, tree.body)):
            return []
    except RecursionError:  # an expression of that depth does work
        return []
    functions = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if functions:
        names, last = ", ".join(functions), functions[-1]
        return [f"The cell only defines {names} and calls nothing: the job will do nothing. End it with {last}()."]
    return ["The cell only defines and imports: the job will do nothing."]


def _pip_in_ranks(translation: Translation, first_line: int) -> list[str]:
    return [
        f"Line {number} runs pip in every rank; --pip installs once for each node, before the ranks start."
        for number, line in enumerate(translation.text.split("\n"), first_line)
        if translation.changed and _PIP.search(line)
    ]


def _check_function(fn: Callable[..., object], kwargs: Mapping[str, object]) -> None:
    inner = fn.func if isinstance(fn, functools.partial) else inspect.unwrap(fn)
    if isinstance(fn, functools.partial) or not isinstance(inner, types.FunctionType):
        raise SourceError(
            f"{fn!r} cannot be shipped: it is a {type(fn).__name__}, not a function with source.",
            "A job runs the source of a function.",
            "Write `def train(...):` around it and pass that.",
        )
    if inner.__name__ == "<lambda>":
        raise SourceError(
            "A lambda cannot be shipped: it has no source of its own.", "", "Write it as `def train(...):`."
        )
    for name in kwargs:
        if not name.isidentifier() or name == fn.__name__:
            raise SourceError(f"kwargs: {name!r} cannot be passed by name.", "", "Rename the parameter.")
    try:
        inspect.signature(fn).bind(**kwargs)
    except TypeError as problem:
        raise SourceError(
            f"{fn.__name__} cannot be called with these kwargs: {problem}.",
            f"It is {fn.__name__}{inspect.signature(fn)}.",
            "Pass its parameters by name in kwargs.",
        ) from None


def _cells_of(namespace: Mapping[str, object]) -> Sequence[str]:
    """The history that IPython keeps in its namespace; empty elsewhere."""
    cells = namespace.get("In")
    return [cell for cell in cells if isinstance(cell, str)] if isinstance(cells, list) else []


def _own_module(fn: Callable[..., object], cwd: Path, given: Sequence[str]) -> list[str]:
    """The local module or package that a function is of, to ship; nothing for an installed one."""
    if getattr(sys.modules.get(fn.__module__), fn.__name__, None) is None or "<locals>" in fn.__qualname__:
        raise SourceError(
            f"{fn.__name__} cannot be imported from {fn.__module__}.",
            f"It is {fn.__qualname__} there.",
            "Define it at the top level of the module.",
        )
    path = modules.find_local(fn.__module__.partition(".")[0], [cwd])
    return [str(path)] if path and str(path) not in {str(cwd / entry) for entry in given} else []
