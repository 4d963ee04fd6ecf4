"""A real Jupyter server of one's own: its home, settings, notebooks and jobs are in one folder."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

import kfnb
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]

#: The extension as it is built in the tree under test, whatever an installation may have copied.
PACKAGE = Path(kfnb.__file__).resolve().parent
EXTENSION = PACKAGE / "labextension"
MODULE = PACKAGE / "views" / "static" / "jobview.js"

#: No question and no toast may come in the way of a test.
_SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}


class Server:
    """Starts at once and can be asked when the constructor returns; ``close`` ends it.

    ``app``: the module that is run. ``extended``: whether it has kfnb's server part and extension.
    ``home``: where its jobs are.
    """

    def __init__(
        self, folder: Path, app: str = "jupyterlab", *, extended: bool = True, home: Path | None = None
    ) -> None:
        self.folder, self.home, self.notebooks = folder, home or folder / "kfnb-home", folder / "notebooks"
        self.token = secrets.token_hex(16)
        self.log = folder / "server.log"
        self.notebooks.mkdir(parents=True)
        self._settings(extended)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("KFNB_", "JUPYTER", "PYTEST"))}
        env.update(
            HOME=str(folder / "user"),
            IPYTHONDIR=str(folder / "ipython"),
            JUPYTER_CONFIG_DIR=str(folder / "config"),
            JUPYTER_DATA_DIR=str(folder / "data"),
            JUPYTER_PREFER_ENV_PATH="0",  # in a virtual environment that of the interpreter comes first otherwise
            JUPYTER_RUNTIME_DIR=str(folder / "runtime"),
            JUPYTER_TOKEN=self.token,
            KFNB_HOME=str(self.home),
            PYTHONPATH=str(ROOT),
        )
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        self._env = env
        self._argv = [sys.executable, "-m", app, "--no-browser", "--allow-root", f"--port={port}"]
        self._argv += [
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.root_dir={self.notebooks}",
            "--ServerApp.shutdown_no_activity_timeout=0",
        ]
        self._argv += ["--LabApp.expose_app_in_browser=True"] if app == "jupyterlab" else []
        self.start()

    def start(self) -> None:
        """Again too, at the same address, after ``kill``."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._argv, env=self._env, cwd=self.notebooks, stdout=log, stderr=log)
        try:
            # where the port was taken meanwhile it is the next one, and this file says which
            self.url = wait_for(self._address, timeout=60, what=f"the server to start; see {self.log}")
            wait_for(self._answers, timeout=60, what=f"the server to answer; see {self.log}")
        except AssertionError:
            self.close()
            raise

    def _settings(self, extended: bool) -> None:
        config = self.folder / "config"
        for name in ("labconfig", "jupyter_server_config.d"):
            (config / name).mkdir(parents=True)
        (config / "labconfig" / "default_setting_overrides.json").write_text(json.dumps(_SETTINGS))
        # outranks what an installation of kfnb has put beside the interpreter
        (config / "jupyter_server_config.d" / "kfnb.json").write_text(
            json.dumps({"ServerApp": {"jpserver_extensions": {"kfnb.labserver": extended}}})
        )
        if extended:
            extensions = self.folder / "data" / "labextensions"
            extensions.mkdir(parents=True)
            (extensions / "kfnb").symlink_to(EXTENSION)
        else:
            page = {"disabledExtensions": {"kfnb": True}}
            (config / "labconfig" / "page_config.json").write_text(json.dumps(page))

    def _address(self) -> str:
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-4000:]
        for path in (self.folder / "runtime").glob("jpserver-*.json"):
            try:
                return str(json.loads(path.read_text())["url"])
            except ValueError:  # it is being written
                continue
        return ""

    def _answers(self) -> bool:
        try:
            return bool(self.ask("api/status"))
        except urllib.error.URLError:
            return False

    def ask(self, path: str, method: str = "GET") -> Any:
        """The server's REST answer."""
        request = urllib.request.Request(
            self.url + path, method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def address(self, page: str) -> str:
        """Of a page of the server, for a browser that has not been there yet; nothing of an earlier page is opened."""
        return f"{self.url}{page}?token={self.token}&reset"

    def write(self, name: str, *cells: str) -> str:
        """A new notebook of these code cells; returns its name."""
        import nbformat.v4 as v4

        metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}}
        notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in cells], metadata=metadata)
        return self.put(name, json.dumps(notebook))

    def put(self, name: str, text: str) -> str:
        (self.notebooks / name).write_text(text)
        return name

    def read(self, name: str) -> Any:
        """The notebook as it was last saved."""
        return json.loads((self.notebooks / name).read_text())

    def kernel_pid(self, name: str) -> int:
        """The process of the kernel that runs for the notebook ``name``; 0 while there is none."""
        [kernel] = [s["kernel"]["id"] for s in self.ask("api/sessions") if s["path"] == name]
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):  # it has just been killed
                if any(kernel in word for word in child.cmdline()):
                    return child.pid
        return 0

    def is_connected(self, name: str) -> bool:
        """Whether the notebook ``name`` has an idle kernel and a page has a connection to it."""
        kernels = [s["kernel"] for s in self.ask("api/sessions") if s["path"] == name]
        return any(kernel["execution_state"] == "idle" and kernel["connections"] for kernel in kernels)

    def trust(self, name: str) -> None:
        """As `jupyter trust` does."""
        env = {**os.environ, "JUPYTER_DATA_DIR": str(self.folder / "data"), "HOME": str(self.folder / "user")}
        argv = [sys.executable, "-m", "nbformat.sign", str(self.notebooks / name)]
        subprocess.run(argv, env=env, check=True, capture_output=True, timeout=60)

    def end_work(self) -> None:
        """No kernel and no job of a test may go on into the next."""
        for job in kfnb.jobs():
            if not job.phase.terminal:
                kfnb.attach(job.id).stop()
        for session in self.ask("api/sessions"):
            self.ask(f"api/sessions/{session['id']}", "DELETE")

    def kill(self) -> None:
        """As a crash or the machine's owner would; its kernels notice, and end."""
        kernels = psutil.Process(self.process.pid).children()
        self.process.kill()
        self.process.wait()
        psutil.wait_procs(kernels, timeout=30)

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def missing() -> str:
    """Why no server of kfnb's can be shown here; empty where one can."""
    from importlib.util import find_spec

    for module in ("jupyterlab", "anywidget"):
        if find_spec(module) is None:
            return f"{module} is not installed"
    if not (EXTENSION / "package.json").exists() or not MODULE.exists():
        return "the JupyterLab extension is not built: npm run build:prod"
    return ""


def options_of(browser: Sequence[str] = ()) -> list[str]:
    """Chromium's options: nothing that asks the network, and what a container without a display needs."""
    quiet = [
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "disable-quic",
    ]
    return [f"--{name}" for name in (*quiet, "no-sandbox", "disable-gpu", *browser)]
