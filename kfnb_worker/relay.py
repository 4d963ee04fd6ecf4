"""The worker's own stdout: framed lines of the ranks and records, in batches, whatever the disk or the reader does."""

from __future__ import annotations

import errno
import json
import os
import select
import stat
import sys
import time
from contextlib import suppress
from typing import Any, Dict, List, Optional

from kfnb_worker import wire
from kfnb_worker.lines import Lines
from kfnb_worker.loop import READ, WRITE, Loop, Timer

FLUSH_SECONDS = 0.05
FLUSH_BYTES = 64 * 1024
CLOCK_SECONDS = 0.2
RETRY_SECONDS = 0.5

#: Where the reader of our stdout is slow, the ranks' pipes are left to fill above HIGH and read again below LOW bytes.
HIGH, LOW = 1 << 20, 1 << 18

#: Where the disk is full, what comes is dropped (and counted) above this many bytes, but for records that matter.
KEPT_BYTES = 256 * 1024
KEPT_RECORDS = 200
NOT_READ = "nobody read the log"
MATTERS = frozenset(["hello", "attempt", "rank", "failure", "result", "checkpoint", "end"])

PIPE_BYTES = 1 << 20
#: The most that is read at once. Framed, and be it all short lines, it is less than what is reserved of a disk for it.
READ_BYTES = 1 << 18
#: A pipe that was just read is left alone this long, so that a busy rank costs few wake-ups.
PAUSE_SECONDS = 0.02


class Output:
    """Numbers, frames and writes lines and records to a descriptor.

    A slow reader stops the ranks (as any full pipe does) and never the worker's loop; a full disk stops nothing: what
    cannot be kept is counted, and a ``lost`` record says so once there is room again.
    """

    def __init__(self, loop: Loop, fd: int = 1) -> None:
        self._loop, self._fd = loop, fd
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            os.set_blocking(fd, False)
        self.sequence = 0
        self.written = 0  # bytes
        self._chunks: List[bytes] = []
        self._size = 0
        self._clock = 0.0
        self._flushed = 0.0
        self._timer: Optional[Timer] = None
        self._stalled = False
        self._trouble = ""
        self._lost_lines = self._lost_bytes = 0
        self._held: List[Dict[str, Any]] = []
        self._pipes: List[Pipe] = []

    def lines(self, who: bytes, separator: bytes, lines: List[bytes], more: bool = False) -> None:
        """Add output lines of a rank; ``more``: they are pieces of a line that goes on."""
        if self._lost_lines or (self._trouble and self._size > KEPT_BYTES):
            self._drop(len(lines), sum(map(len, lines)))
            return
        now = time.time()
        if now - self._clock >= CLOCK_SECONDS:
            self._add(wire.frame_record(self.sequence, {"e": "clock", "t": now}))
            self._clock = now
        if more:
            self._add([b"[%b%b%d+] %b\n" % (who, separator, self.sequence, line) for line in lines])
        elif max(map(len, lines)) > wire.PIECE:
            for line in lines:
                self._add(wire.frame(who, separator, self.sequence, line))
        else:
            head = b"[" + who + separator
            framed = [b"%b%d] %b\n" % (head, number, line) for number, line in enumerate(lines, self.sequence)]
            self._add(framed)

    def record(self, record: Dict[str, Any]) -> None:
        """Add a record (strict JSON: floats packed by ``wire.pack_floats``)."""
        if self._lost_lines or (self._trouble and self._size > KEPT_BYTES):
            if record["e"] in MATTERS and len(self._held) < KEPT_RECORDS:
                self._held.append(record)
            else:
                self._drop(1, 0)
            return
        self._clock = record.get("t", self._clock)
        self._add(wire.frame_record(self.sequence, record))

    def _add(self, framed: List[bytes]) -> None:
        self.sequence += len(framed)
        data = b"".join(framed)
        self._chunks.append(data)
        self._size += len(data)
        if self._stalled or self._trouble:
            if self._size > HIGH and self._stalled:
                for pipe in self._pipes:
                    pipe.hold()
        elif self._size >= FLUSH_BYTES:
            self.flush()
        elif self._timer is None:
            wait = self._flushed + FLUSH_SECONDS - time.monotonic()
            self._timer = self._loop.after(max(0.002, wait), self.flush)

    def _drop(self, lines: int, size: int) -> None:
        self.sequence += lines
        self._lost_lines += lines
        self._lost_bytes += size

    def flush(self) -> None:
        """Write what there is, as far as it goes without waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flushed = time.monotonic()
        while self._chunks:
            data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
            try:
                done = os.write(self._fd, data)
            except BlockingIOError:
                self._chunks = [data]
                if not self._stalled:
                    self._stalled = True
                    self._loop.add(self._fd, WRITE, self.flush)
                return
            except OSError as error:
                self._chunks = [data]
                self._failed(error)
                return
            self.written += done
            self._size -= done
            self._chunks = [data[done:]] if done < len(data) else []
        self._recovered()

    def _failed(self, error: OSError) -> None:
        if self._stalled:
            self._stalled = False
            self._loop.remove(self._fd)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        self._trouble = "the disk was full" if full else "the log could not be written: %s" % error.strerror
        for pipe in self._pipes:
            pipe.release()
        self._timer = self._loop.after(RETRY_SECONDS, self.flush)

    def _recovered(self) -> None:
        trouble, self._trouble = self._trouble, ""
        if self._stalled:
            self._stalled = False
            self._loop.remove(self._fd)
            for pipe in self._pipes:
                pipe.release()
        if self._lost_lines:
            lost, size = self._lost_lines, self._lost_bytes
            self._lost_lines = self._lost_bytes = 0
            held, self._held = self._held, []
            self.record({"e": "lost", "count": lost, "bytes": size, "why": trouble or NOT_READ, "t": time.time()})
            for record in held:
                self.record(record)

    def finish(self, seconds: float) -> bool:
        """Write everything, waiting up to ``seconds`` for a reader or for room; whether all of it went out.

        Where there is no room, records that matter go before lines.
        """
        self.flush()
        if self._trouble or not self._finish(seconds):
            self._shed()
        return self._finish(seconds)

    def _shed(self) -> None:
        """Give up what waits to be written, but for the rest of a line that is out in part, and for what matters."""
        line, newline, rest = b"".join(self._chunks).partition(b"\n")
        self._chunks, self._size = [line + newline], len(line) + 1
        self._lost_bytes += len(rest)
        held = []
        for lost in rest.split(b"\n")[:-1]:
            self._lost_lines += 1
            who, _, payload = lost.partition(b"] ")
            if who.startswith(b"[kfnb:") and not who.endswith(b"+"):
                with suppress(ValueError, KeyError):
                    record = json.loads(payload)
                    if record["e"] in MATTERS:
                        held.append(record)
                        self._lost_lines -= 1
        self._held = held + self._held

    def _finish(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            self.flush()
            if not self._chunks:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._stalled:
                select.select([], [self._fd], [], left)
            else:
                time.sleep(min(0.1, left))  # the loop is over: nothing else waits

    def attach(self, pipe: Pipe) -> None:
        self._pipes.append(pipe)
        if self._stalled and self._size > HIGH:
            pipe.hold()

    def detach(self, pipe: Pipe) -> None:
        self._pipes.remove(pipe)


class Pipe:
    """The read end of one stream (``separator``) of one rank (``who``): bytes in, lines to the output.

    ``first`` is the rank's other stream, read before this one: what a rank printed comes before the traceback that
    it printed next. (What it printed after is taken a moment too early: two pipes keep no order between them.)
    """

    def __init__(
        self, loop: Loop, output: Output, fd: int, who: bytes, separator: bytes, first: Optional[Pipe] = None
    ) -> None:
        self._loop, self._output, self._fd = loop, output, fd
        self._who, self._separator, self._first = who, separator, first
        self._size = _enlarge(fd)
        os.set_blocking(fd, False)
        self._lines = Lines(self._emit)
        self._timer: Optional[Timer] = None
        self._pause: Optional[Timer] = None
        self._last = 0.0
        self._held = False
        self.closed = False
        loop.add(fd, READ, self._readable)
        output.attach(self)

    def _emit(self, lines: List[bytes], more: bool) -> None:
        self._output.lines(self._who, self._separator, lines, more)

    def _readable(self) -> None:
        if self._first is not None and not self._first.closed and not self._first._held:
            self._first._read()
        got = self._read()
        if not self.closed and got < min(READ_BYTES, self._size // 2) and not self._held:
            self._loop.remove(self._fd)
            self._pause = self._loop.after(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._pause = None
        if not self.closed and not self._held:
            self._loop.add(self._fd, READ, self._readable)

    def _read(self) -> int:
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self.close()
            return 0
        self._last = time.monotonic()
        self._lines.feed(data)
        if self._timer is None and self._lines.unsettled:
            self._timer = self._loop.after(1.0, self._tick)
        return len(data)

    def _tick(self) -> None:
        self._timer = None
        state = self._lines.tick(quiet=time.monotonic() - self._last > 0.9)
        if state is not None:
            self._output.lines(self._who, wire.TRANSIENT, [state])
        if self._lines.unsettled:
            self._timer = self._loop.after(1.0, self._tick)

    def drain(self) -> None:
        """Read what is there now (a rank has ended: its last words come before that news)."""
        for _ in range(16):
            if self.closed or not self._read():
                return

    def hold(self) -> None:
        """Stop reading: the output is full."""
        if not self.closed and not self._held:
            self._held = True
            self._loop.remove(self._fd)

    def release(self) -> None:
        if self._held:
            self._held = False
            if self._pause is None:
                self._resume()

    def close(self) -> None:
        """The stream ended, or what still holds its other end is not waited for."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove(self._fd)
        for timer in (self._timer, self._pause):
            if timer is not None:
                timer.cancel()
        os.close(self._fd)
        self._lines.end()
        self._output.detach(self)


def _enlarge(fd: int) -> int:
    """The pipe's capacity in bytes, made larger where that can be done: fewer wake-ups for a busy rank."""
    if sys.platform == "linux":
        import fcntl

        for size in (PIPE_BYTES, PIPE_BYTES // 4):
            try:
                return fcntl.fcntl(fd, getattr(fcntl, "F_SETPIPE_SZ", 1031), size)
            except OSError:
                continue
    return 64 * 1024
