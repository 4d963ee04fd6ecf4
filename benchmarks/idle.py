"""The worker beside a rank that trains and prints nothing."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import psutil

from benchmarks._common import finish, prepare, start, tell

SECONDS = 30
CODE = f"""
import time
end = time.time() + {SECONDS + 5}
x = 0
while time.time() < end:
    x += sum(range(1000))
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "job"
        argv, log = prepare(folder, CODE, procs=1), folder / "worker.log"
        process = start(argv, log)
        worker, pause = psutil.Process(process.pid), threading.Event()
        while b'"running"' not in log.read_bytes():
            pause.wait(0.1)
        pause.wait(2)
        before, began = worker.cpu_times(), time.monotonic()
        pause.wait(SECONDS - 5)
        after, took = worker.cpu_times(), time.monotonic() - began
        memory = worker.memory_info().rss / 1e6
        finish(process, log)
    share = 100 * (after.user + after.system - before.user - before.system) / took
    tell("idle worker, CPU", f"{share:.2f}% of a core in {took:.0f} s", "under 0.2%", share < 0.2)
    tell("idle worker, memory", f"{memory:.1f} MB", "under 20 MB", memory < 20)


if __name__ == "__main__":
    main()
