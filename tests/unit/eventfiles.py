"""Event files made byte by byte, for the tests of what reads them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from kfnb_worker.crc32c import masked

Point = tuple[str, int, float, float]  # tag, step, wall, value


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(key: int, content: bytes) -> bytes:
    return varint(key) + varint(len(content)) + content


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def version(wall: float = 1000.0) -> bytes:
    """The first record of a file."""
    return record(b"\x09" + struct.pack("<d", wall) + field(0x1A, b"brain.Event:2"))


def scalar(tag: str | bytes, step: int, wall: float, value: float, tensor: bool = False) -> bytes:
    name = tag.encode() if isinstance(tag, str) else tag
    content = field(0x0A, name)
    if tensor:
        shape_and_value = b"\x08\x01" + field(0x12, b"") + field(0x22, struct.pack("<f", value))
        content += field(0x42, shape_and_value) + field(0x4A, field(0x0A, field(0x0A, b"scalars")))
    else:
        content += b"\x15" + struct.pack("<f", value)
    numbered = b"\x10" + varint(step) if step else b""
    return record(b"\x09" + struct.pack("<d", wall) + numbered + field(0x2A, field(0x0A, content)))


def event_file(folder: Path, name: str, points: Sequence[Point], wall: float = 1000.0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(version(wall) + b"".join(scalar(*point) for point in points))
    return path
