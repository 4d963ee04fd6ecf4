"""Runs a bundle's code in a rank, as `__main__`.

The unpacked bundle has `main.py` (what the user wrote), `_kfnb/bundle.json`, and as needed `_kfnb/translated.py`
(main.py line for line, without the notebook's own syntax), `_kfnb/defs/<n>.py` and `_kfnb/values.json`.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
import types
from importlib.machinery import ModuleSpec
from typing import Any, Dict, List, Optional, Sequence

_UNDEFINED = re.compile(r"NameError: name '(\w+)' is not defined")
HERE = os.path.dirname(os.path.abspath(__file__))
MESSAGE_LIMIT = 4096  # characters of a failure's message and
TRACEBACK_LIMIT = 65536  # of its traceback that are told

_main = types.ModuleType("__main__")


class Code:
    """An unpacked bundle's code: `directory`, its bundle.json, and the parts that are executed."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(directory)
        self.main = os.path.join(self.directory, "main.py")
        with open(os.path.join(self.directory, "_kfnb", "bundle.json"), encoding="utf-8") as file:
            self.bundle: Dict[str, Any] = json.load(file)

    def source(self) -> str:
        """The text to run under main.py's name."""
        return self._read("_kfnb/translated.py" if self.bundle["translated"] else "main.py")

    def _read(self, name: str) -> str:
        with open(os.path.join(self.directory, name), "rb") as file:
            return importlib.util.decode_source(file.read())

    def define(self, namespace: Dict[str, Any]) -> None:
        """Puts the captured values and the definitions of other cells into `namespace`."""
        folder = os.path.join(self.directory, "_kfnb")
        captured = self.bundle["values"]
        if self.bundle["shell"]:
            from kfnb_worker import shell

            namespace.update(shell.names(namespace))
        if captured:
            from kfnb_worker import values

            namespace.update(values.decode(folder, late=False, main=namespace))
        for name in self.bundle["defs"]:
            exec(compile(self._read(name), os.path.join(self.directory, name), "exec", dont_inherit=True), namespace)
        if captured:
            namespace.update(values.decode(folder, late=True, main=namespace))


def run(code_dir: str, argv: Sequence[str]) -> None:
    """Executes the bundle unpacked in `code_dir` as `__main__`, with `sys.argv` = [main.py, *argv].

    What the code raises propagates.
    """
    global _main
    code = Code(code_dir)
    _main = _install(code)
    sys.argv = [code.main, *argv]
    if sys.path[:1] != [code.directory]:
        sys.path.insert(0, code.directory)
    os.environ["KFNB_CODE"] = code.directory  # where the children of a spawn find it, see kfnb_worker.spawned
    namespace = _main.__dict__
    code.define(namespace)
    program = compile(code.source(), code.main, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if program.co_flags & inspect.CO_COROUTINE:
        import asyncio

        asyncio.run(eval(program, namespace))  # noqa: S307 - the user's own code
    else:
        exec(program, namespace)


def _install(code: Code) -> types.ModuleType:
    """A fresh `__main__`. By its spec, children of a spawn run kfnb_worker.spawned in its place."""
    main = types.ModuleType("__main__")
    main.__file__ = code.main
    main.__spec__ = ModuleSpec("kfnb_worker.spawned", None)
    main.__package__ = ""  # else a relative import would look into kfnb_worker
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.modules["__mp_main__"] = main  # multiprocessing may have kept the old one under this name
    return main


def main_globals() -> Dict[str, Any]:
    """The namespace that the cell runs in, or ran in."""
    return _main.__dict__


def failure(exc: BaseException) -> Dict[str, Any]:
    """`exc` for a person: {"type", "message", "traceback", "line"}, without the frames of kfnb_worker above the cell.

    `line` is the innermost line of main.py that was running, None where there was none.
    """
    main: Optional[str] = main_globals().get("__file__")
    told = traceback.TracebackException(type(exc), exc, _cut(exc.__traceback__, main))
    kind = type(exc)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "." + kind.__qualname__
    )
    try:
        message = str(exc)
    except Exception:
        message = "<the message could not be made>"
    text = "".join(told.format())
    return {
        "type": name,
        "message": _clip(message, MESSAGE_LIMIT),
        "traceback": _clip(text, TRACEBACK_LIMIT) + _why_a_child_lacks(text),
        "line": _line(exc, main),
    }


def _why_a_child_lacks(text: str) -> str:
    """The reason of a ``NameError`` that a spawned child passed on, for a name that the cell itself has."""
    missing = sorted(set(_UNDEFINED.findall(text)) & set(main_globals()))
    if not missing:
        return ""
    return (
        "\n%s: the cell has it, and a spawned child does not: of the cell it runs the imports, functions, classes and "
        "assignments of literals alone. Make it in the function or class that uses it, or pass it in.\n"
    ) % ", ".join(missing)


def _cut(tb: Optional[types.TracebackType], main: Optional[str]) -> Optional[types.TracebackType]:
    """The traceback from the first frame of the user's code on; else from the first that is not kfnb_worker's."""
    code = os.path.dirname(main) + os.sep if main else None
    ours = tb
    while ours is not None and ours.tb_frame.f_code.co_filename.startswith(HERE):
        ours = ours.tb_next
    user = ours
    while user is not None and not (code and user.tb_frame.f_code.co_filename.startswith(code)):
        user = user.tb_next
    return user or ours


def _line(exc: BaseException, main: Optional[str]) -> Optional[int]:
    if isinstance(exc, SyntaxError) and exc.filename == main:
        return exc.lineno
    lines: List[int] = [
        number for frame, number in traceback.walk_tb(exc.__traceback__) if frame.f_code.co_filename == main
    ]
    return lines[-1] if lines else None


def _clip(text: str, limit: int) -> str:
    """The head and the tail of a long text, with what is between counted."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return "%s\n... %d characters left out ...\n%s" % (text[:half], len(text) - 2 * half, text[-half:])
