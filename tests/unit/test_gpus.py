"""Which GPUs there are, who gets them, and what is said to those who do not."""

from __future__ import annotations

import pytest

from kfnb.backends.local import gpus, rundir
from kfnb.backends.local.gpus import Gpu, Leases
from kfnb.errors import BackendError

FOUR = [Gpu(str(index), f"GPU-{index}") for index in range(4)]

LISTING = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa)
  MIG 1g.5gb      Device  0: (UUID: MIG-1111)
  MIG 1g.5gb      Device  1: (UUID: MIG-2222)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb)
"""


@pytest.fixture
def folder():
    return rundir.open_home() / "gpus"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("0,1", ["0", "1"]),
        (" 2 , 3 ", ["2", "3"]),
        ("", []),
        ("-1", []),
        ("0,-1,2", ["0"]),
        ("NoDevFiles", []),
        ("GPU-aa,MIG-b/1/0", ["GPU-aa", "MIG-b/1/0"]),
        ("1,1", ["1"]),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(monkeypatch, given, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    found = gpus.visible()
    assert [gpu.name for gpu in found] == names
    assert not any("/" in gpu.key for gpu in found)


def test_kfnb_local_gpus_comes_first(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("KFNB_LOCAL_GPUS", "a,b")
    assert [gpu.name for gpu in gpus.visible()] == ["a", "b"]


def test_slices_stand_in_place_of_their_device():
    assert gpus.parse_listing(LISTING) == ("MIG-1111", "MIG-2222", "GPU-bbbb")
    assert gpus.parse_listing("No devices were found") == ()


def test_more_than_there_are_is_refused_with_what_there_is():
    gpus.check(2, 2, FOUR)
    with pytest.raises(BackendError) as caught:
        gpus.check(2, 3, FOUR)
    assert "6 GPUs (2 nodes with 3 each)" in caught.value.what
    assert "it has 4: 0, 1, 2, 3" in caught.value.why
    with pytest.raises(BackendError, match="none that kfnb can see"):
        gpus.check(1, 1, [])


def test_leases_are_disjoint_and_all_or_none(folder):
    first, second = Leases(folder, "job-aaaaa"), Leases(folder, "job-bbbbb")
    assert first.take(FOUR, 3) == FOUR[:3]
    said = second.take(FOUR, 2)
    assert isinstance(said, str)
    assert "waiting for 2 GPUs, 1 of 4 free" in said
    assert "0 is held by job-aaaaa" in said
    # what it could have had is free for a third
    assert Leases(folder, "job-ccccc").take(FOUR, 1) == FOUR[3:]


def test_leases_are_known_by_the_device_not_by_its_name(folder):
    assert Leases(folder, "one").take([Gpu("0", "GPU-x")], 1) == [Gpu("0", "GPU-x")]
    assert "GPU-x is held by one" in str(Leases(folder, "two").take([Gpu("GPU-x", "GPU-x")], 1))


def test_none_are_leased_for_none(folder):
    assert Leases(folder, "job").take(FOUR, 0) == []
