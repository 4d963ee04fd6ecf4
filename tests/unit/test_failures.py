"""A failure in the user's words: the rank, the error, and the line that the cell shows."""

from __future__ import annotations

from dataclasses import replace

from kfnb.events import Failure, Phase, PhaseChanged
from kfnb.failures import Failures, cell_stacks, cell_traceback, explain

TRACEBACK = """Traceback (most recent call last):
  File "/somewhere/nodes/1/code/main.py", line 7, in <module>
    train()
  File "/somewhere/nodes/1/code/main.py", line 5, in train
    raise ValueError("bad")
  File "/usr/lib/python3/site-packages/lib/main.py", line 9, in f
ValueError: bad
"""
FAILURE = Failure(1, 3, 0, "exception", "ValueError", "bad\nmore", TRACEBACK, 5, 1.0, first_line=3)


def test_lines_of_main_py_also_say_the_cells_line() -> None:
    text = cell_traceback(FAILURE)
    assert 'File "main.py", line 7 (line 9 of the cell), in <module>' in text
    assert 'File "main.py", line 5 (line 7 of the cell), in train' in text
    assert 'File "/usr/lib/python3/site-packages/lib/main.py", line 9, in f' in text


def test_a_scripts_lines_are_its_own() -> None:
    assert 'File "main.py", line 7, in <module>' in cell_traceback(replace(FAILURE, first_line=1))


def test_a_sentence_names_rank_node_error_and_line() -> None:
    assert explain(FAILURE) == "Rank 3 (node 1) raised ValueError: bad at line 7 of the cell"
    assert explain(replace(FAILURE, first_line=1)).endswith("at line 5 of main.py")
    assert explain(replace(FAILURE, line=None, message="")) == "Rank 3 (node 1) raised ValueError"


def test_a_long_message_is_cut() -> None:
    assert len(explain(replace(FAILURE, message="x" * 10_000))) < 400


def test_other_kinds_speak_the_workers_words() -> None:
    killed = replace(FAILURE, kind="signal", message="was killed by SIGKILL")
    assert explain(killed) == "Rank 3 (node 1): was killed by SIGKILL"
    assert explain(replace(killed, rank=None, message="is gone", kind="lost")) == "Node 1: is gone"


def test_stacks_are_the_users_with_the_cells_lines() -> None:
    text = """Current thread 0x00007f (most recent call first):
  File "/lib/python3.11/site-packages/torch/distributed/c10d.py", line 2500 in recv
  File "/jobs/hang-abcde/nodes/0/code/main.py", line 6 in <module>
  File "/jobs/hang-abcde/worker.zip/kfnb_worker/execute.py", line 70 in run
  File "<string>", line 1 in <module>
"""
    shown = cell_stacks(text, 2)
    assert 'File "main.py", line 6 (line 7 of the cell) in <module>' in shown
    assert "line 2500 in recv" in shown
    assert "kfnb_worker" not in shown
    assert "<string>" not in shown
    assert shown.startswith("Current thread (most recent call first):")


def test_the_first_failure_counts_until_the_backend_judges() -> None:
    failures = Failures()
    late, early = replace(FAILURE, rank=1, time=2.0), replace(FAILURE, rank=2, time=1.0)
    failures.add(late)
    failures.add(early)
    assert failures.first == early
    # the backend saw them in another order; its word is cut, the rank's own is whole
    judged = replace(late, traceback="cut")
    failures.add(PhaseChanged(Phase.FAILED, "", 3.0, 0, judged))
    assert failures.first == late
    failures.add(PhaseChanged(Phase.FAILED, "", 3.0, 0, replace(FAILURE, node=5, rank=None)))
    assert failures.first == replace(FAILURE, node=5, rank=None)


def test_a_failure_of_a_replaced_attempt_does_not_count() -> None:
    failures = Failures()
    failures.add(replace(FAILURE, attempt=1, time=9.0))
    failures.add(replace(FAILURE, attempt=0, time=1.0))
    assert failures.first == replace(FAILURE, attempt=1, time=9.0)
