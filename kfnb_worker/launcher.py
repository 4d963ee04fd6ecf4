"""The worker of one node: unpacks the code, joins the other nodes, runs this node's ranks, and tells what happens."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import socket
import stat
import time
from contextlib import suppress
from typing import Any, Dict, List, Optional

from kfnb_worker import channel, shipment, wire
from kfnb_worker.coordinator import Coordinator, is_consequence
from kfnb_worker.environment import rank_environment
from kfnb_worker.files import private_directory, read_json, told_outcome, write_json, write_termination
from kfnb_worker.forked import Forked, unpack
from kfnb_worker.loop import READ, Loop
from kfnb_worker.member import Member
from kfnb_worker.processes import PR_SET_CHILD_SUBREAPER, Guard, prctl
from kfnb_worker.ranks import RANK_COMMAND, Rank, Ranks, explain, memory_kills
from kfnb_worker.relay import Output
from kfnb_worker.stacks import Stacks
from kfnb_worker.telemetry import Telemetry
from kfnb_worker.whose import Whose

#: Exit codes of a worker, by its outcome.
EXITS = {"succeeded": 0, "failed": 1, "lost": 75, "stopped": 143}

#: When others ended this job, ranks have this long after SIGTERM (or the plan's grace, if that is shorter).
FAILED_GRACE = 2.0
#: How long a stopped worker waits for the coordinator's word, and node 0 for the others to hear the last one.
LAST_WORD_SECONDS = 5.0
FLUSH_SECONDS = 10.0
#: A disk with less free is full.
FULL_BYTES = 64 * 1024

Message = Dict[str, Any]


class Worker:
    """One node of a job, from its plan to its exit code."""

    def __init__(self, plan: Dict[str, Any], node: int) -> None:
        self.plan, self.node = plan, node
        self._attempt: int = plan["attempt"]
        self._grace: float = plan["grace"]
        self._dir: str = plan["node_dir"].replace("{node}", str(node))
        self._code = os.path.join(self._dir, "code")
        os.makedirs(os.path.join(self._dir, "stacks"), exist_ok=True)
        os.makedirs(plan["logdir"], exist_ok=True)
        secret = read_json(plan["secret"]) if plan.get("secret") else {}
        self._token: Optional[str] = secret.get("token")
        self._secret_env: Dict[str, str] = secret.get("env", {})
        self._channel_path = os.path.join(private_directory(), "channel")
        self._guard = Guard(channel.VARIABLE, self._channel_path)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._loop = Loop()
        self._output = Output(self._loop)
        self._whose = Whose(plan["job"], self._channel_path)
        self._state = "joining"  # running, restarting, stopping, ended
        self._outcome = ""
        self._told_end = False
        self._full = False  # the disk, when this node ended
        self._why = ""  # the ranks start again
        self._failure: Optional[Message] = None  # of the first failing rank, as far as is known here
        self._held: List[Message] = []  # failures that others may have caused
        self._asked: Dict[str, List[channel.Connection]] = {}  # who waits for a barrier
        self._asking: List[channel.Connection] = []  # who asks whether to leave
        self._ranks: Optional[Ranks] = None
        self._member: Optional[Member] = None
        self._coordinator: Optional[Coordinator] = None
        self._memory_kills = 0

    # --- life ------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run to the end; the exit code."""
        try:
            self._begin()
            self._loop.run()
        except Exception as error:
            self._internal(error)
        self._output.record({"e": "end", "outcome": told_outcome(self._outcome), "a": self._attempt, "t": time.time()})
        self._output.finish(FLUSH_SECONDS)
        self._guard.dismiss()
        with suppress(ChildProcessError):
            os.waitpid(self._guard.pid, 0)
        return EXITS[self._outcome]

    def _begin(self) -> None:
        self._output.record(
            {
                "e": "hello",
                "v": wire.VERSION,
                "job": self.plan["job"],
                "node": self.node,
                "nodes": self.plan["nodes"],
                "procs": self.plan["procs"],
                "incarnation": os.urandom(8).hex(),
                "python": platform.python_version(),
                "host": socket.gethostname(),
                "bundle": self.plan["bundle_sha256"],
                "a": self._attempt,
                "t": time.time(),
            }
        )
        self._output.flush()
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(number, lambda: self._stop("the worker of node %d got a signal to stop" % self.node))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if stat.S_ISFIFO(os.fstat(0).st_mode) or stat.S_ISSOCK(os.fstat(0).st_mode):
            os.set_blocking(0, False)
            self._loop.add(0, READ, self._lifeline)
        self._write_state()
        self._telemetry = Telemetry(
            self._loop,
            self._output,
            self.plan["logdir"],
            self._whose.rank_of,
            self._attempt,
            # Nodes on one machine share the logdir: one of them reads what no rank wrote.
            leftovers=self.node == 0 or not self.plan["coordinator"].get("file"),
        )
        self._channel = channel.Server(self._loop, self._channel_path, self._receive)
        self._stacks = Stacks(self._loop, self._output, os.path.join(self._dir, "stacks"))
        if self.node == 0:
            self._coordinator = Coordinator(self._loop, self.plan, self._token, self._note, self._whose.elsewhere)
        Forked(self._loop, self._prepare, self._prepared)

    def _prepare(self) -> str:
        self._clean()
        return unpack(self.plan["bundle"], self.plan["bundle_sha256"], self._code)

    def _clean(self) -> str:
        """Remove what an interrupted commit left: no rank runs now, and none will before all nodes did this."""
        from kfnb_worker.checkpoints import clean

        clean(self.plan["checkpoints"])
        return ""

    def _prepared(self, error: str) -> None:
        if self._outcome:
            return
        join: Message = {"op": "join", "node": self.node, "token": self._token}
        if error:
            text = "the code could not be unpacked: " + error
            failure = self._make_failure(None, kind="bundle", type="BundleError", message=text)
            self._output.record(failure)
            self._failure = join["failure"] = failure
        self._member = Member(
            self._loop,
            self.plan["coordinator"],
            join,
            self._told,
            self._coordinator_lost,
            self._note,
            self.plan.get("join_seconds", 900.0),
        )

    def _note(self, text: str) -> None:
        self._telemetry.note(text)

    def _write_state(self) -> None:
        ranks = self._ranks.all if self._ranks else []
        state = {
            "attempt": self._attempt,
            "state": self._state,
            "why": self._why,
            "full": self._full,
            "ranks": [{"rank": rank.number, "pid": rank.pid, "started": rank.started} for rank in ranks],
            "t": time.time(),
        }
        write_json(os.path.join(self._dir, "state.json"), state)

    def _set_state(self, state: str) -> None:
        self._state = state
        self._write_state()

    # --- what the coordinator says ---------------------------------------------------------------------------------

    def _told(self, message: Message) -> None:
        operation = message.get("op")
        if operation == "start":
            self._start(message["attempt"], message["port"], message["why"])
        elif operation == "restart":
            self._verdict(message["failure"])
            self._why = message["why"]
            if self._state != "stopping":
                self._set_state("restarting")
            self._end_ranks(min(self._grace, FAILED_GRACE), message["serial"], clean=True)
        elif operation == "stop":
            self._set_state("stopping")
            self._end_ranks(self._grace, message["serial"], clean=False)
        elif operation == "end":
            self._end(message)
        elif operation == "release":
            for connection in self._asked.pop(message["key"], ()):
                connection.send({"e": "released", "key": message["key"]})
        elif operation == "leave":
            for connection in self._asking:
                connection.send({"e": "leave", "calls": message["calls"]})
            self._asking = []
        elif operation == "stacks":
            self._stacks.ask(self._ranks.living if self._ranks else [], message["request"])
        elif operation == "refused":
            text = "node 0 refused node %d: %s" % (self.node, message.get("error"))
            self._fail(text, "lost" if message.get("lost") else "failed")

    def _end_ranks(self, grace: float, serial: int, clean: bool) -> None:
        def say(_: str = "") -> None:
            self._send({"op": "ended", "serial": serial})

        def ended() -> None:
            if clean:
                Forked(self._loop, self._clean, say)
            else:
                say()

        if self._ranks is None:
            say()
        else:
            self._ranks.end(grace, ended)

    def _verdict(self, failure: Optional[Message]) -> None:
        """The first failure is known, and the others of this node come after it."""
        if failure is not None:
            self._failure = failure
            for held in self._held:
                if not _same(held, failure):
                    held["t"] = max(held["t"], failure["t"] + 0.001)
                self._output.record(held)
        self._held = []

    def _end(self, message: Message) -> None:
        self._told_end = True
        outcome, failure = message["outcome"], message.get("failure")
        self._verdict(failure)
        if failure is not None and failure["kind"] == "timeout" and self.node == 0:  # no rank's, so nobody has told it
            self._output.record(failure)
        if outcome == "lost":
            self._fail(message["why"], "lost")
        else:
            self._finish(outcome)

    def _coordinator_lost(self, why: str) -> None:
        if not self._told_end:
            self._fail(why, "lost")

    def _fail(self, text: str, outcome: str) -> None:
        if not self._outcome:
            failure = self._make_failure(None, kind="lost", type="NodeLost", message=text)
            self._verdict(self._failure or failure)
            self._output.record(failure)
            self._finish(outcome)

    # --- ranks -----------------------------------------------------------------------------------------------------

    def _start(self, attempt: int, port: int, why: str) -> None:
        if self._outcome or self._state == "stopping":
            return
        self._attempt = attempt
        self._failure, self._held = None, []
        self._asked.clear()
        self._asking = []
        if attempt != self.plan["attempt"]:
            self._telemetry.begin_attempt(attempt)
        if attempt > 0:
            text = why or "the job was started again"
            self._output.record({"e": "attempt", "a": attempt, "why": text, "t": time.time()})
        self._memory_kills = memory_kills()
        self._ranks = Ranks(self._loop, self._output, self._guard, self._exited)
        command = [self.plan["python"], *RANK_COMMAND, *self.plan["args"]]
        assert self._member is not None
        for local in range(self.plan["procs"]):
            number = self.node * self.plan["procs"] + local
            env = rank_environment(
                self.plan,
                self.node,
                local,
                attempt,
                secret=self._secret_env,
                channel=self._channel_path,
                code=self._code,
                master=self._member.address,
                port=port,
            )
            env.update(KFNB_STACKS=self._stacks.path(number), KFNB_WORKER=str(os.getpid()))
            try:
                rank = self._ranks.start(number, command, env, self.plan["workdir"] or self._code)
            except OSError as error:
                text = "it could not be started with %s: %s" % (command[0], error)
                self._report(self._make_failure(number, kind="internal", type="OSError", message=text))
                break
            self._whose.add(rank.pid, number)
            self._record_rank(rank, "starting")
        self._set_state("running")
        self._send({"op": "pids", "pids": [rank.pid for rank in self._ranks.all]})

    def _record_rank(self, rank: Rank, state: str) -> None:
        self._output.record(
            {
                "e": "rank",
                "r": rank.number,
                "state": state,
                "pid": rank.pid,
                "code": rank.code,
                "a": self._attempt,
                "t": time.time(),
            }
        )

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._ranks is not None:
                self._ranks.reap(pid, status)

    def _exited(self, rank: Rank) -> None:
        assert self._ranks is not None
        assert rank.code is not None
        self._channel.drain()
        self._record_rank(rank, "exited")
        if self._state != "running" or self._outcome:
            return
        if rank.code != 0 and rank.failure is None:
            out_of_memory = memory_kills() > self._memory_kills
            kind, type_, message = explain(rank.code, out_of_memory)
            rank.failure = self._make_failure(rank.number, kind=kind, type=type_, message=message)
            self._report(rank.failure)
        elif not self._ranks.living and not any(one.code or one.failure for one in self._ranks.all):
            attempt = self._attempt
            self._ranks.end(0, lambda: self._send({"op": "finished", "attempt": attempt}))

    def _send(self, message: Message) -> None:
        if self._member is not None:
            self._member.send(message)

    def _make_failure(self, rank: Optional[int], **what: Any) -> Message:
        failure: Message = {"e": "failure", "r": rank, "node": self.node, "a": self._attempt, "traceback": ""}
        return {**failure, "line": None, "t": time.time(), **what}

    def _report(self, failure: Message) -> None:
        if is_consequence(failure):
            self._held.append(failure)
        else:
            self._output.record(failure)
        self._failure = self._failure or failure
        self._send({"op": "failed", "attempt": self._attempt, "failure": failure})

    # --- what the ranks say ----------------------------------------------------------------------------------------

    def _receive(self, message: Message, connection: channel.Connection) -> None:
        try:
            if not self._telemetry.take(message):
                self._control(message, connection)
            elif message["e"] == "result" and self.plan.get("results_in_log"):
                for record in shipment.records(self.plan["results"]):
                    self._output.record({**record, "t": time.time()})
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            self._note("a rank's message cannot be read: %s: %.200r" % (type(error).__name__, message))

    def _control(self, message: Message, connection: channel.Connection) -> None:
        kind = message["e"]
        if kind == "barrier":
            key = "%s" % message["key"]
            self._asked.setdefault(key, []).append(connection)
            self._send({"op": "barrier", "key": key, "rank": int(message["r"])})
            return
        rank = next((one for one in self._ranks.all if one.pid == message["pid"]), None) if self._ranks else None
        if rank is None:
            return
        if kind in ("asks", "asked"):  # about leaving: see kfnb_worker.signals
            if connection not in self._asking:
                self._asking.append(connection)
            ahead = int(message.get("ahead", 0))
            self._send({"op": kind, "rank": rank.number, "calls": int(message.get("calls", 0)), "ahead": ahead})
        elif kind == "ready":
            rank.ready = True
            self._record_rank(rank, "running")
        elif kind == "failure" and self._state == "running" and rank.failure is None and not self._outcome:
            line = message["line"]
            rank.failure = self._make_failure(
                rank.number,
                kind="exit" if message.get("kind") == "exit" else "exception",
                type=str(message["type"])[:500],
                message=str(message["message"]),
                traceback=str(message["traceback"]),
                line=None if line is None else int(line),
                t=float(message["t"]),
            )
            self._report(rank.failure)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _lifeline(self) -> None:
        try:
            data = os.read(0, 4096)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove(0)
            self._note("what started this worker is gone, so it ends too")
            self._grace = min(self._grace, FAILED_GRACE)
            self._finish("stopped")

    def _stop(self, why: str) -> None:
        """Stop all nodes' ranks; this node's without waiting for the coordinator's word."""
        if self._outcome or self._state == "stopping":
            return
        self._note(why)
        self._set_state("stopping")
        if self._ranks is None:
            self._send({"op": "stop", "why": why})
            self._finish("stopped")
            return
        self._ranks.end(self._grace, lambda: None)
        self._send({"op": "stop", "why": why})
        self._loop.after(self._grace + LAST_WORD_SECONDS, lambda: self._finish("stopped"))

    def _finish(self, outcome: str) -> None:
        """End what runs, then this worker; the first outcome counts."""
        if self._outcome:
            return
        self._outcome = outcome
        grace = self._grace if outcome == "stopped" else min(self._grace, FAILED_GRACE)
        if self._ranks is None:
            self._last_words()
        else:
            self._ranks.end(grace, self._last_words)

    def _last_words(self) -> None:
        self._channel.drain()
        self._telemetry.finish()
        self._make_room()
        failure = self._failure if self._outcome in ("failed", "lost") else None
        write_termination(os.path.join(self._dir, "termination.json"), self._outcome, failure)
        self._set_state("ended")
        if self._member is not None:
            self._member.close()
        self._channel.close()
        self._leave(time.monotonic() + LAST_WORD_SECONDS)

    def _make_room(self) -> None:
        """Give back what was kept of the disk for this node's last words, after a look whether it is full."""
        with suppress(OSError):
            disk = os.statvfs(self._dir)
            self._full = disk.f_bavail * disk.f_frsize < FULL_BYTES
            os.unlink(os.path.join(self._dir, "reserve"))

    def _leave(self, deadline: float) -> None:
        """Node 0 leaves last: the others still have to hear how it ended."""
        if self._coordinator is None or self._coordinator.idle or time.monotonic() > deadline:
            self._loop.stop()
        else:
            self._loop.after(0.02, lambda: self._leave(deadline))

    def _internal(self, error: Exception) -> None:
        """The worker itself is broken: say so, and leave nothing behind."""
        import traceback

        text = "the worker failed: %s: %s" % (type(error).__name__, error)
        trace = traceback.format_exc()
        failure = self._make_failure(None, kind="internal", type=type(error).__name__, message=text, traceback=trace)
        self._output.record(failure)
        self._outcome = "failed"
        self._make_room()
        write_termination(os.path.join(self._dir, "termination.json"), "failed", failure)
        self._state = "ended"
        self._write_state()
        if self._ranks is not None:
            self._ranks.kill()  # the guard ends the rest


def _same(one: Message, other: Message) -> bool:
    return (one["r"], one["node"], one["a"]) == (other["r"], other["node"], other["a"])


def main(arguments: List[str]) -> int:
    """The worker's command line; its exit code (see ``EXITS``)."""
    parser = argparse.ArgumentParser(prog="kfnb_worker", description="The worker of one node of a kfnb job.")
    parser.add_argument("plan", help="plan.json of the job")
    parser.add_argument("--node", type=int, required=True, help="this node's number, from 0")
    chosen = parser.parse_args(arguments)
    plan = read_json(chosen.plan)
    if not 0 <= chosen.node < plan["nodes"]:
        parser.error("there is no node %d in job %s of %d nodes" % (chosen.node, plan["job"], plan["nodes"]))
    return Worker(plan, chosen.node).run()
