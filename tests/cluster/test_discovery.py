"""What the test cluster offers, as a user of each tier sees it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kfnb.backends.kubernetes.access import find
from kfnb.backends.kubernetes.client import Client
from kfnb.backends.kubernetes.discovery import choose, discover
from kfnb.spec import TrainSpec
from tests.cluster.conftest import Cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    access = find(namespace=cluster.namespace, file=str(cluster.kubeconfig))
    assert access is not None
    made = Client(access)
    yield made
    await made.close()


async def test_all_that_is_there(client: Client, cluster: Cluster) -> None:
    offer = await discover(client, cluster.namespace)
    assert offer.kinds == ("trainjob", "pytorchjob", "job")
    assert offer.patches == "runtimePatches"
    assert offer.secrets
    stock = {runtime.name: runtime for runtime in offer.runtimes if not runtime.ours}
    assert stock["torch-distributed"].framework == "torch"
    assert stock["jax-distributed"].framework == "jax"


async def test_a_namespaces_own_runtime_for_notebooks_is_taken(client: Client, cluster: Cluster) -> None:
    stock = cluster.get("clustertrainingruntime", "torch-distributed")
    labels = {"trainer.kubeflow.org/framework": "torch", "kfnb.dev/runtime": "torch"}
    cluster.create(
        {
            "apiVersion": stock["apiVersion"],
            "kind": "TrainingRuntime",
            "metadata": {"name": "own", "labels": labels},
            "spec": stock["spec"],
        }
    )
    target = choose(TrainSpec(), await discover(client, cluster.namespace), client.access)
    assert target.kind == "trainjob"
    assert target.runtime is not None
    assert (target.runtime.kind, target.runtime.name, target.runtime.ours) == ("TrainingRuntime", "own", True)


async def test_without_rights_there_is_what_needs_none(cluster: Cluster, tmp_path: Path) -> None:
    cluster.kubectl("create", "serviceaccount", "nobody")
    token = cluster.kubectl("create", "token", "nobody").strip()
    content = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    content["users"] = [{"name": entry["name"], "user": {"token": token}} for entry in content["users"]]
    file = tmp_path / "nobody"
    file.write_text(json.dumps(content))
    access = find(namespace=cluster.namespace, file=str(file))
    assert access is not None
    nobody = Client(access)
    try:
        offer = await discover(nobody, cluster.namespace)
    finally:
        await nobody.close()
    assert offer.kinds == ("trainjob", "pytorchjob", "job")
    assert "TrainingRuntime" not in {runtime.kind for runtime in offer.runtimes}  # Trainer lets all see the cluster's
    assert not offer.secrets
