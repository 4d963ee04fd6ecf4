"""A hand-made job of real workers, one process a node, for the tests of kfnb_worker."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from kfnb.backends.package import worker_zip
from kfnb_worker import wire
from tests.waiting import wait_for

TIMEOUT = 90.0


class Nodes:
    """Workers of ``nodes`` x ``procs`` ranks that run ``body``; each log is read back by the wire's rules."""

    def __init__(self, path: Path, body: str, nodes: int = 1, procs: int = 2, **plan: Any) -> None:
        self.path, self.nodes, self.procs = path, nodes, procs
        path.mkdir(parents=True, exist_ok=True)
        self.worker = path / "worker.zip"
        self.worker.write_bytes(worker_zip())
        bundle = path / "bundle.zip"
        parts = {"translated": False, "defs": [], "values": False, "shell": False}
        described = {"v": 1, **parts, "out": ["answer"], "first_line": 1}
        with zipfile.ZipFile(bundle, "w") as archive:
            archive.writestr("main.py", body)
            archive.writestr("_kfnb/bundle.json", json.dumps(described))
        (path / "secret.json").write_text(json.dumps({"token": "the token", "env": {"FROM_SECRET": "whisper"}}))
        self.plan = {
            "v": 1,
            "job": "test-abcde",
            "nodes": nodes,
            "procs": procs,
            "framework": "python",
            "attempt": 0,
            "retries": 0,
            "grace": 20,
            "args": [],
            "env": {"FROM_PLAN": "said"},
            "precision": None,
            "bundle": str(bundle),
            "bundle_sha256": hashlib.sha256(bundle.read_bytes()).hexdigest(),
            "secret": str(path / "secret.json"),
            "coordinator": {"host": "127.0.0.1", "port": 0, "file": str(path / "coordinator.json")},
            "python": sys.executable,
            "workdir": str(path),
            "node_dir": str(path / "nodes" / "{node}"),
            "logdir": str(path / "logdir"),
            "checkpoints": str(path / "checkpoints"),
            "results": str(path / "results"),
            "keep_checkpoints": 2,
            "devices": None,
            **plan,
        }
        (path / "plan.json").write_text(json.dumps(self.plan))
        self.workers: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *which: int) -> Nodes:
        """Start the workers of these nodes, or of all."""
        for node in which or range(self.nodes):
            with self.log(node).open("wb") as log:
                self.workers[node] = subprocess.Popen(
                    [sys.executable, "-S", "-E", str(self.worker), str(self.path / "plan.json"), "--node", str(node)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=self.path,
                )
        return self

    def log(self, node: int) -> Path:
        return self.path / f"{node}.log"

    def wait(self, timeout: float = TIMEOUT) -> dict[int, int]:
        """The exit codes of all workers."""

        def codes() -> dict[int, int]:
            found = {node: worker.poll() for node, worker in self.workers.items()}
            return {node: code for node, code in found.items() if code is not None}

        wait_for(lambda: len(codes()) == len(self.workers), timeout=timeout, what="the workers to end")
        return codes()

    def run(self) -> dict[int, int]:
        return self.start().wait()

    def _lines(self, node: int) -> list[tuple[bytes, bytes, int, bytes]]:
        """(who, separator, sequence of its last piece, payload) of every whole line so far."""
        parts: dict[tuple[bytes, bytes], bytes] = {}
        lines = []
        for line in self.log(node).read_bytes().split(b"\n")[:-1]:
            match = re.fullmatch(wire.LINE, line, re.DOTALL)
            assert match, f"not a line of the wire: {line!r}"
            who, separator, sequence, more, payload = match.groups()
            payload = parts.pop((who, separator), b"") + payload
            if more:
                parts[who, separator] = payload
            else:
                lines.append((who, separator, int(sequence), payload))
        return lines

    def records(self, kind: str, node: int | None = None) -> list[dict[str, Any]]:
        """Records of one kind, of one node or of all."""
        found = []
        for one in range(self.nodes) if node is None else [node]:
            for who, _, _, payload in self._lines(one) if self.log(one).exists() else []:
                if who == b"kfnb":
                    record = json.loads(payload, parse_constant=lambda name: 1 / 0)
                    if record["e"] == kind:
                        found.append(record)
        return found

    def output(self, rank: int, separator: str = ":") -> list[str]:
        """What a rank printed."""
        node = rank // self.procs
        chosen = (str(rank).encode(), separator.encode())
        return [payload.decode() for who, which, _, payload in self._lines(node) if (who, which) == chosen]

    def all_output(self) -> list[str]:
        return [line for rank in range(self.nodes * self.procs) for line in self.output(rank)]

    def wait_for_output(self, text: str, count: int | None = None) -> None:
        """Until that many ranks (or all) have printed a line with ``text``."""
        want = self.nodes * self.procs if count is None else count
        wait_for(
            lambda: sum(text in line for line in self.all_output()) >= want,
            timeout=TIMEOUT,
            what=f"{want} times {text!r}",
        )

    def pids(self) -> dict[int, int]:
        """The process of each rank's newest start."""
        return {record["r"]: record["pid"] for record in self.records("rank")}

    def signal(self, number: int, node: int = 0) -> None:
        os.kill(self.workers[node].pid, number)

    def kill_rank(self, rank: int) -> None:
        os.kill(self.pids()[rank], signal.SIGKILL)

    def ask(self, **message: Any) -> dict[str, Any]:
        """Say something to the coordinator as a client; its answer."""
        where = wait_for(self._coordinator, timeout=TIMEOUT, what="the coordinator's address")
        with socket.create_connection((where["host"], where["port"]), timeout=30) as connection:
            connection.sendall(json.dumps(message).encode() + b"\n")
            return json.loads(connection.makefile().readline())

    def _coordinator(self) -> dict[str, Any] | None:
        path = self.path / "coordinator.json"
        return json.loads(path.read_text()) if path.exists() else None

    def termination(self, node: int) -> dict[str, Any]:
        return json.loads((self.path / "nodes" / str(node) / "termination.json").read_text())

    def close(self) -> None:
        for worker in self.workers.values():
            if worker.stdin is not None:
                worker.stdin.close()
            worker.wait(60)
