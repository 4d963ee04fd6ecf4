"""What the builders of manifests are told of the cluster: plain values, found out before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What a job can be made as; each is one builder in ``kfnb.backends.kubernetes.manifests``.
Kind = Literal["trainjob", "pytorchjob", "job"]
KINDS: tuple[Kind, ...] = ("trainjob", "pytorchjob", "job")


@dataclass(frozen=True)
class Runtime:
    """A (Cluster)TrainingRuntime of Kubeflow Trainer.

    ``ours``: it is a runtime for notebooks (label ``kfnb.dev/runtime``), under which a failure ends the job at once and
    its pods stay to be read.
    """

    name: str
    kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"]
    framework: str = ""
    ours: bool = False
    deprecated: bool = False


@dataclass(frozen=True)
class Target:
    """Where a job goes. ``runtime`` is a TrainJob's; ``image`` None leaves the runtime's own. ``secrets``: whether the
    user may make Secrets there.

    ``patches`` is the field by which this cluster's TrainJob changes its pods: ``runtimePatches`` from Trainer 2.2 on,
    ``podTemplateOverrides`` in 2.1.
    """

    context: str
    namespace: str
    kind: Kind
    image: str | None = None
    runtime: Runtime | None = None
    patches: Literal["runtimePatches", "podTemplateOverrides"] = "runtimePatches"
    secrets: bool = True
