"""Messages for the WebSocket, and JSON that every page can read."""

from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfnb.views.feed.frames import pack, strict

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(ANYTHING)
def test_what_is_made_strict_is_json_that_can_be_encoded(value: object) -> None:
    json.dumps(strict(value), allow_nan=False, ensure_ascii=False).encode()


def test_numbers_that_a_page_does_not_have_become_null() -> None:
    assert strict({"a": [math.nan, -math.inf, 1 << 53, True, 1.5]}) == {"a": [None, None, None, True, 1.5]}


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        strict({"a": b"x"})


@given(st.dictionaries(st.text(max_size=3), st.integers(), max_size=3), st.lists(st.binary(max_size=9), max_size=8))
def test_a_frame_holds_the_message_and_its_buffers(message: dict[str, int], buffers: list[bytes]) -> None:
    frame = pack("7", message, buffers)
    (length,) = struct.unpack_from("<I", frame)
    header = json.loads(frame[4 : 4 + length])
    assert header == {"channel": "7", "message": message, "buffers": [len(buffer) for buffer in buffers]}
    rest = frame[4 + length :]
    for buffer in buffers:
        assert rest[: len(buffer)] == buffer
        rest = rest[len(buffer) :]
    assert rest == b""
