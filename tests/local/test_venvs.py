"""--pip: a cached environment on top of this one, made from a wheel of the test's own, with no network."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from kfnb.backends.local import rundir, venvs
from tests.local.standin import end, log_text, make_run, phases, supervise

USES = """
state("running")
import subprocess
code = "import tinypackage, psutil, sys; print(tinypackage.VALUE, sys.prefix)"
out = subprocess.run([plan["python"], "-c", code], capture_output=True, text=True)
(folder / "out").write_text(out.stdout + out.stderr)
which = subprocess.run(["python", "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True).stdout
(folder / "which").write_text(which)
sys.exit(out.returncode)
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "wheels", "first")


def make_wheel(folder: Path, value: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "tinypackage-1.0-py3-none-any.whl"
    info = "tinypackage-1.0.dist-info"
    files = {
        "tinypackage.py": f"VALUE = {value!r}\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tinypackage\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


def environments(home: Path) -> list[Path]:
    return [path for path in (home / "venvs").iterdir() if path.is_dir()]


def test_an_environment_is_made_once_and_sees_what_is_there(home, wheel):
    for count in range(2):
        run = make_run(USES, requirements=f"--no-index\n{wheel}\n")
        entry = end(run, supervise(run))
        assert entry["phase"] == "Succeeded", log_text(run)
        value, prefix = (run.node(0) / "out").read_text().split()
        (environment,) = environments(home)
        assert (value, Path(prefix)) == ("first", environment)
        assert Path((run.node(0) / "which").read_text().strip()) == environment
        # pip's output is in the log of the first time alone
        pip = run.node_log(0, 0).read_text()
        assert ("Processing" in pip and "\n[n:1] " in pip) == (count == 0)
        assert any("installing packages" in item["reason"] for item, _ in rundir.read_phases(run)) == (count == 0)


def test_two_jobs_build_one_environment(home, wheel):
    runs = [make_run(USES, requirements=f"--no-index\n{wheel}\n") for _ in range(2)]
    supervisors = [supervise(run) for run in runs]
    assert [end(run, supervisor)["phase"] for run, supervisor in zip(runs, supervisors, strict=True)] == [
        "Succeeded"
    ] * 2
    assert len(environments(home)) == 1
    assert sum(run.node_log(0, 1).exists() for run in runs) == 1


def test_pips_own_words_end_the_job(home):
    run = make_run(USES, requirements="--no-index\nno-such-package-anywhere\n")
    entry = end(run, supervise(run))
    assert entry["phase"] == "Failed"
    assert "No matching distribution found for no-such-package-anywhere" in entry["reason"]
    assert (entry["failure"]["type"], entry["failure"]["kind"]) == ("pip", "exit")
    assert "Running" not in phases(run)


def test_an_interrupted_build_is_made_anew(home, wheel):
    run = make_run(USES, requirements=f"--no-index\n{wheel}\n")
    name = venvs.key(f"--no-index\n{wheel}\n", run.path.parent)
    (home / "venvs" / name / "bin").mkdir(parents=True)
    (home / "venvs" / name / "bin" / "python").write_text("not an interpreter")
    assert end(run, supervise(run))["phase"] == "Succeeded"


def test_the_key_is_that_of_what_is_installed(tmp_path, wheel):
    one = venvs.key("a==1\n", tmp_path)
    assert one == venvs.key("# why\na==1\n\n", tmp_path)
    assert one != venvs.key("a==2\n", tmp_path)
    of_wheel = venvs.key("wheels/tinypackage-1.0-py3-none-any.whl\n", tmp_path)
    make_wheel(tmp_path / "wheels", "another")
    assert of_wheel != venvs.key("wheels/tinypackage-1.0-py3-none-any.whl\n", tmp_path)


def test_no_password_is_shown():
    text = "--index-url https://me:pass@host/simple\na==1\n-e ./mine\nb @ git+https://token@host/b.git\n# a comment\n"
    assert venvs.shown(text) == "a==1, -e ./mine, b @ git+https://host/b.git"


def test_stop_ends_an_installation(home, tmp_path):
    # pip waits for an index that never answers
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        run = make_run(USES, requirements=f"--index-url http://127.0.0.1:{port}/simple\nanything\n")
        supervisor = supervise(run)
        silent.settimeout(60)
        connection, _ = silent.accept()
        with connection:
            rundir.write_json(run.stop, {"reason": "Enough."})
            entry = end(run, supervisor)
    assert (entry["phase"], entry["reason"]) == ("Stopped", "Enough.")
