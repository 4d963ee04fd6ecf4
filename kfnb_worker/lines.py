"""From the bytes a process prints to lines, as a terminal would leave them.

Plain text passes byte for byte. A carriage return goes back to the start of the line, so that a thousand updates of a
progress bar are one line in the end; cursor-up codes (nested tqdm bars) go back to the lines above.
"""

from __future__ import annotations

import re
from typing import Callable, List, Optional

from kfnb_worker.wire import PIECE

_UP = re.compile(rb"\x1b\[(\d*)A")
_BLANK = re.compile(rb"(?:[ \b]|\x1b\[[0-2]?K)*")

#: More rows than this above the cursor are final: nobody draws that many bars.
_ROWS = 32

#: What is called with finished lines; ``more`` says that the (only) one is a piece of a line that goes on.
Emit = Callable[[List[bytes], bool], None]


class _Row:
    """A line that may still change. ``bar``: it was overwritten; ``fresh``: it was touched since the last tick."""

    __slots__ = ("bar", "fresh", "text")

    def __init__(self) -> None:
        self.text, self.bar, self.fresh = b"", False, True

    def write(self, text: bytes) -> None:
        text = self.text + text
        if b"\r" in text:
            body = text.rstrip(b"\r")
            _, returned, last = body.rpartition(b"\r")
            self.bar = self.bar or bool(returned)
            text = last + b"\r" if len(body) < len(text) else last
        self.text, self.fresh = text, True

    def final(self) -> bytes:
        text = self.text.rstrip(b"\r") if b"\r" in self.text else self.text
        return b"" if self.bar and _BLANK.fullmatch(text) else text


class Lines:
    """Feed it bytes in chunks of any size; ``tick`` it about once a second while ``unsettled``; ``end`` it.

    What it holds is bounded: longer lines go out in pieces.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._rows = [_Row()]
        self._cursor = 0
        self._stayed = 0  # returns to the start of the bottom row since the cursor came there
        self._pieced = False  # pieces of the line at the cursor are out: it can no longer be taken back
        self._shown = b""  # the transient text that a reader has before it

    @property
    def unsettled(self) -> bool:
        """Whether a ``tick`` has something to do."""
        return len(self._rows) > 1 or (not self._pieced and self._state() != self._shown)

    def feed(self, data: bytes) -> None:
        rows = self._rows
        if len(rows) > 1 or rows[0].bar or b"\r" in data or rows[0].text[-1:] == b"\r" or _UP.search(data):
            return self._draw(data)
        lines = data.split(b"\n")
        row = rows[0]
        if row.text:
            lines[0] = row.text + lines[0]
        row.text = lines.pop()
        if lines:
            self._pieced, self._shown = False, b""
            self._emit(lines, False)
        if len(row.text) > PIECE:
            self._spill(row)
        return None

    def tick(self, quiet: bool) -> Optional[bytes]:
        """Settle rows that nothing returns to; the present state of the unfinished line(s) where it is news, else None.

        ``quiet``: nothing came for a second, so that a plain line's beginning is worth showing.
        """
        above = self._rows[: self._cursor]
        stale = next((index for index, row in enumerate(above) if row.fresh), len(above))
        if stale:
            self._settle(stale)
        for row in self._rows:
            row.fresh = False
        state = self._state()
        if self._pieced or state == self._shown or not (quiet or len(self._rows) > 1 or self._rows[0].bar):
            return None
        self._shown = state
        return state

    def end(self) -> None:
        """The process closed its end: what is there is final."""
        last = self._rows[-1]
        if not last.final() and not self._pieced:
            self._rows.pop()
        while self._rows and self._rows[-1].bar and not self._rows[-1].final():
            self._rows.pop()
        if self._rows:
            self._emit([row.final() for row in self._rows], False)
        self._rows, self._cursor, self._pieced, self._shown = [_Row()], 0, False, b""

    def _state(self) -> bytes:
        return b" | ".join(filter(None, (row.final() for row in self._rows)))[:PIECE]

    def _draw(self, data: bytes) -> None:
        """The terminal's way, for chunks with carriage returns or cursor movements."""
        segments = data.split(b"\n")
        last = len(segments) - 1
        for index, segment in enumerate(segments):
            start = 0
            for up in _UP.finditer(segment):
                self._write(segment[start : up.start()])
                self._cursor = max(0, self._cursor - int(up.group(1)[:4] or 1))
                self._stayed = 0
                start = up.end()
                if len(self._rows) > 1:
                    self._rows[self._cursor].text += b"\r"
            self._write(segment[start:])
            if index < last:
                self._newline()

    def _write(self, text: bytes) -> None:
        if self._cursor and self._cursor + 1 == len(self._rows):
            self._stayed += text.count(b"\r")
            if self._stayed > 1:  # nested bars go up after each update: the rows above are done
                self._settle(self._cursor)
        row = self._rows[self._cursor]
        if self._pieced and b"\r" in text:
            # Pieces cannot be overwritten: that line ends here, unless this is the \r of a \r\n.
            before, _, after = text.partition(b"\r")
            if after.strip(b"\r"):
                self._emit([row.text.rstrip(b"\r") + before], False)
                row.text, self._pieced, row.bar = b"", False, True
                text = after
        row.write(text)
        if len(row.text) > PIECE:
            self._spill(row)

    def _newline(self) -> None:
        self._stayed = 0
        row = self._rows[self._cursor]
        if self._cursor + 1 < len(self._rows):
            self._cursor += 1
            self._rows[self._cursor].text += b"\r"
        elif len(self._rows) == 1 and not row.bar:
            self._settle(1)
        elif row.final() and not row.bar:  # plain text below the bars: the bars are done
            self._settle(len(self._rows))
        else:
            self._rows.append(_Row())
            self._cursor += 1
            if self._cursor > _ROWS:
                self._settle(1)

    def _settle(self, count: int) -> None:
        """The top ``count`` rows are final."""
        self._emit([row.final() for row in self._rows[:count]], False)
        del self._rows[:count]
        self._cursor = max(0, self._cursor - count)
        self._pieced = False
        if not self._rows:
            self._rows.append(_Row())
        self._shown = b""

    def _spill(self, row: _Row) -> None:
        """A line longer than a piece goes out as far as it is there; the other rows have to go first."""
        others = [other.final() for other in self._rows if other is not row]
        if others:
            self._emit(others, False)
            self._rows, self._cursor = [row], 0
        whole = len(row.text) - len(row.text) % PIECE
        for start in range(0, whole, PIECE):
            self._emit([row.text[start : start + PIECE]], True)
        row.text = row.text[whole:]
        row.bar, self._pieced, self._shown = False, True, b""
