"""Where jobs run. ``open_backend`` is the registry:

a new backend is one line here and a module that has ``JobBackend``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfnb.errors import UsageError

if TYPE_CHECKING:
    from kfnb.backends.base import JobBackend


def open_backend(name: str = "auto", *, context: str | None = None, namespace: str | None = None) -> JobBackend:
    """The backend called ``name``; ``auto`` is this machine. Raises ``UsageError`` for an unknown one.

    ``context`` and ``namespace`` are a cluster's, where they are not to be the kubeconfig's own.
    """
    if name in ("auto", "local"):
        from kfnb.backends.local import LocalBackend

        return LocalBackend()
    if name == "kubernetes":
        from kfnb.backends.kubernetes import KubernetesBackend

        return KubernetesBackend(context, namespace)
    raise UsageError(f"There is no backend {name!r}.", fix="Use --backend local.")
