"""The process of one rank. Everything here happens before the user's first line, so it is little, and imported late."""

from __future__ import annotations

import faulthandler
import io
import json
import os
import signal
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Dict, List, Optional

from kfnb_worker import channel, signals


def main() -> int:
    """Run the unpacked code of ``$KFNB_CODE``; the exit code of this rank, as Python itself would have it."""
    _die_with_worker()
    _line_buffering()
    faulthandler.enable()
    with suppress(OSError):  # a full disk
        stacks = open(os.environ["KFNB_STACKS"], "ab")  # noqa: SIM115 (open as long as the process lives)
        faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
    signals.install()
    _send({"e": "ready"})

    # api too: a thread's or a signal handler's first use would import it, in the midst of a fork or of another import
    from kfnb_worker import api, execute  # noqa: F401

    code = 0
    try:
        execute.run(os.environ["KFNB_CODE"], sys.argv[1:])
        _save_results()
    except SystemExit as stop:
        code = _exit_code(stop)
        if code == 0:
            _save_results()
    except BaseException as error:
        signals.ignore()  # the worker ends the others now, and this rank may finish its words
        _send({**execute.failure(error), "e": "failure"})
        _print(error)
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
    return code


def _die_with_worker() -> None:
    """Linux: the kernel ends this process when the worker ends, however it ends."""
    from kfnb_worker.processes import PR_SET_PDEATHSIG, prctl

    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ["KFNB_WORKER"]):  # it ended before we asked
        os._exit(1)


def _line_buffering() -> None:
    """One write a line, so that lines of this process and its children do not mix. (-u would write every piece.)"""
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        raw = io.FileIO(old.fileno(), "w", closefd=False)
        new = io.TextIOWrapper(
            io.BufferedWriter(raw, 65536), encoding=old.encoding, errors=old.errors, line_buffering=True
        )
        setattr(sys, name, new)
        setattr(sys, "__%s__" % name, new)


def _send(message: Dict[str, Any]) -> None:
    client = channel.channel()
    if client is not None:
        client.send({"r": int(os.environ["RANK"]), "pid": os.getpid(), "t": time.time(), **message})


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    text = str(stop.code)
    says = "it ended with exit code 1: %s" % text[:2000] if text else "it ended with exit code 1"
    _send({"e": "failure", "kind": "exit", "type": "SystemExit", "message": says, "traceback": "", "line": None})
    sys.stderr.write("%s\n" % text)
    return 1


def _print(error: BaseException) -> None:
    """The traceback as Python prints it, by the user's own ``sys.excepthook`` where there is one."""
    ours = os.path.dirname(os.path.abspath(__file__))
    trace: Optional[TracebackType] = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(ours):
        trace = trace.tb_next
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except BaseException:
        sys.__excepthook__(type(error), error, trace)
    sys.stderr.flush()


def _save_results() -> None:
    """Rank 0 writes the values that ``out`` names."""
    if os.environ["RANK"] != "0":
        return
    with open(os.path.join(os.environ["KFNB_CODE"], "_kfnb", "bundle.json"), encoding="utf-8") as source:
        names: List[str] = json.load(source)["out"]
    if names:
        from kfnb_worker import execute, values

        saved = values.save_results(names, execute.main_globals(), os.environ["KFNB_RESULTS"])
        _send({"e": "result", **saved})


def start() -> None:
    """Run, and end this process.

    As Python does it, but for the teardown of modules: torch's native threads abort there now and then, whether its
    process group was left or not, and would turn a success into a failure, or bury the reason of one.
    """
    import atexit
    import threading

    code = main()
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    _flush_files()
    client = channel.channel()
    if client is not None:
        client.flush()
    os._exit(code)


def _flush_files() -> None:
    """Files that are still open keep what was written to them, as they do where a teardown closes them."""
    import gc

    for layer in (io.TextIOBase, io.BufferedIOBase):  # text goes into a buffer, and that into the file
        for file in gc.get_objects():
            if issubclass(type(file), layer):  # isinstance would wake objects that make up their class
                with suppress(Exception):
                    file.flush()
