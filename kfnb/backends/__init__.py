"""Where jobs run. ``open_backend`` is the registry:

a new backend is one line here and a module that has ``JobBackend``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfnb.errors import UsageError

if TYPE_CHECKING:
    from kfnb.backends.base import JobBackend
    from kfnb.backends.kubernetes.references import Reference


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
    raise UsageError(f"There is no backend {name!r}.", fix="Use --backend local, or kubernetes.")


def backend_of(id: str) -> JobBackend:
    """Where the job ``id`` is: on the cluster that this user has submitted it to, else on this machine."""
    from kfnb.backends.kubernetes import references

    found = references.recall(id)
    return _on_cluster(found) if found is not None else open_backend("local")


def submitted_to_clusters() -> list[tuple[Reference, JobBackend]]:
    """The jobs that this user has submitted to clusters, the newest first, with where each is."""
    from kfnb.backends.kubernetes import references

    return [(reference, _on_cluster(reference)) for reference in references.everyone()]


def _on_cluster(reference: Reference) -> JobBackend:
    from kfnb.backends.kubernetes import KubernetesBackend

    return KubernetesBackend(reference.context or None, reference.namespace, reference.file)
