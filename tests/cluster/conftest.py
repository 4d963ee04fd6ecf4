"""A real API server with its operators: $KFNB_TEST_KUBECONFIG names an administrator's kubeconfig of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.xdist_group("cluster"))  # one after the other: they share its nodes


@dataclass(frozen=True)
class Cluster:
    """The cluster, and a namespace of this test module alone."""

    kubeconfig: Path
    namespace: str

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl prints, in the namespace. Fails the test with what it says where it fails."""
        done = subprocess.run(
            [*_kubectl(), "--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode:
            pytest.fail(f"kubectl {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", "-o", "json", *arguments))

    def create(self, *manifests: dict[str, Any], dry_run: bool = False) -> None:
        """As a user's strict ``kubectl create`` would: a field that the server does not know is an error."""
        how = ["--dry-run=server"] if dry_run else []
        for manifest in manifests:
            self.kubectl("create", "--validate=strict", *how, "-f", "-", stdin=json.dumps(manifest))


def _kubectl() -> list[str]:
    """$KFNB_TEST_KUBECTL, which may be several words, or kubectl."""
    return os.environ.get("KFNB_TEST_KUBECTL", "kubectl").split()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    path = os.environ.get("KFNB_TEST_KUBECONFIG")
    if not path:
        pytest.skip("KFNB_TEST_KUBECONFIG names no cluster")
    if shutil.which(_kubectl()[0]) is None:
        pytest.skip(f"there is no {_kubectl()[0]}")
    made = Cluster(Path(path), f"kfnb-{uuid.uuid4().hex[:8]}")
    made.kubectl("create", "namespace", made.namespace)
    try:
        yield made
    finally:
        made.kubectl("delete", "namespace", made.namespace, "--wait=false")
