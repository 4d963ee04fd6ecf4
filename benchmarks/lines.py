"""Lines of 200 bytes from 4 ranks to the file that a reader reads: the worker's CPU, beside a bare pipe."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from benchmarks._common import finish, prepare, start, tell

RANKS, LINES = 4, 50_000
TEXT = "x" * 199
FLOOD = f"""
import sys
for _ in range({{lines}}):
    sys.stdout.write("{TEXT}\\n")
"""
# the same number of lines, evenly over 5 seconds; the last one says when it was printed
PACED = f"""
import sys, time
began = time.time()
for n in range(500):
    for _ in range({LINES // 500}):
        sys.stdout.write("{TEXT}\\n")
    sys.stdout.flush()
    time.sleep(max(0.0, began + (n + 1) / 100 - time.time()))
print("DONE", time.time(), flush=True)
"""
BARE = """
import subprocess, sys, threading, time
def read(process):
    for _ in process.stdout:
        pass
ranks = [subprocess.Popen([sys.executable, sys.argv[1]], stdout=subprocess.PIPE) for _ in range({ranks})]
readers = [threading.Thread(target=read, args=(rank,)) for rank in ranks]
[reader.start() for reader in readers]
[reader.join() for reader in readers]
print(time.process_time())
"""


def own_cpu(process: subprocess.Popen[bytes], found: list[float]) -> None:
    """CPU seconds of the process without its children, until it ends."""
    watched = psutil.Process(process.pid)
    pause = threading.Event()
    try:
        while True:
            times = watched.cpu_times()
            found.append(times.user + times.system)
            pause.wait(0.01)
    except psutil.NoSuchProcess:
        return


def worker_cpu(folder: Path, lines: int) -> float:
    argv, log = prepare(folder, FLOOD.format(lines=lines), procs=RANKS), folder / "worker.log"
    process, found = start(argv, log), [0.0]
    watcher = threading.Thread(target=own_cpu, args=(process, found))
    watcher.start()
    finish(process, log)
    watcher.join()
    printed = log.read_bytes().count(TEXT.encode())
    if printed != RANKS * lines:
        sys.exit(f"{RANKS * lines} lines were printed, and {printed} arrived")
    return max(found)


def bare_cpu(folder: Path) -> float:
    script = folder / "flood.py"
    script.write_text(FLOOD.format(lines=LINES))
    argv = [sys.executable, "-c", BARE.format(ranks=RANKS), str(script)]
    return float(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300).stdout)


def paced(folder: Path) -> tuple[float, float]:
    """5 s of 40,000 lines a second: the worker's CPU seconds, and the seconds from the last line until it was there."""
    argv, log = prepare(folder, PACED, procs=RANKS), folder / "worker.log"
    process, found = start(argv, log), [0.0]
    watcher = threading.Thread(target=own_cpu, args=(process, found))
    watcher.start()
    with log.open("rb") as reader:
        tail, latest = b"", 0.0
        pause = threading.Event()
        while tail.count(b"DONE ") < RANKS:
            chunk = reader.read(1 << 20)
            if chunk:
                tail = (tail + chunk)[-100_000:] if b"DONE" not in tail else tail + chunk
                latest = time.time()
            elif process.poll() is not None:
                break
            else:
                pause.wait(0.005)
    finish(process, log)
    watcher.join()
    printed = [float(part.split()[0]) for part in tail.decode(errors="replace").split("DONE ")[1:]]
    return max(found), latest - max(printed)


def main() -> None:
    total = RANKS * LINES
    with tempfile.TemporaryDirectory() as made:
        base = Path(made)
        nothing = worker_cpu(base / "nothing", 0)
        ours = (worker_cpu(base / "flood", LINES) - nothing) / total * 1e6
        theirs = bare_cpu(base) / total * 1e6
        busy, late = paced(base / "paced")
    even = (busy - nothing) / total * 1e6
    measured = f"{ours:.1f} us a line, a bare pipe {theirs:.1f} us"
    tell(f"{total} lines of {RANKS} ranks at once, worker CPU", measured, "at most 10 us a line", ours <= 10)
    tell(f"{total} lines in 5 s, worker CPU", f"{even:.1f} us a line", "at most 10 us a line", even <= 10)
    tell(f"{total} lines in 5 s", f"the last is there after {1000 * late:.0f} ms", "kept up with: under 1 s", late < 1)


if __name__ == "__main__":
    main()
