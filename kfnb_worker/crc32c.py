"""CRC-32C (Castagnoli) as TensorBoard's record files use it: without any library, and fast for many records at once."""

from __future__ import annotations

from typing import List, Sequence

_GROUP = 256  # records whose sum is formed at once
_FEW = 4  # records that are as fast one by one
_MASK = 0xA282EAD8


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
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def is_sound(record: bytes) -> bool:
    """Whether data followed by its masked checksum (little-endian) agrees with it."""
    return masked(record[:-4]) == int.from_bytes(record[-4:], "little")


def are_sound(records: Sequence[bytes]) -> bool:
    """Whether all records, of one length, agree with their checksums; at a small part of the cost of one by one.

    As polynomials over GF(2), data followed by its plain remainder is divisible by the CRC's polynomial, and so is a
    sum of such records, each shifted by another number of bits. That sum is formed by folding one large integer in
    half until one record is left, and only it is divided. Damage stays unseen with a probability of 2^-32, as ever.
    """
    if len(records) <= _FEW:
        return all(is_sound(record) for record in records)
    zeros = crc32c(bytes(len(records[0]) - 4))  # what the inversions at both ends add to a remainder
    return all(_is_sum_sound(records[at : at + _GROUP], zeros) for at in range(0, len(records), _GROUP))


def _is_sum_sound(records: Sequence[bytes], zeros: int) -> bool:
    count, size = len(records), len(records[0])
    slot = size + 1 + count // 4  # with room to be shifted by up to twice ``count`` bits
    sums = bytearray(bytes(slot - size).join(records))
    # The masks are undone for all checksums at once, in lanes of 64 bits.
    lanes = bytearray(8 * count)
    for byte in range(4):
        lanes[byte::8] = sums[size - 4 + byte :: slot]
    ones = int.from_bytes(b"\1\0\0\0\0\0\0\0" * count, "little")
    checks = int.from_bytes(lanes, "little") + ones * (0x100000000 - _MASK)
    checks = checks >> 17 & ones * 0x7FFF | (checks & ones * 0x1FFFF) << 15
    lanes = bytearray((checks ^ ones * zeros).to_bytes(8 * count, "little"))
    for byte in range(4):
        sums[size - 4 + byte :: slot] = lanes[byte::8]
    total, shift = int.from_bytes(sums, "little"), 1
    while count > 1:
        count = (count + 1) // 2
        bits = 8 * slot * count
        total = total & (1 << bits) - 1 ^ total >> bits << shift
        shift *= 2
    return _remainder(total.to_bytes(slot, "little"), 0) == 0
