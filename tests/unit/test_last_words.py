"""What of a log's end is the worker's own word, and never a part of what a rank printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfnb.backends.local.workers import own_words
from kfnb_worker import wire

CRASH = b"Traceback (most recent call last):\n  File x\nOSError: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        (b"", ""),
        (CRASH, "OSError: [Errno 28] No space left on device"),
        (b"[0:1] a\n" + CRASH, "OSError: [Errno 28] No space left on device"),
        (b"[0:1] a" + CRASH, "OSError: [Errno 28] No space left on device"),  # after a line cut by a full disk
        (CRASH + b"[0:1] a\n", ""),  # it went on after that
        (b"[0:1] a\n[0:2] zzz", ""),
        (b"warning\n[0:1] a\n[0", ""),
    ],
)
def test_only_what_follows_the_last_frame(tail: bytes, words: str) -> None:
    assert own_words(tail, whole=True) == words


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=8), st.data())
def test_a_rank_s_lines_are_never_the_worker_s(lines: list[bytes], data: st.DataObject) -> None:
    log = b"".join(wire.frame(b"0", b":", number, line)[0] for number, line in enumerate(lines))
    start = data.draw(st.integers(0, len(log)))
    end = data.draw(st.integers(start, len(log)))
    assert own_words(log[start:end], whole=start == 0) == ""
