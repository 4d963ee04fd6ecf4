"""What user code calls: outside of a job it works too, and what is no number is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kfnb_worker as kf
from kfnb_worker import api, checkpoints
from tests.waiting import wait_for


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


class Channel:
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    channel = Channel()
    monkeypatch.setattr(api, "channel", lambda: channel)
    api._progress.reset()
    return channel.sent


def test_outside_of_a_job_a_cell_is_rank_0_of_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (kf.rank(), kf.world_size(), kf.local_rank(), kf.node_rank()) == (0, 1, 0, 0)
    assert kf.logdir().resolve() == tmp_path / "runs"
    assert kf.logdir().is_dir()
    assert not kf.stopping()
    kf.log(1, loss=0.5)
    kf.progress(1, 2)
    assert capsys.readouterr() == ("", "")
    assert kf.precision() is None
    with kf.autocast():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2), np.int64(2), np.array(2.0), torch.tensor(2.0), torch.tensor([2]), True + True]
)
def test_every_kind_of_number_is_logged(sent: list[dict[str, Any]], value: Any) -> None:
    kf.log(np.int64(7), loss=value)
    [message] = sent
    steps, walls, values = message["p"]["loss"]
    assert (steps, values) == ([7], [2.0])
    assert type(steps[0]) is int
    assert walls[0] > 1.6e9


@pytest.mark.parametrize(
    ("value", "packed"), [(float("nan"), "nan"), (float("inf"), "inf"), (-np.inf, "-inf"), (10**400, "inf")]
)
def test_what_is_not_finite_is_a_point(sent: list[dict[str, Any]], value: float, packed: str) -> None:
    kf.log(1, **{"train/loss": value})
    assert sent[0]["p"]["train/loss"][2] == [packed]


@pytest.mark.parametrize("value", ["1.0", None, [1.0], torch.ones(2), {}])
def test_what_is_no_number_is_refused(sent: list[dict[str, Any]], value: Any) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        kf.log(1, loss=value)
    assert sent == []


def test_progress_is_told_now_and_then_and_at_the_end(sent: list[dict[str, Any]]) -> None:
    for done in range(1, 100_001):
        kf.progress(done, 100_000, unit="samples")
    assert len(sent) < 1000
    assert (sent[-1]["done"], sent[-1]["total"], sent[-1]["unit"]) == (100_000.0, 100_000.0, "samples")


def test_whatever_is_given_as_a_unit_is_text(sent: list[dict[str, Any]]) -> None:
    for unit in (None, 5, "u" * 1000):
        kf.progress(1, 1, unit)  # type: ignore[arg-type]
    assert [message["unit"] for message in sent] == ["None", "5", "u" * 40]
    assert list(kf.track(range(2), total=10**400)) == [0, 1]


def test_the_last_that_is_told_before_a_silence_is_told(sent: list[dict[str, Any]]) -> None:
    for done in (1, 2, 3):
        kf.progress(done, 400)
    wait_for(lambda: sent[-1]["done"] == 3.0, timeout=10, what="the last step")
    assert len(sent) == 2


def test_what_is_told_last_before_the_end_of_the_process_is_told(sent: list[dict[str, Any]]) -> None:
    kf.progress(1, 400)
    kf.progress(2, 400)
    api._progress.flush()  # as at exit
    assert [message["done"] for message in sent] == [1.0, 2.0]


def test_a_forked_child_tells_its_own(tmp_path: Path, sent: list[dict[str, Any]]) -> None:
    kf.progress(1, 400)
    kf.progress(2, 400)  # held, and the lock may be too
    with api._progress._lock:
        child = os.fork()
        if child == 0:
            sent.clear()
            kf.progress(7)
            api._progress.flush()
            (tmp_path / "sent").write_text(json.dumps(sent))
            os._exit(0)
    os.waitpid(child, 0)
    assert [message["done"] for message in json.loads((tmp_path / "sent").read_text())] == [7.0]


@pytest.mark.parametrize(
    ("done", "total"),
    [(float("nan"), 5), (1, float("nan")), (float("inf"), None), (10**400, None), (5, 10**400)],
)
def test_an_amount_that_is_not_finite_tells_nothing(sent: list[dict[str, Any]], done: float, total: float) -> None:
    kf.progress(done, total)
    assert sent == []


def test_tracking_tells_how_far_and_how_long_and_how_much_of_it_was_waiting(
    sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(api.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(api.time, "time", lambda: 1.7e9 + clock[0])

    class Loader:
        def __len__(self) -> int:
            return 8

        def __iter__(self) -> Iterator[int]:
            for item in range(8):
                clock[0] += 0.015  # reading
                yield item

    seen = []
    for item in kf.track(Loader(), unit="batch"):
        seen.append(item)
        clock[0] += 0.045  # training
    assert seen == list(range(8))
    assert [message["done"] for message in sent] == [2, 4, 6, 8]
    for message in sent:
        assert (message["e"], message["total"], message["unit"]) == ("progress", 8.0, "batch")
        assert (message["step"], message["wait"]) == (pytest.approx(0.06), pytest.approx(0.015))


def test_the_end_of_a_tracked_loop_is_told_once(sent: list[dict[str, Any]]) -> None:
    assert sum(1 for _ in kf.track(iter(range(100_000)))) == 100_000
    assert (sent[-1]["done"], sent[-1]["total"]) == (100_000.0, None)
    assert len({message["done"] for message in sent}) == len(sent) < 100
    sent.clear()
    assert list(kf.track([])) == []
    assert list(kf.track(range(3), total=float("nan"))) == [0, 1, 2]
    assert (sent[-1]["done"], sent[-1]["total"]) == (3.0, None)


def test_a_tracked_loop_that_is_left_leaves_nothing(sent: list[dict[str, Any]]) -> None:
    source = iter(range(10))
    for item in kf.track(source):
        if item == 4:
            break
    assert next(source) == 5  # nothing more was taken
    assert [message["done"] for message in sent] == [4.0]
    with pytest.raises(ZeroDivisionError):
        list(kf.track(1 / item for item in (1, 0)))


def test_a_data_loader_is_tracked(sent: list[dict[str, Any]]) -> None:
    loader = torch.utils.data.DataLoader(list(range(10)), batch_size=2)
    assert [batch.tolist() for batch in kf.track(loader)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert (sent[-1]["done"], sent[-1]["total"], sent[-1]["unit"]) == (5.0, 5.0, "step")

    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    assert len(list(kf.track(torch.utils.data.DataLoader(Stream(), batch_size=2)))) == 2  # its len() raises
    assert (sent[-1]["done"], sent[-1]["total"]) == (2.0, None)


def test_outside_of_a_job_tracking_only_iterates() -> None:
    source = iter(range(10))
    for item in kf.track(source):
        if item == 4:
            break
    assert next(source) == 5


def test_a_step_beyond_64_bits_is_refused(sent: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        kf.log(1 << 63, loss=1.0)
    assert sent == []


def test_autocast_has_the_precision_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFNB_PRECISION", "bf16")
    with kf.autocast("cpu"):
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.bfloat16
    monkeypatch.setenv("KFNB_PRECISION", "tf32")
    with kf.autocast("cpu"):
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32
    monkeypatch.setenv("KFNB_PRECISION", "fp7")
    with pytest.raises(ValueError, match="fp7"):
        kf.autocast()


def test_importing_it_costs_nothing() -> None:
    code = "import sys; before = set(sys.modules); import kfnb_worker; print(*sorted(set(sys.modules) - before))"
    env = {"PYTHONPATH": str(Path(kf.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=env)
    added = set(done.stdout.split())
    assert {name for name in added if name.startswith("kfnb_worker")} == {"kfnb_worker"}
    assert not added & {"torch", "numpy", "asyncio", "json", "socket", "pathlib"}


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="nothing_like_that"):
        kf.nothing_like_that  # noqa: B018
    assert set(kf.__all__) == set(dir(kf))


# --- checkpoints ---------------------------------------------------------------------------------------------------


def save(step: int) -> Path:
    folder = kf.checkpoint_dir(step)
    torch.save({"step": step}, folder / "state.pt")
    return kf.commit(step)


def test_a_checkpoint_is_there_once_it_is_committed() -> None:
    assert kf.latest() is None
    folder = kf.checkpoint_dir(10)
    (folder / "state.pt").write_bytes(b"half")
    assert kf.latest() is None
    assert kf.commit(folder) == save(10)
    latest = kf.latest()
    assert latest is not None
    assert latest.name == "step-10"
    assert torch.load(latest / "state.pt") == {"step": 10}


def test_the_last_k_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFNB_KEEP_CHECKPOINTS", "2")
    for step in (1, 2, 9, 10, 100):
        save(step)
    assert sorted(path.name for path in Path("checkpoints").iterdir()) == ["step-10", "step-100"]


def test_an_interrupted_commit_is_never_loaded() -> None:
    save(1)
    save(2)
    for name in ("step-3", "step-4.partial", "step-5.old.partial"):
        folder = Path("checkpoints") / name
        folder.mkdir()
        (folder / "state.pt").write_bytes(b"half")
    Path("checkpoints/step-2/.complete").unlink()
    latest = kf.latest()
    assert latest is not None
    assert latest.name == "step-1"


def test_what_an_interrupted_commit_left_is_cleaned_and_a_replaced_one_comes_back() -> None:
    save(1)
    save(2)
    Path("checkpoints/step-2").rename("checkpoints/step-2.old")  # as when it was to be replaced
    Path("checkpoints/step-3.partial").mkdir()
    checkpoints.clean("checkpoints")
    assert sorted(path.name for path in Path("checkpoints").iterdir()) == ["step-1", "step-2"]
    checkpoints.clean("no/such/directory")


def test_nothing_to_commit_is_said() -> None:
    with pytest.raises(FileNotFoundError, match="checkpoint_dir"):
        kf.commit(3)
    with pytest.raises(ValueError, match="whole number"):
        kf.checkpoint_dir(-1)
    with pytest.raises(ValueError, match="checkpoint_dir"):
        kf.commit("some/where")
