"""Event files of real writers, growing, damaged and replaced, and any bytes at all."""

from __future__ import annotations

import math
import os
import shutil
import struct
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfnb_worker.crc32c import are_sound, crc32c, masked
from kfnb_worker.eventfile import CHUNK, LARGEST, PATIENCE, Columns, EventFile, read
from tests.unit.eventfiles import Point, event_file, field, record, scalar, varint, version


def single(number: float) -> float:
    """The number as a float32 holds it."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def points_of(columns: dict[str, Columns]) -> list[Point]:
    return [
        (tag, step, wall, value)
        for tag, (steps, walls, values) in sorted(columns.items())
        for step, wall, value in zip(steps, walls, values, strict=True)
    ]


def series(columns: dict[str, Columns], tag: str) -> list[tuple[int, float]]:
    steps, _, values = columns[tag]
    return list(zip(steps, values, strict=True))


def poll_all(file: EventFile) -> dict[str, Columns]:
    """Polls as often as a bad header needs to be passed."""
    found: dict[str, Columns] = {}
    for _ in range(PATIENCE + 2):
        for tag, (steps, walls, values) in file.poll().items():
            have = found.setdefault(tag, (array("q"), array("d"), array("d")))
            have[0].extend(steps)
            have[1].extend(walls)
            have[2].extend(values)
    return found


def test_the_checksum_is_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 600), st.integers(0, 60), st.data())
def test_many_checksums_are_checked_as_one(count: int, size: int, data: st.DataObject) -> None:
    source = data.draw(st.randoms(use_true_random=False))
    contents = [bytes(source.randrange(256) for _ in range(size)) for _ in range(count)]
    records = [content + struct.pack("<I", masked(content)) for content in contents]
    assert are_sound(records)
    damage = bytearray(size + 4)
    damage[data.draw(st.integers(0, size + 3))] = data.draw(st.integers(1, 255))
    for number in data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4, unique=True)):
        records[number] = bytes(have ^ flip for have, flip in zip(records[number], damage, strict=True))
    assert not are_sound(records)


# --- real writers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new_style", [False, True])
def test_what_summary_writer_writes(tmp_path: Path, new_style: bool) -> None:
    import torch
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in (0, 1, 127, 128, 16_383, 16_384, 2_097_152, 1 << 40, 3):
            writer.add_scalar("train/loss", step / 7, step, walltime=1000.5 + step, new_style=new_style)
            writer.add_scalar("lr", 0.1, step, new_style=new_style)
        writer.add_scalar("double", 0.1, 1, new_style=new_style, double_precision=True)
        writer.add_scalar("bad", math.nan, 5, new_style=new_style)
        writer.add_scalar("bad", -math.inf, 6, new_style=new_style)
        writer.add_text("note", "text", 1)
        writer.add_histogram("weights", torch.ones(3), 1)
    (path,) = tmp_path.iterdir()
    found = read(str(path))
    steps = [0, 1, 127, 128, 16_383, 16_384, 2_097_152, 1 << 40, 3]
    assert set(found) == {"train/loss", "lr", "double", "bad"}
    assert series(found, "train/loss") == [(step, single(step / 7)) for step in steps]
    assert list(found["train/loss"][1]) == [1000.5 + step for step in steps]
    assert list(found["lr"][0]) == steps
    assert found["double"][2][0] == pytest.approx(0.1)
    assert math.isnan(found["bad"][2][0])
    assert found["bad"][2][1] == -math.inf


def test_what_tensorboards_writer_writes(tmp_path: Path) -> None:
    import numpy as np
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.scalar.metadata import create_summary_metadata
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    kinds = ["float32", "float64", "int32", "int64", "uint8", "int8", "int16", "float16", "bool", "uint16"]
    writer = EventFileWriter(str(tmp_path))
    for step in range(1, 300):
        for kind in kinds:
            event = Event(wall_time=1000.0 + step, step=step)
            value = event.summary.value.add(tag=kind)
            value.tensor.CopyFrom(make_tensor_proto(np.array(step % 100 / 4).astype(kind)))
            if step == 1:  # as some writers have it: only the first one says which plugin
                value.metadata.CopyFrom(create_summary_metadata("name", "described"))
            writer.add_event(event)
    event = Event(wall_time=1.0, step=1)
    event.summary.value.add(tag="matrix").tensor.CopyFrom(make_tensor_proto([1.0, 2.0]))
    event.summary.value.add(tag="string").tensor.CopyFrom(make_tensor_proto("text"))
    both = event.summary.value.add(tag="one of several")
    both.simple_value = 4.0
    writer.add_event(event)
    writer.close()
    (path,) = tmp_path.iterdir()
    found = read(str(path))
    assert set(found) == {*kinds, "one of several"}
    for kind in kinds:
        expected = np.array([step % 100 / 4 for step in range(1, 300)]).astype(kind).astype(float)
        assert list(found[kind][0]) == list(range(1, 300))
        assert list(found[kind][2]) == expected.tolist()


def test_values_in_tensor_content(tmp_path: Path) -> None:
    forms = {1: "f", 2: "d", 3: "i", 4: "B", 5: "h", 6: "b", 9: "q", 10: "?", 17: "H", 19: "e", 22: "I", 23: "Q"}
    data = version()
    for dtype, form in forms.items():
        for step in (200, 300):
            tensor = b"\x08" + varint(dtype) + field(0x22, struct.pack("<" + form, 1))
            value = field(0x0A, form.encode()) + field(0x42, tensor)
            content = b"\x09" + struct.pack("<d", 1.0) + b"\x10" + varint(step) + field(0x2A, field(0x0A, value))
            data += record(content)
    tensor = b"\x08\x0e" + field(0x22, b"\x40\x40")  # bfloat16
    data += record(field(0x2A, field(0x0A, field(0x0A, b"bf16") + field(0x42, tensor))))
    path = tmp_path / "events"
    path.write_bytes(data)
    found = read(str(path))
    assert set(found) == {*forms.values(), "bf16"}
    assert list(found.pop("bf16")[2]) == [3.0]
    assert all(list(steps) == [200, 300] and list(values) == [1.0, 1.0] for steps, _, values in found.values())


def test_a_hyperparameter_record_is_no_scalar(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_hparams({"lr": 0.1}, {"accuracy": 0.5}, run_name="run")
    (path,) = (tmp_path / "run").iterdir()
    assert series(read(str(path)), "accuracy") == [(0, 0.5)]
    assert set(read(str(path))) == {"accuracy"}


# --- growth ------------------------------------------------------------------------------------------------------

numbers = st.floats(width=32, allow_nan=False)
point = st.tuples(
    st.sampled_from(["loss", "lr", "val/loss", "ä"]),
    st.one_of(st.integers(0, 300), st.integers(-(2**63), 2**63 - 1)),
    st.floats(0, 2e9),
    numbers,
    st.booleans(),
)


def whole_file(points: Iterable[tuple[str, int, float, float, bool]]) -> bytes:
    return version() + b"".join(scalar(*each) for each in points)


@settings(max_examples=60, deadline=None)
@given(st.lists(point, max_size=40), st.data())
def test_any_split_over_polls_gives_the_same_points(
    points: list[tuple[str, int, float, float, bool]], data: st.DataObject
) -> None:
    whole = whole_file(points)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    found: Counter[Point] = Counter()
    order: dict[str, list[Point]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events"
        path.touch()
        file = EventFile(str(path))
        for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            with path.open("ab") as out:
                out.write(whole[start:stop])
            for each in points_of(file.poll()):
                found[each] += 1
                order.setdefault(each[0], []).append(each)
        assert file.offset == len(whole)
        assert not file.more
        assert not file.stuck
    assert found == Counter(each[:4] for each in points)
    assert order == {
        tag: [each[:4] for each in points if each[0] == tag] for tag in dict.fromkeys(each[0] for each in points)
    }


@settings(max_examples=150, deadline=None)
@given(st.lists(point, min_size=1, max_size=30), st.data())
def test_damage_raises_nothing_and_invents_nothing(
    points: list[tuple[str, int, float, float, bool]], data: st.DataObject
) -> None:
    whole = bytearray(whole_file(points))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        kind = data.draw(st.sampled_from(["flip", "zero", "cut", "insert", "end"]))
        length = data.draw(st.integers(1, 60))
        if kind == "flip":
            whole[at] ^= data.draw(st.integers(1, 255))
        elif kind == "zero":
            whole[at : at + length] = bytes(len(whole[at : at + length]))
        elif kind == "cut":
            del whole[at : at + length]
        elif kind == "insert":
            whole[at:at] = data.draw(st.binary(max_size=40))
        else:
            del whole[at:]
        if not whole:
            break
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events"
        path.write_bytes(whole)
        found = Counter(points_of(poll_all(EventFile(str(path)))))
    assert not found - Counter(each[:4] for each in points)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events"
        path.write_bytes(data)
        assert points_of(poll_all(EventFile(str(path)))) == []
        path.write_bytes(version() + record(data))  # whole and sound, but no event
        poll_all(EventFile(str(path)))


def test_a_limit_bounds_a_poll_and_says_that_there_is_more(tmp_path: Path) -> None:
    points: list[Point] = [("loss", step, float(step), 0.5) for step in range(1, 20_000)]
    file = EventFile(str(event_file(tmp_path, "events", points)))
    first = file.poll(CHUNK)
    assert file.more
    assert 0 < len(first["loss"][0]) < 3000
    steps = list(first["loss"][0])
    while file.more:
        steps += file.poll(CHUNK)["loss"][0]
    assert steps == list(range(1, 20_000))


def test_more_tags_than_templates_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kfnb_worker.eventfile.TEMPLATES", 50)
    points: list[Point] = [(f"tag{n % 3000}", n + 1, 1.0, n % 7) for n in range(9000)]
    found = read(str(event_file(tmp_path, "events", points)))
    assert len(found) == 3000
    assert sum(len(steps) for steps, _, _ in found.values()) == 9000


def test_records_that_differ_only_after_the_value(tmp_path: Path) -> None:
    data = version()
    for step in range(200, 260):
        plugin = field(0x4A, field(0x0A, field(0x0A, b"scalars")) + field(0x12, b"one" if step % 3 else b"two"))
        tensor = field(0x42, b"\x08\x01" + field(0x2A, struct.pack("<f", step)))
        value = field(0x0A, b"loss") + tensor + plugin
        clock = b"\x09" + struct.pack("<d", 1.0)
        whole = bytearray(record(clock + b"\x10" + varint(step) + field(0x2A, field(0x0A, value))))
        if step == 230:
            whole[14] ^= 1
        data += whole
    path = tmp_path / "events"
    path.write_bytes(data)
    assert series(read(str(path)), "loss") == [(step, step) for step in range(200, 260) if step != 230]


def test_tags_that_are_not_utf8_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(version() + scalar(b"caf\xc3", 1, 1.0, 1.0) + scalar(b"caf\xe4", 2, 1.0, 2.0))
    assert set(read(str(path))) == {"caf\\xc3", "caf\\xe4"}


def test_a_huge_record_is_passed_over(tmp_path: Path) -> None:
    image = record(field(0x2A, field(0x0A, field(0x0A, b"image") + field(0x22, bytes(LARGEST + 1)))))
    graph = record(field(0x22, bytes(3 * CHUNK)))
    path = tmp_path / "events"
    path.write_bytes(version() + image + scalar("a", 1, 1.0, 1.0) + graph + scalar("a", 2, 1.0, 2.0))
    assert series(read(str(path)), "a") == [(1, 1.0), (2, 2.0)]


# --- damage ------------------------------------------------------------------------------------------------------


def test_a_bad_checksum_of_data_is_counted_and_skipped(tmp_path: Path) -> None:
    records = [scalar("loss", step, float(step), step) for step in range(1, 1001)]
    for broken in (0, 500, 999):
        spoilt = bytearray(records[broken])
        spoilt[-6] ^= 1  # in the value
        records[broken] = bytes(spoilt)
    path = tmp_path / "events"
    path.write_bytes(version() + b"".join(records))
    file = EventFile(str(path))
    found = file.poll()
    assert file.bad_data == 3
    assert list(found["loss"][0]) == [step for step in range(1, 1001) if step not in (1, 501, 1000)]


def test_equal_damage_of_two_records_does_not_cancel_out(tmp_path: Path) -> None:
    records = [scalar("loss", step, float(step), step) for step in range(200, 240)]
    for broken in (10, 11, 20, 21):
        spoilt = bytearray(records[broken])
        spoilt[-6] ^= 8
        records[broken] = bytes(spoilt)
    path = tmp_path / "events"
    path.write_bytes(version() + b"".join(records))
    assert len(read(str(path))["loss"][0]) == 36


def test_zeros_that_are_filled_in_later_lose_nothing(tmp_path: Path) -> None:
    path = event_file(tmp_path, "events", [("loss", 1, 1.0, 1.0)])
    end = path.stat().st_size
    late = scalar("loss", 2, 2.0, 2.0)
    file = EventFile(str(path))
    assert series(file.poll(), "loss") == [(1, 1.0)]
    os.truncate(path, end + len(late))  # a network file system may show the length before the bytes
    assert file.poll() == {}
    assert file.stuck
    with path.open("r+b") as out:
        out.seek(end)
        out.write(late)
    assert series(file.poll(), "loss") == [(2, 2.0)]
    assert not file.stuck
    assert file.lost == 0


def test_a_bad_header_is_tried_again_and_then_passed(tmp_path: Path) -> None:
    path = event_file(tmp_path, "events", [("loss", 1, 1.0, 1.0)])
    with path.open("ab") as out:
        out.write(b"\xff" * 100_000 + scalar("loss", 2, 2.0, 2.0) + scalar("loss", 3, 3.0, 3.0))
    file = EventFile(str(path))
    assert series(file.poll(), "loss") == [(1, 1.0)]
    for _ in range(PATIENCE - 1):
        assert file.stuck
        assert file.poll() == {}
    assert series(file.poll(), "loss") == [(2, 2.0), (3, 3.0)]
    assert file.lost == 100_000


def test_after_damage_at_the_end_the_next_record_is_found_when_it_comes(tmp_path: Path) -> None:
    path = event_file(tmp_path, "events", [("loss", 1, 1.0, 1.0)])
    with path.open("ab") as out:
        out.write(b"\xff" * 50)
    file = EventFile(str(path))
    poll_all(file)
    late = scalar("loss", 2, 2.0, 2.0)
    for part in (late[:9], late[9:20], late[20:]):
        with path.open("ab") as out:
            out.write(part)
        found = file.poll()
    assert series(found, "loss") == [(2, 2.0)]


# --- replacement -------------------------------------------------------------------------------------------------


def test_a_copy_in_its_place_goes_on_from_the_same_offset(tmp_path: Path) -> None:
    path = event_file(tmp_path, "events", [("loss", 1, 1.0, 1.0)])
    file = EventFile(str(path))
    assert series(file.poll(), "loss") == [(1, 1.0)]
    other = tmp_path / "copy"
    shutil.copy(path, other)
    with other.open("ab") as out:
        out.write(scalar("loss", 2, 2.0, 2.0))
    other.replace(path)
    assert series(file.poll(), "loss") == [(2, 2.0)]


def test_another_file_in_its_place_is_read_from_its_start(tmp_path: Path) -> None:
    path = event_file(tmp_path, "events", [("loss", 1, 1.0, 1.0), ("loss", 2, 2.0, 2.0)])
    file = EventFile(str(path))
    file.poll()
    event_file(tmp_path, "events", [("loss", 7, 7.0, 7.0), ("loss", 8, 8.0, 8.0), ("loss", 9, 9.0, 9.0)], wall=2000.0)
    assert series(file.poll(), "loss") == [(7, 7.0), (8, 8.0), (9, 9.0)]
    assert file.created == 2000.0


def test_a_file_that_was_cut_repeats_no_point(tmp_path: Path) -> None:
    path = event_file(tmp_path, "events", [("loss", step, float(step), step) for step in range(1, 11)])
    file = EventFile(str(path))
    file.poll()
    os.truncate(path, path.stat().st_size - 3 * len(scalar("loss", 1, 1.0, 1.0)))
    assert file.poll() == {}
    with path.open("ab") as out:
        out.write(scalar("loss", 8, 20.0, 80.0))
    assert series(file.poll(), "loss") == [(8, 80.0)]


def test_a_file_that_vanishes_and_comes_back(tmp_path: Path) -> None:
    path = event_file(tmp_path, "events", [("loss", 1, 1.0, 1.0)])
    file = EventFile(str(path))
    file.poll()
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(FileNotFoundError):
        file.poll()
    path.write_bytes(b"")
    assert file.poll() == {}
    path.write_bytes(whole + scalar("loss", 2, 2.0, 2.0))
    assert series(file.poll(), "loss") == [(2, 2.0)]
