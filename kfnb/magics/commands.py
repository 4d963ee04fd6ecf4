"""The line magics: each parses its line, asks the SDK and returns something that shows itself."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from kfnb import portal
from kfnb.api import find, list_jobs, prepare_again
from kfnb.config import find_project_file, settings, trust, working_directory
from kfnb.errors import UsageError
from kfnb.events import LogLine
from kfnb.job import Job
from kfnb.magics import line, parsers
from kfnb.magics.train import start
from kfnb.magics.waiting import follow_log, show
from kfnb.options import split_line
from kfnb.state import cut
from kfnb.views import table, terminal, words
from kfnb.views.interrupt import blocking, interruptible
from kfnb.views.table import Table, Text

if TYPE_CHECKING:
    from kfnb.comparison import Comparison

#: Lines that ``%kflogs`` shows where it is not told how many: a saved notebook has to stay small.
TAIL = 500


def _parse(shell: Any, magic: str, text: str) -> tuple[argparse.Namespace, tuple[str, ...]] | None:
    """(arguments, the script's own after ``--``); None where help was asked for and has been printed."""
    parser = parsers.magic_parser(magic)
    given, args = split_line(line.expand(line.join(text)[0], shell.user_ns))
    if "--help" in given or "-h" in given:
        print(parser.format_help())
        return None
    return parser.parse_args(given), args


def kfjobs(shell: Any, text: str) -> Table | None:
    if _parse(shell, "kfjobs", text) is None:
        return None
    return table.jobs(portal.call(list_jobs()))


def kfattach(shell: Any, text: str) -> Job | None:
    return blocking(_attach(shell, text))


def kfattach_awaiting(shell: Any, text: str) -> Coroutine[Any, Any, Job | None]:
    return _attach(shell, text)


async def _attach(shell: Any, text: str) -> Job | None:
    parsed = _parse(shell, "kfattach", text)
    if parsed is None:
        return None
    return await show(shell, await portal.wait(find(parsed[0].name)))


def kflogs(shell: Any, text: str) -> None:
    blocking(_logs(shell, text))


def kflogs_awaiting(shell: Any, text: str) -> Coroutine[Any, Any, None]:
    return _logs(shell, text)


async def _logs(shell: Any, text: str) -> None:
    parsed = _parse(shell, "kflogs", text)
    if parsed is None:
        return
    given = parsed[0]
    job = await portal.wait(find(given.name))
    await portal.wait(job.acheck_rank(given.rank))
    if given.follow:
        await follow_log(shell, job, given.rank)
    else:
        await _print_log(job, given.rank, TAIL if given.tail is None else given.tail)


async def _print_log(job: Job, rank: int | None, tail: int) -> None:
    lines: deque[LogLine] = deque(maxlen=tail)
    total = 0

    async def read() -> None:
        nonlocal total
        async for batch in job.astream(follow=False):
            for event in batch.events:
                if isinstance(event, LogLine) and not event.transient and rank in (None, event.rank):
                    total += 1
                    lines.append(cut(event))

    await interruptible(read(), "Interrupted.")
    shown = [terminal.log_line(one, colour=True) for one in lines]
    if total > len(lines):
        shown.insert(0, f"{words.omission(total - len(lines))} (--tail {total} shows them too)")
    print("\n".join(shown) if shown else f"{job.id} has printed nothing yet.")


def kfstop(shell: Any, text: str) -> None:
    parsed = _parse(shell, "kfstop", text)
    if parsed is None:
        return
    for name in parsed[0].names:
        job = portal.call(find(name))
        before = job.phase
        if before.terminal:
            print(f"{job.id} had ended already ({before}).")
            continue
        print(f"{job.id}: {job.stop().phase}")


def kfdelete(shell: Any, text: str) -> None:
    parsed = _parse(shell, "kfdelete", text)
    if parsed is None:
        return
    for name in parsed[0].names:
        job = portal.call(find(name))
        job.delete()
        print(f"{job.id} is removed.")


def kfrun(shell: Any, text: str) -> Job | None:
    return blocking(_run(shell, text))


def kfrun_awaiting(shell: Any, text: str) -> Coroutine[Any, Any, Job | None]:
    return _run(shell, text)


async def _run(shell: Any, text: str) -> Job | None:
    parsed = _parse(shell, "kfrun", text)
    if parsed is None:
        return None
    given, args = parsed
    values = parsers.captured(given.use, shell.user_ns)
    options = parsers.spec_options(vars(given), args)
    return await start(shell, await interruptible(prepare_again(given.name, options, values)))


def kfcompare(shell: Any, text: str) -> Comparison | None:
    from kfnb.comparison import acompare  # it imports numpy, which no other command needs

    parsed = _parse(shell, "kfcompare", text)
    return None if parsed is None else portal.call(acompare(parsed[0].names))


def kfstacks(shell: Any, text: str) -> Text | None:
    parsed = _parse(shell, "kfstacks", text)
    return None if parsed is None else table.stacks(portal.call(find(parsed[0].name)).stacks())


def kfconfig(shell: Any, text: str) -> Table | None:
    parsed = _parse(shell, "kfconfig", text)
    if parsed is None:
        return None
    if parsed[0].trust:
        print(trust_project())
    return table.settings(settings({}))


def trust_project() -> str:
    """Trust the project file that holds here, and say so. Raises ``UsageError`` where there is none."""
    project = find_project_file(working_directory())
    if project is None:
        raise UsageError("There is no kfnb.toml, and no pyproject.toml with [tool.kfnb], here or above.")
    trust(project)
    return f"{project.path} is trusted as it is now; it sets: {', '.join(sorted(project.table)) or 'nothing'}."
