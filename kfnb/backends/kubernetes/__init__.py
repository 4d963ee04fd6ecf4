"""Jobs on a Kubernetes cluster: as a Kubeflow job where an operator serves one, else as an Indexed Job.

``KubernetesBackend`` is loaded at first use: the client of Kubernetes takes its time to be imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfnb.backends.kubernetes.backend import KubernetesBackend

__all__ = ["KubernetesBackend"]


def __getattr__(name: str) -> Any:
    if name == "KubernetesBackend":
        from kfnb.backends.kubernetes.backend import KubernetesBackend

        return KubernetesBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
