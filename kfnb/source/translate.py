"""The notebook's own syntax in plain Python, line for line: `!command`, `%magic`, `%%time`.

IPython's own transformers find the pieces and read them. What they leave out of several lines is filled up with empty
ones, so that line N of the translation is line N of the cell. `kfnb_worker.shell` is what the translation calls.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import warnings
from dataclasses import dataclass
from typing import Any

from kfnb.errors import SourceError
from kfnb_worker.shell import LINE_MAGICS

SUPPORTED = (
    "!command, x = !command, "
    + ", ".join("%" + name for name in sorted([*LINE_MAGICS, "time", "timeit"]))
    + " and %%time"
)
_TIMEIT = re.compile(r"\s*((?:-[nr]\s*\d+\s+)*)(.+)", re.DOTALL)


@dataclass(frozen=True)
class Translation:
    """``text`` is what runs; ``changed`` says whether it differs from what the user wrote."""

    text: str
    tree: ast.Module
    changed: bool


def parse(source: str, name: str = "main.py") -> ast.Module:
    """The tree of Python source with top-level await allowed.

    Raises SyntaxError, also for what only the compiler finds.
    """
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are shown by the job, where they belong
        compile(source, name, "exec", flags=flags, dont_inherit=True)
        tree = compile(source, name, "exec", flags=flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    return tree


def translate(body: str, first_line: int) -> Translation:
    """What a cell runs as.

    ``first_line``: the cell's line that the body begins on. Raises SourceError, naming the line.
    """
    body = body.removeprefix("\ufeff")  # the mark of UTF-8, as Python reads it in main.py
    _check_text(body)
    try:
        return Translation(body, parse(body), changed=False)
    except SyntaxError as problem:
        error = problem
    try:
        text = _plain_python(body, first_line)
    except SyntaxError:  # IPython's tokenizer found no more than the compiler did
        text = None
    if text is None or text == body:
        raise not_python(error, body, first_line)
    try:
        return Translation(text, parse(text), changed=True)
    except SyntaxError as problem:
        raise not_python(problem, body, first_line) from None


def _check_text(body: str) -> None:
    if "\0" in body:
        raise SourceError(
            "The cell has a NUL character.", "Python source cannot hold one.", "Delete it, or write it as \\0."
        )
    try:
        data = body.encode()
    except UnicodeError as problem:
        raise SourceError("The cell's text cannot be stored as UTF-8.", str(problem), "Delete the character.") from None
    try:
        read = importlib.util.decode_source(data)
    except (UnicodeError, SyntaxError):
        read = None
    if read != body.replace("\r\n", "\n").replace("\r", "\n"):
        raise SourceError(
            "The cell declares an encoding that it is not stored in.",
            "A notebook is UTF-8, and the `coding:` comment in the first two lines says otherwise.",
            "Delete that comment.",
        )


def not_python(problem: SyntaxError, body: str, first_line: int, where: str = "the cell") -> SourceError:
    """A SyntaxError in the cell's own lines."""
    lines = body.split("\n")
    line = problem.lineno or 1
    text = lines[line - 1].strip() if line <= len(lines) else ""
    return SourceError(
        f"Line {line + first_line - 1} of {where} is not Python: {problem.msg}.",
        f"`{text}`" if text else "",
        "Nothing has been started; correct the line and run it again.",
    )


def _plain_python(body: str, first_line: int) -> str | None:
    """The body with the notebook's syntax replaced; None where IPython is not there to read it."""
    try:
        from IPython.core import inputtransformer2 as ipython
    except ImportError:
        return None
    lines = [line + "\n" for line in body.removesuffix("\n").split("\n")]
    timed = _take_cell_magic(lines, first_line)
    cleaners: list[Any] = [ipython.leading_indent, ipython.classic_prompt, ipython.ipython_prompt]
    for clean in cleaners:
        lines = clean(lines)
    finders: list[Any] = [ipython.MagicAssign, ipython.SystemAssign, ipython.HelpEnd, ipython.EscapedCommand]
    while True:
        tokens = ipython.make_tokens_by_line(lines)
        found = [piece for piece in (finder.find(tokens) for finder in finders) if piece]
        if not found:
            break
        piece = min(found, key=lambda piece: piece.sortby())
        lines = _replace(piece, lines, first_line)
    if timed:
        lines.append("get_ipython().cell_time()\n")
    return "".join(lines)


def _take_cell_magic(lines: list[str], first_line: int) -> bool:
    """Whether the first line of the body is %%time, which is emptied. Other cell magics are refused."""
    number = next((n for n, line in enumerate(lines) if line.strip()), None)
    if number is None or not lines[number].startswith("%%"):
        return False
    name, _, rest = lines[number][2:].strip().partition(" ")
    if name != "time":
        raise _refused("%%" + name, number + first_line)
    if rest.strip():
        raise SourceError(
            f"Line {number + first_line} of the cell: %%time takes nothing on its line.",
            f"It has `{rest.strip()}`.",
            "Put the statement on the next line, or write %time with one %.",
        )
    lines[number] = "\n"
    return True


def _replace(piece: Any, lines: list[str], first_line: int) -> list[str]:
    """The lines with one piece of notebook syntax replaced, as many as before."""
    start, column = piece.start_line, piece.start_col
    number = start + first_line
    head, rest = lines[start][:column], lines[start][column:]
    kind = type(piece).__name__
    if kind == "HelpEnd" or (kind == "EscapedCommand" and rest[0] in "?,;/"):
        raise _refused(rest.strip() if kind == "HelpEnd" else rest[0], number)
    after = piece.transform(lines)
    used = len(lines) - len(after) + 1  # lines that the piece was on
    if rest.startswith("%"):
        command = " ".join(
            part.removesuffix("\n").removesuffix("\\") for part in [rest, *lines[start + 1 : start + used]]
        )
        name, _, argument = command[1:].strip().partition(" ")
        after[start] = head + _magic(name, argument.strip(), assigned=kind == "MagicAssign", number=number) + "\n"
    return [*after[: start + 1], *["\n"] * (used - 1), *after[start + 1 :]]


def _magic(name: str, argument: str, *, assigned: bool, number: int) -> str:
    """The Python for `%name argument`.

    Timed code stays code, so that its names are seen and what it assigns is assigned.
    """
    if name == "time" and argument:
        text = f"get_ipython().timed(lambda: {argument})" if assigned else f"with get_ipython().time(): {argument}"
        return _checked(text, "%time", "a simple statement; after `=`, an expression", number)
    if name == "timeit" and not assigned:
        match = _TIMEIT.fullmatch(argument)
        if match:
            options = dict(re.findall(r"-([nr])\s*(\d+)", match[1]))
            text = f"get_ipython().timeit(lambda: ({match[2]}), {options.get('n', 0)}, {options.get('r', 7)})"
            return _checked(text, "%timeit", "an expression, with -n and -r before it", number)
    if name not in LINE_MAGICS:
        raise _refused("%" + name, number)
    return f"get_ipython().run_line_magic({name!r}, {argument!r})"


def _checked(text: str, magic: str, takes: str, number: int) -> str:
    try:
        parse(text)
    except SyntaxError:
        raise SourceError(
            f"Line {number} of the cell: {magic} in a job takes {takes}.",
            "What follows it is something else.",
            f"Delete {magic}, or write time.perf_counter() around the code.",
        ) from None
    return text


def _refused(syntax: str, number: int) -> SourceError:
    return SourceError(
        f"Line {number} of the cell has `{syntax}`, which has no meaning in a job.",
        f"Of the notebook's own syntax, a job understands {SUPPORTED}.",
        "Run that line in a cell of its own, and leave it out of this one.",
    )
