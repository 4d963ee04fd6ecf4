"""Jobs on this machine: a run directory each, and a supervisor that outlives the kernel which asked for it.

``LocalBackend`` is loaded at first use, since the supervisor imports this package and should stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfnb.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]


def __getattr__(name: str) -> Any:
    if name == "LocalBackend":
        from kfnb.backends.local.backend import LocalBackend

        return LocalBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
