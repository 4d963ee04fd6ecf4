"""2 ranks: from the spawn of the launcher to the first user line after `import torch`, beside torchrun, by turns."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._common import finish, median, prepare, start, tell

CODE = "import torch\nimport time\nprint('AT', time.time(), flush=True)\n"
ROUNDS = 5


def last_line_at(text: str) -> float:
    """When the later of the two ranks came to its first line."""
    times = [float(found) for found in re.findall(r"AT ([\d.]+)", text)]
    if len(times) != 2:
        sys.exit(f"expected a line of each of 2 ranks:\n{text}")
    return max(times)


def worker(folder: Path) -> float:
    argv, log = prepare(folder, CODE, procs=2, framework="torch"), folder / "worker.log"
    began = time.time()
    process = start(argv, log)
    finish(process, log)
    return last_line_at(log.read_text()) - began


def torchrun(folder: Path) -> float:
    folder.mkdir()
    (folder / "main.py").write_text(CODE)
    argv = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(folder / "main.py")]
    began = time.time()
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=True, timeout=300)
    return last_line_at(done.stdout) - began


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        base = Path(made)
        worker(base / "warm")  # the page cache, for both
        ours, theirs = [], []
        for turn in range(ROUNDS):
            ours.append(worker(base / f"kfnb{turn}"))
            theirs.append(torchrun(base / f"torchrun{turn}"))
    ratio = median(ours) / median(theirs)
    measured = f"{median(ours):.2f} s, torchrun {median(theirs):.2f} s, ratio {ratio:.2f}"
    tell("2 ranks to their first line after import torch", measured, "at most 0.6 of torchrun", ratio <= 0.6)


if __name__ == "__main__":
    main()
