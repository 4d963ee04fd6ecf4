"""A magic's line as users write it: continued lines, and ``{name}`` from the notebook."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from kfnb.errors import UsageError
from kfnb.options import split_line

_CONTINUED = re.compile(r"\\\r?\n[ \t]*")
_BRACES = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)\}")


def join(text: str) -> tuple[str, int]:
    """(the line with continued lines joined, the cell's line at which the body begins)."""
    return _CONTINUED.sub(" ", text).strip(), 2 + text.count("\n")


def expand(line: str, namespace: Mapping[str, object]) -> str:
    """The line with each ``{name}`` replaced by that notebook value, as one word whatever it holds.

    ``{{`` and ``}}`` are braces, and any other brace stays. A list or tuple becomes ``a,b``. Raises ``UsageError``
    naming a name that the notebook does not have.
    """
    if "{" not in line and "}" not in line:
        return line
    words, args = split_line(line)
    expanded = [_word(word, namespace) for word in words]
    if args:
        expanded += ["--", *(_word(word, namespace) for word in args)]
    return shlex.join(expanded)


def _word(word: str, namespace: Mapping[str, object]) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        if match[1] not in namespace:
            raise UsageError(
                f"{{{match[1]}}} names nothing: the notebook has no `{match[1]}`.",
                fix=f"Define it first, or write {{{{{match[1]}}}}} for the braces themselves.",
            )
        value = namespace[match[1]]
        return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

    return _BRACES.sub(replace, word)
