"""A failure in words, with the lines that the user sees in the cell."""

from __future__ import annotations

import re

from kfnb.events import Failure, Phase, PhaseChanged

#: What to do about a value that did not come back.
OUT_ADVICE = "Put into --out only values that travel: JSON, numpy, tensors, state dicts and modules, dataclasses."

# a frame of the user's main program as the worker runs it: .../code/main.py
_FRAME = re.compile(r'File "[^"\n]*?code/main\.py", line (\d+)')

_WORKER_FRAME = re.compile(r'\s*File "(?:[^"\n]*/kfnb_worker/\w+\.py|<string>)", line \d+')


class Failures:
    """The failures that a job tells of, and the one that counts; the others follow from it.

    That is the backend's judgement once the job has ended, and until then the first of the newest attempt.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[int | None, int | None], Failure] = {}
        self._attempt = 0
        self.first: Failure | None = None

    def add(self, event: Failure | PhaseChanged) -> None:
        if isinstance(event, PhaseChanged):
            if event.failure is not None:  # the rank's own word has its traceback whole
                judged = event.failure
                known = self._told.get((judged.node, judged.rank))
                self.first = known if known is not None and known.attempt == judged.attempt else judged
            return
        if event.attempt > self._attempt:
            self._told.clear()
            self._attempt, self.first = event.attempt, None
        if event.attempt == self._attempt:
            self._told.setdefault((event.node, event.rank), event)
            if self.first is None or event.time < self.first.time:
                self.first = event


def cell_traceback(failure: Failure) -> str:
    """The user's own traceback; frames of main.py also say the line of the cell, which counts the magic's line too."""
    return _with_cell_lines(failure.traceback, failure.first_line).rstrip("\n")


#: A thread's number differs between ranks that are at the same place.
_THREAD = re.compile(r"^((?:Current t|T)hread) 0x[0-9a-f]+")


def cell_stacks(text: str, first_line: int) -> str:
    """Stacks as faulthandler writes them, without the frames of the worker, and with the lines of the cell."""
    kept = [_THREAD.sub(r"\1", line) for line in text.splitlines() if not _WORKER_FRAME.match(line)]
    return _with_cell_lines("\n".join(kept), first_line)


def _with_cell_lines(text: str, first_line: int) -> str:
    def frame(match: re.Match[str]) -> str:
        line = int(match[1])
        if first_line == 1:
            return f'File "main.py", line {line}'
        return f'File "main.py", line {line} (line {line + first_line - 1} of the cell)'

    return _FRAME.sub(frame, text)


def who(failure: Failure) -> str:
    if failure.rank is not None:
        return f"Rank {failure.rank} (node {failure.node})"
    return f"Node {failure.node}" if failure.node is not None else "The job"


def explain(failure: Failure) -> str:
    """One sentence: which rank of which node, what happened, and at which line of the cell."""
    if failure.kind != "exception":
        return f"{who(failure)}: {failure.message}" if failure.message else f"{who(failure)} failed ({failure.kind})"
    head = (failure.message.strip().splitlines() or [""])[0]
    if len(head) > 300:
        head = head[:300] + "..."
    where = ""
    if failure.line is not None:
        if failure.first_line == 1:
            where = f" at line {failure.line} of main.py"
        else:
            where = f" at line {failure.line + failure.first_line - 1} of the cell"
    return f"{who(failure)} raised {failure.type}{': ' + head if head else ''}{where}"


def advice(phase: Phase, id: str, failure: Failure | None) -> str:
    """What to do about a job that did not succeed."""
    if phase is Phase.FAILED and failure is not None:
        return f"Correct the code and run it again; `%kflogs {id}` (or `kfnb logs {id}`) shows what each rank printed."
    again = f"`%kfrun {id}` (or `kfnb run {id}`) starts it again from its record"
    if phase is Phase.LOST:
        return f"{again}; with --checkpoint DIR it goes on from a checkpoint."
    return f"{again}, with other options where they are given."
