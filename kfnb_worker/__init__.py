"""What runs in a job. In the code of a job::

    import kfnb_worker as kf

    for step, batch in enumerate(kf.track(loader)):
        ...
        kf.log(step, loss=loss, lr=lr)
        if kf.stopping():
            break

Outside of a job (as a plain cell, under torchrun) the same calls work: rank 0 of 1, nothing sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from kfnb_worker.api import (
        autocast,
        local_rank,
        log,
        logdir,
        node_rank,
        precision,
        progress,
        rank,
        stopping,
        track,
        world_size,
    )
    from kfnb_worker.checkpoints import checkpoint_dir, commit, latest

__all__ = [
    "autocast",
    "checkpoint_dir",
    "commit",
    "latest",
    "local_rank",
    "log",
    "logdir",
    "node_rank",
    "precision",
    "progress",
    "rank",
    "stopping",
    "track",
    "world_size",
]

_CHECKPOINTS = frozenset(["checkpoint_dir", "commit", "latest"])


def __getattr__(name: str) -> Any:
    """The names above, loaded at first use: the worker itself and its children import this package too."""
    if name not in __all__:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    from importlib import import_module

    module = import_module("kfnb_worker.checkpoints" if name in _CHECKPOINTS else "kfnb_worker.api")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted(__all__)
