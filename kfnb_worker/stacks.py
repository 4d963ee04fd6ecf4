"""The Python stacks of living ranks: faulthandler writes them on a signal, also where a rank hangs in native code."""

from __future__ import annotations

import os
import signal
import time
from typing import Dict, List

from kfnb_worker.loop import Loop
from kfnb_worker.ranks import Rank
from kfnb_worker.relay import Output

POLL_SECONDS = 0.1
WAIT_SECONDS = 5.0
TEXT_LIMIT = 256 * 1024


class Stacks:
    """Asks ranks for their stacks, and tells them as ``stacks`` records once each file stopped growing."""

    def __init__(self, loop: Loop, output: Output, directory: str) -> None:
        self._loop, self._output, self._directory = loop, output, directory

    def path(self, rank: int) -> str:
        return os.path.join(self._directory, "%d.txt" % rank)

    def ask(self, ranks: List[Rank], request: str) -> None:
        asked = {}
        for rank in ranks:
            if not rank.ready:  # before it is, the signal would end it
                self._tell(rank.number, request, "rank %d is still starting" % rank.number)
                continue
            try:
                os.truncate(self.path(rank.number), 0)  # the rank appends
                os.kill(rank.pid, signal.SIGUSR2)
            except OSError as error:
                self._tell(rank.number, request, "rank %d cannot be asked: %s" % (rank.number, error))
                continue
            asked[rank.number] = 0
        self._loop.after(POLL_SECONDS, lambda: self._look(asked, request, time.monotonic() + WAIT_SECONDS))

    def _look(self, asked: Dict[int, int], request: str, deadline: float) -> None:
        late = time.monotonic() > deadline
        for number, before in list(asked.items()):
            size = os.path.getsize(self.path(number))
            if late or size == before > 0:
                del asked[number]
                with open(self.path(number), encoding="utf-8", errors="replace") as source:
                    text = source.read(TEXT_LIMIT)
                self._tell(number, request, text or "rank %d did not answer in %g s" % (number, WAIT_SECONDS))
            else:
                asked[number] = size
        if asked:
            self._loop.after(POLL_SECONDS, lambda: self._look(asked, request, deadline))

    def _tell(self, rank: int, request: str, text: str) -> None:
        self._output.record({"e": "stacks", "r": rank, "request": request, "text": text, "t": time.time()})
