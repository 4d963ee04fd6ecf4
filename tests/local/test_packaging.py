"""A clean checkout becomes a source distribution, and that without Node.js one wheel that holds everything.

JupyterLab takes the extension in the wheel, and a Jupyter server its part.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: A server as it is started, up to its port: where kfnb's part comes from, and whether the widget's module is there.
SERVER = """
import json, sys
from importlib import resources
from jupyter_server.serverapp import ServerApp

server = ServerApp()
server.initialize([], new_httpserver=False)
[extension] = server.extension_manager.extension_apps["kfnb.labserver"]
source = sys.modules[type(extension).__module__].__file__
module = resources.files("kfnb.views") / "static/jobview.js"
print(json.dumps([source, len(extension.handlers), module.is_file()]))
"""


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
def test_distributions_of_a_clean_checkout(tmp_path: Path) -> None:
    for tool in ("npm", "git"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    checkout, dist, prefix = tmp_path / "checkout", tmp_path / "dist", tmp_path / "prefix"
    for name in run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name)

    run(sys.executable, "-m", "build", "--sdist", "--outdir", dist, checkout, cwd=tmp_path)
    version = json.loads((ROOT / "package.json").read_text())["version"]
    unpacked = tmp_path / f"kfnb-{version}"
    with tarfile.open(dist / f"kfnb-{version}.tar.gz") as archive:
        archive.extractall(tmp_path)
    (unpacked / "package.json").touch()  # as some installers unpack it: each file has the time of then
    (tmp_path / "bin").mkdir()
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", dist, unpacked, cwd=tmp_path, PATH=f"{tmp_path}/bin")
    (wheel,) = dist.glob("kfnb-*.whl")
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
    (packages,) = prefix.glob("lib/python*/site-packages")
    places = {
        "JUPYTER_CONFIG_PATH": prefix / "etc/jupyter",
        "PYTHONPATH": packages,
        "JUPYTER_RUNTIME_DIR": tmp_path / "run",
    }
    printed = run(sys.executable, "-c", SERVER, cwd=tmp_path, **{name: str(place) for name, place in places.items()})
    source, handlers, module = json.loads(printed.splitlines()[-1])
    assert source == str(packages / "kfnb/labserver/__init__.py")
    assert handlers >= 4
    assert module


def test_no_lock_file_names_a_download_host() -> None:
    lock = json.loads((ROOT / "package-lock.json").read_text())
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
    assert all("integrity" in package for name, package in lock["packages"].items() if name)
