"""What a view knows of a job: folded from its events, bounded, and nothing lost in silence."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfnb.events import (
    AttemptStarted,
    Batch,
    Failure,
    Gap,
    LogLine,
    NodeStarted,
    Note,
    Phase,
    PhaseChanged,
    Points,
    Progress,
    RankState,
)
from kfnb.state import HEAD_LINES, LINE_LIMIT, TAIL_LINES, JobState, Pace
from kfnb.views import words


def line(sequence: int, text: str = "x", *, rank: int | None = 0, transient: bool = False) -> LogLine:
    return LogLine(0, rank, sequence, text, float(sequence), "stdout", transient)


def told(done: float, at: float, step: float, wait: float | None = None, *, rank: int = 0) -> Progress:
    return Progress(rank, done, 1000, "step", at, 0, step, wait)


def failure(rank: int, at: float, attempt: int = 0) -> Failure:
    return Failure(0, rank, attempt, "exception", "ValueError", f"rank {rank}", "Traceback", 3, at)


def progress(done: float, at: float, *, rank: int = 0, total: float | None = 100, attempt: int = 0) -> Progress:
    return Progress(rank, done, total, "steps", at, attempt)


def points(values: list[float], *, tag: str = "loss", start: int = 0) -> Points:
    steps = list(range(start, start + len(values)))
    return Points(".", 0, tag, 0, steps, [float(step) for step in steps], values)


@given(st.integers(0, 3 * (HEAD_LINES + TAIL_LINES)), st.integers(1, 997))
def test_every_line_is_shown_or_counted(count: int, chunk: int) -> None:
    state = JobState()
    lines = [line(sequence) for sequence in range(count)]
    for start in range(0, count, chunk):
        state.fold(Batch(list(lines[start : start + chunk]), {"at": start}))
    assert state.lines == count
    kept = [*state.head, *state.tail]
    assert state.omitted + len(kept) == count
    assert [one.sequence for one in state.head] == list(range(min(count, HEAD_LINES)))
    rest = max(count - HEAD_LINES, 0)
    assert [one.sequence for one in state.tail] == list(range(count - min(rest, TAIL_LINES), count))


def test_memory_stays_bounded() -> None:
    state = JobState()
    for batch in range(100):
        state.add([line(batch * 1000 + index, f"line {index}") for index in range(1000)])
    assert len(state.head) + len(state.tail) == HEAD_LINES + TAIL_LINES
    state.add([line(0, "a" * 1_000_000)])
    assert len(state.tail[-1].text) < LINE_LIMIT + 100
    assert f"{1_000_000 - LINE_LIMIT:,} more characters" in state.tail[-1].text
    state.add([Note("n", "info", 0.0)] * 1000)
    assert len(state.notes) < 100


def test_a_transient_line_is_replaced_and_goes_when_its_line_ends() -> None:
    state = JobState()
    state.add([line(0, "10%", transient=True), line(1, "20%", transient=True), line(2, "7%", rank=1, transient=True)])
    assert {rank: one.text for rank, one in state.transient.items()} == {0: "20%", 1: "7%"}
    state.add([line(3, "100%")])
    assert list(state.transient) == [1]
    assert [one.text for one in state.head] == ["100%"]
    state.add([PhaseChanged(Phase.FAILED, "", 9.0)])
    assert state.transient == {}


def test_lines_of_the_nodes_themselves_are_told_apart() -> None:
    state = JobState()
    state.add([LogLine(node, None, 0, f"pip on {node}", 0.0, transient=True) for node in range(3)])
    assert sorted(one.text for one in state.transient.values()) == ["pip on 0", "pip on 1", "pip on 2"]


def test_elapsed_counts_from_the_first_running_to_the_end() -> None:
    state = JobState()
    assert state.elapsed(5.0) is None
    state.add([PhaseChanged(Phase.PENDING, "waits for a GPU", 1.0), PhaseChanged(Phase.RUNNING, "", 10.0)])
    assert state.elapsed(15.0) == 5.0
    state.add([PhaseChanged(Phase.RESTARTING, "rank 1 died", 20.0, 1), PhaseChanged(Phase.RUNNING, "", 21.0, 1)])
    assert (state.elapsed(22.0), state.attempt) == (12.0, 1)
    state.add([PhaseChanged(Phase.SUCCEEDED, "", 30.0, 1)])
    assert state.elapsed(1000.0) == 20.0


def test_what_is_left_comes_from_the_pace_of_the_slowest_rank() -> None:
    state = JobState()
    for second in range(5):
        state.add([progress(second * 10, second, rank=0), progress(second * 5, second, rank=1)])
    overall = state.progress(4.0)
    assert overall is not None
    assert (overall.done, overall.total, overall.eta) == (20, 100, pytest.approx(16.0))
    later = state.progress(6.0)
    assert later is not None
    assert later.eta == pytest.approx(14.0)


def test_what_is_left_is_not_guessed() -> None:
    state = JobState()
    assert state.progress(0.0) is None
    state.add([progress(1, 0.0, total=None)])
    state.add([progress(2, 1.0, total=None)])
    overall = state.progress(1.0)
    assert overall is not None
    assert (overall.done, overall.eta) == (2, None)
    stalled = state.progress(500.0)
    assert stalled is not None
    assert (stalled.eta, stalled.silent) == (None, 499.0)


def test_progress_that_starts_over_forgets_the_old_pace() -> None:
    state = JobState()
    state.add([progress(0, 0.0), progress(90, 1.0), progress(0, 2.0), progress(1, 3.0)])
    overall = state.progress(3.0)
    assert overall is not None
    assert overall.eta == pytest.approx(99.0)
    state.add([progress(0, 10.0, attempt=1)])
    overall = state.progress(10.0)
    assert overall is not None
    assert (overall.done, overall.eta) == (0, None)


def test_pace_is_the_seconds_of_a_unit_and_the_share_of_waiting() -> None:
    state = JobState()
    assert state.pace(0.0) is None
    state.add([told(1, 9.0, 9.0, 0.0)])
    assert state.pace(9.0) == Pace(9.0, 0.0)
    # what follows counts by how many units it stands for, the slow beginning hardly
    state.add([told(11, 10.0, 0.1, 0.02), told(41, 13.0, 0.1, 0.06)])
    pace = state.pace(13.0)
    assert pace is not None
    assert (pace.step, pace.wait, pace.rank) == (pytest.approx(0.1), pytest.approx(0.5), None)
    assert state.pace(500.0) is None  # it may hang, and is not at any pace
    state.add([PhaseChanged(Phase.SUCCEEDED, "", 14.0)])
    assert state.pace(500.0) is not None


def test_pace_of_a_job_that_does_not_tell_it_comes_from_its_progress() -> None:
    state = JobState()
    state.add([progress(0, 0.0), progress(20, 10.0)])
    assert state.pace(10.0) == Pace(0.5)
    state.add([progress(20, 11.0, total=None), progress(20, 12.0, total=None)])
    assert state.pace(12.0) is None


def test_the_rank_that_holds_up_the_others_is_named() -> None:
    state = JobState()
    state.add([told(10, 1.0, 0.10, rank=0), told(10, 1.0, 0.11, rank=1), told(10, 1.0, 0.10, rank=2)])
    assert state.pace(1.0) == Pace(0.11)
    state.add([told(20, 9.0, 0.4, 0.1, rank=2)])
    pace = state.pace(9.0)
    assert pace is not None
    assert (pace.rank, pace.wait) == (2, pytest.approx(0.25))


def test_of_ranks_in_step_the_one_that_waits_for_data_is_named() -> None:
    state = JobState()
    state.add([told(10, 1.0, 0.1, 0.0, rank=0), told(10, 1.0, 0.1, 0.06, rank=1), told(10, 1.0, 0.1, 0.0, rank=2)])
    pace = state.pace(1.0)
    assert pace is not None
    assert (pace.rank, pace.wait) == (1, pytest.approx(0.6))


amounts = st.floats(allow_nan=False, allow_infinity=False)
durations = st.one_of(st.none(), st.floats(0, 1e12))


@given(
    st.lists(
        st.builds(
            Progress, st.sampled_from([0, 1]), amounts, st.one_of(st.none(), amounts), st.sampled_from(["", "es"]),
            st.floats(0, 1e11), st.sampled_from([0, 1]), durations, durations,
        )
    ),
    st.floats(0, 1e11),
)  # fmt: skip
def test_any_progress_can_be_said(events: list[Progress], now: float) -> None:
    state = JobState()
    state.add(events)
    assert list(words.sentences(state, "job", now))


def test_the_failure_that_counts_is_the_first_of_the_newest_attempt() -> None:
    state = JobState()
    state.add([failure(2, 11.0), failure(1, 10.0), failure(3, 12.0)])
    assert state.failure is not None
    assert state.failure.rank == 1
    state.add([failure(0, 20.0, attempt=1)])
    assert state.failure.rank == 0


def test_the_first_point_that_is_not_finite_is_named() -> None:
    state = JobState()
    state.add([points([1.0, 0.5]), points([0.4, float("nan"), float("inf")], start=2), points([float("inf")], start=9)])
    assert state.non_finite is not None
    assert (state.non_finite.key.tag, state.non_finite.key.rank, state.non_finite.step) == ("loss", 0, 3)
    assert state.points == 6
    state.add([points([float("inf")], tag="accuracy")])
    assert [point.key.tag for point in state.non_finites.values()] == ["loss", "accuracy"]
    assert state.non_finite.key.tag == "loss"


def test_huge_values_are_finite() -> None:
    state = JobState()
    state.add([points([sys.float_info.max, sys.float_info.max])])
    assert state.non_finite is None


def test_gaps_are_summed_by_node_and_reason() -> None:
    state = JobState()
    state.add([Gap(1, 4, "log rotated", 0.0), Gap(1, 6, "log rotated", 1.0), Gap(0, 1, "disk full", 1.0)])
    assert state.gaps == {(1, "log rotated"): 10, (0, "disk full"): 1}


def test_a_restart_is_told_once_for_all_nodes() -> None:
    state = JobState()
    state.add([AttemptStarted(node, 1, "rank 1 died", float(node)) for node in range(3)])
    assert (len(state.restarts), state.attempt) == (1, 1)
    state.add([AttemptStarted(0, 2, "rank 0 died", 9.0)])
    assert [restart.attempt for restart in state.restarts] == [1, 2]
    # the phase may be known before the log says why
    state.add([PhaseChanged(Phase.RESTARTING, "", 10.0, 3), AttemptStarted(0, 3, "rank 2 died", 9.5)])
    assert [restart.attempt for restart in state.restarts] == [1, 2, 3]


def test_ranks_and_size() -> None:
    state = JobState()
    state.fold(
        Batch(
            [
                NodeStarted(1, 0, 2, 4, "3.11", "host", "sha", 1.0),
                RankState(1, 5, "running", 77, None, 2.0),
                RankState(1, 5, "exited", 77, -9, 3.0),
            ],
            {"1": 5},
        )
    )
    assert (state.nodes, state.procs, state.cursor) == (2, 4, {"1": 5})
    assert (state.ranks[5].state, state.ranks[5].code) == ("exited", -9)
