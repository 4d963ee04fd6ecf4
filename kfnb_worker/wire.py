"""The line format of a node's log: what a worker writes to its own stdout and every kfnb client reads back.

A line is either output of a rank or a record of the worker, both with a sequence number that counts the lines of one
worker process from 0, so that a reader knows exactly which lines it has not got::

    [3:1042] text          stdout of rank 3        [3!1043] text       its stderr
    [3~1044]  45%|####     the present state of a line that is not finished (a progress bar), replaced by the next
    [3:1045+] text         a piece of a long line; the next line of the same rank and separator goes on with it
    [n:17] Collecting x    output of a process of the node itself
    [kfnb:1046] {...}      a record: strict JSON, one object
    [kfnb:1047+] {...      a piece of a long record

Pieces are needed because container runtimes cut lines at 16 KiB. Text is bytes as printed: it is joined first and
decoded afterwards, so that a character split between two pieces is whole again.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Iterator, List, Sequence, Union

VERSION = 1

#: Longest payload of one line in bytes; longer ones travel in pieces. CRI runtimes split at 16 KiB.
PIECE = 8 * 1024

STDOUT, STDERR, TRANSIENT = b":", b"!", b"~"

#: One line of a node's log, without its newline: (who, separator, sequence, "+" or "", payload).
LINE = rb"\[(\d{1,9}|n|kfnb)([:!~])(\d{1,18})(\+?)\] ?(.*)"

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def pieces(payload: bytes) -> Iterator[bytes]:
    """Split a payload into pieces of at most ``PIECE`` bytes; an empty payload is one empty piece."""
    for start in range(0, max(len(payload), 1), PIECE):
        yield payload[start : start + PIECE]


def frame(who: bytes, separator: bytes, sequence: int, payload: bytes) -> List[bytes]:
    """The framed lines (each with its newline) for one payload; they use up ``len(result)`` sequence numbers."""
    if len(payload) <= PIECE:
        return [b"[%b%b%d] %b\n" % (who, separator, sequence, payload)]
    parts = list(pieces(payload))
    last = len(parts) - 1
    return [
        b"[%b%b%d%b] %b\n" % (who, separator, sequence + index, b"" if index == last else b"+", part)
        for index, part in enumerate(parts)
    ]


def frame_record(sequence: int, record: Dict[str, Any]) -> List[bytes]:
    """The framed lines of a record. Raises ``ValueError`` where a value is not strict JSON (see ``pack_floats``)."""
    return frame(b"kfnb", b":", sequence, dump(record))


def dump(record: Dict[str, Any]) -> bytes:
    """Strict, compact JSON: NaN and infinities are refused, since they are not JSON."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False, ensure_ascii=True).encode("ascii")


def pack_floats(values: Sequence[float]) -> List[Union[float, str]]:
    """Floats as strict JSON has them: non-finite ones become ``"nan"``, ``"inf"`` and ``"-inf"``."""
    return [
        value if math.isfinite(value) else ("nan" if value != value else "inf" if value > 0 else "-inf")
        for value in values
    ]


def unpack_floats(values: Sequence[Union[float, str]]) -> List[float]:
    """The reverse of ``pack_floats``. Raises ``ValueError`` for anything that is no number."""
    if set(map(type, values)) == {float}:  # nearly always
        return list(values)  # type: ignore[arg-type]
    unpacked = []
    for value in values:
        if isinstance(value, str):
            if value not in _NON_FINITE:
                raise ValueError("not a number on the wire: %r" % value[:40])
            unpacked.append(_NON_FINITE[value])
        else:
            unpacked.append(float(value))
    return unpacked
