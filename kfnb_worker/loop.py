"""One thread, one loop: file descriptors, timers and signals. (asyncio would double an idle worker's memory.)"""

from __future__ import annotations

import heapq
import os
import selectors
import signal
import time
from typing import Any, Callable, Dict, List, Set, Tuple

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Timer:
    """A call that is due at a time of ``time.monotonic``; ``cancel`` it as often as you like."""

    def __init__(self, due: float, call: Callable[[], None]) -> None:
        self.due = due
        self._call: Callable[[], None] = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
        self._call = _nothing

    def fire(self) -> None:
        self._call()


class Loop:
    """Calls back when descriptors are ready, timers are due and signals came; ``run`` until ``stop``."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: List[Tuple[float, int, Timer]] = []
        self._count = 0
        self._running = False
        self._signals: Dict[int, Callable[[], None]] = {}
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self.add(self._wake_read, READ, self._signalled)

    def add(self, fd: int, events: int, call: Callable[[], None]) -> None:
        """Call back while ``fd`` is ready for ``events``; for a known descriptor this replaces both."""
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, call)
        else:
            self._selector.register(fd, events, call)

    def remove(self, fd: int) -> None:
        """Forget a descriptor, known or not. Before it is closed, please."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + seconds, call)
        self._count += 1  # so that equal times keep their order and timers are never compared
        heapq.heappush(self._timers, (timer.due, self._count, timer))
        return timer

    def every(self, seconds: float, call: Callable[[], None]) -> None:
        """Call again and again, ``seconds`` after the end of each call."""

        def again() -> None:
            call()
            self.after(seconds, again)

        self.after(seconds, again)

    def on_signal(self, number: int, call: Callable[[], None]) -> None:
        """Call back in the loop when the signal came (several may be one call). Main thread only."""
        if not self._signals:
            signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._signals[number] = call
        signal.signal(number, _ignore)

    def _signalled(self) -> None:
        numbers: Set[int] = set()
        try:
            while True:
                numbers.update(os.read(self._wake_read, 4096))
        except BlockingIOError:
            pass
        for number in numbers:
            if number in self._signals:
                self._signals[number]()

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        """Run until ``stop``. Exceptions of callbacks come out of here."""
        self._running = True
        timers = self._timers
        while self.running():
            now = time.monotonic()
            while timers and (timers[0][0] <= now or timers[0][2].cancelled):
                heapq.heappop(timers)[2].fire()
                if not self.running():
                    return
            timeout = max(0.0, timers[0][0] - time.monotonic()) if timers else None
            for key, _ in self._selector.select(timeout):
                if key.fd in self._selector.get_map():
                    key.data()
                    if not self.running():
                        return

    def running(self) -> bool:
        return self._running

    def close(self) -> None:
        """Let go of the loop's own descriptors and of the signals."""
        if self._signals:
            signal.set_wakeup_fd(-1)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


def _nothing() -> None:
    pass


def _ignore(number: int, frame: Any) -> None:
    """The signal's number reaches the loop through the wakeup descriptor; a handler has to exist for that."""
