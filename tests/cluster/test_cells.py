"""A cell that trains on a cluster, in a real kernel: the same cell, the same view, the same errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster
from tests.local.kernels import Kernel

CELL = """
import kfnb_worker as kf
for step in range(5):
    print("step", step, "of rank", kf.rank())
    kf.log(step, loss=scale / (step + 1))
answer = {"ranks": kf.world_size()}
"""


@pytest.fixture
def kernel(cluster: Cluster, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    return Kernel(home, tmp_path)


def test_a_cell_trains_on_the_cluster(cluster: Cluster, kernel: Kernel) -> None:
    try:
        kernel.ok("%load_ext kfnb\nscale = 0.5")
        line = f"--backend kubernetes --namespace {cluster.namespace} --framework python"
        plan = kernel.ok(f"%%kftrain there --nodes 2 {line} --use scale --dry-run" + CELL)
        assert "A TrainJob of the runtime torch-distributed" in plan.text
        assert "kind: TrainJob" in plan.text
        cell = kernel.ok(f"%%kftrain there --nodes 2 {line} --use scale --out answer" + CELL)
        assert "Succeeded" in cell.shown
        assert f"in the namespace {cluster.namespace}" in cell.shown
        assert sorted(line for line in cell.log() if "step" in line) == sorted(
            f"[{rank}] step {step} of rank {rank}" for rank in range(2) for step in range(5)
        )
        kernel.ok("assert answer == {'ranks': 2}")
        listed = kernel.ok("%kfjobs")
        assert "there" in str(listed.results)
        assert "step 4 of rank 1" in kernel.ok("%kflogs there").text
        again = kernel.ok("%kfrun there --use scale=2.0")
        assert "Succeeded" in again.shown
        failed = kernel.run(f"%%kftrain broken {line}\nprint('first')\nraise ValueError('on purpose')")
        assert failed.error is not None
        assert failed.error["ename"] == "JobFailed"
        assert "ValueError: on purpose" in "\n".join(failed.error["traceback"])
        assert "line 3 of the cell" in "\n".join(failed.error["traceback"])
        for name in ("there", "there", "broken"):
            kernel.ok(f"%kfdelete {name}")
    finally:
        kernel.close()
