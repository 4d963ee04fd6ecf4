"""Completion on the lines of the magics: options, their values, names of the notebook, paths and jobs."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Iterable
from typing import Any

from IPython.core.completer import SimpleCompletion

from kfnb import portal
from kfnb.api import captured_names, list_jobs
from kfnb.errors import KfnbError
from kfnb.magics import LINE_MAGICS
from kfnb.magics.parsers import magic_parser
from kfnb.options import OPTIONS, complete

_LINE = re.compile(r"\s*(?:\w+\s*=\s*)?%{1,2}(kf\w+)(.*)", re.DOTALL)

_ASSIGNED = re.compile(r"^(?:(?:def|class)[ \t]+)?([A-Za-z_]\w*)[ \t]*(?:[(:]|=(?!=)|:[^=\n]+=)", re.MULTILINE)

#: Options whose values are files and folders, or folders alone.
_FILES = {"--module", "--pip"}
_FOLDERS = {"--workspace", "--logdir", "--checkpoint"}


def match(shell: Any, line: str, body: str) -> dict[str, Any]:
    """The result of an IPython matcher for ``line``, a magic's line up to the cursor; ``body`` is what is below it."""
    found = _LINE.match(line)
    if found is None:
        return {"completions": []}
    fragment, texts = candidates(shell, found[1], found[2], body)
    return {
        "completions": [SimpleCompletion(text, type="magic") for text in texts],
        "matched_fragment": fragment,
        "suppress": True,
        "ordered": True,
    }


def candidates(shell: Any, magic: str, rest: str, body: str) -> tuple[str, list[str]]:
    """(the text being completed, what it can become)."""
    words = rest.split()
    if not rest or rest[-1].isspace():
        words.append("")
    if "--" in words[:-1]:
        return words[-1], []
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last.startswith("--") and "=" in last:
        before, _, last = last.partition("=")
    item = last.rpartition(",")[2]
    if before == "--use" and magic == "kfrun":
        return last, sorted(f"{name}=" for name in _captured(words[0]) if name.startswith(last))
    if before == "--use":
        return item, sorted(name for name in _notebook_names(shell) if name.startswith(item))
    if before == "--out":
        return item, sorted({name for name in _ASSIGNED.findall(body) if name.startswith(item)})
    if before in _FILES:
        return item, sorted(_paths(item, files=True))
    if before in _FOLDERS:
        return last, sorted(_paths(last, files=False))
    if before == "--env" and "=" not in last:
        return last, sorted(name for name in os.environ if name.startswith(last))
    if magic == "kftrain":
        return last, complete([*words[:-2], before, last])
    if magic not in LINE_MAGICS:
        return last, []
    return last, _of_line_magic(magic, words[:-1], before, last)


def _of_line_magic(magic: str, given: list[str], before: str, last: str) -> list[str]:
    actions = magic_parser(magic)._actions
    option = next((action for action in actions if before in action.option_strings), None)
    if option is not None and option.nargs != 0:
        known = OPTIONS.get(option.dest)
        return [choice for choice in (known.choices if known else ()) if choice.startswith(last)]
    flags = (flag for action in actions for flag in action.option_strings if flag not in given)
    names: Iterable[str] = ()
    if not last.startswith("-") and any(not action.option_strings for action in actions):
        names = _jobs()
    return [text for text in (*names, *flags) if text.startswith(last)]


def _jobs() -> list[str]:
    try:
        infos = portal.call(list_jobs())
    except (KfnbError, OSError):
        return []
    return list(dict.fromkeys([info.id for info in infos] + [info.name for info in infos]))


def _captured(name: str) -> list[str]:
    """The values that a repeat of the job can change."""
    try:
        return portal.call(captured_names(name))
    except (KfnbError, OSError):
        return []


def _notebook_names(shell: Any) -> Iterable[str]:
    hidden = getattr(shell, "user_ns_hidden", {})
    for name, value in list(shell.user_ns.items()):
        if not name.startswith("_") and name not in hidden and not isinstance(value, types.ModuleType):
            yield name


def _paths(start: str, *, files: bool) -> Iterable[str]:
    folder, _, name = start.rpartition("/")
    prefix = f"{folder}/" if "/" in start else ""
    try:
        entries = list(os.scandir(os.path.expanduser(prefix or ".")))
    except OSError:
        return
    for entry in entries:
        if not entry.name.startswith(name) or (entry.name.startswith(".") and not name):
            continue
        if entry.is_dir():
            yield f"{prefix}{entry.name}/"
        elif files:
            yield prefix + entry.name
