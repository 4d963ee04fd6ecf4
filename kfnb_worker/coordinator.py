"""The nodes of a job agree: who is there, when ranks start, which failed first, when all of them end.

The worker of node 0 runs the ``Coordinator``; every worker, node 0's too, talks to it as a ``Member``. JSON lines
over TCP, each connection opened by a message with the job's token. Other clients say ``stacks`` or ``stop`` there and
get one line back: ``{"ok": true}`` or ``{"error": "..."}``.

From a node: join, pids (of its ranks), failed, finished (all its ranks ended well), ended (as told by restart or stop),
barrier, asks and asked (see signals), stop, beat.
To a node: start, restart, stop, end, stacks, release (a barrier), leave, beat, refused.
"""

from __future__ import annotations

import re
import socket
import time
from _operator import _compare_digest as compare_digest  # hmac's own, without the 4 MB of OpenSSL that hmac loads
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from kfnb_worker.environment import free_port
from kfnb_worker.files import write_whole
from kfnb_worker.loop import READ, Loop, Timer
from kfnb_worker.member import BEAT_SECONDS, DEAD_SECONDS, Message, Peer

JOIN_SECONDS = 900.0  # an image is pulled meanwhile
SETTLE_SECONDS = 1.0
BARRIER_NOTE_SECONDS = 30.0

#: What the survivors of a lost rank raise. Such a failure waits a moment for the one that caused it.
_CONSEQUENCE = re.compile(
    r"connection (closed|reset|refused|was closed)|closed by peer|broken pipe|socket closed|remote process exited|"
    r"recv.* failed|send.* failed|ncclRemoteError|ncclSystemError|DistBackendError|DistNetworkError|DistStoreError",
    re.IGNORECASE,
)


def is_consequence(failure: Message) -> bool:
    """Whether a failure looks like the loss of another rank; native code then often aborts."""
    if (failure.get("kind"), failure.get("type")) == ("signal", "SIGABRT"):
        return True
    text = "%s: %s" % (failure.get("type", ""), failure.get("message", ""))
    return failure.get("kind") == "exception" and _CONSEQUENCE.search(text) is not None


class Coordinator:
    """Node 0's service. ``note(text)`` gets sentences for the log, ``elsewhere(pids)`` the other nodes' processes."""

    def __init__(
        self,
        loop: Loop,
        plan: Dict[str, Any],
        token: Optional[str],
        note: Callable[[str], None],
        elsewhere: Callable[[List[int]], None],
    ) -> None:
        self._loop, self._note, self._token, self._elsewhere = loop, note, token, elsewhere
        self._nodes: int = plan["nodes"]
        self._procs: int = plan["procs"]
        self._attempt: int = plan["attempt"]
        self._retries: int = plan["retries"]
        self._last_attempt = self._attempt + self._retries
        self._grace: float = plan["grace"]
        self._join_seconds: float = plan.get("join_seconds", JOIN_SECONDS)
        self._timeout: Optional[float] = plan.get("timeout")
        self._peers: List[Peer] = []
        self._joined: Dict[int, Peer] = {}
        self._finished: Set[int] = set()
        self._ended: Set[int] = set()
        self._failures: List[Message] = []
        self._barriers: Dict[str, Set[int]] = {}
        self._asking: Set[int] = set()  # ranks that ask whether to leave
        self._leaving: Dict[int, Tuple[int, int]] = {}  # calls until they were to stop, and margin
        self._state = "joining"  # running, restarting, stopping, ended
        self._last: Message = {}  # what all were told at the end
        self._gone = 0  # nodes that were lost
        self._serial = 0
        self._why = ""
        self._deadline: Optional[Timer] = loop.after(self._join_seconds, self._nobody_came)
        self._socket = self._listen(plan["coordinator"])
        loop.add(self._socket.fileno(), READ, self._accept)
        loop.every(BEAT_SECONDS, self._beat)

    def _listen(self, where: Dict[str, Any]) -> socket.socket:
        file = where.get("file")
        port = 0 if file else int(where["port"])
        host = where.get("host") or "127.0.0.1"
        # With a file, all nodes are on this machine; and nothing is ever open to a network without a token.
        server = _bound(port, local=bool(file) or self._token is None)
        server.listen(512)
        server.setblocking(False)
        if file:
            write_whole(file, {"host": host, "port": server.getsockname()[1]})
        return server

    # --- connections -----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            client, _ = self._socket.accept()
        except OSError:
            return
        peer = Peer(self._loop, client, self._first, self._left)
        self._peers.append(peer)
        self._loop.after(10.0, lambda: self._stranger(peer))
        if sum(peer.node is None for peer in self._peers) > 256:
            self._stranger(self._peers[0])

    def _stranger(self, peer: Peer) -> None:
        """Whoever did not introduce itself in time is sent away."""
        if peer.node is None and peer in self._peers:
            self._peers.remove(peer)
            peer.close()

    def _first(self, peer: Peer, message: Message) -> None:
        token = str(message.get("token") or "")
        if not compare_digest(token.encode(), (self._token or "").encode()):
            peer.send({"op": "refused", "error": "the token is not this job's"})
            return self._stranger(peer)
        operation = message.get("op")
        if operation == "join":
            return self._join(peer, message)
        if operation == "stacks":
            self._tell_all({"op": "stacks", "request": str(message.get("request", ""))})
            return peer.send({"ok": True})
        if operation == "stop":
            self._stop("a client asked for it")
            return peer.send({"ok": True})
        return peer.send({"error": "there is no operation %.40r" % (operation,)})

    def _join(self, peer: Peer, message: Message) -> None:
        node = message.get("node")
        if not isinstance(node, int) or not 0 <= node < self._nodes:
            peer.send({"op": "refused", "error": "there is no node %.40r in a job of %d" % (node, self._nodes)})
            return self._stranger(peer)
        if self._state == "ended" and node not in self._joined:
            peer.node, peer.receive = node, self._member
            self._joined[node] = peer
            return peer.send(self._last)
        if self._state != "joining" or node in self._joined:
            why = "the job goes on without this worker: node %d has another one" % node
            peer.send({"op": "refused", "lost": True, "error": why})
            self._stranger(peer)
            return self._lost("node %d started again while the job was running" % node)
        peer.node, peer.receive = node, self._member
        self._joined[node] = peer
        if "failure" in message:
            return self._finish({"op": "end", "outcome": "failed", "failure": message["failure"]})
        if len(self._joined) == self._nodes:
            self._start()
        return None

    def _left(self, peer: Peer, why: str) -> None:
        if peer in self._peers:
            self._peers.remove(peer)
        if peer.node is not None and self._joined.get(peer.node) is peer and self._state != "ended":
            del self._joined[peer.node]
            self._gone += 1
            self._lost("node %d was lost: %s" % (peer.node, why))

    def _beat(self) -> None:
        now = time.monotonic()
        for peer in list(self._joined.values()):
            if now - peer.heard > DEAD_SECONDS and self._state != "ended":
                peer.close()
                self._left(peer, "nothing was heard of it for %d s" % (now - peer.heard))
        self._tell_all({"op": "beat"})

    def _tell_all(self, message: Message) -> None:
        for peer in list(self._joined.values()):
            peer.send(message)

    # --- what members say ------------------------------------------------------------------------------------------

    def _member(self, peer: Peer, message: Message) -> None:
        operation, node = message.get("op"), peer.node
        assert node is not None
        if operation == "failed" and self._state == "running" and message.get("attempt") == self._attempt:
            self._failed(message["failure"])
        elif operation == "finished" and self._state == "running" and message.get("attempt") == self._attempt:
            self._finished.add(node)
            if len(self._finished) == self._nodes:
                self._finish({"op": "end", "outcome": "succeeded"})
        elif operation == "ended" and message.get("serial") == self._serial:
            self._ended.add(node)
            if len(self._ended) == self._nodes:
                self._all_ended()
        elif operation == "pids" and node != 0:
            self._elsewhere([int(pid) for pid in message["pids"]])
        elif operation == "barrier" and self._state in ("running", "stopping"):  # who stops may save first
            self._barrier(str(message["key"]), int(message["rank"]))
        elif operation == "asks":
            self._asking.add(int(message["rank"]))
        elif operation == "asked" and self._state in ("running", "stopping"):
            self._leaving[int(message["rank"])] = int(message["calls"]), int(message["ahead"])
            if self._asking <= set(self._leaving):
                calls, ahead = map(max, zip(*self._leaving.values()))
                self._tell_all({"op": "leave", "calls": calls + ahead})
        elif operation == "stop":
            self._stop(str(message.get("why", "")))

    def _start(self) -> None:
        self._set_deadline(None)
        if self._timeout is not None and self._serial == 0:
            text = "it ran longer than its time-out of %g s" % self._timeout
            self._loop.after(self._timeout, lambda: self._too_long(text))
        self._state = "running"
        self._finished, self._ended, self._failures = set(), set(), []
        self._barriers, self._asking, self._leaving = {}, set(), {}
        start = {"op": "start", "attempt": self._attempt, "port": free_port(), "why": self._why}
        self._tell_all(start)

    def _failed(self, failure: Message) -> None:
        self._failures.append(failure)
        if not is_consequence(failure):
            self._verdict()
        elif len(self._failures) == 1:
            self._set_deadline(self._loop.after(SETTLE_SECONDS, self._verdict))

    def _verdict(self) -> None:
        """The first failure is known: everything starts again, or ends."""
        first = min(self._failures, key=lambda failure: (is_consequence(failure), failure["t"]))
        if self._attempt >= self._last_attempt:
            return self._finish({"op": "end", "outcome": "failed", "failure": first})
        self._attempt += 1
        retry = self._retries - (self._last_attempt - self._attempt)
        self._why = "%s; this is retry %d of %d" % (sentence(first), retry, self._retries)
        return self._end_ranks("restarting", {"op": "restart", "why": self._why, "failure": first})

    def _stop(self, why: str) -> None:
        if self._state == "joining":
            self._finish({"op": "end", "outcome": "stopped", "why": why})
        elif self._state in ("running", "restarting"):
            self._end_ranks("stopping", {"op": "stop", "why": why})

    def _end_ranks(self, state: str, message: Message) -> None:
        self._state, self._ended = state, set()
        self._serial += 1
        message["serial"] = self._serial
        self._set_deadline(self._loop.after(self._grace + 60, self._not_ended))
        self._tell_all(message)

    def _all_ended(self) -> None:
        if self._state == "restarting":
            self._start()
        elif self._state == "stopping":
            self._finish({"op": "end", "outcome": "stopped"})

    def _lost(self, why: str) -> None:
        if self._state != "ended":
            self._finish({"op": "end", "outcome": "lost", "why": why})

    def _finish(self, message: Message) -> None:
        self._set_deadline(None)
        self._state, self._last = "ended", message
        self._tell_all(message)

    def _barrier(self, key: str, rank: int) -> None:
        arrived = self._barriers.setdefault(key, set())
        if not arrived:
            self._loop.after(BARRIER_NOTE_SECONDS, lambda: self._barrier_note(key, arrived))
        arrived.add(rank)
        if len(arrived) == self._nodes * self._procs:
            del self._barriers[key]
            self._tell_all({"op": "release", "key": key})

    def _barrier_note(self, key: str, arrived: Set[int]) -> None:
        if self._barriers.get(key) is arrived:
            missing = sorted(set(range(self._nodes * self._procs)) - arrived)
            what = "%s waits for %s: every rank has to call it" % (key, numbered("rank", missing))
            self._note(what)

    # --- deadlines -------------------------------------------------------------------------------------------------

    def _set_deadline(self, timer: Optional[Timer]) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = timer

    def _nobody_came(self) -> None:
        missing = sorted(set(range(self._nodes)) - set(self._joined))
        self._lost(
            "%d of %d nodes came together in %g s; %s did not"
            % (len(self._joined), self._nodes, self._join_seconds, numbered("node", missing))
        )

    def _too_long(self, text: str) -> None:
        """The time from the first start to the end is up, restarts included."""
        if self._state in ("running", "restarting"):
            failure = {"e": "failure", "r": None, "node": 0, "a": self._attempt, "kind": "timeout", "type": "Timeout"}
            told = {**failure, "message": text, "traceback": "", "line": None, "t": time.time()}
            self._finish({"op": "end", "outcome": "failed", "failure": told})

    def _not_ended(self) -> None:
        missing = sorted(set(range(self._nodes)) - self._ended)
        self._lost("the ranks of %s could not be ended in time" % numbered("node", missing))

    @property
    def idle(self) -> bool:
        """Whether every other node was here and has left, so that this process may end."""
        left = sum(peer.closed for node, peer in self._joined.items() if node != 0)
        return left + self._gone == self._nodes - 1

    def close(self) -> None:
        self._loop.remove(self._socket.fileno())
        self._socket.close()
        for peer in list(self._peers):
            peer.close()


def _bound(port: int, local: bool) -> socket.socket:
    """A bound TCP socket on the loopback interface, or on all of both families as far as there are both."""
    addresses = [(socket.AF_INET, "127.0.0.1")] if local else [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]
    for index, (family, address) in enumerate(addresses):
        try:
            server = socket.socket(family, socket.SOCK_STREAM)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            server.bind((address, port))
            return server
        except OSError:
            if index == len(addresses) - 1:
                raise
    raise AssertionError("no address")


def numbered(what: str, numbers: List[int]) -> str:
    """``node 1``, ``nodes 1, 2``; long lists are cut."""
    shown = ", ".join(map(str, numbers[:16])) + (", ... (%d)" % len(numbers) if len(numbers) > 16 else "")
    return "%s%s %s" % (what, "" if len(numbers) == 1 else "s", shown)


def sentence(failure: Message) -> str:
    """A failure in one line."""
    who = "node %s" % failure.get("node") if failure.get("r") is None else "rank %s" % failure["r"]
    what = str(failure.get("message")).partition("\n")[0]
    if failure.get("kind") == "exception":
        return "%s raised %s: %.200s" % (who, failure.get("type"), what)
    return "%s failed: %.300s" % (who, what)
