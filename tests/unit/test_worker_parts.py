"""Parts of the worker by themselves: the coordinator's decisions, environments, explanations, termination messages."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfnb_worker import coordinator, environment, member
from kfnb_worker.coordinator import Coordinator, is_consequence, numbered, sentence
from kfnb_worker.files import TERMINATION_BYTES, write_termination
from kfnb_worker.loop import Loop
from kfnb_worker.ranks import explain
from tests.unit.test_relay import run_until


def failure(rank: int, t: float, kind: str = "exception", **what: Any) -> dict[str, Any]:
    told = {"e": "failure", "r": rank, "node": rank, "a": 0, "kind": kind, "type": "ValueError", "message": "m", "t": t}
    return {**told, **what}


LOST_PEER = {"type": "RuntimeError", "message": "[gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:4711"}


class Node:
    """A member, as its messages look from outside."""

    def __init__(self, loop: Loop, where: dict[str, Any], number: int, token: str = "t") -> None:
        self.got: list[dict[str, Any]] = []
        self._socket = socket.create_connection((where["host"], where["port"]))
        self.peer = member.Peer(loop, self._socket, lambda _, message: self.got.append(message), lambda *_: None)
        self.peer.send({"op": "join", "node": number, "token": token})

    def heard(self, operation: str) -> list[dict[str, Any]]:
        return [message for message in self.got if message.get("op") == operation]


class Service:
    """A coordinator of ``nodes`` nodes, all of which this test plays."""

    def __init__(self, path: Path, nodes: int = 2, **plan: Any) -> None:
        self.loop = Loop()
        self.notes: list[str] = []
        where = {"file": str(path / "coordinator.json"), "host": "127.0.0.1"}
        self.plan = {"nodes": nodes, "procs": 1, "attempt": 0, "retries": 0, "grace": 1.0, "coordinator": where, **plan}
        self.coordinator = Coordinator(self.loop, self.plan, "t", self.notes.append, lambda pids: None)
        self.where = json.loads((path / "coordinator.json").read_text())
        self.nodes = [Node(self.loop, self.where, number) for number in range(nodes)]

    def all_hear(self, operation: str, times: int = 1) -> list[dict[str, Any]]:
        run_until(self.loop, lambda: all(len(node.heard(operation)) >= times for node in self.nodes))
        return [node.heard(operation)[times - 1] for node in self.nodes]

    def say(self, node: int, **message: Any) -> None:
        self.nodes[node].peer.send(message)

    def close(self) -> None:
        for node in self.nodes:
            node.peer.close()
        self.coordinator.close()
        self.loop.close()


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Any]:
    made: list[Service] = []

    def make(**plan: Any) -> Service:
        made.append(Service(tmp_path, **plan))
        return made[-1]

    yield make
    for service in made:
        service.close()


def test_all_start_together_and_end_together(services: Any) -> None:
    service = services(nodes=3)
    starts = service.all_hear("start")
    assert len({start["port"] for start in starts}) == 1
    for node in range(3):
        assert not service.nodes[0].heard("end")
        service.say(node, op="finished", attempt=0)
    assert {end["outcome"] for end in service.all_hear("end")} == {"succeeded"}


def test_the_failure_that_caused_the_others_is_the_first(services: Any) -> None:
    service = services()
    service.all_hear("start")
    service.say(0, op="failed", attempt=0, failure=failure(0, 1.0, **LOST_PEER))
    service.say(1, op="failed", attempt=0, failure=failure(1, 2.0, kind="signal", type="SIGKILL"))
    assert {end["failure"]["r"] for end in service.all_hear("end")} == {1}


def test_a_failure_that_only_looks_like_a_consequence_counts_after_a_moment(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "SETTLE_SECONDS", 0.05)
    service = services()
    service.all_hear("start")
    service.say(1, op="failed", attempt=0, failure=failure(1, 1.0, **LOST_PEER))
    assert {end["failure"]["r"] for end in service.all_hear("end")} == {1}


def test_a_retry_waits_until_all_have_ended(services: Any) -> None:
    service = services(retries=1)
    first = service.all_hear("start")[0]
    service.say(0, op="failed", attempt=0, failure=failure(0, 1.0))
    restart = service.all_hear("restart")[0]
    assert "rank 0 raised ValueError: m; this is retry 1 of 1" in restart["why"]
    service.say(0, op="ended", serial=restart["serial"])
    service.say(1, op="ended", serial=restart["serial"] - 1)  # an answer to something else
    service.say(1, op="failed", attempt=0, failure=failure(1, 1.0))  # of the attempt that is over
    service.say(1, op="ended", serial=restart["serial"])
    again = service.all_hear("start", 2)[0]
    assert again["attempt"] == 1
    assert again["port"] != first["port"] or again is not first
    service.say(0, op="failed", attempt=1, failure=failure(0, 3.0))
    assert {end["outcome"] for end in service.all_hear("end")} == {"failed"}


def test_a_node_whose_connection_closes_is_lost_at_once(services: Any) -> None:
    service = services()
    service.all_hear("start")
    service.nodes.pop().peer.close()
    [end] = service.all_hear("end")
    assert end["outcome"] == "lost"
    assert "node 1 was lost" in end["why"]


def test_a_node_that_falls_silent_is_lost(services: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(coordinator, "DEAD_SECONDS", 0.5)
    service = services()
    service.all_hear("start")
    silent = service.nodes.pop()

    def beat() -> None:
        service.say(0, op="beat")

    service.loop.every(0.05, beat)
    [end] = service.all_hear("end")
    assert "node 1 was lost: nothing was heard" in end["why"]
    silent.peer.close()


def test_a_second_worker_of_a_node_ends_the_job(services: Any) -> None:
    service = services()
    service.all_hear("start")
    second = Node(service.loop, service.where, 1)
    assert "node 1 started again" in service.all_hear("end")[0]["why"]
    assert second.heard("refused")[0]["lost"]
    second.peer.close()


@pytest.mark.parametrize(("number", "token", "says"), [(1, "wrong", "token"), (7, "t", "no node 7")])
def test_who_does_not_belong_is_refused(services: Any, number: int, token: str, says: str) -> None:
    service = services()
    service.all_hear("start")
    stranger = Node(service.loop, service.where, number, token)
    run_until(service.loop, lambda: bool(stranger.heard("refused")))
    assert says in stranger.heard("refused")[0]["error"]
    stranger.peer.close()
    assert not service.nodes[0].heard("end")


def test_garbage_harms_nobody(services: Any) -> None:
    service = services()
    service.all_hear("start")
    for garbage in (b"\xff\xfe\n", b"[]\n", b"x" * 100_000, b'{"op": "join", "token": "t", "node": "1"}\n'):
        with socket.create_connection((service.where["host"], service.where["port"])) as rude:
            rude.sendall(garbage)
            rude.setblocking(False)
            closed: list[bool] = []

            def gone(rude: socket.socket = rude, closed: list[bool] = closed) -> bool:
                try:
                    if not rude.recv(65536):
                        closed.append(True)
                except BlockingIOError:
                    pass
                except OSError:
                    closed.append(True)
                return bool(closed)

            run_until(service.loop, gone)
    assert not service.nodes[0].heard("end")


def test_a_barrier_that_some_do_not_reach_is_noted(services: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "BARRIER_NOTE_SECONDS", 0.05)
    service = services(nodes=3)
    service.all_hear("start")
    service.say(1, op="barrier", key="commit(5)", rank=1)
    service.say(1, op="barrier", key="commit(5)", rank=1)
    run_until(service.loop, lambda: bool(service.notes))
    assert "commit(5) waits for ranks 0, 2" in service.notes[0]
    for rank in 0, 2:
        service.say(rank, op="barrier", key="commit(5)", rank=rank)
    assert service.all_hear("release")[0]["key"] == "commit(5)"


@pytest.mark.parametrize(
    ("message", "consequence"),
    [
        ("Connection closed by peer [10.0.0.3]:4711", True),
        ("[../gloo/transport/tcp/pair.cc:534] Connection reset by peer", True),
        ("NCCL error: remote process exited or there was a network error, ncclRemoteError", True),
        ("shapes (2,3) and (4,5) not aligned", False),
        ("CUDA out of memory", False),
    ],
)
def test_what_looks_like_the_loss_of_another(message: str, consequence: bool) -> None:
    assert is_consequence({"kind": "exception", "type": "RuntimeError", "message": message}) is consequence


def test_sentences() -> None:
    assert numbered("node", [1]) == "node 1"
    assert numbered("rank", [1, 2]) == "ranks 1, 2"
    assert numbered("rank", list(range(100))).endswith("... (100)")
    assert sentence(failure(3, 1.0, message="first line\nsecond")) == "rank 3 raised ValueError: first line"


@pytest.mark.parametrize(
    ("code", "memory", "kind", "says"),
    [
        (3, False, "exit", "exit code 3"),
        (-signal.SIGKILL, False, "signal", "most often"),
        (-signal.SIGKILL, True, "signal", "it ran out of memory"),
        (137, True, "signal", "exit code 137, as after SIGKILL: it ran out of memory"),
        (-signal.SIGBUS, False, "signal", "shared memory"),
        (-signal.SIGILL, False, "signal", "instructions"),
        (-64, False, "signal", "it was ended by"),
    ],
)
def test_ends_are_explained(code: int, memory: bool, kind: str, says: str) -> None:
    found = explain(code, memory)
    assert found[0] == kind
    assert says in found[2]


def test_a_free_port_can_be_bound() -> None:
    ports = {environment.free_port() for _ in range(20)}
    assert len(ports) > 10
    for port in ports:
        assert 15000 <= port < 32768
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_the_interface_towards_an_address() -> None:
    assert environment.interface_to("127.0.0.1") in ("lo", "lo0")
    assert environment.interface_to("not an address") is None


@pytest.mark.parametrize(
    ("message", "trace"), [("m", "t" * 100_000), ("ä" * 10_000, ""), ("\0" * 9000, "é" * 9000), ("m", "short")]
)
def test_a_termination_message_fits(tmp_path: Path, message: str, trace: str) -> None:
    path = tmp_path / "termination.json"
    write_termination(str(path), "lost", failure(1, 1.0, message=message, traceback=trace))
    content = path.read_bytes()
    assert len(content) <= TERMINATION_BYTES
    told = json.loads(content)
    assert (told["outcome"], told["r"], told["type"]) == ("failed", 1, "ValueError")
    assert told["traceback"].endswith(trace[-100:])
