"""A log that is read again from wherever a cluster gives it: each line and point once, whatever process wrote it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfnb.backends.kubernetes import logs, names, phases, pods
from kfnb.decode import Position, StreamDecoder
from kfnb.events import Gap, JobEvent, LogLine, Phase
from kfnb_worker import wire
from tests.unit.test_kubernetes_pods import RUNNING, ended, job, pod, true

HELLO = {"e": "hello", "nodes": 1, "procs": 1, "python": "3", "host": "h", "bundle": "b", "a": 0, "t": 5.0}


def hello(incarnation: str) -> bytes:
    return b"".join(wire.frame_record(0, {**HELLO, "incarnation": incarnation}))


def numbered(start: int, count: int) -> bytes:
    return b"".join(b"[0:%d] line %d\n" % (number, number) for number in range(start, start + count))


def texts(events: list[JobEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, LogLine)]


#: Parts of a log: lines with a number, without one, and long ones in pieces.
parts = st.lists(st.sampled_from(["numbered", "loose", "long"]), max_size=20)


def log_of(kinds: list[str]) -> list[bytes]:
    """Its lines."""
    lines, sequence = [], 0
    for index, kind in enumerate(kinds):
        if kind == "loose":
            lines.append(b"loose %d\n" % index)
            continue
        payload = b"x" * (2 * wire.PIECE + 1) if kind == "long" else b"line %d" % index
        framed = wire.frame(b"0", b":", sequence, payload)
        sequence += len(framed)
        lines += framed
    return lines


@given(parts, st.lists(st.tuples(st.integers(0, 200_000), st.booleans()), max_size=5))
def test_lines_without_a_number_come_once_too_over_any_cuts(kinds: list[str], cuts: list[tuple[int, bool]]) -> None:
    log = b"".join(log_of(kinds))
    whole = texts(StreamDecoder(0).feed(log))
    decoder = StreamDecoder(0)
    found: list[str] = []
    for cut, other_client in cuts:
        found += texts(decoder.feed(log[:cut]))  # each connection reads from the beginning
        if other_client:
            position = Position.from_json(decoder.position.to_json())
            decoder = StreamDecoder(0, position=position)
        decoder = decoder.resumed()
    found += texts(decoder.feed(log))
    assert found == whole


def test_the_log_of_the_process_that_took_its_place_is_not_taken_for_its_own() -> None:
    decoder = StreamDecoder(0)
    decoder.feed(hello("one") + numbered(1, 3))
    again = decoder.resumed()
    assert again.feed(hello("two") + numbered(1, 9)) == []
    assert again.foreign
    assert again.position.sequence == 4
    own = again.resumed()
    assert texts(own.feed(hello("one") + numbered(1, 4))) == ["line 4"]
    assert not own.foreign


def test_a_log_is_its_own_where_its_beginning_was_never_seen() -> None:
    decoder = StreamDecoder(0).resumed()
    assert decoder.feed(numbered(7, 2))[0] == Gap(0, 7, "they are missing in the log", 0.0)
    assert texts(decoder.resumed().feed(numbered(5, 5))) == ["line 9"]


def test_where_it_is_read_again_from_does_not_go_back_while_it_is_read_again() -> None:
    def clock(sequence: int, seconds: float) -> bytes:
        return b"".join(wire.frame_record(sequence, {"e": "clock", "t": seconds}))

    decoder = StreamDecoder(0)
    decoder.feed(clock(0, 10.0) + numbered(1, 5) + clock(6, 50.0))
    again = decoder.resumed()
    again.feed(clock(0, 10.0) + numbered(1, 2))
    assert (again.position.sequence, again.position.time) == (7, 50.0)


def test_a_worker_that_has_said_its_last_stays_so() -> None:
    decoder = StreamDecoder(0)
    decoder.feed(b"".join(wire.frame_record(0, {"e": "end", "outcome": "succeeded", "a": 0, "t": 1.0})))
    assert decoder.ended
    assert decoder.resumed().ended


def test_a_cursor_of_an_earlier_version_still_opens() -> None:
    assert Position.from_json([1, 2, 3, 4.0]) == Position(1, 2, 3, 4.0)


def test_a_container_that_waits_to_be_started_again_is_the_last_one() -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    crashing = pod(state=waiting, container={"restartCount": 2, "lastState": ended(1)})
    assert [(one.restart, one.previous, one.ended) for one in pods.incarnations(crashing)] == [(2, True, True)]


def test_a_job_that_was_stopped_has_not_failed() -> None:
    stopped = job(true("Failed", "BackoffLimitExceeded"), annotations={names.STOPPED: "1"})
    assert phases.life_of("job", stopped, [pod(state=RUNNING)]).phase is Phase.STOPPED
    done = job(true("Complete"), annotations={names.STOPPED: "1"})
    assert phases.life_of("job", done, []).phase is Phase.SUCCEEDED


def test_a_half_open_connection_is_left_once_its_container_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SETTLE", 0.02)
    closed: list[bool] = []

    async def silent() -> AsyncGenerator[list[JobEvent], None]:
        try:
            yield []
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def read() -> int:
        ended = asyncio.Event()
        count = 0
        async for _ in logs._until(silent(), ended):
            count += 1
            ended.set()
        return count

    assert asyncio.run(asyncio.wait_for(read(), 10)) == 1
    assert closed == [True]
