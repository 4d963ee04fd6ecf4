"""The process that runs one job: started by the client in a session of its own, and alive until the job's end.

    python -m kfnb.backends.local.supervisor RUNDIR LOCK

LOCK is the inherited descriptor that holds the run directory's lock. What it knows it reads from the run directory, and
what happens it writes there; the job's environment is the one it was started with. It ends once nothing of the job is
left running and the job's end is on the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kfnb.backends.local import processes, prune, rundir
from kfnb.backends.local.gpus import Gpu, Leases
from kfnb.backends.local.rundir import RunDir
from kfnb.backends.local.workers import End, Workers, failure_dict
from kfnb.home import home
from kfnb_worker import wire

#: Seconds beyond the grace of ranks that a worker has to end them and say its last words, before all of it is killed.
_MARGIN = 15.0

#: Seconds that the other workers have to end once one is lost. Their coordinator tells them at once.
_SETTLE = 30.0

#: Seconds between looks while nothing is expected; exits and signals are noticed at once.
_IDLE, _BUSY = 0.5, 0.1


class _Stop(Exception):
    """The job is to end now, as ``phase``."""

    def __init__(self, reason: str, phase: str = "Stopped") -> None:
        super().__init__(reason)
        self.end = End(phase, reason)


class _InstallFailed(Exception):
    """The environment could not be made, and so there is nothing to run."""

    def __init__(self, words: str, failure: dict[str, Any]) -> None:
        super().__init__(words)
        self.end = End("Failed", f"The job: {words}", failure)


class Supervisor:
    """Runs the job of a directory from its plan to its end."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        plan = rundir.read_json(run.plan)
        if plan is None:
            raise ValueError(f"{run.plan} holds no plan")
        self.plan: dict[str, Any] = plan
        self.orders: dict[str, Any] = plan["local"]
        self.attempt: int = plan["attempt"]
        self.children = processes.Children()
        self._restart = 0
        self._said = ("", "")
        self._deadline: float | None = None
        self._signalled = False
        self._full = False  # whether the disk was seen full at some time
        until = self.orders.get("until")
        self._until = processes.find(*until) if until else None
        self._until_pid = until[0] if until else None
        self._leases = Leases(home() / "gpus", run.id)
        self._environment = {**os.environ, processes.MARK: str(run.path)}
        self._wake = _listen(self._on_signal)

    def main(self) -> None:
        """Run the job. Whatever happens in here, the job gets an end."""
        try:
            rundir.write_json(self.run.supervisor, processes.here())
            self._say("Pending", "starting")
            self._prepare_packages()
            self._prepare_gpus()
            end = self._run_workers()
        except (_Stop, _InstallFailed) as ended:
            end = ended.end
        except Exception as error:
            self._full = self._full or (isinstance(error, OSError) and rundir.is_full(error))
            _print(traceback.format_exc())
            reason = f"kfnb's own supervisor failed: {type(error).__name__}: {error}"
            trace = traceback.format_exc()
            failure = failure_dict(reason, "internal", type(error).__name__, attempt=self.attempt, traceback=trace)
            end = End("Failed", reason, failure)
        self._finish(end)

    # --- before the workers

    def _prepare_packages(self) -> None:
        requirements: str = self.orders.get("requirements") or ""
        if not requirements.strip():
            return
        from kfnb.backends.local import venvs

        folder = Path(self.plan["workdir"] or self.run.path)
        venv = venvs.Venv(home() / "venvs", venvs.key(requirements, folder))
        while True:
            used = rundir.take_lock(venv.lock, shared=True)  # held to the job's end: it is not pruned under the ranks
            if used is not None and venv.ready():
                break
            if used is not None:
                os.close(used)
            building = rundir.take_lock(venv.lock)
            if building is not None:
                if not venv.ready():
                    self._install(venv, requirements, folder)
                fcntl.flock(building, fcntl.LOCK_SH)
                break
            self._say("Pending", "waiting for another job that installs the same packages")
            self._wait(_IDLE)
        self.plan["python"] = venv.python
        self._environment = venv.environment(self._environment)

    def _install(self, venv: Any, requirements: str, folder: Path) -> None:
        from kfnb.backends.local.venvs import pip_errors, shown

        self._say("Pending", f"installing packages: {shown(requirements)}")
        listed = self.run.path / "requirements.txt"
        rundir.write_atomic(listed, requirements.encode())
        venv.create()
        self.run.node(0).mkdir(mode=0o700, parents=True, exist_ok=True)
        output: list[str] = []
        with open(self.run.node_log(0, self._restart), "ab", opener=rundir.private) as log:
            self._restart += 1
            sequence = 0
            for command in venv.commands(listed):
                child = self.children.start(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=venv.environment(self._environment),
                    cwd=folder if folder.is_dir() else self.run.path,
                )
                for lines in self._output(child):
                    framed = wire.frame_record(sequence, {"e": "clock", "t": time.time()})
                    for line in lines:
                        framed += wire.frame(b"n", wire.STDOUT, sequence + len(framed), line)
                    sequence += len(framed)
                    log.write(b"".join(framed))
                    log.flush()
                    output += [line.decode("utf-8", "replace") for line in lines]
                if self.children.codes[child.pid] != 0:
                    words = f"its packages could not be installed: {pip_errors(output)}"
                    tail = "\n".join(output[-50:])
                    raise _InstallFailed(
                        words, failure_dict(words, "exit", "pip", attempt=self.attempt, traceback=tail)
                    )
        venv.publish()

    def _output(self, child: subprocess.Popen[bytes]) -> Iterator[list[bytes]]:
        """The lines of a child as they come, in lists, until it has ended."""
        assert child.stdout is not None
        tail = b""
        with child.stdout as stream:
            os.set_blocking(stream.fileno(), False)
            while True:
                self._wait(_IDLE, stream.fileno())
                try:
                    chunk = os.read(stream.fileno(), 65536)
                except BlockingIOError:
                    continue
                *lines, tail = (tail + chunk).split(b"\n")
                if not chunk and tail:
                    lines, tail = [tail], b""
                if lines:
                    yield lines
                if not chunk:
                    break
        while child.pid not in self.children.codes:
            self._wait(_IDLE)

    def _prepare_gpus(self) -> None:
        gpus = [Gpu(name, key) for name, key in self.orders["gpus"]["devices"]]
        each, nodes = self.orders["gpus"]["per_node"], self.plan["nodes"]
        if not gpus:
            return  # and CUDA_VISIBLE_DEVICES stays as the user has it
        taken: list[Gpu] | str = self._leases.take(gpus, each * nodes)
        while isinstance(taken, str):
            self._say("Pending", taken)
            self._wait(_IDLE)
            taken = self._leases.take(gpus, each * nodes)
        names = [gpu.name for gpu in taken]
        self.plan["devices"] = {str(node): names[node * each : (node + 1) * each] for node in range(nodes)}

    # --- the workers

    def _run_workers(self) -> End:
        last_attempt = self.plan["attempt"] + self.plan["retries"]
        while True:
            rundir.write_json(self.run.plan, self.plan)
            self._check()
            workers = Workers(self.run, self.plan, self._restart, self.children)
            self._restart += 1
            self._say("Pending" if self.attempt == 0 else "Restarting", self._waiting())
            started = workers.start(self._environment)
            rundir.write_json(self.run.supervisor, {**processes.here(), "workers": started})
            end = self._watch(workers)
            self._kill()
            workers.release()
            if end.phase != "Lost":
                return end
            if self.attempt >= last_attempt:
                tried = f" It was tried {self.attempt + 1} times." if self.attempt else ""
                return End("Failed", end.reason + tried, end.failure, end.exits)
            self.attempt += 1
            self.plan.update(attempt=self.attempt, retries=last_attempt - self.attempt)
            self._say("Restarting", f"{end.reason} All ranks start again together (attempt {self.attempt}).")

    def _waiting(self) -> str:
        nodes = self.plan["nodes"]
        return "starting the ranks" if nodes == 1 else f"waiting for {nodes} nodes to join"

    def _watch(self, workers: Workers) -> End:
        """Wait for all workers to end, passing on what comes in between."""
        asked: _Stop | None = None
        kill_at: float | None = None
        while workers.running():
            self._nap(_IDLE if self._said[0] == "Running" else _BUSY)
            if asked is None:
                self._follow(workers.states())
                try:
                    self._check()
                except _Stop as stop:
                    asked = stop
                    self._say("Stopping", stop.end.reason)
                    workers.terminate()
                    kill_at = time.monotonic() + self.plan["grace"] + _MARGIN
            self._full = self._full or _disk_full(self.run.path)
            if kill_at is None and workers.broken():
                kill_at = time.monotonic() + _SETTLE
            if kill_at is not None and time.monotonic() > kill_at:
                self._kill()
        if asked is None:
            self._follow(workers.states())  # ranks may have come and gone between two looks
        self._full = self._full or any(state.get("full") is True for state in workers.states())
        end = workers.end(self.attempt)
        if asked is not None and end.phase != "Succeeded":
            return End(asked.end.phase, asked.end.reason, None, end.exits)
        return end

    def _follow(self, states: list[dict[str, Any]]) -> None:
        """Tell the phase that the workers are in together."""
        attempt = max((int(state["attempt"]) for state in states), default=self.attempt)
        if attempt > self.attempt:
            self.attempt = attempt
            why = next((str(state["why"]) for state in states if state.get("why")), "")
            because = f"{why[0].upper()}{why[1:]}. " if why else ""
            self._say("Restarting", f"{because}All ranks start again together (attempt {attempt}).")
        came_up = [state for state in states if state["attempt"] == attempt and _came_up(state)]
        if len(came_up) == self.plan["nodes"]:
            self._say("Running", "")
            timeout = self.orders.get("timeout")
            if timeout is not None and self._deadline is None:
                self._deadline = time.monotonic() + timeout

    # --- waiting and being asked to end

    def _on_signal(self) -> None:
        self._signalled = True

    def _nap(self, seconds: float, *descriptors: int) -> None:
        """Sleep until a signal, something to read, or the time is over; then collect children."""
        select.select([self._wake, *descriptors], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        self.children.reap()

    def _wait(self, seconds: float, *descriptors: int) -> None:
        """``_nap``, and raise ``_Stop`` where the job is to end."""
        self._nap(seconds, *descriptors)
        self._check()

    def _check(self) -> None:
        request = rundir.read_json(self.run.stop)
        if request is not None:
            raise _Stop(str(request.get("reason") or "It was asked to stop."))
        if self._signalled:
            raise _Stop("Its supervisor was told to end (SIGTERM), as when a session or the machine shuts down.")
        if self._until_pid is not None and (self._until is None or not processes.lives(self._until)):
            raise _Stop(
                f"The process that it was to end with (the notebook's kernel, pid {self._until_pid}) has ended."
            )
        if self._deadline is not None and time.monotonic() > self._deadline:
            timeout = self.orders["timeout"]
            raise _Stop(f"It ran longer than its --timeout of {timeout:g} s.", "Failed")
        if not self.run.path.is_dir():
            raise _Stop("Its run directory was removed.")

    # --- words and the end

    def _say(self, phase: str, reason: str) -> None:
        """Write down a phase that is not the last one; a disk too full for it must not end the job."""
        if (phase, reason) == self._said:
            return
        self._said = (phase, reason)
        try:
            rundir.append_phase(self.run, phase, reason, attempt=self.attempt)
        except OSError as error:
            self._full = self._full or rundir.is_full(error)
            _print(f"could not write down {phase} ({reason}): {error}")

    def _kill(self) -> None:
        for process in processes.kill_all(self.run.path, reap=self.children.reap):
            _print(f"could not kill process {process.pid}")

    def _finish(self, end: End) -> None:
        """The last acts: nothing left running, no secret left on the disk, and the end written down."""
        self._kill()
        with contextlib.suppress(OSError):
            self.run.secret.unlink(missing_ok=True)
        more: dict[str, Any] = {"exit": end.exits} if end.exits else {}
        if end.failure is not None:
            more["failure"] = end.failure
        reason = end.reason
        if end.phase == "Failed" and (self._full or _disk_full(self.run.path)):
            stop = "" if reason.endswith((".", "!", "?")) else "."
            reason += f"{stop} The disk that holds {self.run.path.parent} was full."
        for _ in range(60):
            try:
                rundir.append_phase(self.run, end.phase, reason, attempt=self.attempt, **more)
                self.run.free_reserves()
                return
            except OSError as error:
                _print(f"could not write down the end, {end.phase} ({reason}): {error}")
                if not self.run.path.is_dir():
                    return
                time.sleep(1)


def _listen(on_signal: Callable[[], None]) -> int:
    """Handle signals, and return a descriptor that becomes readable with each."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: on_signal())
    for number in (signal.SIGCHLD, signal.SIGHUP):  # handled, not ignored: children would inherit that
        signal.signal(number, lambda *_: None)
    return read


def _came_up(state: dict[str, Any]) -> bool:
    """Whether a node has started its ranks, also where they have ended since."""
    return state["state"] == "running" or bool(state["ranks"])


def _disk_full(path: Path) -> bool:
    try:
        return rundir.free(path) < 64 << 10
    except OSError:
        return False


def _print(text: str) -> None:
    """Into supervisor.log, which may lie on a full disk: nothing that is said there may end the job."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), text.encode("utf-8", "replace") + b"\n")


def main(run_dir: str, lock: str) -> None:
    os.set_inheritable(int(lock), False)
    processes.adopt_orphans()
    Supervisor(RunDir(Path(run_dir))).main()
    os.close(int(lock))
    prune.tidy()


if __name__ == "__main__":
    main(*sys.argv[1:])
