"""The notebooks of the repository, as papermill and nbval run them, and what papermill leaves when things go wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.processes import processes_of
from tests.waiting import wait_for

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
ALL = sorted(NOTEBOOKS.glob("*.ipynb"))

pytestmark = pytest.mark.timeout(600)


def papermill(name: str, out: Path, **parameters: object) -> list[str]:
    options = [word for key, value in parameters.items() for word in ("-p", key, str(value))]
    source = str(NOTEBOOKS / name)
    return [sys.executable, "-m", "papermill", "-k", "python3", "--no-progress-bar", source, str(out), *options]


def run(argv: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500, check=False
    )


def text_of(notebook: Path) -> str:
    """All that a reader without a kernel sees: streams, plain-text results, tracebacks."""
    parts = []
    for cell in nbformat.read(notebook, 4).cells:
        for output in cell.get("outputs", []):
            parts.append(output.get("text") or output.get("data", {}).get("text/plain") or "")
            parts += output.get("traceback", [])
    return "\n".join(parts)


def executed(name: str, tmp_path: Path, **parameters: object) -> str:
    out = tmp_path / "out.ipynb"
    done = run(papermill(name, out, **parameters), tmp_path)
    assert done.returncode == 0, done.stdout[-8000:]
    assert out.stat().st_size < 2_000_000
    return text_of(out)


def test_quickstart(tmp_path: Path) -> None:
    text = executed("quickstart.ipynb", tmp_path, nodes=2, procs=2)
    accuracy = float(text.rpartition("test accuracy ")[2].split()[0])
    assert accuracy > 0.85
    assert "epoch 9: loss" in text


def test_resume(tmp_path: Path) -> None:
    text = executed("resume.ipynb", tmp_path, epochs=6, kill_at=3)
    assert "going on from epoch 3" in text
    assert "6 epochs in 2 attempts" in text


def test_compare(tmp_path: Path) -> None:
    text = executed("compare.ipynb", tmp_path)
    assert "nan" in text.lower()
    assert "30.0" in text


def test_a_failing_rank_ends_papermill_with_its_traceback(tmp_path: Path, home: Path) -> None:
    out = tmp_path / "out.ipynb"
    done = run(papermill("quickstart.ipynb", out, nodes=2, procs=2, fail_rank=3), tmp_path)
    assert done.returncode != 0
    text = text_of(out)
    assert "RuntimeError: rank 3 was told to fail" in text
    body = nbformat.read(NOTEBOOKS / "quickstart.ipynb", 4)
    (cell,) = (cell for cell in body.cells if cell.source.startswith("%%kftrain"))
    (line,) = (n for n, text in enumerate(cell.source.splitlines(), 1) if "raise RuntimeError" in text)
    assert f"line {line}" in text
    assert "JobFailed" in done.stdout
    assert [p for p in processes_of(home) if p.is_running()] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_papermill_killed_in_mid_run_leaves_no_process(number: signal.Signals, tmp_path: Path, home: Path) -> None:
    argv = papermill("quickstart.ipynb", tmp_path / "out.ipynb", epochs=1_000_000)
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(
            lambda: any("epoch 0" in log.read_text() for log in home.glob("jobs/*/nodes/0/*.log")),
            timeout=120,
            what="the first epoch",
        )
        process.send_signal(number)
    wait_for(lambda: not processes_of(home), timeout=60, what="every process to end")


@pytest.mark.parametrize("notebook", ALL, ids=lambda path: path.name)
def test_committed_outputs(notebook: Path) -> None:
    cells = [cell for cell in nbformat.read(notebook, 4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells), "commit it with its outputs"
    assert not [o for cell in cells for o in cell.outputs if o.output_type == "error"]
    assert notebook.stat().st_size < 500_000


@pytest.mark.parametrize("notebook", ALL, ids=lambda path: path.name)
def test_nbval(notebook: Path, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    argv = [sys.executable, "-m", "pytest", "-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path)]
    done = run([*argv, "-p", "no:cacheprovider", "--nbval-lax", "--nbval-cell-timeout=300", str(notebook)], tmp_path)
    assert done.returncode == 0, done.stdout[-8000:]
