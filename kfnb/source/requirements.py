"""``--pip`` as the lines of one requirements file: files that it names are read now and travel with the record."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kfnb.errors import SourceError

_FILE = re.compile(r"(?:-r|--requirement)[ =]?\s*(.+)")
_CONSTRAINTS = re.compile(r"(?:-c|--constraint)[ =]?\s*(.+)")
_COMMENT = re.compile(r"(^|\s+)#.*$")
_CONTINUED = re.compile(r"\\\r?\n")


def requirement_lines(pip: Sequence[str], folder: Path) -> tuple[str, ...]:
    """The requirements of ``--pip``, one a line. A ``NAME.txt``, or ``-r FILE``, stands for the lines of that file.

    Paths are relative to ``folder``, those within a file to that file, as pip has it. Raises ``SourceError`` for a
    file that cannot be read or that includes itself.
    """
    return tuple(dict.fromkeys(line for item in pip for line in _lines(item, folder, ())))


def _lines(item: str, folder: Path, within: tuple[Path, ...]) -> Iterator[str]:
    item = item.strip()
    file = _FILE.fullmatch(item)
    constraints = _CONSTRAINTS.fullmatch(item)
    if file or (not within and item.endswith(".txt")):
        yield from _read((folder / (file[1] if file else item).strip("'\"")).resolve(), within)
    elif constraints:
        yield f"-c {(folder / constraints[1]).resolve()}"
    elif item:
        yield item


def _read(path: Path, within: tuple[Path, ...]) -> Iterator[str]:
    if path in within:
        raise SourceError(f"--pip {within[0]}: {path} includes itself.", fix="Take that line out.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        fix = "Name a file that is there."
        raise SourceError(f"--pip: the requirements file {path} cannot be read.", why, fix) from None
    for line in _CONTINUED.sub("", text).splitlines():
        yield from _lines(_COMMENT.sub("", line), path.parent, (*within, path))
