"""Parses the `Event` protobuf of TensorBoard, as far as scalars need it."""

from __future__ import annotations

import struct
from typing import Iterator, List, NamedTuple, Optional, Tuple

#: The `dtype` of a TensorProto -> struct format of one element in `tensor_content` (bfloat16 has none: see there).
_ELEMENT = {
    1: "f", 2: "d", 3: "i", 4: "B", 5: "h", 6: "b", 9: "q", 10: "?", 17: "H", 19: "e", 22: "I", 23: "Q",
}  # fmt: skip
_HALF, _BFLOAT16, _UINT64 = 19, 14, 23

# Keys of fields, `number << 3 | wire type`; the second of two is the packed form.
_FLOAT_VALUES = {0x2D: "f", 0x2A: "f", 0x31: "d", 0x32: "d"}  # float_val, double_val
_HALF_VALUES = {0x68, 0x6A}
_INT_VALUES = {0x38, 0x3A, 0x50, 0x52, 0x58, 0x5A, 0x80, 0x82, 0x88, 0x8A}  # int, int64, bool, uint32, uint64


class Malformed(ValueError):
    """Bytes that are no `Event`."""


class Scalar(NamedTuple):
    tag: bytes
    value: float
    at: int  # where the value stands in the event's bytes
    kind: str  # its struct format there; "" where it has no fixed length


class Event(NamedTuple):
    wall: float  # Unix seconds
    step: int
    scalars: List[Scalar]
    step_bytes: int  # length of the step's varint where the event is just wall time, step and one value, else 0


def parse(data: bytes) -> Event:
    """The scalars of an event, in either form: `simple_value`, or a tensor of one number.

    Raises ``Malformed``.
    """
    wall, step, step_bytes = 0.0, 0, 0
    keys, values = [], 0
    scalars: List[Scalar] = []
    try:
        for key, start, stop in _fields(data, 0, len(data)):
            keys.append(key)
            if key == 0x09:
                (wall,) = struct.unpack_from("<d", data, start)
            elif key == 0x10:
                step, step_bytes = _signed(_varint(data, start)[0]), stop - start
            elif key == 0x2A:
                for value_key, value_start, value_stop in _fields(data, start, stop):
                    values += 1
                    scalar = _value(data, value_start, value_stop) if value_key == 0x0A else None
                    if scalar is not None:
                        scalars.append(scalar)
    except (IndexError, struct.error) as error:
        raise Malformed(str(error)) from error
    plain = keys == [0x09, 0x10, 0x2A] and values == 1
    return Event(wall, step, scalars, step_bytes if plain else 0)


def _varint(data: bytes, at: int) -> Tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise Malformed("a varint of more than ten bytes")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _fields(data: bytes, at: int, end: int) -> Iterator[Tuple[int, int, int]]:
    """Each field of a message as (key, start, stop), the last two of its content."""
    while at < end:
        key, at = _varint(data, at)
        wire_type = key & 7
        if wire_type == 2:
            length, at = _varint(data, at)
            stop = at + length
        elif wire_type == 0:
            stop = _varint(data, at)[1]
        elif wire_type == 5:
            stop = at + 4
        elif wire_type == 1:
            stop = at + 8
        else:
            raise Malformed("wire type %d" % wire_type)
        if stop > end:
            raise Malformed("a field longer than its message")
        yield key, at, stop
        at = stop


def _value(data: bytes, start: int, stop: int) -> Optional[Scalar]:
    """A `Summary.Value`, or None where it is no scalar."""
    tag, plugin = b"", b""
    found: Optional[Tuple[float, int, str]] = None
    for key, field, end in _fields(data, start, stop):
        if key == 0x0A:
            tag = data[field:end]
        elif key == 0x15:
            found = struct.unpack_from("<f", data, field)[0], field, "f"
        elif key == 0x42:
            found = _tensor(data, field, end)
        elif key == 0x4A:
            for metadata_key, inner, inner_end in _fields(data, field, end):
                if metadata_key == 0x0A:  # plugin_data
                    for plugin_key, name, name_end in _fields(data, inner, inner_end):
                        if plugin_key == 0x0A:
                            plugin = data[name:name_end]
    if found is None or plugin not in (b"", b"scalars"):
        return None
    return Scalar(tag, *found)


def _tensor(data: bytes, start: int, stop: int) -> Optional[Tuple[float, int, str]]:
    """The number of a TensorProto of one element: (value, where it stands, its struct format)."""
    dtype, elements = 0, 1
    held: List[Tuple[int, int, int]] = []
    for key, field, end in _fields(data, start, stop):
        if key == 0x08:
            dtype = _varint(data, field)[0]
        elif key == 0x12:
            for dim_key, dim, dim_end in _fields(data, field, end):
                if dim_key == 0x12:
                    for size_key, size, _ in _fields(data, dim, dim_end):
                        if size_key == 0x08:
                            elements *= _varint(data, size)[0]
        elif end > field:
            held.append((key, field, end))
    if elements != 1 or len(held) != 1:
        return None
    key, field, end = held[0]
    if key in _FLOAT_VALUES:
        kind = _FLOAT_VALUES[key]
    elif key == 0x22:
        if dtype == _BFLOAT16 and end - field == 2:
            return _bfloat16(data[field:end]), field, ""
        kind = _ELEMENT.get(dtype, "")
    else:
        return _coded(data, key, field, end, dtype)
    if not kind or struct.calcsize("<" + kind) != end - field:
        return None
    return float(struct.unpack_from("<" + kind, data, field)[0]), field, kind


def _coded(data: bytes, key: int, field: int, end: int, dtype: int) -> Optional[Tuple[float, int, str]]:
    """A number that is stored as a varint."""
    if key not in _INT_VALUES and key not in _HALF_VALUES:
        return None
    number, after = _varint(data, field)
    if after != end:
        return None
    if key in _INT_VALUES:
        return float(number if dtype == _UINT64 else _signed(number)), field, ""
    bits = struct.pack("<H", number & 0xFFFF)
    if dtype == _BFLOAT16:
        return _bfloat16(bits), field, ""
    return float(struct.unpack("<e", bits)[0]), field, ""


def _bfloat16(bits: bytes) -> float:
    return float(struct.unpack("<f", b"\0\0" + bits)[0])
