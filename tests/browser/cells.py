"""Cells that start jobs of plain Python, which a test holds back and lets go on by files."""

from __future__ import annotations

from pathlib import Path

LOAD = "%load_ext kfnb"


class Gate:
    """A file that a job waits for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> None:
        self.path.touch()


def cell(name: str, body: str, *options: str) -> str:
    return f"%%kftrain {name} --framework python {' '.join(options)}\n{body}"


def steps(name: str, first: int, gate: Gate, then: int, *options: str, every: float = 0.02) -> str:
    """A job that does `first` steps at once, waits for `gate`, and does `then` more.

    Each step is a line of every rank, and a point of ``loss`` and ``lr``.
    """
    return cell(
        name,
        f"""\
import os, time
import kfnb_worker as kf

def step(number):
    print(f"rank {{kf.rank()}} step {{number}}", flush=True)
    if kf.rank() == 0:
        kf.log(number, loss=1 / (1 + number), lr=0.1)
    kf.progress(number + 1, {first + then})

for number in range({first}):
    step(number)
while not os.path.exists({str(gate.path)!r}):
    time.sleep(0.02)
for number in range({first}, {first + then}):
    step(number)
    time.sleep({every})
""",
        *options,
    )
