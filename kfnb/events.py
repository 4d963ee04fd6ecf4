"""What a job says: phases and the events of its one stream.

Every client (a cell, the panel, the command line) folds the same events into what it shows. A backend yields them in
``Batch``es, each with the cursor that resumes right after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

#: An opaque, JSON-able position in a job's stream.
Cursor = dict[str, Any]


class Phase(str, Enum):
    """Where a job is in its life."""

    SUBMITTING = "Submitting"
    PENDING = "Pending"
    QUEUED = "Queued"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    STOPPING = "Stopping"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"
    LOST = "Lost"

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL

    def __str__(self) -> str:
        return self.value


_TERMINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.LOST})


@dataclass(frozen=True)
class Failure:
    """Why a rank (or a node: ``rank`` None) ended in failure.

    ``kind``: exception, exit, signal, lost, bundle, internal. ``line`` is the line of main.py that raised, or None;
    the cell's line is ``line + first_line - 1`` (``first_line`` of the record's bundle).
    """

    node: int | None
    rank: int | None
    attempt: int
    kind: str
    type: str
    message: str
    traceback: str
    line: int | None
    time: float
    first_line: int = 1


@dataclass(frozen=True)
class PhaseChanged:
    """The job's phase, with the sentence that explains it. ``time`` in Unix seconds, ``attempt`` from 0.

    ``failure`` is the one that ended a failed job, in the backend's judgement. Its traceback may be cut; the rank's own
    ``Failure`` event has all of it.
    """

    phase: Phase
    reason: str
    time: float
    attempt: int = 0
    failure: Failure | None = None


class LogLine(NamedTuple):
    """One whole line that a rank printed.

    ``rank`` is None for a process of the node itself (pip). ``stream`` is "stdout" or "stderr"; a ``transient`` line
    is the present state of a line that goes on (a progress bar): it replaces the rank's previous transient line.
    ``sequence`` counts the lines of one worker process; ``restart`` tells its processes apart; ``time`` is for
    display and ordering between ranks only.
    """

    node: int
    rank: int | None
    sequence: int
    text: str
    time: float
    stream: str = "stdout"
    transient: bool = False
    restart: int = 0


@dataclass(frozen=True)
class Points:
    """Points of one series: ``steps`` (int), ``walls`` (Unix seconds) and ``values`` (float), of equal length.

    A series is (``run``: directory relative to the logdir, ``rank`` that wrote it, ``tag``). ``attempt`` is negative
    for points that an earlier job left in a kept logdir. ``keyframe`` points are a bounded picture of the whole
    series, used only where something is missing; ``total`` is then how many points there really are.
    """

    run: str
    rank: int | None
    tag: str
    attempt: int
    steps: list[int]
    walls: list[float]
    values: list[float]
    source: str = "log"
    keyframe: bool = False
    total: int = 0


@dataclass(frozen=True)
class Progress:
    """How far a rank is: ``done`` of ``total`` (None where unknown) in ``unit``s.

    ``step`` is the mean seconds that a unit took since this was last told, ``wait`` those of them in which the loop
    waited for its next item (data); None where the job does not tell (``kf.track`` does).
    """

    rank: int | None
    done: float
    total: float | None
    unit: str
    time: float
    attempt: int = 0
    step: float | None = None
    wait: float | None = None


@dataclass(frozen=True)
class RankState:
    """A rank is "starting", "running" or "exited" (``code`` >= 0 is the exit status, < 0 minus the signal)."""

    node: int
    rank: int
    state: str
    pid: int | None
    code: int | None
    time: float
    attempt: int = 0


@dataclass(frozen=True)
class AttemptStarted:
    """All ranks of ``node`` start again together; ``why`` is the sentence that says what ended the attempt before."""

    node: int
    attempt: int
    why: str
    time: float


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint lies at ``path``."""

    step: int
    path: str
    attempt: int
    time: float


@dataclass(frozen=True)
class Result:
    """Rank 0 has stored the values asked for by ``--out``; ``errors`` says why a name could not be."""

    names: tuple[str, ...]
    errors: dict[str, str]
    bytes: int
    time: float


@dataclass(frozen=True)
class ResultPiece:
    """The ``index``-th of ``count`` pieces of one of rank 0's result files, where they travel by the log.

    The files are those that ``kfnb_worker.values`` writes; each piece but the last is as long as the first.
    """

    name: str
    index: int
    count: int
    data: bytes


@dataclass(frozen=True)
class Note:
    """A sentence of the worker or the backend: what is waited for, what was left out."""

    text: str
    level: str
    time: float
    node: int | None = None


@dataclass(frozen=True)
class Stacks:
    """The Python stacks of all threads of a rank, taken on request."""

    rank: int
    request: str
    text: str
    time: float


@dataclass(frozen=True)
class Gap:
    """``count`` lines of a node are gone; ``why`` says how (log rotated, disk full)."""

    node: int
    count: int
    why: str
    time: float


@dataclass(frozen=True)
class NodeStarted:
    """A worker process came up on a node (the ``restart``-th there)."""

    node: int
    restart: int
    nodes: int
    procs: int
    python: str
    host: str
    bundle: str
    time: float
    attempt: int = 0


JobEvent = (
    PhaseChanged
    | LogLine
    | Points
    | Progress
    | RankState
    | AttemptStarted
    | Failure
    | Checkpoint
    | Result
    | ResultPiece
    | Note
    | Stacks
    | Gap
    | NodeStarted
)


@dataclass(frozen=True)
class Batch:
    """Events in the order they became known, and the cursor that resumes right after them.

    ``read`` is how much of what there was then has been read with them, 0 to 1.
    """

    events: list[JobEvent] = field(default_factory=list)
    cursor: Cursor = field(default_factory=dict)
    read: float = 1.0
