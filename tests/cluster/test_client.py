"""The client against a real API server: pages, watches over breaks, refusals in words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from kfnb.backends.kubernetes.access import find
from kfnb.backends.kubernetes.client import Client
from kfnb.backends.kubernetes.errors import ApiError
from tests.cluster.conftest import Cluster
from tests.cluster.proxy import Proxy, kubeconfig_through, upstream_of

DEADLINE = 60


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    made = connect(cluster.kubeconfig)
    yield made
    await made.close()


def connect(kubeconfig: Path) -> Client:
    access = find(file=str(kubeconfig))
    assert access is not None
    return Client(access)


def maps(cluster: Cluster) -> str:
    return f"/api/v1/namespaces/{cluster.namespace}/configmaps"


def config_map(name: str, test: str, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"test": test}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


async def test_an_object_from_its_making_to_its_end(client: Client, cluster: Cluster) -> None:
    path = maps(cluster)
    made = await client.create(path, config_map("one", "life", a="1"), fieldValidation="Strict")
    assert made["data"] == {"a": "1"}
    await client.patch(f"{path}/one", {"data": {"b": "2"}})
    await client.patch(f"{path}/one", [{"op": "remove", "path": "/data/a"}], "json")
    applied = config_map("one", "life", c="3")
    await client.patch(f"{path}/one", applied, "apply", fieldManager="kfnb-test")
    assert (await client.get(f"{path}/one"))["data"] == {"b": "2", "c": "3"}
    await client.delete(f"{path}/one", propagationPolicy="Background")
    with pytest.raises(ApiError) as caught:
        await client.get(f"{path}/one")
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")


async def test_a_list_comes_in_pages(client: Client, cluster: Cluster) -> None:
    names = [f"page-{number}" for number in range(7)]
    await asyncio.gather(*(client.create(maps(cluster), config_map(name, "pages")) for name in names))
    pages = [page async for page in client.list(maps(cluster), labels="test=pages", limit=3)]
    assert [len(page["items"]) for page in pages] == [3, 3, 1]
    assert [item["metadata"]["name"] for page in pages for item in page["items"]] == names


async def test_a_field_that_the_server_does_not_know_is_refused_by_its_name(client: Client, cluster: Cluster) -> None:
    with pytest.raises(ApiError, match='unknown field "spec"'):
        await client.create(maps(cluster), {**config_map("strict", "strict"), "spec": {}}, fieldValidation="Strict")


async def test_a_watch_over_cut_connections_tells_each_change_once(cluster: Cluster, tmp_path: Path) -> None:
    """Made and removed by somebody else, while the connection is cut before each."""
    proxy = Proxy(*upstream_of(cluster.kubeconfig))
    through = connect(kubeconfig_through(proxy, cluster.kubeconfig, tmp_path / "kubeconfig"))
    direct = connect(cluster.kubeconfig)
    told: list[tuple[str, str]] = []
    changed = asyncio.Condition()

    async def follow() -> None:
        async with aclosing(through.watch(maps(cluster), labels="test=watch")) as changes:  # type: ignore[type-var]
            async for kind, thing in changes:
                async with changed:
                    told.append((kind, (thing.get("metadata") or {}).get("name", "")))
                    changed.notify_all()

    async def until(count: int) -> None:
        async with changed:
            await asyncio.wait_for(changed.wait_for(lambda: len(told) >= count), DEADLINE)

    following = asyncio.create_task(follow())
    try:
        await until(1)
        expected = [("LISTED", "")]
        for number in range(5):
            await asyncio.to_thread(proxy.cut)
            await direct.create(maps(cluster), config_map(f"watched-{number}", "watch"))
            await direct.delete(f"{maps(cluster)}/watched-{number}")
            expected += [("ADDED", f"watched-{number}"), ("DELETED", f"watched-{number}")]
            await until(len(expected))
        assert told == expected
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await through.close()
        await direct.close()
        proxy.close()


async def test_a_right_that_is_missing_is_named(client: Client, cluster: Cluster, tmp_path: Path) -> None:
    """A service account of the namespace that has no rights, known by its token."""
    cluster.kubectl("create", "serviceaccount", "nobody")
    token = cluster.kubectl("create", "token", "nobody").strip()
    file = tmp_path / "nobody"
    content = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    content["users"] = [{"name": entry["name"], "user": {"token": token}} for entry in content["users"]]
    file.write_text(json.dumps(content))
    nobody = connect(file)
    try:
        with pytest.raises(ApiError) as caught:
            await nobody.get(maps(cluster))
    finally:
        await nobody.close()
    assert caught.value.status == 403
    assert "nobody does not have" in caught.value.what
    assert caught.value.why == f"It is to list configmaps in the namespace {cluster.namespace}."


async def test_a_full_quota_is_said(client: Client, cluster: Cluster) -> None:
    namespace = f"/api/v1/namespaces/{cluster.namespace}"
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    await client.create(f"{namespace}/resourcequotas", {**quota, "spec": {"hard": {"requests.nvidia.com/gpu": "2"}}})

    async def filled() -> str:
        while True:
            found = await client.get(f"{namespace}/resourcequotas/few")
            if found.get("status", {}).get("used"):
                return "known"
            await asyncio.sleep(0.05)

    assert await asyncio.wait_for(filled(), DEADLINE)
    gpus = {"nvidia.com/gpu": "4"}
    container = {"name": "main", "image": "x", "resources": {"requests": gpus, "limits": gpus}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "greedy"}, "spec": {"containers": [container]}}
    with pytest.raises(ApiError, match="the quota few has no room") as caught:
        await client.create(f"{namespace}/pods", pod)
    assert "requests.nvidia.com/gpu=4" in caught.value.why


async def test_a_webhook_keeps_its_words(client: Client, cluster: Cluster) -> None:
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "refused"},
        "spec": {"runtimeRef": {"name": "no-such-runtime"}},
    }
    path = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{cluster.namespace}/trainjobs"
    with pytest.raises(ApiError, match="no-such-runtime"):
        await client.create(path, job, dryRun="All")
