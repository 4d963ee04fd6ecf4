"""What a cluster offers for training, asked and never assumed, and what of it a job takes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from kfnb.backends.kubernetes.access import Access
from kfnb.backends.kubernetes.client import Client
from kfnb.backends.kubernetes.errors import ApiError
from kfnb.backends.kubernetes.target import Kind, Runtime, Target
from kfnb.errors import BackendError, UsageError
from kfnb.spec import TrainSpec

TRAINER = "/apis/trainer.kubeflow.org/v1alpha1"
TRAINING = "/apis/kubeflow.org/v1"

#: Where no runtime brings an image: for torch, and for plain Python of this notebook's version.
TORCH_IMAGE = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"
PYTHON_IMAGE = "python:{0}.{1}-slim"

_FRAMEWORK, _OURS, _SUPPORT = "trainer.kubeflow.org/framework", "kfnb.dev/runtime", "trainer.kubeflow.org/support"


@dataclass(frozen=True)
class Offer:
    """``kinds`` are those that can be made, the best first. ``patches`` and ``secrets`` as in ``Target``."""

    kinds: tuple[Kind, ...]
    runtimes: tuple[Runtime, ...] = ()
    patches: str | None = None
    secrets: bool = True


async def discover(client: Client, namespace: str) -> Offer:
    """Ask the API server. What the user may not read counts as not there. Raises ``BackendError``."""
    groups = {group["name"]: group for group in (await client.get("/apis"))["groups"]}
    kinds: list[Kind] = []
    runtimes: list[Runtime] = []
    patches = None
    if _serves(groups, "trainer.kubeflow.org", "v1alpha1"):
        kinds.append("trainjob")
        schema = json.dumps(await client.get("/openapi/v3" + TRAINER))
        patches = "runtimePatches" if '"runtimePatches"' in schema else "podTemplateOverrides"
        runtimes += await _runtimes(client, f"{TRAINER}/namespaces/{namespace}/trainingruntimes", "TrainingRuntime")
        runtimes += await _runtimes(client, f"{TRAINER}/clustertrainingruntimes", "ClusterTrainingRuntime")
    if _serves(groups, "kubeflow.org", "v1"):
        served = {resource["name"] for resource in (await client.get(TRAINING))["resources"]}
        if "pytorchjobs" in served:
            kinds.append("pytorchjob")
    secrets = await _may(client, namespace, "create", "secrets")
    return Offer((*kinds, "job"), tuple(runtimes), patches, secrets)


async def _may(client: Client, namespace: str, verb: str, resource: str) -> bool:
    """Whether the user has a right in the namespace; nobody needs one to ask."""
    asked = {"resourceAttributes": {"namespace": namespace, "verb": verb, "resource": resource}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": asked}
    answer = await client.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return (answer.get("status") or {}).get("allowed") is True


def _serves(groups: dict[str, Any], group: str, version: str) -> bool:
    return any(served["version"] == version for served in groups.get(group, {}).get("versions", ()))


async def _runtimes(client: Client, path: str, kind: Any) -> list[Runtime]:
    found = []
    try:
        async for page in client.list(path):
            for item in page.get("items") or []:
                labels = item["metadata"].get("labels") or {}
                runtime = Runtime(
                    item["metadata"]["name"],
                    kind,
                    labels.get(_FRAMEWORK, ""),
                    _OURS in labels,
                    labels.get(_SUPPORT) == "deprecated",
                )
                found.append(runtime)
    except ApiError as error:
        if error.status != 403:
            raise
    return found


def choose(spec: TrainSpec, offer: Offer, access: Access) -> Target:
    """What ``spec`` becomes on this cluster.

    Raises ``UsageError`` for a kind or runtime that it does not offer, with those that it does.
    """
    kind = _kind(spec, offer)
    runtime = _runtime(spec, offer) if kind == "trainjob" else None
    image = spec.image
    if image is None and runtime is None:
        image = TORCH_IMAGE if spec.framework == "torch" else PYTHON_IMAGE.format(*sys.version_info)
    if spec.env_copies and not offer.secrets:
        raise BackendError(
            f"--env {' --env '.join(spec.env_copies)}: a value that is copied lies in a Secret of the job's own.",
            f"You may not make Secrets in {access.namespace}.",
            "Ask for that right (create secrets), or give a value that nobody needs to hide: --env NAME=VALUE.",
        )
    patches: Any = offer.patches or "runtimePatches"
    return Target(access.context, access.namespace, kind, image, runtime, patches, offer.secrets)


def _kind(spec: TrainSpec, offer: Offer) -> Kind:
    if spec.kind == "auto":
        if spec.runtime is not None and "trainjob" not in offer.kinds:
            raise UsageError("--runtime is of Kubeflow Trainer, which this cluster does not have.", fix="Leave it out.")
        usable = [kind for kind in offer.kinds if kind != "trainjob" or spec.runtime or _fitting(spec, offer)]
        return usable[0]
    if spec.kind not in offer.kinds:
        raise UsageError(
            f"--kind {spec.kind}: this cluster does not serve it.", fix=f"It offers {', '.join(offer.kinds)}, or auto."
        )
    return spec.kind


def _runtime(spec: TrainSpec, offer: Offer) -> Runtime:
    names = ", ".join(sorted({runtime.name for runtime in offer.runtimes})) or "none that you can see"
    if spec.runtime is not None:
        for runtime in offer.runtimes:  # a namespace's own come first
            if runtime.name == spec.runtime:
                return runtime
        raise UsageError(f"--runtime {spec.runtime}: there is no such runtime.", fix=f"There are {names}.")
    fitting = _fitting(spec, offer)
    if not fitting:
        raise BackendError(
            "There is no runtime that a TrainJob of torch could take.",
            f"Those there are: {names}.",
            "Name one by --runtime, or take another --kind.",
        )
    return fitting[0]


def _fitting(spec: TrainSpec, offer: Offer) -> list[Runtime]:
    """Those for torch, which run plain Python too; runtimes for notebooks first, then the namespace's own."""
    fitting = [runtime for runtime in offer.runtimes if runtime.framework == "torch" and not runtime.deprecated]
    return sorted(fitting, key=lambda runtime: not runtime.ours)
