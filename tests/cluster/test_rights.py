"""Who has the least rights: they train, and are told what they lack; a kernel in a pod does it with no argument."""

from __future__ import annotations

import base64
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import kfnb
from kfnb.errors import BackendError
from kfnb.events import LogLine, Note, Phase, PhaseChanged
from tests.cluster.conftest import Cluster
from tests.local.kernels import ROOT
from tests.waiting import wait_for

#: The least that training needs in a namespace.
RULES: list[dict[str, Any]] = [
    {"apiGroups": ["trainer.kubeflow.org"], "resources": ["trainjobs"], "verbs": ["create", "get", "list", "watch"]},
    {"apiGroups": ["trainer.kubeflow.org"], "resources": ["trainjobs"], "verbs": ["patch", "delete"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get", "list", "watch", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["configmaps", "services"], "verbs": ["create", "get", "list", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
]

CODE = """
import kfnb

job = kfnb.train("import kfnb_worker as kf; answer = kf.world_size()", name="inside", framework="python", nodes=2,
                 out="answer", backend="kubernetes", detach=True)
print("answer", job.result()["answer"], job.record.spec.namespace)
job.delete()
"""


RBAC = "rbac.authorization.k8s.io/v1"


def account(cluster: Cluster, name: str, rules: list[dict[str, Any]]) -> None:
    """A service account with these rights in the namespace."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": cluster.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    cluster.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {"apiVersion": RBAC, "kind": "Role", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": RBAC,
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": role,
            "subjects": [subject],
        },
    )


def kubeconfig_of(cluster: Cluster, name: str, target: Path) -> Path:
    """That of a service account."""
    content = yaml.safe_load(cluster.kubeconfig.read_text())
    content["users"] = [{"name": name, "user": {"token": cluster.kubectl("create", "token", name).strip()}}]
    for context in content["contexts"]:
        context["context"].update(user=name, namespace=cluster.namespace)
    target.write_text(yaml.safe_dump(content))
    return target


def test_without_the_right_to_logs_a_job_has_its_phases(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account(cluster, "blind", [rule for rule in RULES if rule["resources"] != ["pods/log"]])
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig_of(cluster, "blind", tmp_path / "kubeconfig")))
    job = kfnb.train("print('unseen')", name="unseen", framework="python", backend="kubernetes", detach=True)
    events = [event for batch in job.events() for event in batch.events]
    assert [event for event in events if isinstance(event, PhaseChanged)][-1].phase is Phase.SUCCEEDED
    assert not any(isinstance(event, LogLine) for event in events)
    assert any("pods/log" in event.text for event in events if isinstance(event, Note))
    monkeypatch.setenv("SECRET_OF_MINE", "whisper")
    with pytest.raises(BackendError, match="You may not make Secrets"):
        kfnb.train("print(1)", name="unseen", backend="kubernetes", env="SECRET_OF_MINE")
    job.delete()


def test_what_may_not_be_made_is_named(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account(cluster, "reader", [rule for rule in RULES if rule["resources"] == ["pods"]])
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig_of(cluster, "reader", tmp_path / "kubeconfig")))
    with pytest.raises(BackendError, match=f"It is to create configmaps in the namespace {cluster.namespace}"):
        kfnb.train("print(1)", name="refused", framework="python", backend="kubernetes", detach=True)


def sources() -> str:
    """kfnb as a zip, in base64: a pod has the interpreter of the tests, and not their folder."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("kfnb", "kfnb_worker"):
            for file in (ROOT / package).rglob("*.py"):
                archive.write(file, file.relative_to(ROOT))
    return base64.b64encode(packed.getvalue()).decode()


def test_a_pod_trains_with_its_service_account(cluster: Cluster) -> None:
    account(cluster, "scientist", RULES)
    env = {"PYTHONPATH": "/sources/kfnb.zip", "HOME": "/tmp", "KFNB_HOME": "/tmp/kfnb"}
    container = {
        "name": "main",
        "image": "a-notebook:1",
        "command": [sys.executable, "-c", CODE],
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "volumeMounts": [{"name": "sources", "mountPath": "/sources"}],
    }
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "sources"},
            "binaryData": {"kfnb.zip": sources()},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "notebook"},
            "spec": {
                "serviceAccountName": "scientist",
                "restartPolicy": "Never",
                "containers": [container],
                "volumes": [{"name": "sources", "configMap": {"name": "sources"}}],
            },
        },
    )

    def phase() -> str:
        return str(cluster.get("pod", "notebook")["status"].get("phase"))

    wait_for(lambda: phase() in ("Succeeded", "Failed"), timeout=120, what="the pod to end")
    said = cluster.kubectl("logs", "notebook")
    assert phase() == "Succeeded", said
    assert "answer 2" in said
    wait_for(lambda: not cluster.get("trainjobs,jobs")["items"], timeout=60, what="the job to be gone")
