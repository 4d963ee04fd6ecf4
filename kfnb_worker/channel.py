"""The channel between the processes of a rank and their node's worker: JSON lines over a Unix socket.

The worker serves it (``Server``); what runs in a rank, spawned and forked children too, speaks through ``channel()``.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Callable, Deque, Dict, List, Optional

from kfnb_worker import wire
from kfnb_worker.loop import READ, Loop

VARIABLE = "KFNB_CHANNEL"

#: A longer message is no message of ours.
LINE_LIMIT = 4 << 20
#: What a client keeps while the worker does not read; then the oldest messages go.
BACKLOG_BYTES = 4 << 20
RETRY_SECONDS = 1.0
PAUSE_SECONDS = 0.01

Message = Dict[str, Any]


class Server:
    """The worker's side. ``receive(message, connection)`` gets each message that is a JSON object with an ``e``."""

    def __init__(self, loop: Loop, path: str, receive: Callable[[Message, Connection], None]) -> None:
        self._loop, self.receive = loop, receive
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(path)
        os.chmod(path, 0o600)
        self._socket.listen(128)
        self._socket.setblocking(False)
        self.connections: List[Connection] = []
        loop.add(self._socket.fileno(), READ, self._accept)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            self.connections.append(Connection(self._loop, self, client))

    def drain(self) -> None:
        """Read what has been sent up to now (a rank has ended: its last messages come before that news)."""
        self._accept()
        for connection in list(self.connections):
            connection.read()

    def close(self) -> None:
        for connection in list(self.connections):
            connection.close()
        self._loop.remove(self._socket.fileno())
        self._socket.close()


class Connection:
    """One process of a rank, as the worker sees it."""

    def __init__(self, loop: Loop, server: Server, client: socket.socket) -> None:
        self._loop, self._server, self._socket = loop, server, client
        client.setblocking(False)
        self._tail = b""
        self.closed = False
        loop.add(client.fileno(), READ, self._readable)

    def _readable(self) -> None:
        if self.read() < 4096 and not self.closed:  # a busy process costs few wake-ups
            self._loop.remove(self._socket.fileno())
            self._loop.after(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if not self.closed:
            self._loop.add(self._socket.fileno(), READ, self._readable)

    def read(self) -> int:
        """Take what is there; the number of bytes of the last read."""
        size = 0
        for _ in range(16):
            try:
                data = self._socket.recv(256 * 1024)
            except BlockingIOError:
                return size
            except OSError:
                data = b""
            if not data:
                self.close()
                return 0
            size = len(data)
            lines = (self._tail + data).split(b"\n")
            self._tail = lines.pop()
            for line in lines:
                self._take(line)
            if len(self._tail) > LINE_LIMIT:
                self.close()
            if self.closed:
                return 0
        return size

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(message, dict) and isinstance(message.get("e"), str):
            self._server.receive(message, self)

    def send(self, message: Message) -> None:
        """Answer. A process that does not read its answers is cut off."""
        if self.closed:
            return
        try:
            self._socket.sendall(wire.dump(message) + b"\n")
        except OSError:
            self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.remove(self._socket.fileno())
            self._socket.close()
            self._server.connections.remove(self)


class Client:
    """A process's side. Sending never waits for the worker and never raises because of it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._socket: Optional[socket.socket] = None
        self._backlog: Deque[bytes] = deque()
        self._size = 0
        self._rest = b""  # of a message that was sent in part
        self._pushing = False
        self._retry = 0.0
        self._dropped = 0
        self._tail = b""
        self._heard: Dict[str, Message] = {}

    def send(self, message: Message) -> None:
        """Send, or keep it until the worker reads again; raises ``ValueError`` for what is not strict JSON."""
        line = wire.dump(message) + b"\n"
        with self._lock:
            self._backlog.append(line)
            self._size += len(line)
            while self._size > BACKLOG_BYTES:
                self._size -= len(self._backlog.popleft())
                self._dropped += 1
            self._push()

    def flush(self, seconds: float = 2.0) -> bool:
        """Wait up to ``seconds`` for the worker to take everything; whether it did."""
        deadline = time.monotonic() + seconds
        while True:
            with self._lock:
                self._push()
                if not self._backlog and not self._rest:
                    return True
            if time.monotonic() >= deadline or self._socket is None:
                return False
            time.sleep(0.01)

    def ask(self, message: Message, kind: str, seconds: float) -> Message:
        """Send and wait for an answer of that ``kind``. Raises ``OSError`` (``TimeoutError`` after ``seconds``)."""
        deadline = time.monotonic() + seconds
        with self._lock:
            self._heard.pop(kind, None)
            self.send(message)
        if not self.flush(seconds):
            raise ConnectionError("the worker of this node does not answer")
        while True:
            answer = self.heard(kind)
            if answer is not None:
                return answer
            connection = self._socket
            if connection is None:
                raise ConnectionError("the worker of this node is gone")
            if time.monotonic() > deadline:
                with self._lock:
                    self._hang_up()  # so that a late answer is not taken for the next one
                raise TimeoutError("no answer in %g s" % seconds)
            with selectors.DefaultSelector() as selector, suppress(OSError, ValueError):
                selector.register(connection, selectors.EVENT_READ)
                selector.select(min(1.0, max(0.0, deadline - time.monotonic())))

    def heard(self, kind: str) -> Optional[Message]:
        """What the worker last said of that ``kind``, without waiting."""
        with self._lock:
            self._listen()
            return self._heard.get(kind)

    def _listen(self) -> None:
        """Take in what the worker has said."""
        if self._socket is None:
            return
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up()
            return
        lines = (self._tail + data).split(b"\n")
        self._tail = lines.pop()
        for line in lines:
            message = json.loads(line)
            self._heard[message["e"]] = message

    def _push(self) -> None:
        if self._socket is None and not self._connect():
            return None
        assert self._socket is not None
        while self._rest or self._backlog:
            if not self._rest:
                self._rest = b"".join(self._backlog.popleft() for _ in range(min(64, len(self._backlog))))
                self._size -= len(self._rest)
            try:
                sent = self._socket.send(self._rest)
            except BlockingIOError:
                return self._push_later()
            except OSError:
                return self._hang_up()
            self._rest = self._rest[sent:]
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            text = "%d messages of a rank could not be kept: the worker was too busy to read them" % dropped
            self.send({"e": "note", "level": "warning", "text": text, "t": time.time()})
        return None

    def _push_later(self) -> None:
        """Only while the worker does not keep up: a thread that ends when all is sent."""
        if not self._pushing:
            self._pushing = True
            threading.Thread(target=self._keep_pushing, name="kfnb channel", daemon=True).start()

    def _keep_pushing(self) -> None:
        while True:
            time.sleep(0.01)
            with self._lock:
                self._push()
                if self._socket is None or not (self._rest or self._backlog):
                    self._pushing = False
                    return

    def _connect(self) -> bool:
        now = time.monotonic()
        if now < self._retry:
            return False
        self._retry = now + RETRY_SECONDS
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            return False
        self._socket, self._tail = connection, b""
        return True

    def _hang_up(self) -> None:
        """A message that was sent in part goes with the connection."""
        if self._socket is not None:
            with suppress(OSError):  # user code may have closed the descriptor
                self._socket.close()
            self._socket = None
        self._rest = self._tail = b""


_client: Optional[Client] = None


def channel() -> Optional[Client]:
    """This process's channel; None outside a job."""
    global _client
    if _client is None and os.environ.get(VARIABLE):
        _client = Client(os.environ[VARIABLE])
    return _client


def _forget() -> None:
    """A forked child speaks for itself: the parent's socket, lock and backlog are the parent's."""
    global _client
    if _client is not None and _client._socket is not None:
        _client._socket.close()
    _client = None


os.register_at_fork(after_in_child=_forget)
