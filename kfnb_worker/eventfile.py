"""Reads the scalars of TensorBoard event files, while they grow.

An event file is a sequence of records `length u64 | masked crc32c of it | data | masked crc32c of data`, each data an
`Event` protobuf. Only the offset after the last good record is kept between polls, so a partial tail is simply read
again. Nothing here decides what a series is: points come out by tag, in the order of the file.

Speed comes from templates. Consecutive records of a tag differ in step, wall time and value alone; a template holds
the other bytes and says where those three stand, so that a record costs two comparisons and one unpack instead of a
parse. The checksums of a template's records are checked together, once a chunk; where that fails, the chunk is parsed
again with every record checked by itself.
"""

from __future__ import annotations

import math
import os
import re
import struct
import sys
from array import array
from typing import BinaryIO, Dict, List, Optional, Tuple

from kfnb_worker import event
from kfnb_worker.crc32c import are_sound, is_sound, masked

CHUNK = 1 << 16  # bytes read at a time
LARGEST = 1 << 20  # bytes; a longer record is an image, a graph or an embedding: passed over unread
PATIENCE = 5  # polls that find a bad header (a file system may show zeros for a while) before it is skipped
HEAD = 21  # bytes that tell a file: length, its checksum and the wall time of the first record
TEMPLATES = 4096  # kept at most
SMALL = 512  # bytes; records without scalars are checked up to this size, beyond only their headers

#: The points of one tag: steps (int64), wall times (Unix seconds), values.
Columns = Tuple["array[int]", "array[float]", "array[float]"]

_HEADER = struct.Struct("<QI")
# A header as it looks in a sea of bytes: a length that is not 0 and below 2^24.
_LIKELY = re.compile(rb"(?s)(?=(?!\0\0\0)...\0\0\0\0\0....)")


class _Template:
    """The bytes that all records of a tag with one length of step share, and where the others stand."""

    __slots__ = (
        "at_middle",
        "at_tail",
        "base",
        "following",
        "head",
        "high",
        "middle",
        "size",
        "step",
        "tail",
        "unchecked",
        "unpack",
        "value",
        "wall",
    )

    def __init__(self, record: bytes, step_bytes: int, scalar: event.Scalar, columns: Columns) -> None:
        self.step, self.wall, self.value = (column.append for column in columns)
        self.size = len(record)
        self.head = record[:13]
        self.at_middle = 22 + step_bytes
        self.middle = record[self.at_middle : 12 + scalar.at]
        self.at_tail = 12 + scalar.at + struct.calcsize("<" + scalar.kind)
        self.tail = record[self.at_tail : -4]
        layout = (step_bytes - 1, len(self.middle), scalar.kind)
        self.unpack = struct.Struct("<13xdxB%ds%dx%s" % layout).unpack_from
        self.rebase(record[23 : self.at_middle])
        self.unchecked: List[bytes] = []
        self.following = self  # the template of the record that came after this one's last time

    def rebase(self, high: bytes) -> None:
        """Remembers what the bytes of a step after its lowest one, ``high``, add to it."""
        self.high = high
        self.base = -128 if high else 0
        for position, byte in enumerate(high, 1):
            self.base += (byte if position == len(high) else byte - 128) << 7 * position


class Parser:
    """Turns bytes of event files into points by tag. Its templates serve any number of files."""

    def __init__(self) -> None:
        self.bad_data = 0  # records with a bad checksum, or that are no Event: skipped
        self._forget()

    def _forget(self) -> None:
        self._columns: Dict[str, Columns] = {}
        self._templates: Dict[Tuple[bytes, ...], _Template] = {}
        # Where middle and tail of a record may begin and end, by the first bytes of the record.
        self._layouts: Dict[bytes, List[Tuple[int, int, int, int]]] = {}
        self._last = _no_template()

    def parse(self, data: bytes) -> Tuple[Dict[str, Columns], int]:
        """The points of the whole records that ``data`` begins with, and how many bytes these are.

        What remains begins with an incomplete record, one that is too large, or a bad header.
        """
        bad_data = self.bad_data
        end = self._scan(data)
        if not all(are_sound(template.unchecked) for template in self._templates.values() if template.unchecked):
            self._drain()
            self.bad_data = bad_data
            end = self._scan_singly(data)
        for template in self._templates.values():
            if template.unchecked:
                template.unchecked.clear()
        points = self._drain()
        if max(len(self._templates), len(self._columns)) > TEMPLATES:
            self._forget()
        return points, end

    def _drain(self) -> Dict[str, Columns]:
        points: Dict[str, Columns] = {}
        for tag, (steps, walls, values) in self._columns.items():
            if steps:
                points[tag] = steps[:], walls[:], values[:]
                del steps[:], walls[:], values[:]
        return points

    def _scan(self, data: bytes) -> int:
        offset, end = 0, len(data)
        startswith = data.startswith
        template = self._last
        while True:
            guess = template.following
            stop = offset + guess.size
            if (
                stop <= end
                and startswith(guess.head, offset)
                and startswith(guess.middle, offset + guess.at_middle)
                and (not guess.tail or startswith(guess.tail, offset + guess.at_tail))
            ):
                wall, low, high, value = guess.unpack(data, offset)
                if high != guess.high:
                    guess.rebase(high)
                guess.step(guess.base + low)
                guess.wall(wall)
                guess.value(value)
                guess.unchecked.append(data[offset + 12 : stop])
                template, offset = guess, stop
                continue
            known = self._lookup(data, offset)
            if known is None:
                stop = record_end(data, offset)
                if stop < 0:
                    break
                known = self._parse_record(data, offset, stop)
                offset = stop
                if known is None:
                    continue
                template.following = template = known
            else:
                template.following = known
        self._last = template
        return offset

    def _scan_singly(self, data: bytes) -> int:
        offset = 0
        while True:
            stop = record_end(data, offset)
            if stop < 0:
                return offset
            self._parse_record(data, offset, stop)
            offset = stop

    def _lookup(self, data: bytes, offset: int) -> Optional[_Template]:
        """The template of the whole record at ``offset``, if there is one."""
        head = data[offset : offset + 13]
        for start, stop, tail, end in self._layouts.get(head, ()):
            same = data[offset + start : offset + stop], data[offset + tail : offset + end]
            template = self._templates.get((head, *same))
            if template is not None and template.at_middle == start and offset + template.size <= len(data):
                return template
        return None

    def _parse_record(self, data: bytes, offset: int, stop: int) -> Optional[_Template]:
        """Adds the points of a record, and makes a template of it where it is plain enough."""
        content = data[offset + 12 : stop - 4]
        try:
            wall, step, scalars, step_bytes = event.parse(content)
        except event.Malformed:
            self.bad_data += 1
            return None
        if not scalars and len(content) > SMALL:
            return None
        if not is_sound(data[offset + 12 : stop]):
            self.bad_data += 1
            return None
        for scalar in scalars:
            steps, walls, values = self._columns_of(scalar)
            steps.append(step)
            walls.append(wall)
            values.append(scalar.value)
        if not 0 < step_bytes < 9 or not scalars or not scalars[0].kind:
            return None
        template = _Template(data[offset:stop], step_bytes, scalars[0], self._columns_of(scalars[0]))
        self._templates[template.head, template.middle, template.tail] = template
        layouts = self._layouts.setdefault(template.head, [])
        end_of_middle, tail = template.at_middle + len(template.middle), template.at_tail
        layout = (template.at_middle, end_of_middle, tail, tail + len(template.tail))
        if layout not in layouts:
            layouts.append(layout)
        return template

    def _columns_of(self, scalar: event.Scalar) -> Columns:
        tag = scalar.tag.decode("utf-8", "backslashreplace")
        columns = self._columns.get(tag)
        if columns is None:
            columns = self._columns[tag] = array("q"), array("d"), array("d")
        return columns


def record_end(data: bytes, offset: int) -> int:
    """Where the whole record at ``offset`` ends, or -1: it is incomplete, too large, or its header is bad."""
    length = header_length(data, offset)
    stop = offset + 16 + length
    return stop if 0 <= length <= LARGEST and stop <= len(data) else -1


def header_length(data: bytes, offset: int) -> int:
    """The length of the data of the record at ``offset``: -1 where the header is incomplete, -2 where it is bad."""
    if len(data) - offset < 12:
        return -1
    length: int
    length, check = _HEADER.unpack_from(data, offset)
    good = masked(data[offset : offset + 8]) == check
    return length if good else -2


class EventFile:
    """One event file that may still grow, be replaced, or be cut.

    A file is known by its first bytes, not by its inode: a copy put in its place is the same file and goes on from the
    same offset, while other first bytes start again. A file that became shorter is read again, and the points that
    were given out before (by wall time) are not repeated.

    Attributes:
        offset: bytes after the last good record.
        more: whether the last ``poll`` stopped at its limit, with more to read.
        stuck: whether a bad header has to be looked at again, even if the file does not change.
        bad_data: records that were skipped because their checksum is bad or they are no event.
        lost: bytes that were skipped because no record could be made out in them.
        created: Unix seconds by the writer's clock; 0.0 until the first record is there.
    """

    __slots__ = (
        "_bad_polls",
        "_head",
        "_newest",
        "_parser",
        "_patience",
        "_repeats_until",
        "_searched",
        "bad_data",
        "created",
        "lost",
        "more",
        "offset",
        "path",
        "stuck",
    )

    def __init__(self, path: str, parser: Optional[Parser] = None, patience: int = PATIENCE) -> None:
        self.path = path
        self.more = self.stuck = False
        self.bad_data = self.lost = 0
        self._parser = parser or Parser()
        self._patience = patience
        self._begin(b"")

    def _begin(self, head: bytes) -> None:
        self._head = head
        self.created = float(struct.unpack_from("<d", head, 13)[0]) if head else 0.0
        self._newest = self._repeats_until = -math.inf  # wall times given out
        self._go_to(0)

    def _go_to(self, offset: int) -> None:
        self.offset = offset
        self._bad_polls = 0
        self._searched = 0  # until where no header was found

    def poll(self, limit: int = sys.maxsize) -> Dict[str, Columns]:
        """The points that came since the last poll, by tag, from about ``limit`` bytes at most.

        Raises ``OSError`` where the file cannot be read; then nothing is lost.
        """
        points: Dict[str, Columns] = {}
        self.more = self.stuck = False
        with open(self.path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(HEAD)
            if len(head) < HEAD:
                return points
            if head != self._head:
                self._begin(head)
            elif size < self.offset:
                self._repeats_until = self._newest
                self._go_to(0)
            while self.offset < size:
                if limit <= 0:
                    self.more = True
                    break
                worked = self._advance(file, size, points)
                if not worked:
                    break
                limit -= worked
        return points

    def _advance(self, file: BinaryIO, size: int, points: Dict[str, Columns]) -> int:
        """Reads a chunk, or passes what is no record; returns how many bytes of work that was, 0 if none is left."""
        file.seek(self.offset)
        data = file.read(CHUNK)
        bad_data = self._parser.bad_data
        found, end = self._parser.parse(data)
        if not end:
            length = header_length(data, 0)
            if length == -2:
                return self._search(file, size)
            whole = 16 + length
            if length < 0 or self.offset + whole > size:
                return 0  # the writer is not done with it
            if length <= LARGEST:
                file.seek(self.offset)
                found, end = self._parser.parse(file.read(whole))
                if not end:
                    return 0  # the file shrinks
            else:
                end = whole
        self._go_to(self.offset + end)
        self.bad_data += self._parser.bad_data - bad_data
        for tag, columns in found.items():
            self._give(tag, columns, points)
        return len(data)

    def _give(self, tag: str, columns: Columns, points: Dict[str, Columns]) -> None:
        walls = columns[1]
        if walls[0] <= self._repeats_until:
            fresh = [index for index, wall in enumerate(walls) if not wall <= self._repeats_until]
            columns = (
                array("q", [columns[0][index] for index in fresh]),
                array("d", [columns[1][index] for index in fresh]),
                array("d", [columns[2][index] for index in fresh]),
            )
            if not fresh:
                return
        self._newest = max(self._newest, columns[1][-1])
        if tag not in points:
            points[tag] = columns
            return
        steps, walls, values = points[tag]
        steps.extend(columns[0])
        walls.extend(columns[1])
        values.extend(columns[2])

    def _search(self, file: BinaryIO, size: int) -> int:
        """Looks for the next record after a bad header; returns how many bytes of work that was, 0 if none is left."""
        if self._bad_polls < self._patience:
            self._bad_polls += 1
            self.stuck = True
            return 0
        start = max(self._searched, self.offset + 1)
        file.seek(start)
        data = file.read(CHUNK)
        for match in _LIKELY.finditer(data):
            at = match.start()
            length = header_length(data, at)
            if length < 0:
                continue
            self._searched = start + at
            if self._searched + 16 + length > size:
                return 0  # the writer is not done with it
            file.seek(self._searched)
            record = file.read(16 + length)
            if is_sound(record[12:]):
                self.lost += self._searched - self.offset
                self._go_to(self._searched)
                return at + 1
        self._searched = start + max(len(data) - 11, 0)
        return len(data) if self._searched + 11 < size else 0


def read(path: str) -> Dict[str, Columns]:
    """All points of an event file by tag: (steps int64, wall times in Unix seconds, values), each of shape (points,).

    Raises ``OSError``.
    """
    return EventFile(path, patience=0).poll()


def _no_template() -> _Template:
    """What stands for the last template before there is one: it matches nothing."""
    return _Template(b"\xff" * 64, 1, event.Scalar(b"", 0.0, 20, "f"), (array("q"), array("d"), array("d")))
