"""Which rank a process belongs to, for the files that it writes."""

from __future__ import annotations

import os
from typing import Dict, Iterable, Optional

from kfnb_worker import channel
from kfnb_worker.processes import environment_of
from kfnb_worker.tailer import ELSEWHERE, FOREIGN


class Whose:
    """The ranks of all attempts of a job, as far as they run on this machine, and what descends from them.

    ``path`` is that of this worker's channel: what has it in its environment was started by a rank of this node.
    """

    def __init__(self, job: str, path: str) -> None:
        self._job, self._path = job, path
        self._ranks: Dict[int, int] = {}

    def add(self, pid: int, rank: int) -> None:
        """A rank of this node was started."""
        self._ranks[pid] = rank

    def elsewhere(self, pids: Iterable[int]) -> None:
        """Processes of other nodes' ranks; they may run on this machine."""
        for pid in pids:
            self._ranks.setdefault(pid, ELSEWHERE)

    def rank_of(self, pid: int) -> Optional[int]:
        """The rank of a process, or that of which it is a descendant; ``ELSEWHERE``; ``FOREIGN``; None.

        A descendant is known while it lives: by the rank's session, or on Linux, where it has one of its own, by its
        environment. One that has ended is nobody's (None).
        """
        if pid in self._ranks:
            return self._ranks[pid]
        try:
            session = os.getsid(pid)
        except ProcessLookupError:
            return None
        except OSError:
            return FOREIGN
        if session in self._ranks:
            return self._ranks[session]
        told = environment_of(pid)
        if told.get("KFNB_JOB") != self._job or not told.get("RANK", "").isdigit():
            return FOREIGN
        return int(told["RANK"]) if told.get(channel.VARIABLE) == self._path else ELSEWHERE
