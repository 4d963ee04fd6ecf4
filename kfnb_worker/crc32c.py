"""CRC-32C (Castagnoli) as TensorBoard's record files use it."""

from __future__ import annotations

from typing import List


def _table() -> List[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def _remainder(data: bytes, crc: int) -> int:
    table = _TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc


def crc32c(data: bytes) -> int:
    return _remainder(data, 0xFFFFFFFF) ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """The checksum as it is stored: rotated and shifted, so that a checksum of checksums is no trivial value."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def is_codeword(data: bytes) -> bool:
    """Whether the polynomial of these bytes is divisible by that of CRC-32C.

    It is for bytes followed by their plain remainder, and so for any sum of shifted such sequences.
    """
    return _remainder(data, 0) == 0
