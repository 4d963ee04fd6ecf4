"""Messages with buffers as one piece of bytes, for the WebSocket; and what makes any value strict JSON."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

#: Largest whole number that a page can tell from its neighbours.
_SAFE = (1 << 53) - 1


def pack(channel: str, message: Mapping[str, Any], buffers: Sequence[bytes]) -> bytes:
    """The length of the JSON (uint32, little endian), the JSON, and the buffers one after the other."""
    header = {"channel": channel, "message": message, "buffers": [len(buffer) for buffer in buffers]}
    text = json.dumps(header, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return b"".join([struct.pack("<I", len(text)), text, *buffers])


def strict(value: Any) -> Any:
    """The value as every reader of JSON takes it: no lone surrogates, and None for a number that a page does not have.

    Raises ``TypeError`` for what is no JSON.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -_SAFE <= value <= _SAFE else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {strict(str(key)): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    raise TypeError(f"{type(value).__name__} is no JSON")
