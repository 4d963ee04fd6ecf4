"""A kernel in a pod, as in a Kubeflow notebook: it trains as who it is, with no kubeconfig and no argument."""

from __future__ import annotations

import json
import sys

from tests.cluster.conftest import Cluster
from tests.local.kernels import ROOT
from tests.waiting import wait_for

#: The least that training needs in a namespace.
RULES = [
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


def test_a_pod_trains_with_its_service_account(cluster: Cluster) -> None:
    subject = {"kind": "ServiceAccount", "name": "scientist", "namespace": cluster.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "training"}
    rbac = "rbac.authorization.k8s.io/v1"
    env = {"PYTHONPATH": str(ROOT), "HOME": "/tmp", "KFNB_HOME": "/tmp/kfnb"}
    container = {
        "name": "main",
        "image": "a-notebook:1",
        "command": [sys.executable, "-c", CODE],
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }
    cluster.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "scientist"}},
        {"apiVersion": rbac, "kind": "Role", "metadata": {"name": "training"}, "rules": RULES},
        {
            "apiVersion": rbac,
            "kind": "RoleBinding",
            "metadata": {"name": "training"},
            "roleRef": role,
            "subjects": [subject],
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "notebook"},
            "spec": {"serviceAccountName": "scientist", "restartPolicy": "Never", "containers": [container]},
        },
    )

    def phase() -> str:
        return str(cluster.get("pod", "notebook")["status"].get("phase"))

    wait_for(lambda: phase() in ("Succeeded", "Failed"), timeout=120, what="the pod to end")
    said = cluster.kubectl("logs", "notebook")
    assert phase() == "Succeeded", said
    assert "answer 2" in said
    assert json.loads(cluster.kubectl("get", "trainjobs,jobs", "-o", "json"))["items"] == []
