"""Follows all event files below a logdir, whoever writes them, and says what came as `s` records.

One sweep looks at every known directory and file once: a directory is listed again only when its modification time
says so (or now and then, for file systems that do not keep it), a file is read only when its size or time changed.
A poll does a bounded part of a sweep, so that neither a huge tree nor a huge backlog holds the worker up, and sweeps
are spaced so that looking takes at most 2% of a core.
"""

from __future__ import annotations

import os
import re
import stat
import time
import zlib
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from kfnb_worker import wire
from kfnb_worker.eventfile import CHUNK, Columns, EventFile, Parser

#: Work is counted in steps of about a microsecond. One poll does little more than this.
POLL_WORK = 10_000
REST = 50e-6  # seconds of rest for each step of looking
BYTES_A_STEP = 32
SETTLE = 3.0  # seconds after a change in which a coarse modification time may hide another
RELIST = 60.0  # seconds after which a directory is listed whatever its time says
DIRECTORIES = 10_000  # followed at most
FILES = 10_000
NOTES = 20  # kinds of trouble told at most

ROOM = 14_000  # bytes of a record for tags and points
POINT = 71  # bytes of the longest point in JSON: 20 digits, two floats of 24, separators
NAME = 512  # bytes of a tag or a directory; longer ones are cut

#: In place of a rank, for a process whose files are not this worker's to read: a rank of the job that another worker
#: takes care of (two nodes on one machine share a logdir), and a living process that is not of the job.
ELSEWHERE, FOREIGN = -1, -2

_STAMP = re.compile(r"tfevents\.(\d{1,12})(?:\.(.*))?$", re.DOTALL)


class _Writer(NamedTuple):
    """What a file's name says of its writer."""

    started: Optional[int]  # Unix seconds
    host: Optional[str]
    pid: Optional[int]


def writer_of(name: str, this_host: str) -> _Writer:
    """Reads `events.out.tfevents.TIME.HOST.PID.N[suffix]`. HOST may hold dots, and old writers leave PID and N out."""
    match = _STAMP.search(name)
    if match is None:
        return _Writer(None, None, None)
    started, rest = int(match.group(1)), match.group(2) or ""
    if rest.startswith(this_host + "."):
        numbers = rest[len(this_host) + 1 :].split(".")
        if len(numbers) > 1 and numbers[0].isdigit():
            return _Writer(started, this_host, int(numbers[0]))
    parts = rest.split(".")
    for index in range(len(parts) - 2, 0, -1):
        if parts[index].isdigit() and parts[index + 1].isdigit():
            return _Writer(started, ".".join(parts[:index]), int(parts[index]))
    return _Writer(started, None, None)


class _File:
    __slots__ = ("attempt", "ordinal", "ours", "placed", "rank", "reader", "seen", "writer")

    def __init__(self, reader: EventFile, writer: _Writer) -> None:
        self.reader = reader
        self.writer = writer
        self.ordinal = 0  # below 0 for a file from before the job
        # The rest is known once the first record is there, and found anew when another file takes its place.
        self.placed = 0.0  # when that file was created
        self.attempt = 0
        self.rank: Optional[int] = None
        self.ours = True
        self.seen: Tuple[int, int, int] = (-1, -1, -1)


class _Directory:
    __slots__ = ("files", "gone", "identity", "listed", "modified", "name", "oldest", "path", "settles", "used")

    def __init__(self, path: str, name: str, identity: Tuple[int, int]) -> None:
        self.path = path
        self.name = name  # relative to the logdir
        self.identity = identity
        self.files: List[_File] = []  # in the order in which they are read
        self.modified = -1
        self.settles = self.listed = 0.0
        self.gone = False
        self.oldest = 0  # the lowest ordinal given to a file from before the job
        self.used = False  # whether a rank of this job writes here


class LogdirTailer:
    """Reads what is new in the event files below ``logdir``; to be made before the ranks are started.

    A logdir may be kept for, or shared with, other jobs. This job's are the files that its own processes make. A file
    from before the job belongs to it where one of its ranks goes on in the same directory, and is then read first; not
    so if it was written to since the job began, and so is a running job's.

    Args:
        logdir: need not exist yet.
        rank_of_pid: the global rank of a process; None for one that has ended and is no known rank: its files are the
            job's; ``ELSEWHERE`` or ``FOREIGN``.
        attempt: the job's present attempt.
        leftovers: whether to read files that no rank of this worker wrote (older sessions, other programs). False where
            another worker reads the same logdir.

    Attributes:
        more: whether the last ``poll`` left something to do at once.
    """

    def __init__(
        self,
        logdir: str,
        rank_of_pid: Callable[[int], Optional[int]],
        attempt: Callable[[], int],
        leftovers: bool = True,
    ) -> None:
        self.logdir = logdir
        self.more = False
        self._rank_of_pid = rank_of_pid
        self._leftovers = leftovers
        self._attempt = attempt
        self._polled = time.time()
        self._attempts = [(self._polled, attempt())]  # with when each was noticed to have begun
        self._parser = Parser()
        self._directories: List[_Directory] = []
        self._identities: Set[Tuple[int, int]] = set()
        self._files = 0
        self._sweep: Optional[Iterator[Tuple[int, List[Dict[str, Any]]]]] = None
        self._rest_until = 0.0
        self._looked = 0
        self._notes: List[str] = []
        self._noted: Set[str] = set()

    def poll(self, final: bool = False) -> List[Dict[str, Any]]:
        """The points that came, as `s` records of less than 15 KiB each.

        Does a bounded part of the work; ``more`` says whether it is to be called again at once. ``final`` looks even if
        the tree is so large that it would rest now: to be used, until ``more`` is False, once the ranks are gone.
        """
        records: List[Dict[str, Any]] = []
        self.more = False
        if self._attempt() != self._attempts[-1][1]:
            self._attempts.append((self._polled, self._attempt()))
        self._polled = time.time()
        if self._sweep is None:
            if not final and time.monotonic() < self._rest_until:
                return records
            self._sweep = self._look_around()
        work = 0
        for steps, found in self._sweep:
            records += found
            work += steps
            if work >= POLL_WORK:
                self.more = True
                return records
        self._sweep = None
        return records

    def take_notes(self) -> List[str]:
        """Sentences about what could not be read, each kind once."""
        notes, self._notes = self._notes, []
        return notes

    def _note(self, kind: str, sentence: str) -> None:
        if kind not in self._noted and len(self._noted) < NOTES:
            self._noted.add(kind)
            self._notes.append(sentence)

    def _look_around(self) -> Iterator[Tuple[int, List[Dict[str, Any]]]]:
        """One sweep, as (steps of work, records) for each bit of it."""
        self._looked = 0
        if not self._directories:
            self._add_directory(self.logdir, ".")
        index = 0
        while index < len(self._directories):  # it grows
            directory = self._directories[index]
            index += 1
            for steps in self._refresh(directory):
                self._looked += steps
                yield steps, []
            for file in directory.files:
                yield from self._read(directory, file)
        for directory in self._directories:
            if directory.gone:
                self._identities.discard(directory.identity)
                self._files -= len(directory.files)
        self._directories = [directory for directory in self._directories if not directory.gone]
        self._rest_until = time.monotonic() + self._looked * REST

    def _add_directory(self, path: str, name: str) -> None:
        try:
            status = os.stat(path)
        except OSError:
            return
        identity = (status.st_dev, status.st_ino)
        if identity in self._identities or not stat.S_ISDIR(status.st_mode):
            return
        if len(self._directories) >= DIRECTORIES:
            self._note("directories", "the logdir has more than %d directories: not all are read" % DIRECTORIES)
            return
        self._identities.add(identity)
        self._directories.append(_Directory(path, name, identity))

    def _refresh(self, directory: _Directory) -> Iterator[int]:
        """Lists a directory if it may have changed; yields steps of work."""
        yield 5
        now = time.monotonic()
        try:
            modified = os.stat(directory.path).st_mtime_ns
        except OSError as error:
            directory.gone = True
            if not isinstance(error, FileNotFoundError):
                self._note(directory.path, "%s cannot be read: %s" % (directory.path, error.strerror))
            return
        if modified != directory.modified:
            directory.settles = now + SETTLE
        elif now >= directory.settles and now < directory.listed + RELIST:
            return
        known = {os.path.basename(file.reader.path) for file in directory.files}
        new: List[_File] = []
        linked: List[str] = []
        try:
            with os.scandir(directory.path) as entries:
                for count, entry in enumerate(entries, 1):
                    if not count % 500:
                        yield 500
                    if entry.is_symlink():
                        linked.append(entry.path)
                    elif entry.is_dir(follow_symlinks=False):
                        self._add_directory(entry.path, self._below(directory, entry.path))
                    elif "tfevents" in entry.name and entry.name not in known:
                        new.append(self._file(entry.path))
        except OSError as error:
            self._note(directory.path, "%s cannot be read: %s" % (directory.path, error.strerror))
            return
        for path in linked:
            if self._leads_out(path) and os.path.isdir(path):
                self._add_directory(path, self._below(directory, path))
            elif self._leads_out(path) and "tfevents" in path and os.path.basename(path) not in known:
                new.append(self._file(path))
        directory.modified, directory.listed = modified, now
        self._take_in(directory, new)
        yield 10 + 10 * len(new) + 10 * len(linked)

    def _below(self, directory: _Directory, path: str) -> str:
        name = os.path.basename(path)
        return name if directory.name == "." else directory.name + "/" + name

    def _file(self, path: str) -> _File:
        return _File(EventFile(path, self._parser), writer_of(os.path.basename(path), os.uname().nodename))

    def _leads_out(self, path: str) -> bool:
        """Whether a symbolic link leads out of the logdir; what is inside is found by its own path."""
        target, root = os.path.realpath(path), os.path.realpath(self.logdir)
        return target != root and not target.startswith(root + os.sep)

    def _take_in(self, directory: _Directory, new: List[_File]) -> None:
        """Adds files of a directory: those from before the job get ordinals below 0, the newest one the highest."""
        room = max(FILES - self._files, 0)
        if len(new) > room:
            self._note("files", "the logdir has more than %d event files: not all are read" % FILES)
            del new[room:]
        if not new:
            return
        self._files += len(new)
        new.sort(key=_age, reverse=True)
        for file in new:
            if file.writer.started is not None and file.writer.started < int(self._attempts[0][0]):
                directory.oldest -= 1
                file.ordinal = directory.oldest
            elif not directory.used and file.writer.pid is not None and file.writer.host == os.uname().nodename:
                directory.used = self._rank_of_pid(file.writer.pid) not in (None, FOREIGN)
        # The points of an attempt replace those of the ones before it, which therefore have to be read first.
        directory.files = sorted([*directory.files, *new], key=_age)

    def _read(self, directory: _Directory, file: _File) -> Iterator[Tuple[int, List[Dict[str, Any]]]]:
        """Reads a file to its end, a chunk at a time."""
        if not file.ours:
            return
        reader = file.reader
        self._looked += 5
        try:
            status = os.stat(reader.path)
            seen = (status.st_size, status.st_mtime_ns, status.st_ino)
            if not stat.S_ISREG(status.st_mode) or (seen == file.seen and not reader.stuck):
                yield 5, []
                return
            before = status.st_mtime < self._attempts[0][0]
            if file.ordinal < 0 and before and not directory.used:  # until a rank goes on in this directory
                yield 5, []
                return
            while file.ours:
                offset = reader.offset
                points = reader.poll(CHUNK)
                records: List[Dict[str, Any]] = []
                if points and self._place(file, before):
                    records = pack(file.attempt, file.rank, directory.name, points)
                yield 20 + abs(reader.offset - offset) // BYTES_A_STEP, records
                if reader.bad_data or reader.lost:
                    self._note("damage " + reader.path, "%s is damaged: some points are missing" % reader.path)
                if not reader.more:
                    break
            file.seen = seen
        except FileNotFoundError:
            yield 5, []
        except OSError as error:
            self._note(reader.path, "%s cannot be read: %s" % (reader.path, error.strerror))
            yield 5, []

    def _place(self, file: _File, before: bool) -> bool:
        """Finds out whose file it is, once its first record is there, and so whether this worker reports it.

        ``before``: nothing was written to it since the job began.
        """
        created = file.reader.created
        if file.ordinal < 0 and created < self._attempts[0][0]:
            file.attempt, file.rank, file.ours = file.ordinal, None, self._leftovers and before
            return file.ours
        if created == file.placed:
            return file.ours
        file.placed = created
        attempts = (attempt for began, attempt in reversed(self._attempts) if began <= created)
        file.attempt = next(attempts, self._attempts[0][1])
        host, pid = file.writer.host, file.writer.pid
        if host not in (None, os.uname().nodename):
            file.ours = False  # a node of this job on another machine, which reports it itself
        else:
            file.rank = None if pid is None else self._rank_of_pid(pid)
            file.ours = self._leftovers if file.rank is None else file.rank >= 0
        return file.ours


def _age(file: _File) -> Tuple[int, str]:
    return file.writer.started or 0, file.reader.path


def pack(attempt: int, rank: Optional[int], directory: str, points: Dict[str, Columns]) -> List[Dict[str, Any]]:
    """Points by tag as `s` records, each less than 15 KiB of JSON."""
    records: List[Dict[str, Any]] = []
    columns: Dict[str, Any] = {}
    shown = printable(directory)
    room = full = ROOM - len(wire.dump({"": shown}))
    for tag, (steps, walls, values) in points.items():
        tag = printable(tag)
        cost = len(wire.dump({"": tag})) + 16
        start = 0
        while start < len(steps):
            if room < cost + POINT or tag in columns:
                room, columns = full, {}
            if not columns:
                records.append({"e": "s", "a": attempt, "r": rank, "d": shown, "src": "file", "p": columns})
            stop = min(start + (room - cost) // POINT, len(steps))
            columns[tag] = [
                steps[start:stop].tolist(),
                wire.pack_floats(walls[start:stop]),
                wire.pack_floats(values[start:stop]),
            ]
            room -= cost + (stop - start) * POINT
            start = stop
    return records


def printable(name: str) -> str:
    """A name as UTF-8 that fits a record; a long one is cut, and told from others by a checksum."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > NAME:
        return encoded[: NAME - 9].decode("utf-8", "ignore") + "~%08x" % zlib.crc32(encoded)
    return encoded.decode("utf-8", "backslashreplace")
