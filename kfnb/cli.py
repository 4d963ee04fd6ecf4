"""The command line: the same jobs, options and words as in a notebook.

Every command takes ``--json``: one JSON object a line, a stream of them where it follows a job. The exit status is that
of the error (see ``kfnb.errors``), 130 after Ctrl-C, which detaches and never stops a job.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from kfnb import portal
from kfnb.api import Prepared, find, list_jobs, prepare_again, prepare_source
from kfnb.backends.local.prune import DAY, DEFAULT_AGE, DEFAULT_BYTES, prune
from kfnb.config import settings
from kfnb.errors import JobFailed, KfnbError
from kfnb.events import JobEvent
from kfnb.failures import cell_traceback
from kfnb.job import Job, raise_unless_succeeded
from kfnb.magics import LINE_MAGICS
from kfnb.magics.commands import trust_project
from kfnb.magics.parsers import add_arguments, captured, spec_options
from kfnb.options import add_options, make_parser
from kfnb.spec import parse_duration
from kfnb.state import JobState
from kfnb.views import plain, table, terminal, words
from kfnb.views.interrupt import Detached, blocking, interruptible, submitted
from kfnb.views.terminal import TerminalView
from kfnb.views.watch import watch

#: Exit status after Ctrl-C, and after the reader of our output has gone (128 + SIGINT, SIGPIPE).
INTERRUPTED, BROKEN_PIPE = 130, 141

_GIB = 1024**3

_SUMMARIES = {
    "train": "Run a script as a distributed training job and wait for it",
    **{magic.removeprefix("kf"): summary for magic, summary in LINE_MAGICS.items()},
    "prune": "Remove old ended jobs and unused virtual environments",
    "export": "Write a job as plain files into a new folder",
}


def make_cli() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = make_parser("kfnb", description="Distributed training jobs, from scripts and notebooks.")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in _SUMMARIES.items():
        command = commands.add_parser(name, help=summary, description=f"{summary}.", allow_abbrev=False)
        command.add_argument("--json", action="store_true", help="machine-readable: JSON objects, one a line")
        add_arguments(name, command)
        if name == "train":
            command.epilog = "What follows -- are the arguments of the script: kfnb train PATH [options] -- --lr 0.1"
            command.add_argument("path", metavar="PATH", help="the script; - reads it from standard input")
            command.add_argument("--name", default=argparse.SUPPRESS, help="name of the job; its id is NAME-xxxxx")
            add_options(command, without=("use",))
        elif name == "export":
            command.add_argument("folder", metavar="FOLDER", type=Path, help="a folder that is not there yet")
        elif name == "prune":
            command.add_argument("--dry-run", action="store_true", help="say what would be removed, remove nothing")
            age = f"remove what has not been used for so long (default: {DEFAULT_AGE / DAY:g}d)"
            command.add_argument("--age", type=parse_duration, default=DEFAULT_AGE, metavar="TIME", help=age)
            size = f"then the oldest until so much is left (default: {DEFAULT_BYTES / _GIB:g})"
            command.add_argument("--size", type=float, default=DEFAULT_BYTES / _GIB, metavar="GIB", help=size)
    return parser


def _parse(parser: argparse.ArgumentParser, words_given: list[str]) -> argparse.Namespace:
    """``parse_args``, where it is the command itself that complains of arguments it does not know."""
    given, unknown = parser.parse_known_args(words_given)
    if unknown:
        commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        command = commands.choices[given.command] if given.command else parser
        command.error(f"unrecognized arguments: {' '.join(unknown)}")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    words_given = list(sys.argv[1:] if argv is None else argv)
    cut = words_given.index("--") if "--" in words_given else len(words_given)
    if sys.stdout is None:  # closed by whoever started this
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open as long as the process lives)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    parser = make_cli()
    try:
        given = _parse(parser, words_given[:cut])
        if given.version:
            import kfnb

            print(kfnb.__version__)
            return 0
        if given.command is None:
            parser.print_help()
            return 2
        _COMMANDS[given.command](given, tuple(words_given[cut + 1 :]))
        sys.stdout.flush()
    except BrokenPipeError:
        # nobody reads any more; the interpreter would complain about its last flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except KfnbError as error:
        _report(error)
        return error.exit_code
    return 0


def _report(error: KfnbError) -> None:
    text = str(error) if isinstance(error, Detached) else f"{type(error).__name__}: {error}"
    if isinstance(error, JobFailed) and error.failure is not None and error.failure.traceback:
        text += "\n\n" + cell_traceback(error.failure)
    sys.stdout.flush()
    print(words.clean_lines(text), file=sys.stderr)


class _JsonView:
    """Every event as a line of JSON."""

    def __init__(self, out: TextIO, rank: int | None = None) -> None:
        self._out, self._rank = out, rank

    def batch(self, state: JobState, events: Sequence[JobEvent]) -> None:
        if events:
            self._out.write("".join(plain.dumps(plain.as_dict(event)) + "\n" for event in events))
            self._out.flush()

    def look(self, state: JobState, now: float) -> None:
        pass


def _print_json(value: Any) -> None:
    print(plain.dumps(value))


def _say_detached(id: str) -> str:
    return words.detached(id, "kfnb ")


async def _follow(job: Job, json: bool, rank: int | None = None) -> JobState:
    """Show the job until its end. Raises ``Detached`` when interrupted."""
    state = JobState()
    view = _JsonView(sys.stdout) if json else TerminalView(sys.stdout, job.id, rank=rank)
    try:
        await watch(job, view, state, rank=rank)
    except asyncio.CancelledError:
        raise Detached(_say_detached(job.id)) from None
    finally:
        if isinstance(view, TerminalView):
            view.finish()
    return state


async def _until_end(job: Job, json: bool) -> None:
    state = await _follow(job, json)
    if json:
        _print_json({"event": "end", "id": job.id, "phase": str(state.phase), "reason": state.reason})
    elif state.result is not None and state.result.names:
        names = ", ".join(state.result.names)
        print(f"== Results: {names}; `kfnb export {job.id} FOLDER` writes them with the rest of the job")
    raise_unless_succeeded(job, state.phase, state.reason, state.failure)


async def _start(prepared: Prepared, json: bool) -> None:
    if prepared.spec.dry_run:
        plan = await prepared.dry_run()
        _print_json({"plan": plan, "notes": prepared.notes}) if json else print(plan)
        return
    job = await submitted(prepared.submit(), _say_detached)
    if json:
        _print_json({"event": "submitted", "id": job.id, "notes": prepared.notes})
    else:
        for note in prepared.notes:
            print(f"== {words.clean(note)}")
    if not prepared.spec.detach:
        await _until_end(job, json)
    elif not json:
        print(f"{job.id} runs on its own. {words.how_to(job.id, 'kfnb ')}")


def _train(given: argparse.Namespace, args: tuple[str, ...]) -> None:
    options = spec_options(vars(given), args)
    if "name" in given:
        options["name"] = given.name
    source: str | Path = Path(given.path)
    if given.path == "-":
        source = sys.stdin.read() + "\n"  # a line break tells code from a path

    async def work() -> None:
        await _start(await interruptible(prepare_source(source, options)), given.json)

    blocking(work())


def _run(given: argparse.Namespace, args: tuple[str, ...]) -> None:
    values = captured(given.use)

    async def work() -> None:
        again = prepare_again(given.name, spec_options(vars(given), args), values)
        await _start(await interruptible(again), given.json)

    blocking(work())


def _attach(given: argparse.Namespace, args: tuple[str, ...]) -> None:
    blocking(_until_end(portal.call(find(given.name)), given.json))


def _jobs(given: argparse.Namespace, args: tuple[str, ...]) -> None:
    infos = portal.call(list_jobs())
    if given.json:
        for info in infos:
            _print_json(info.as_dict())
    else:
        print(table.jobs(infos))


def _logs(given: argparse.Namespace, args: tuple[str, ...]) -> None:
    job = portal.call(find(given.name))
    portal.call(job.acheck_rank(given.rank))
    if given.follow and given.tail is None:
        blocking(_follow(job, given.json, given.rank))
        return
    colour = sys.stdout.isatty()
    for line in job.logs(given.rank, follow=given.follow, tail=given.tail):
        print(plain.dumps(plain.as_dict(line)) if given.json else terminal.log_line(line, colour=colour))


def _stop(given: argparse.Namespace, args: tuple[str, ...]) -> None:
    for name in given.names:
        job = portal.call(find(name))
        ended = job.phase.terminal
        phase = job.phase if ended else job.stop().phase
        if given.json:
            _print_json({"id": job.id, "phase": str(phase), "had_ended": ended})
        else:
            print(f"{job.id} had ended already ({phase})." if ended else f"{job.id}: {phase}")


def _delete(given: argparse.Namespace, args: tuple[str, ...]) -> None:
    for name in given.names:
        job = portal.call(find(name))
        job.delete()
        _print_json({"id": job.id, "deleted": True}) if given.json else print(f"{job.id} is removed.")


def _compare(given: argparse.Namespace, args: tuple[str, ...]) -> None:
    from kfnb.comparison import acompare  # it imports numpy, which no other command needs

    comparison = portal.call(acompare(given.names))
    _print_json(comparison.as_dict()) if given.json else print(comparison.text())


def _stacks(given: argparse.Namespace, args: tuple[str, ...]) -> None:
    found = portal.call(find(given.name)).stacks()
    _print_json(found) if given.json else print(table.stacks(found))


def _config(given: argparse.Namespace, args: tuple[str, ...]) -> None:
    if given.trust:
        print(trust_project(), file=sys.stderr)
    held = settings({})
    if given.json:
        for setting in held.values():
            _print_json({"option": setting.name, "value": setting.value, "source": setting.source})
    else:
        print(table.settings(held))


def _prune(given: argparse.Namespace, args: tuple[str, ...]) -> None:
    removals = prune(given.age, given.size * _GIB, dry_run=given.dry_run)
    if given.json:
        for removal in removals:
            _print_json(vars(removal))
    else:
        rows = [(removal.kind, removal.name, words.size(removal.bytes), removal.why) for removal in removals]
        print(table.Table(("what", "name", "size", "why"), rows, "There is nothing to remove."))


def _export(given: argparse.Namespace, args: tuple[str, ...]) -> None:
    path = portal.call(find(given.name)).export(given.folder)
    _print_json({"path": path}) if given.json else print(path)


_COMMANDS: dict[str, Callable[[argparse.Namespace, tuple[str, ...]], None]] = {
    "train": _train,
    "jobs": _jobs,
    "attach": _attach,
    "logs": _logs,
    "stop": _stop,
    "delete": _delete,
    "run": _run,
    "compare": _compare,
    "stacks": _stacks,
    "config": _config,
    "prune": _prune,
    "export": _export,
}

if __name__ == "__main__":
    raise SystemExit(main())
