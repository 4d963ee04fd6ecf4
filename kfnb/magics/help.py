"""What ``%%kftrain?`` and its like show."""

from __future__ import annotations

from kfnb.magics.cells import AWAITED
from kfnb.options import help_text

_TRAIN = """\
Run the cell's body as a distributed training job and show it while it runs.

Each rank runs the body as a program of its own (__main__). It has no names of the notebook but those given to --use,
and gives back those given to --out. A line that ends in \\ goes on in the next one. {name} stands for a notebook
value, {{ and }} for the braces. An interrupt detaches: the job goes on.

"""


def text(kind: str, name: str) -> str:
    name = name.lstrip("%").removeprefix(AWAITED)
    if name == "kftrain":
        return _TRAIN + help_text()
    from kfnb.magics.parsers import magic_parser

    return magic_parser(name).format_help()
