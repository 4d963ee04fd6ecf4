"""What a job becomes on a cluster: whole manifests, made of nothing but their arguments."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from kfnb.backends.kubernetes.manifests import build, code
from kfnb.backends.kubernetes.names import label_value
from kfnb.backends.kubernetes.target import Kind, Runtime, Target
from kfnb.backends.package import worker_zip
from kfnb.errors import BackendError
from kfnb.record import Record
from kfnb.source import Bundle
from tests.submissions import submission

ID = "digits-ab1cd"
LABELS = {
    "app.kubernetes.io/managed-by": "kfnb",
    "kfnb.dev/job": ID,
    "kfnb.dev/name": "digits",
    "kfnb.dev/owner": "alice-smith-example.org",
}
RUNTIME = Runtime("torch-distributed", "ClusterTrainingRuntime", "torch")
OPTIONS: dict[str, Any] = {
    "nodes": 3,
    "procs_per_node": 2,
    "gpus": 2,
    "cpu": "4",
    "memory": "16Gi",
    "grace": 4.5,
    "timeout": 90.0,
    "retries": 1,
    "env": ("PLAIN=value", "COPIED"),
}
RESOURCES = {
    "limits": {"memory": "16Gi", "nvidia.com/gpu": "2"},
    "requests": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2"},
}
COMMAND = ["python3", "-u", "/kfnb/code/worker.zip", "--pod"]
MOUNTS = [
    {"name": "kfnb-code", "mountPath": "/kfnb/code", "readOnly": True},
    {"name": "kfnb-secret", "mountPath": "/kfnb/secret", "readOnly": True},
    {"name": "kfnb-run", "mountPath": "/kfnb/run"},
    {"name": "kfnb-shm", "mountPath": "/dev/shm"},
]
VOLUMES = [
    {"name": "kfnb-code", "projected": {"sources": [{"configMap": {"name": f"{ID}-code-0"}}]}},
    {"name": "kfnb-secret", "secret": {"secretName": f"{ID}-secret"}},
    {"name": "kfnb-run", "emptyDir": {}},
    {"name": "kfnb-shm", "emptyDir": {"medium": "Memory"}},
]
POD_METADATA = {"labels": LABELS, "annotations": {"sidecar.istio.io/inject": "false"}}


def target(kind: Kind, **changes: Any) -> Target:
    given = {"image": "python:3.12", "runtime": RUNTIME if kind == "trainjob" else None, **changes}
    return Target("a-context", "team-a", kind, **given)


def job_of(kind: Kind, **changes: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What is made beside the job, and the job itself, whose annotations are checked here."""
    made = submission(ID, secret={"COPIED": "whisper"}, **OPTIONS)
    *beside, job = build(made, target(kind, **changes), "the token")
    annotations = job["metadata"].pop("annotations")
    assert json.loads(annotations.pop("kfnb.dev/spec")) == json.loads(made.spec.model_dump_json())
    summary = {"nodes": 3, "procs": 2, "gpus": 2, "first_line": 2}
    assert json.loads(annotations.pop("kfnb.dev/summary")) == summary
    assert annotations == {}
    assert job.pop("metadata") == {"name": ID, "namespace": "team-a", "labels": LABELS}
    return beside, job


def index_of(path: str) -> dict[str, Any]:
    return {"name": "KFNB_NODE_INDEX", "valueFrom": {"fieldRef": {"fieldPath": path}}}


JOB_INDEX = index_of("metadata.annotations['batch.kubernetes.io/job-completion-index']")
REPLICA_INDEX = index_of("metadata.labels['training.kubeflow.org/replica-index']")


def container(name: str, *environment: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "image": "python:3.12",
        "command": COMMAND,
        "env": list(environment),
        "resources": RESOURCES,
        "volumeMounts": MOUNTS,
    }


def test_an_indexed_job() -> None:
    beside, job = job_of("job")
    assert [manifest["kind"] for manifest in beside] == ["ConfigMap", "Secret", "Service"]
    assert beside[-1] == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": ID, "namespace": "team-a", "labels": LABELS},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"kfnb.dev/job": ID}},
    }
    drained = {"type": "DisruptionTarget", "status": "True"}
    assert job == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {
            "completionMode": "Indexed",
            "completions": 3,
            "parallelism": 3,
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [drained]}]},
            "template": {
                "metadata": POD_METADATA,
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 15,
                    "containers": [container("node", JOB_INDEX)],
                    "volumes": VOLUMES,
                    "subdomain": ID,
                },
            },
        },
    }


def test_a_pytorchjob() -> None:
    beside, job = job_of("pytorchjob")
    assert [manifest["kind"] for manifest in beside] == ["ConfigMap", "Secret"]

    def replicas(count: int, *environment: dict[str, Any]) -> dict[str, Any]:
        pod = {
            "terminationGracePeriodSeconds": 15,
            "containers": [container("pytorch", *environment)],
            "volumes": VOLUMES,
        }
        template = {"metadata": POD_METADATA, "spec": pod}
        return {"replicas": count, "restartPolicy": "Never", "template": template}

    after_master = {"name": "KFNB_NODE_OFFSET", "value": "1"}
    assert job == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
            "pytorchReplicaSpecs": {
                "Master": replicas(1, REPLICA_INDEX),
                "Worker": replicas(2, REPLICA_INDEX, after_master),
            },
        },
    }


def test_a_pytorchjob_of_one_node_has_no_workers() -> None:
    job = build(submission(ID), target("pytorchjob"), "t")[-1]
    assert list(job["spec"]["pytorchReplicaSpecs"]) == ["Master"]


TRAINER = {
    "numNodes": 3,
    "numProcPerNode": 2,
    "image": "python:3.12",
    "command": COMMAND,
    "env": [JOB_INDEX],
    "resourcesPerNode": RESOURCES,
}
CHANGES = {
    "terminationGracePeriodSeconds": 15,
    "volumes": VOLUMES,
    "containers": [{"name": "node", "volumeMounts": MOUNTS}],
}


def test_a_trainjob() -> None:
    beside, job = job_of("trainjob")
    assert [manifest["kind"] for manifest in beside] == ["ConfigMap", "Secret"]
    node = {"name": "node", "template": {"spec": {"template": {"metadata": POD_METADATA, "spec": CHANGES}}}}
    assert job == {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": "torch-distributed",
            },
            "trainer": TRAINER,
            "runtimePatches": [
                {
                    "manager": "kfnb.dev/kfnb",
                    "trainingRuntimeSpec": {
                        "template": {"metadata": {"labels": LABELS}, "spec": {"replicatedJobs": [node]}}
                    },
                }
            ],
        },
    }


def test_a_trainjob_of_an_older_trainer() -> None:
    _, job = job_of("trainjob", patches="podTemplateOverrides", image=None)
    assert "image" not in job["spec"]["trainer"]
    assert "runtimePatches" not in job["spec"]
    assert job["spec"]["podTemplateOverrides"] == [
        {"targetJobs": [{"name": "node"}], "metadata": POD_METADATA, "spec": CHANGES}
    ]


@pytest.mark.parametrize(
    ("kind", "host"),
    [("trainjob", f"{ID}-node-0-0.{ID}"), ("pytorchjob", f"{ID}-master-0"), ("job", f"{ID}-0.{ID}")],
)
def test_the_code_and_the_plan(kind: Kind, host: str) -> None:
    made = submission(ID, "print('here')\n", secret={"COPIED": "whisper"}, **OPTIONS)
    [config, secret] = build(made, target(kind), "the token")[:2]
    assert config["metadata"] == {"name": f"{ID}-code-0", "namespace": "team-a", "labels": LABELS}
    binary = {name: base64.b64decode(content) for name, content in config["binaryData"].items()}
    assert binary == {"worker.zip": worker_zip(), "bundle-0000": made.bundle.data}
    assert Record.model_validate_json(config["data"]["record.json"]) == made.record
    assert json.loads(config["data"]["pod.json"]) == {
        "v": 1,
        "job": ID,
        "nodes": 3,
        "procs": 2,
        "framework": "torch",
        "attempt": 0,
        "retries": 1,
        "timeout": 90.0,
        "grace": 4.5,
        "args": [],
        "env": {"PLAIN": "value"},
        "precision": None,
        "bundle_sha256": made.bundle.sha256,
        "coordinator": {"host": host, "port": 29400},
        "keep_checkpoints": 3,
        "results_in_log": True,
    }
    content = base64.b64decode(secret["data"]["secret.json"])
    assert json.loads(content) == {"token": "the token", "env": {"COPIED": "whisper"}}


@pytest.mark.parametrize("kind", ["trainjob", "pytorchjob", "job"])
def test_a_secret_value_is_in_the_secret_alone(kind: Kind) -> None:
    made = submission(ID, secret={"COPIED": "whisper"}, **OPTIONS)
    for manifest in build(made, target(kind), "the token"):
        text = json.dumps(manifest)
        if manifest["kind"] != "Secret":
            text += "".join(map(decoded, manifest.get("binaryData", {}).values()))
        assert "whisper" not in text
        assert "the token" not in text


def decoded(content: str) -> str:
    return base64.b64decode(content).decode("latin-1")


def test_where_no_secret_may_be_made_a_config_map_has_the_token_alone() -> None:
    manifests = build(submission(ID), target("job", secrets=False), "the token")
    assert [manifest["kind"] for manifest in manifests] == ["ConfigMap", "ConfigMap", "Service", "Job"]
    assert manifests[1]["data"] == {"secret.json": '{"env":{},"token":"the token"}'}
    volumes = manifests[-1]["spec"]["template"]["spec"]["volumes"]
    assert volumes[1] == {"name": "kfnb-secret", "configMap": {"name": f"{ID}-secret"}}


def large(size: int) -> Bundle:
    """A bundle of somewhat more than ``size`` bytes, which cannot be made smaller."""
    import random

    noise = random.Random(1).randbytes(size)
    files = dict(submission(ID).bundle.files)
    return Bundle(files={**files, "noise.bin": noise})


def test_large_code_travels_in_slices() -> None:
    from dataclasses import replace

    made = replace(submission(ID), bundle=large(2_000_000))
    *maps, _, _, job = build(made, target("job"), "t")
    assert len(maps) > 2
    assert all(len(json.dumps(one)) < 1_000_000 for one in maps)
    parts = {name: content for one in maps for name, content in one["binaryData"].items() if "bundle" in name}
    whole = b"".join(base64.b64decode(parts[name]) for name in sorted(parts))
    assert whole == made.bundle.data
    [mounted, *_] = job["spec"]["template"]["spec"]["volumes"]
    sources = [source["configMap"]["name"] for source in mounted["projected"]["sources"]]
    assert sources == [one["metadata"]["name"] for one in maps]


def test_code_that_is_too_large_is_refused() -> None:
    from dataclasses import replace

    with pytest.raises(BackendError, match=r"at most 16\.0 MiB"):
        build(replace(submission(ID), bundle=large(code.LIMIT)), target("job"), "t")


def test_a_submission_makes_the_same_manifests_each_time() -> None:
    assert build(submission(ID), target("job"), "t") == build(submission(ID), target("job"), "t")


@pytest.mark.parametrize(
    ("text", "value"),
    [("al", "al"), ("a b@c", "a-b-c"), ("-x-", "x"), ("ü", ""), ("y" * 70, "y" * 63), ("z" * 62 + "-.", 62 * "z")],
)
def test_what_a_label_can_hold(text: str, value: str) -> None:
    assert label_value(text) == value
