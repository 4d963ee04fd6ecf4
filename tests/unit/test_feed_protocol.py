"""What a feed tells its views: everything once, in order, as fast as they take it, whatever they say."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfnb import portal
from kfnb.errors import NotFound
from kfnb.events import AttemptStarted, Gap, LogLine, NodeStarted, Phase, Points, Progress, RankState
from kfnb.views.feed import feed as feed_module
from kfnb.views.feed import open_feed, subscriber
from kfnb.views.feed.subscriber import KEPT, UNDER_WAY
from tests.unit.scripted import Page, ScriptedBackend, feed_of, phase, printed
from tests.waiting import wait_for


def points(steps: list[int], attempt: int = 0) -> Points:
    return Points(
        ".", 0, "loss", attempt, steps, [float(step) for step in steps], [step + attempt / 10 for step in steps]
    )


def pushed_one_by_one(backend: ScriptedBackend, page: Page, count: int) -> None:
    """So many batches, since each line is waited for."""
    for number in range(count):
        backend.push(*printed(f"one {number}"))
        page.until_total(page.total + 1)


# --- snapshots and batches


def test_nothing_is_read_before_a_view_says_hello() -> None:
    backend = ScriptedBackend()
    feed = feed_of(backend)
    page = Page(feed)
    page.say(type="visible", visible=True)
    page.say(type="ack", n=3)
    portal.call(_turn())
    assert (backend.opened, page.messages, feed.following) == (0, [], False)
    page.hello()
    assert page.until_heard("snapshot")["to"] == "page"
    page.subscriber.close()


async def _turn() -> None:
    """What was said to the portal's loop before has been heard."""


def test_a_snapshot_and_then_every_line_and_point_once() -> None:
    backend = ScriptedBackend()
    backend.push(phase(Phase.RUNNING), NodeStarted(0, 0, 1, 2, "3.11", "here", "sha", 1.0), *printed("a", "b"))
    backend.push(points([1, 2]), RankState(0, 1, "running", 17, None, 1.0), Progress(1, 5, 10, "step", 1.0))
    page = Page(feed_of(backend))
    page.hello()
    page.until_heard("snapshot")
    assert page.lines == ["Running", "a", "b"]
    for number in range(10):
        backend.push(*printed(f"{number}", rank=1), points([3 + number]))
    page.until_total(13)
    wait_for(lambda: len(page.curves["loss"]) == 12, timeout=10, what="the points")
    backend.push(*printed("last words", rank=None), phase(Phase.SUCCEEDED, 2.0))
    wait_for(lambda: page.head["phase"] == "Succeeded", timeout=10, what="the end")
    assert page.lines == ["Running", "a", "b", *map(str, range(10)), "last words", "Succeeded"]
    assert page.curves == {"loss": [float(step) for step in range(1, 13)]}
    assert page.head["lines"] == 13
    wait_for(lambda: page.ranks[1]["line"] == "9", timeout=10, what="the rank's last line")
    assert page.ranks[1] == {
        "rank": 1, "node": 0, "state": "running", "pid": 17, "code": None, "line": "9", "done": 0.5
    }  # fmt: skip
    page.subscriber.close()


def test_points_that_a_restart_replaces_are_sent_anew() -> None:
    backend = ScriptedBackend()
    backend.push(points([1, 2, 3]))
    page = Page(feed_of(backend))
    page.hello()
    page.until_heard("snapshot")
    backend.push(AttemptStarted(0, 1, "rank 1 was killed", 2.0), AttemptStarted(1, 1, "rank 1 was killed", 2.0))
    backend.push(points([2, 3], attempt=1))
    wait_for(lambda: page.curves["loss"] == [1, 2.1, 3.1], timeout=10, what="the new points")
    assert page.lines == ["Attempt 2: started again, rank 1 was killed"]
    page.subscriber.close()


def test_a_flood_of_lines_leaves_some_to_be_asked_for() -> None:
    backend = ScriptedBackend()
    page = Page(feed_of(backend))
    page.hello()
    page.until_heard("snapshot")
    backend.push(*printed(*(f"{number}" for number in range(5_000))))
    page.until_total(5_000)
    assert page.lines == [f"{number}" for number in range(4_000, 5_000)]
    header, buffers = page.call("lines", first=10, count=3)
    assert header["result"] == {"first": 10, "count": 3}
    assert buffers[0] == b"10\n11\n12"
    page.subscriber.close()


def test_a_curve_of_many_points_is_thinned_and_its_part_can_be_asked_for() -> None:
    backend = ScriptedBackend()
    backend.push(points(list(range(100_000))))
    page = Page(feed_of(backend))
    page.hello()
    [entry] = page.until_heard("snapshot")["series"]
    assert entry["thinned"]
    assert entry["total"] == 100_000
    assert entry["count"] <= 4_000
    assert page.curves["loss"][-1] == 99_999
    header, buffers = page.call("curve", sid=entry["sid"], x="step", **{"from": 500, "to": 599, "points": 1_000})
    assert header["result"] == {"count": 100, "total": 100}
    assert np.frombuffer(buffers[0]).tolist() == list(range(500, 600))
    header, buffers = page.call("curve", sid=entry["sid"], x="time", **{"from": None, "to": 9_999, "points": 100})
    assert header["result"]["total"] == 10_000
    assert header["result"]["count"] == len(np.frombuffer(buffers[2])) <= 100
    page.subscriber.close()


def test_a_series_whose_writer_becomes_known_is_told_under_its_new_name() -> None:
    backend = ScriptedBackend()
    backend.push(Points(".", None, "loss", -1, [1], [1.0], [1.0], "file"))
    page = Page(feed_of(backend))
    page.hello()
    assert page.until_heard("snapshot")["series"][0]["rank"] is None
    backend.push(points([2]))
    [entry] = page.until_heard("snapshot", 2)["series"]
    assert (entry["rank"], page.curves["loss"]) == (0, [1, 2])
    page.subscriber.close()


def test_sentences_are_where_they_belong_while_an_old_log_is_read() -> None:
    backend = ScriptedBackend()
    backend.push(phase(Phase.PENDING, 1.0), phase(Phase.RUNNING, 2.0), phase(Phase.STOPPING, 5.0, "stopped\nby me"))
    backend.push(*printed("pip", rank=None, time=1.5), *printed("a", time=3.0), Gap(1, 2, "log rotated", 4.0))
    backend.push(*printed("b", time=5.0), *printed("c", time=6.0), phase(Phase.STOPPED, 7.0))
    page = Page(feed_of(backend))
    page.hello()
    page.until_heard("snapshot")
    gap = "2 lines of node 1 are gone (log rotated)"
    assert page.lines == ["pip", "Running", "a", gap, "Stopping: stopped by me", "b", "c", "Stopped"]
    page.subscriber.close()


def test_a_line_that_goes_on_is_shown_until_it_is_done() -> None:
    backend = ScriptedBackend()
    page = Page(feed_of(backend))
    page.hello()
    page.until_heard("snapshot")
    backend.push(LogLine(0, 3, 0, " 45%|####", 1.0, "stdout", True))
    wait_for(lambda: page.heard("batch"), timeout=10, what="a batch")
    assert page.heard("batch")[0]["going"] == [{"rank": 3, "text": " 45%|####"}]
    backend.push(*printed("100%", rank=3))
    page.until_total(1)
    assert page.heard("batch")[-1]["going"] == []
    page.subscriber.close()


def test_what_no_page_could_read_as_json_is_told_as_far_as_it_can_be() -> None:
    backend = ScriptedBackend()
    nowhere = Points("\ud800", 10**30, "\ud800", 0, [1], [float("nan")], [float("nan")])
    backend.push(nowhere, *printed("\ud800"), phase(Phase.RUNNING, float("nan"), "\ud800"))
    page = Page(feed_of(backend))
    page.hello()
    json.dumps(page.until_heard("snapshot"), allow_nan=False, ensure_ascii=False).encode()
    assert page.head["reason"] == "?"
    assert page.head["non_finite"] == {"run": "?", "tag": "?", "rank": None, "step": 1, "value": "nan"}
    page.subscriber.close()


# --- what is under way


def test_a_page_that_does_not_acknowledge_is_not_flooded_and_misses_nothing() -> None:
    backend = ScriptedBackend()
    page = Page(feed_of(backend), acks=False)
    page.hello()
    page.until_heard("snapshot")
    pushed_one_by_one(backend, page, UNDER_WAY + 1)
    backend.push(*printed(*(f"late {number}" for number in range(100))))
    other = Page(page.subscriber._feed)  # by the time that another has them all, this one was passed over
    other.hello()
    other.until_total(UNDER_WAY + 101)
    assert len(page.heard("batch")) == UNDER_WAY + 1
    page.say(type="ack", n=page.number)
    page.until_total(UNDER_WAY + 101)
    assert len(page.lines) == page.total
    page.subscriber.close()
    other.subscriber.close()


def test_batches_that_never_came_are_sent_again() -> None:
    backend = ScriptedBackend()
    page = Page(feed_of(backend))
    page.hello()
    page.until_heard("snapshot")
    pushed_one_by_one(backend, page, 5)
    sent = [message for message in page.messages if message[0]["type"] == "batch"]
    page.number = None  # they are not new
    page.say(type="resend", **{"from": 2, "to": 1_000})
    page.until_heard("batch", len(sent) + len(sent[1:]))
    assert page.messages[-len(sent[1:]) :] == sent[1:]
    page.subscriber.close()


def test_a_snapshot_comes_where_a_batch_is_no_longer_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber, "KEPT", 2)
    assert KEPT > 2
    backend = ScriptedBackend()
    page = Page(feed_of(backend))
    page.hello()
    page.until_heard("snapshot")
    pushed_one_by_one(backend, page, 4)
    page.say(type="resend", **{"from": 1, "to": 2})
    assert page.until_heard("snapshot", 2)["log"] == {"total": 4, "first": 0, "count": 4}
    assert page.number == page.heard("batch")[-1]["n"]
    page.subscriber.close()


def test_views_that_share_a_carrier_each_get_all() -> None:
    backend = ScriptedBackend()
    feed = feed_of(backend)
    first = Page(feed, "first")
    second = Page(feed, "second", subscriber=first.subscriber)
    take = first.take

    def both(header: dict[str, Any], buffers: list[bytes]) -> None:
        take(header, buffers)
        second.take(header, buffers)

    first.subscriber._send = both
    first.hello()
    first.until_heard("snapshot")
    backend.push(*printed("a", "b"), points([1, 2]))
    first.until_total(2)
    second.hello()
    assert second.until_heard("snapshot", 2)["to"] == "second"
    backend.push(*printed("c"), points([3]))
    second.until_total(3)
    assert first.lines == second.lines == ["a", "b", "c"]
    wait_for(lambda: first.curves == second.curves == {"loss": [1, 2, 3]}, timeout=10, what="the points")
    first.subscriber.close()


def test_a_running_job_gives_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber, "BEAT", 0.05)
    monkeypatch.setattr(feed_module, "LOOK", 0.02)
    backend = ScriptedBackend()
    backend.push(phase(Phase.RUNNING))
    page = Page(feed_of(backend))
    page.hello()
    page.until_heard("batch", 3)
    assert [set(batch) for batch in page.heard("batch")[:3]] == [{"type", "n", "head"}] * 3
    backend.push(phase(Phase.SUCCEEDED))
    wait_for(lambda: page.head["phase"] == "Succeeded", timeout=10, what="the end")
    page.subscriber.close()


# --- reading a long log


def test_a_preview_is_shown_while_a_long_log_is_read() -> None:
    backend = ScriptedBackend(phase(Phase.RUNNING), *printed("the newest"))
    backend.gate.clear()
    backend.push(*printed("the oldest"))
    backend.push(*printed("the newest"))
    page = Page(feed_of(backend))
    page.hello()
    first = page.until_heard("snapshot")
    assert (first["preview"], first["head"]["reading"]) == (True, 0.0)
    assert page.lines == ["Running", "the newest"]
    portal.loop().call_soon_threadsafe(backend.gate.set)
    second = page.until_heard("snapshot", 2)
    assert (second["preview"], second["to"], second["head"]["reading"]) == (False, None, None)
    assert page.lines == ["the oldest", "the newest"]
    page.subscriber.close()


def test_what_is_asked_of_a_log_that_is_being_read_is_answered_when_it_has_been() -> None:
    backend = ScriptedBackend()
    backend.gate.clear()
    backend.push(*printed("a", "b"))
    page = Page(feed_of(backend))
    page.say(type="call", id="1", client="page", method="lines", params={"first": 0, "count": 9})
    portal.call(_turn())
    assert page.messages == []
    portal.loop().call_soon_threadsafe(backend.gate.set)
    assert page.until_heard("reply")["result"] == {"first": 0, "count": 2}
    page.subscriber.close()


# --- an end, and a new beginning


def test_a_job_that_cannot_be_read_is_gone_until_it_can() -> None:
    backend = ScriptedBackend()
    backend.problem = NotFound("There is no job 'x'.", "It was deleted.", "See %kfjobs.")
    feed = feed_of(backend)
    page = Page(feed)
    page.hello()
    gone = page.until_heard("gone")
    assert gone == {"type": "gone", "what": "There is no job 'x'.", "why": "It was deleted.", "fix": "See %kfjobs."}
    reply, _ = page.call("lines", first=0, count=1)
    assert reply["error"]["what"] == "There is no job 'x'."
    with pytest.raises(NotFound, match="no job 'x'"):
        portal.call(feed.wait())
    backend.problem = None
    page.hello()
    page.until_heard("snapshot")
    page.subscriber.close()


def test_a_feed_that_nobody_uses_ends_and_begins_again() -> None:
    backend = ScriptedBackend()
    backend.push(*printed("a"))
    feed = feed_of(backend, linger=0.02)
    page = Page(feed)
    page.hello()
    page.until_total(1)
    wait_for(lambda: backend.streams == 1, timeout=10, what="the stream")
    page.say(type="bye", client="page")
    wait_for(lambda: backend.streams == 0 and not feed.following, timeout=10, what="the feed's end")
    backend.push(*printed("b"))
    page.hello()
    page.until_heard("snapshot", 2)
    assert page.lines == ["a", "b"]
    page.subscriber.close()
    wait_for(lambda: backend.streams == 0, timeout=10, what="the feed's end")


def test_a_page_that_is_silent_for_long_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber, "SILENCE", 0.05)
    backend = ScriptedBackend()
    feed = feed_of(backend, linger=0.02)
    page = Page(feed, acks=False)
    page.hello()
    page.until_heard("snapshot")
    wait_for(lambda: backend.streams == 0 and not feed.following, timeout=10, what="the feed's end")
    page.say(type="visible", visible=True)
    page.until_heard("snapshot", 2)
    page.subscriber.close()


def test_waiting_gives_the_state_at_the_end_and_needs_no_view() -> None:
    backend = ScriptedBackend()
    backend.push(*printed("a"), phase(Phase.SUCCEEDED))
    feed = feed_of(backend)
    assert portal.call(feed.wait()).phase is Phase.SUCCEEDED
    assert portal.call(feed.wait()).lines == 1
    assert backend.opened == 1


def test_a_closed_subscriber_gets_nothing_more() -> None:
    backend = ScriptedBackend()
    feed = feed_of(backend)
    page, other = Page(feed), Page(feed, "other")
    page.hello()
    other.hello()
    page.until_heard("snapshot")
    page.subscriber.close()
    portal.call(_turn())
    before = len(page.messages)
    backend.push(*printed("a"))
    other.until_total(1)
    page.hello()
    portal.call(_turn())
    assert len(page.messages) == before
    other.subscriber.close()


def test_a_process_has_one_feed_of_a_job_whichever_thread_asks() -> None:
    job = feed_of(ScriptedBackend()).job
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(open_feed(job))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(feed) for feed in found}) == 1


# --- what anybody may say


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["step", "0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    ["first", "count", "indices", "whole", "text", "ranks", "since", "sid", "x", "from", "to", "points"]
)
# what ends or starts a job is left out: this backend has no such thing
METHODS = st.sampled_from(["lines", "scan", "curve", "nothing"])
MESSAGES = st.fixed_dictionaries(
    {"type": st.sampled_from(["hello", "ack", "visible", "resend", "call", "bye"]) | ANYTHING},
    optional={
        "client": st.text(max_size=3) | ANYTHING,
        "id": st.text(max_size=3) | ANYTHING,
        "n": st.integers(-1, 99) | ANYTHING,
        "from": st.integers(-1, 99) | ANYTHING,
        "to": st.integers(-1, 99) | ANYTHING,
        "version": st.just(1) | ANYTHING,
        "method": METHODS | ANYTHING,
        "params": st.dictionaries(NAMES, st.integers(-1, 9_999) | ANYTHING, max_size=6) | ANYTHING,
    },
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(MESSAGES | ANYTHING, max_size=20))
def test_whatever_is_said_does_no_harm(caplog: pytest.LogCaptureFixture, messages: list[Any]) -> None:
    backend = ScriptedBackend()
    backend.push(*printed("a", "b"), points([1]))
    feed = feed_of(backend)
    page = Page(feed)
    for message in messages:
        page.subscriber.receive(message)
    page.number = None
    page.hello()
    portal.call(_turn())
    page.until_total(2)
    assert page.call("lines", first=0, count=2)[0]["ok"]
    for header, _ in page.messages:
        json.dumps(header, allow_nan=False)
    page.subscriber.close()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_page_of_another_version_is_told_to_reload() -> None:
    page = Page(feed_of(ScriptedBackend()))
    page.say(type="hello", client="page", version=2)
    assert "Reload" in page.until_heard("gone")["fix"]
    page.subscriber.close()


def test_too_many_questions_at_once_are_refused() -> None:
    backend = ScriptedBackend()
    backend.gate.clear()
    backend.push(*printed("a"))
    page = Page(feed_of(backend))
    for number in range(subscriber.CALLS + 1):
        page.say(type="call", id=f"{number}", client="page", method="scan", params={"text": "a"})
    assert "at once" in page.until_heard("reply")["error"]["what"]
    portal.loop().call_soon_threadsafe(backend.gate.set)
    page.until_heard("reply", subscriber.CALLS + 1)
    assert sum(reply["ok"] for reply in page.heard("reply")) == subscriber.CALLS
    page.subscriber.close()


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("lines", {"first": -1, "count": 1}),
        ("lines", {"indices": list(range(2_001))}),
        ("lines", {"indices": list(range(51)), "whole": True}),
        ("lines", {"indices": [True]}),
        ("scan", {"text": "x" * 1_001}),
        ("scan", {"text": 3}),
        ("scan", {"text": "x", "ranks": "all"}),
        ("curve", {"sid": "0", "x": "place", "points": 3}),
        ("curve", {"sid": "0", "from": float("nan"), "points": 3}),
        ("curve", {"sid": "99", "points": 3}),
        ("nothing", {}),
        ("__class__", {}),
    ],
)
def test_a_question_that_cannot_be_answered_is_told_so(method: str, params: dict[str, Any]) -> None:
    page = Page(feed_of(ScriptedBackend()))
    reply, buffers = page.call(method, **params)
    assert (reply["ok"], reply["to"], buffers) == (False, "page", [])
    assert set(reply["error"]) == {"what", "why", "fix"}
    page.subscriber.close()


def test_a_carrier_that_fails_concerns_nobody_else() -> None:
    backend = ScriptedBackend()
    feed = feed_of(backend)
    calls: list[str] = []

    def broken(header: dict[str, Any], buffers: list[bytes]) -> None:
        calls.append(header["type"])
        raise OSError("closed")

    page, bad = Page(feed), feed.subscribe(broken)
    bad.receive({"type": "hello", "client": "x", "version": 1})
    page.hello()
    backend.push(*printed("a"))
    page.until_total(1)
    wait_for(lambda: calls, timeout=10, what="the broken carrier to be tried")
    page.subscriber.close()
    bad.close()
