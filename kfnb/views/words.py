"""What all views say, in the same words: a job's state as sentences, and the part of its log that is shown."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kfnb.events import LogLine, Phase
from kfnb.failures import explain
from kfnb.series import SeriesKey, rank_order
from kfnb.state import JobState, Overall, Pace

#: Series named in the line of last scalars.
SCALARS = 8

#: What a terminal would act on: escape sequences, and control characters but for the tab.
ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\|$)|[ -/]*[0-~])|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)

#: The codes that set a colour or weight and nothing else.
COLOURS = re.compile(r"(\x1b\[[0-9;]{0,64}m)")

_BAR = 20


class Line(NamedTuple):
    """One sentence; ``kind`` is phase, reason, progress, scalars, info, warning or failure."""

    kind: str
    text: str


class Excerpt(NamedTuple):
    """The shown part of a log: its ``head``, how many lines are ``omitted``, its ``tail``, and the lines that go on."""

    head: list[LogLine]
    omitted: int
    tail: list[LogLine]
    going_on: list[LogLine]


def clean(text: str) -> str:
    """Text without what a terminal would act on."""
    return ESCAPES.sub("", text)


def clean_lines(text: str) -> str:
    """The same for a text of many lines."""
    return "\n".join(map(clean, text.split("\n")))


def duration(seconds: float) -> str:
    """``7s``, ``1m 12s``, ``2h 3m``, ``3d 4h``."""
    whole = round(seconds)
    for size, unit, smaller, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // smaller}{part}"
    return f"{whole}s"


def plural(count: int, what: str) -> str:
    """``1 line``, ``1,204 lines``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def size(count: int) -> str:
    """Bytes as people read them."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def who(line: LogLine) -> str:
    """The prefix of a line: the rank's number, or the node's where the node itself printed it."""
    return f"[{line.rank}]" if line.rank is not None else f"[node {line.node}]"


def progress_text(progress: Overall, pace: Pace | None = None) -> str:
    unit = clean(progress.unit)
    if progress.total is None:
        text = f"{progress.done:g} {unit}".rstrip()
    else:
        fraction = min(max(progress.done / progress.total, 0.0), 1.0) if progress.total else 1.0
        bar = "█" * int(fraction * _BAR)
        text = f"{bar:░<{_BAR}} {progress.done:g} of {progress.total:g}{' ' + unit if unit else ''} ({fraction:.0%})"
    if progress.silent is not None:
        return f"{text}, no progress for {duration(progress.silent)}"
    if progress.eta is not None:
        text = f"{text}, about {duration(progress.eta)} left"
    return text if pace is None else f"{text}, {pace_text(pace, unit)}"


def pace_text(pace: Pace, unit: str) -> str:
    """``0.12 s a step, 31% of it waiting for data (rank 3)``."""
    one = re.sub(r"(?<=ch|sh)es$|(?<=[^s])s$", "", unit) or "step"
    article = "an" if re.match(r"(?!uni)[aeiou]", one, re.IGNORECASE) else "a"
    text = f"{brief(pace.step)} {article} {one}"
    if pace.wait is not None and pace.wait >= 0.005:
        text += f", {pace.wait:.0%} of it waiting for data"
    return text if pace.rank is None else f"{text} (rank {pace.rank}, the slowest)"


def brief(seconds: float) -> str:
    """``0.12 s``, ``35 ms``, ``2m 3s``."""
    if seconds >= 60:
        return duration(seconds)
    return f"{seconds:.2g} s" if seconds >= 0.1 else f"{seconds * 1000:.2g} ms"


def scalars_text(state: JobState) -> str:
    """The last value of the first series, by tag; of one that several ranks write, the lowest rank's."""
    writers: dict[tuple[str, str], list[SeriesKey]] = {}
    for key in state.series:
        writers.setdefault((key.run, key.tag), []).append(key)
    tags = Counter(tag for _, tag in writers)
    parts = []
    for (run, tag), keys in list(writers.items())[:SCALARS]:
        first = min(keys, key=rank_order)
        step, value = state.series.last(first)
        name = f"{run}/{tag}" if tags[tag] > 1 and run != "." else tag
        if len(keys) > 1 and first.rank is not None:
            name += f" (rank {first.rank} of {len(keys)})"
        parts.append((clean(name), f"{value:.4g}", step))
    steps = {step for _, _, step in parts}
    if len(steps) == 1:
        text = ", ".join(f"{name} {value}" for name, value, _ in parts) + f" at step {steps.pop()}"
    else:
        text = ", ".join(f"{name} {value} (step {step})" for name, value, step in parts)
    more = len(writers) - len(parts)
    return text + (f", and {more} more" if more else "")


def sentences(state: JobState, title: str, now: float) -> Iterator[Line]:
    """Everything about the job but its log, most important first."""
    parts = [title, str(state.phase)]
    if state.nodes:
        parts.append(f"{plural(state.nodes, 'node')} x {plural(state.procs, 'rank')}")
    elapsed = state.elapsed(now)
    if elapsed is not None:
        parts.append(duration(elapsed))
    elif state.phase_time and not state.phase.terminal:
        parts.append(f"for {duration(max(now - state.phase_time, 0.0))}")
    yield Line("phase", " · ".join(parts))
    failed = state.failure is not None and state.phase in (Phase.FAILED, Phase.RESTARTING)
    if state.reason and not (failed and state.phase is Phase.FAILED):
        yield Line("reason", clean(state.reason))
    if failed and state.failure is not None:
        yield Line("failure", clean(explain(state.failure)))
    if state.restarts:
        last = state.restarts[-1]
        yield Line("warning", clean(f"Attempt {last.attempt + 1}: started again, {last.why}"))
    progress = state.progress(now)
    if progress is not None:
        yield Line("progress", progress_text(progress, state.pace(now)))
    if len(state.series):
        yield Line("scalars", scalars_text(state))
    if state.non_finite is not None:
        point = state.non_finite
        rank = f" of rank {point.key.rank}" if point.key.rank is not None else ""
        yield Line("warning", f"{clean(point.key.tag)}{rank} first became {point.value} at step {point.step}")
    for (node, why), count in state.gaps.items():
        verb = "is" if count == 1 else "are"
        yield Line("warning", f"{plural(count, 'line')} of node {node} {verb} gone ({clean(why)})")
    for note in state.notes:
        yield Line("warning" if note.level == "warning" else "info", clean(note.text))
    if state.checkpoint is not None:
        yield Line("info", clean(f"Checkpoint of step {state.checkpoint.step}: {state.checkpoint.path}"))


def excerpt(state: JobState, *, head: int, tail: int, budget: int) -> Excerpt:
    """At most ``head`` first and ``tail`` last lines, and at most ``budget`` characters; the rest is counted."""
    first = _within(state.head[:head], budget // 4)
    rest: Iterable[LogLine] = [*state.head[len(first) :], *state.tail]
    last = deque(_within(reversed(list(rest)[-tail:] if tail else []), budget - budget // 4))
    last.reverse()
    omitted = state.lines - len(first) - len(last)
    going_on = [state.transient[key] for key in sorted(state.transient)][:tail]
    return Excerpt(first, omitted, list(last), going_on)


def _within(lines: Iterable[LogLine], budget: int) -> list[LogLine]:
    kept = []
    for line in lines:
        budget -= len(line.text) + 8
        if budget < 0:
            break
        kept.append(line)
    return kept


def omission(count: int) -> str:
    return f"... {plural(count, 'line')} not shown here ..."


def detached(id: str, command: str = "%kf", *, until_kernel_ends: bool = False) -> str:
    """What somebody reads who stopped waiting; ``command`` is what the commands' names begin with."""
    lives = "goes on until this kernel ends" if until_kernel_ends else "goes on"
    return f"Detached: {id} {lives}. {how_to(id, command)}"


def how_to(id: str, command: str = "%kf") -> str:
    return f"To see it: {command}attach {id}. To stop it: {command}stop {id}"
