"""From a cell's text to a call of a magic: what makes a waiting cell one that awaits."""

from __future__ import annotations

import re
import textwrap
from typing import Any

#: In front of a magic's name: the form of it that returns a coroutine, called by what is below and by nobody else.
AWAITED = "_"

_CELL = re.compile(r"[ \t]*%%kftrain(?=\s|$)")
_LINE = re.compile(r"\s*(?:\w+\s*=\s*)?%kf\w+[ \t]")


class CellTransformer:
    """Turns a ``%%kftrain`` cell into a call of the magic, awaited where IPython can.

    The magic gets the text between its name and the body as it is: blank lines above as newlines, continued lines
    with their ``\\`` (``kfnb.magics.line.join`` reads both), so that it knows the line at which the body begins.
    """

    kfnb = True
    #: IPython then leaves us out when it asks whether a cell is complete, and sees the cell magic that it knows.
    has_side_effects = True

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def __call__(self, lines: list[str]) -> list[str]:
        found = _split(lines)
        if found is None:
            return lines
        blank, magic, body = found
        argument = "\n" * blank + "".join(magic).rstrip("\r\n")
        if can_await(self._shell):
            call = f"await get_ipython().run_cell_magic({AWAITED + 'kftrain'!r}"
        else:
            call = "get_ipython().run_cell_magic('kftrain'"
        # IPython refuses an empty body in the name of the magic called; a blank one reaches ours
        return [f"{call}, {argument!r}, {''.join(body) or chr(10)!r})\n"]

    @staticmethod
    def magic_line(lines: list[str]) -> str | None:
        """The magic's line up to the end of ``lines``, continued lines joined; None where that is no line of ours."""
        found = _split(lines)
        if found is not None:
            _, magic, body = found
            if body:
                return None
            text = " ".join(line.rstrip("\r\n").removesuffix("\\") for line in magic)
            return "%%kftrain" + text if text else None
        return lines[-1] if _LINE.match(lines[-1]) else None


def _split(lines: list[str]) -> tuple[int, list[str], list[str]] | None:
    """(number of blank lines above, the magic's lines without its name, the body), or None for another cell."""
    blank = next((index for index, line in enumerate(lines) if line.strip()), None)
    match = _CELL.match(lines[blank]) if blank is not None else None
    if blank is None or match is None:
        return None
    rest = lines[blank:]
    if match[0] != "%%kftrain":  # as IPython does with a cell that is indented as a whole
        rest = textwrap.dedent("".join(rest)).splitlines(keepends=True)
    end = 0
    while rest[end].rstrip("\r\n").endswith("\\") and end + 1 < len(rest):
        end += 1
    return blank, [rest[0][len("%%kftrain") :], *rest[1 : end + 1]], rest[end + 1 :]


def can_await(shell: Any) -> bool:
    """Whether a cell can await: ipykernel's own loop is there to go on serving, and no other cell runs this one."""
    if not getattr(shell, "autoawait", False) or getattr(shell, "kernel", None) is None:
        return False
    if getattr(shell.display_trap, "_nested_level", 0):  # IPython 8.18 has no public form of it
        return False
    import asyncio

    from IPython.core.async_helpers import _asyncio_runner

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return shell.loop_runner is _asyncio_runner


def line_transformer(shell: Any) -> type:
    """Turns ``%kfattach``, ``%kfrun`` and ``%kflogs`` at the beginning of a line into calls that await."""
    from IPython.core.inputtransformer2 import EscapedCommand

    class AwaitingLine(EscapedCommand):
        kfnb = True
        priority = 9  # before IPython's own, after help

        @classmethod
        def find(cls, tokens_by_line: Any) -> Any:
            for tokens in tokens_by_line:
                if (
                    len(tokens) > 1
                    and tokens[0].string == "%"
                    and tokens[0].start[1] == 0
                    and tokens[1].string in {"kfattach", "kflogs", "kfrun"}
                    and tokens[1].start == tokens[0].end
                    and can_await(shell)
                ):
                    return cls(tokens[0].start)
            return None

        def transform(self, lines: list[str]) -> list[str]:
            start = self.start_line
            called = [*lines[:start], "%" + AWAITED + lines[start][1:], *lines[start + 1 :]]
            plain: list[str] = super().transform(called)  # type: ignore[no-untyped-call]
            return [*plain[:start], "await " + plain[start], *plain[start + 1 :]]

    return AwaitingLine
