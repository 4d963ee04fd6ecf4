"""A node's connection to the coordinator."""

from __future__ import annotations

import errno
import json
import socket
import time
from typing import Any, Callable, Dict, Optional, Tuple

from kfnb_worker import wire
from kfnb_worker.loop import READ, WRITE, Loop, Timer

BEAT_SECONDS = 5.0
DEAD_SECONDS = 20.0
CONNECT_SECONDS = 5.0
RETRY_SECONDS = 0.1
NOTE_SECONDS = 15.0
LINE_LIMIT = 1 << 20

Message = Dict[str, Any]


class Peer:
    """One TCP connection of JSON lines."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        receive: Callable[[Peer, Message], None],
        lost: Callable[[Peer, str], None],
    ) -> None:
        self._loop, self.socket, self.receive, self._lost = loop, sock, receive, lost
        self._tail = self._unsent = b""
        self.node: Optional[int] = None
        self.heard = time.monotonic()
        self.closed = False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.add(sock.fileno(), READ, self._readable)

    def _readable(self) -> None:
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return None
        except OSError as error:
            return self._gone(error.strerror or str(error))
        if not data:
            return self._gone("its connection closed")
        self.heard = time.monotonic()
        lines = (self._tail + data).split(b"\n")
        self._tail = lines.pop()
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                return self._gone("it does not speak our language")
            self.receive(self, message)
            if self.closed:
                return None
        if len(self._tail) > (LINE_LIMIT if self.node is not None else 65536):
            return self._gone("its message was too long")
        return None

    def send(self, message: Message) -> None:
        if not self.closed:
            self._unsent += wire.dump(message) + b"\n"
            self._push()

    def _push(self) -> None:
        try:
            sent = self.socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # reading will tell
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._loop.add(self.socket.fileno(), READ | WRITE, self._both)
        else:
            self._loop.add(self.socket.fileno(), READ, self._readable)

    def _both(self) -> None:
        self._push()
        self._readable()

    def _gone(self, why: str) -> None:
        if not self.closed:
            self.close()
            self._lost(self, why)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.remove(self.socket.fileno())
            self.socket.close()


class Member:
    """Connects to the coordinator, joins, and passes on what it says: ``receive(message)``.

    ``lost(why)`` is called once when the coordinator cannot be reached in ``seconds``, or is gone; ``note(text)`` now
    and then while it is waited for.
    """

    def __init__(
        self,
        loop: Loop,
        where: Dict[str, Any],
        join: Message,
        receive: Callable[[Message], None],
        lost: Callable[[str], None],
        note: Callable[[str], None],
        seconds: float,
    ) -> None:
        self._loop, self._where, self._join = loop, where, join
        self._receive, self._lost, self._note = receive, lost, note
        self._peer: Optional[Peer] = None
        self._connecting: Optional[socket.socket] = None
        self._timer: Optional[Timer] = None
        self._started = self._noted = time.monotonic()
        self._seconds = seconds
        self._why = ""
        self._closed = False
        self.address = ""  # of the coordinator, as this node reaches it
        self._connect()

    def _connect(self) -> None:
        try:
            host, port = self._address()
            self._why = "%s does not resolve" % host
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._why = "%s:%d does not accept connections" % (host, port)
            self._connecting = sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            code = sock.connect_ex(address)
        except (OSError, ValueError, KeyError):
            return self._again()
        if code not in (0, errno.EINPROGRESS):
            return self._again()
        self._loop.add(sock.fileno(), WRITE, self._connected)
        self._timer = self._loop.after(CONNECT_SECONDS, self._again)
        return None

    def _address(self) -> Tuple[str, int]:
        file = self._where.get("file")
        if not file:
            return self._where["host"], int(self._where["port"])
        self._why = "%s is not written yet" % file
        with open(file) as source:
            there = json.load(source)
        return there["host"], int(there["port"])

    def _again(self) -> None:
        self._forget_attempt()
        waited = time.monotonic() - self._started
        if waited > self._seconds:
            return self._fail("the coordinator on node 0 could not be reached in %g s: %s" % (self._seconds, self._why))
        if time.monotonic() - self._noted > NOTE_SECONDS:
            self._noted = time.monotonic()
            self._note("waiting for node 0 for %d s: %s" % (waited, self._why))
        self._timer = self._loop.after(min(1.0, RETRY_SECONDS * (1 + waited)), self._connect)
        return None

    def _forget_attempt(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connecting is not None:
            self._loop.remove(self._connecting.fileno())
            self._connecting.close()
            self._connecting = None

    def _connected(self) -> None:
        sock = self._connecting
        assert sock is not None
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return self._again()
        self._loop.remove(sock.fileno())
        self._connecting = None
        self._forget_attempt()
        self.address = sock.getpeername()[0]
        self._peer = Peer(self._loop, sock, self._got, lambda peer, why: self._fail("node 0 was lost: %s" % why))
        self._peer.node = 0
        self._peer.send(self._join)
        self._beat()
        return None

    def _got(self, peer: Peer, message: Message) -> None:
        if message.get("op") == "refused":
            peer.close()
            self._closed = True
        self._receive(message)

    def _beat(self) -> None:
        if self._closed or self._peer is None:
            return None
        silent = time.monotonic() - self._peer.heard
        if silent > DEAD_SECONDS:
            return self._fail("node 0 was lost: nothing was heard of it for %d s" % silent)
        self._peer.send({"op": "beat"})
        self._loop.after(BEAT_SECONDS, self._beat)
        return None

    def send(self, message: Message) -> None:
        if self._peer is not None:
            self._peer.send(message)

    def _fail(self, why: str) -> None:
        if not self._closed:
            self.close()
            self._lost(why)

    def close(self) -> None:
        self._closed = True
        self._forget_attempt()
        if self._peer is not None:
            self._peer.close()
