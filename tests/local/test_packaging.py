"""A clean checkout becomes one wheel that holds everything, and JupyterLab takes the extension in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*argv: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [str(arg) for arg in argv],
        cwd=cwd,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


@pytest.mark.timeout(900)
def test_wheel_of_a_clean_checkout(tmp_path: Path) -> None:
    for tool in ("npm", "git"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    checkout, wheels, prefix = tmp_path / "checkout", tmp_path / "wheels", tmp_path / "prefix"
    for name in run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name)

    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", wheels, checkout, cwd=tmp_path)
    (wheel,) = wheels.glob("kfnb-*.whl")
    version = json.loads((ROOT / "package.json").read_text())["version"]
    assert wheel.name == f"kfnb-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    sources = [*checkout.glob("kfnb/**/*.py"), *checkout.glob("kfnb_worker/**/*.py")]
    assert sources
    assert {source.relative_to(checkout).as_posix() for source in sources} <= set(names)
    assert "kfnb/views/static/jobview.js" in names
    assert [n for n in names if n.endswith(".data/data/etc/jupyter/jupyter_server_config.d/kfnb.json")]
    assert not [n for n in names if n.startswith(("kfnb/labextension/", "kfnb/etc/", "tests/", "node_modules/"))]

    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--ignore-installed",
        "--prefix",
        prefix,
        wheel,
        cwd=tmp_path,
    )
    jupyter = prefix / "share/jupyter"
    listed = run(sys.executable, "-m", "jupyter", "labextension", "list", cwd=tmp_path, JUPYTER_PATH=str(jupyter))
    plain = re.sub(r"\x1b\[\d*m", "", listed)
    here = plain.partition(str(jupyter / "labextensions"))[2]
    assert re.search(rf"kfnb v{re.escape(version)} enabled OK \(python, kfnb\)", here), plain
    config = str(prefix / "etc/jupyter")
    command = (sys.executable, "-m", "jupyter", "server", "extension", "list")
    listed = re.sub(r"\x1b\[\d*m", "", run(*command, cwd=tmp_path, JUPYTER_CONFIG_PATH=config))
    assert re.search(r"kfnb\.labserver.*enabled", listed.partition(config)[2]), listed


def test_no_lock_file_names_a_download_host() -> None:
    lock = json.loads((ROOT / "package-lock.json").read_text())
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
    assert all("integrity" in package for name, package in lock["packages"].items() if name)
