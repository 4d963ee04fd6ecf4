"""kfnb: a notebook cell becomes a distributed training job, live under the cell.

``import kfnb`` imports next to nothing: the names below are loaded at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfnb.api import attach, jobs, train
    from kfnb.comparison import compare
    from kfnb.errors import JobFailed, KfnbError
    from kfnb.job import Job
    from kfnb.magics import load_ipython_extension, unload_ipython_extension
    from kfnb.magics.show import show
    from kfnb.spec import TrainSpec

_HOMES = {
    "attach": "kfnb.api",
    "jobs": "kfnb.api",
    "train": "kfnb.api",
    "compare": "kfnb.comparison",
    "show": "kfnb.magics.show",
    "JobFailed": "kfnb.errors",
    "KfnbError": "kfnb.errors",
    "Job": "kfnb.job",
    "load_ipython_extension": "kfnb.magics",
    "unload_ipython_extension": "kfnb.magics",
    "TrainSpec": "kfnb.spec",
}

__all__ = [
    "Job",
    "JobFailed",
    "KfnbError",
    "TrainSpec",
    "attach",
    "compare",
    "jobs",
    "load_ipython_extension",
    "show",
    "train",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("kfnb")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kfnb' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
