"""The channel between a rank's processes and the worker: nothing a worker does or does not do harms the rank."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfnb_worker.channel import BACKLOG_BYTES, Client, Connection, Server
from kfnb_worker.loop import Loop
from tests.unit.test_relay import run_until


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def serve(loop: Loop, path: Path) -> tuple[Server, list[dict[str, Any]]]:
    got: list[dict[str, Any]] = []

    def receive(message: dict[str, Any], connection: Connection) -> None:
        got.append(message)
        if message["e"] == "ask":
            connection.send({"e": "answer", "to": message["n"]})

    return Server(loop, str(path), receive), got


def test_messages_of_several_processes_arrive_in_their_order(loop: Loop, tmp_path: Path) -> None:
    server, got = serve(loop, tmp_path / "channel")
    clients = [Client(str(tmp_path / "channel")) for _ in range(3)]
    for number in range(500):
        for index, client in enumerate(clients):
            client.send({"e": "s", "from": index, "n": number, "text": "ä\n"})
    run_until(loop, lambda: len(got) == 1500)
    for index in range(3):
        assert [message["n"] for message in got if message["from"] == index] == list(range(500))
    server.close()


def test_what_is_no_message_is_passed_over(loop: Loop, tmp_path: Path) -> None:
    server, got = serve(loop, tmp_path / "channel")
    with socket.socket(socket.AF_UNIX) as rude:
        rude.connect(str(tmp_path / "channel"))
        rude.sendall(b'\xff\n[1]\n"e"\n{"e":5}\n{"e":"s"\n' + b"[" * 100_000 + b'\n{"e":"good"}\n{"e":"cut')
        run_until(loop, lambda: got == [{"e": "good"}])
    run_until(loop, lambda: not server.connections)
    server.close()


def test_a_worker_that_does_not_read_costs_bounded_memory_and_no_time(loop: Loop, tmp_path: Path) -> None:
    server, got = serve(loop, tmp_path / "channel")
    client = Client(str(tmp_path / "channel"))
    text = "x" * 10_000
    for number in range(2000):
        client.send({"e": "s", "n": number, "text": text})
    assert client._size <= BACKLOG_BYTES

    def drained() -> bool:
        return bool(got) and got[-1]["e"] == "note"

    run_until(loop, drained)
    numbers = [message["n"] for message in got[:-1]]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 1999
    assert f"{2000 - len(numbers)} messages" in got[-1]["text"]
    server.close()


def test_without_a_worker_nothing_is_raised(tmp_path: Path) -> None:
    client = Client(str(tmp_path / "nobody"))
    for number in range(3):
        client.send({"e": "s", "n": number})
    assert not client.flush(0.05)
    with pytest.raises(ConnectionError):
        client.ask({"e": "ask", "n": 0}, "answer", 0.05)


def test_a_worker_that_goes_away_is_survived(loop: Loop, tmp_path: Path) -> None:
    server, got = serve(loop, tmp_path / "channel")
    client = Client(str(tmp_path / "channel"))
    client.send({"e": "s", "n": 0})
    run_until(loop, lambda: len(got) == 1)
    server.close()
    for number in range(3):
        client.send({"e": "s", "n": number})


def test_asking_waits_for_the_answer(loop: Loop, tmp_path: Path) -> None:
    server, _ = serve(loop, tmp_path / "channel")
    client = Client(str(tmp_path / "channel"))
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(client.ask({"e": "ask", "n": 7}, "answer", 30)))
    asking.start()
    run_until(loop, lambda: not asking.is_alive())
    assert answers == [{"e": "answer", "to": 7}]
    server.close()


def test_a_late_answer_is_not_taken_for_the_next(loop: Loop, tmp_path: Path) -> None:
    server, got = serve(loop, tmp_path / "channel")
    client = Client(str(tmp_path / "channel"))
    with pytest.raises(TimeoutError):
        client.ask({"e": "ask", "n": 1}, "answer", 0.01)  # the loop does not run
    client._retry = 0.0
    run_until(loop, lambda: len(got) == 1)
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(client.ask({"e": "ask", "n": 2}, "answer", 30)))
    asking.start()
    run_until(loop, lambda: not asking.is_alive())
    assert answers == [{"e": "answer", "to": 2}]
    server.close()


def test_a_forked_child_has_a_channel_of_its_own(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kfnb_worker import channel

    server, got = serve(loop, tmp_path / "channel")
    monkeypatch.setenv(channel.VARIABLE, str(tmp_path / "channel"))
    monkeypatch.setattr(channel, "_client", None)
    mine = channel.channel()
    assert mine is not None
    mine.send({"e": "s", "who": "parent", "t": time.time()})
    child = os.fork()
    if child == 0:
        own = channel.channel()
        sound = own is not None and own is not mine
        if own is not None:
            own.send({"e": "s", "who": "child"})
        os._exit(0 if sound else 1)
    mine.send({"e": "s", "who": "parent"})
    run_until(loop, lambda: len(got) == 3)
    assert os.waitpid(child, 0)[1] == 0
    assert [message["who"] for message in got].count("child") == 1
    server.close()
