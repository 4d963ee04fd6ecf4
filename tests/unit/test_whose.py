"""Whose an event file is: by the process that its name tells."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kfnb_worker.channel import VARIABLE
from kfnb_worker.tailer import ELSEWHERE, FOREIGN
from kfnb_worker.whose import Whose


@contextmanager
def process(**env: str) -> Iterator[int]:
    """A process in a session of its own that has come up."""
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **env},
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def test_ranks_and_what_is_in_their_sessions() -> None:
    whose = Whose("job-aaaaa", "/channel")
    whose.add(os.getsid(0), 3)
    whose.elsewhere([os.getsid(0), 1 << 30])
    assert whose.rank_of(os.getpid()) == 3
    assert whose.rank_of(1 << 30) == ELSEWHERE


def test_a_process_that_has_ended_is_nobody_s_and_a_living_one_another_s() -> None:
    whose = Whose("job-aaaaa", "/channel")
    with process() as pid:
        assert whose.rank_of(pid) == FOREIGN
    assert whose.rank_of(pid) is None


@pytest.mark.skipif(sys.platform != "linux", reason="the environment of a process is known on Linux only")
@pytest.mark.parametrize(
    ("job", "path", "rank"),
    [("job-aaaaa", "/channel", 2), ("job-aaaaa", "/other", ELSEWHERE), ("job-bbbbb", "/other", FOREIGN)],
)
def test_a_descendant_with_a_session_of_its_own(job: str, path: str, rank: int) -> None:
    with process(KFNB_JOB=job, RANK="2", **{VARIABLE: path}) as pid:
        assert Whose("job-aaaaa", "/channel").rank_of(pid) == rank
