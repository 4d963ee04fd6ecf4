"""A real kernel, driven over its sockets as a front end does it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.manager import KernelManager

ROOT = Path(__file__).resolve().parents[2]

DEADLINE = 120.0


@dataclass
class Cell:
    """What has come of an executed cell so far. ``displays``: the data of each display, in its last form."""

    id: str
    idle: bool = False
    text: str = ""
    displays: dict[str, dict[str, Any]] = field(default_factory=dict)
    updates: int = 0
    results: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    reply: dict[str, Any] | None = None

    @property
    def status(self) -> str | None:
        return self.reply["status"] if self.reply is not None else None

    @property
    def shown(self) -> str:
        """The text of the only display."""
        [data] = self.displays.values()
        text: str = data["text/plain"]
        return text

    def log(self) -> list[str]:
        """The log lines in the only display."""
        return [line for line in self.shown.splitlines() if line.startswith("[")]


class Kernel:
    """Starts at once; ``close`` ends it. ``attended``: what KFNB_ATTENDED says."""

    def __init__(self, home: Path, cwd: Path, *, attended: bool = True) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("KFNB_")}
        env.update(
            KFNB_HOME=str(home),
            KFNB_ATTENDED=str(int(attended)),
            PYTHONPATH=str(ROOT),
            IPYTHONDIR=str(cwd / "ipython"),
        )
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=env, cwd=str(cwd))
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=DEADLINE)
        self.others: list[dict[str, Any]] = []
        self._cells: dict[str, Cell] = {}

    @property
    def pid(self) -> int:
        pid: int = self.manager.provisioner.pid  # type: ignore[union-attr]
        return pid

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()

    def start(self, code: str) -> Cell:
        """Send the cell and do not wait for it."""
        cell = Cell(self.client.execute(code))
        self._cells[cell.id] = cell
        return cell

    def finish(self, cell: Cell) -> Cell:
        """Wait until the cell has ended and all that it printed has come."""
        self.until(lambda: cell.idle and cell.reply is not None, "the cell to end")
        return cell

    def run(self, code: str) -> Cell:
        return self.finish(self.start(code))

    def ok(self, code: str) -> Cell:
        """Run a cell that has to succeed."""
        cell = self.run(code)
        assert cell.status == "ok", cell.error
        return cell

    def until(self, reached: Callable[[], object], what: str) -> None:
        """Read messages until ``reached()``."""
        deadline = time.monotonic() + DEADLINE
        while not reached():
            assert time.monotonic() < deadline, f"waited for {what}; cells: {list(self._cells.values())[-2:]}"
            self._read()

    def complete(self, code: str, at: int | None = None) -> list[str]:
        """The texts offered at the end of ``code``, or ``at`` a place in it."""
        matches: list[str] = self._ask(self.client.complete(code, len(code) if at is None else at))["matches"]
        return matches

    def _ask(self, message: str) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE
        while True:
            reply = self.client.get_shell_msg(timeout=max(deadline - time.monotonic(), 0.1))
            if reply["parent_header"]["msg_id"] == message:
                content: dict[str, Any] = reply["content"]
                return content

    def _read(self) -> None:
        try:
            message = self.client.get_iopub_msg(timeout=0.05)
        except Empty:
            message = None
        if message is not None:
            self._take(message)
        try:
            reply = self.client.get_shell_msg(timeout=0 if message is not None else 0.05)
        except Empty:
            return
        cell = self._cells.get(reply["parent_header"].get("msg_id"))
        if cell is not None:
            cell.reply = reply["content"]

    def _take(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        cell = self._cells.get(message["parent_header"].get("msg_id"))
        if kind == "update_display_data":  # it is for an output, whichever cell runs now
            known = content["transient"]["display_id"]
            cell = next((one for one in self._cells.values() if known in one.displays), None)
        if kind.startswith("comm_") or cell is None:
            self.others.append(message)
        elif kind == "status":
            cell.idle = content["execution_state"] == "idle"
        elif kind == "stream":
            cell.text += content["text"]
        elif kind in ("display_data", "update_display_data"):
            cell.displays[content["transient"]["display_id"]] = content["data"]
            cell.updates += 1
        elif kind == "execute_result":
            cell.results.append(content["data"])
        elif kind == "error":
            cell.error = content
