"""Which cluster is meant, and what an API server's refusals become."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kfnb.backends.kubernetes import access
from kfnb.backends.kubernetes.errors import ApiError, explain
from kfnb.errors import BackendError, UsageError


def write(path: Path, current: str, **namespaces: str | None) -> Path:
    contexts = [
        {"name": name, "context": {"cluster": "c", "user": "u", **({"namespace": namespace} if namespace else {})}}
        for name, namespace in namespaces.items()
    ]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "contexts": contexts,
        "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1"}}],
        "users": [{"name": "u", "user": {}}],
    }
    path.write_text(json.dumps(config))
    return path


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a kubeconfig nor a pod."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(access, "_ACCOUNT", tmp_path / "serviceaccount")


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.2")
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "token").write_text("token")
    (account / "namespace").write_text("mine\n")


def test_nothing_to_find() -> None:
    assert access.find() is None


def test_the_current_context_and_its_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "config", "one", one="team-a", two=None)
    monkeypatch.setenv("KUBECONFIG", str(file))
    found = access.find()
    assert found == access.Access(str(file), "one", "team-a")
    assert found.how == f"context one of {file}"


def test_a_named_context_and_namespace(tmp_path: Path) -> None:
    file = str(write(tmp_path / "config", "one", one="team-a", two=None))
    assert access.find("two", file=file) == access.Access(file, "two", "default")
    assert access.find("one", "team-b", file=file) == access.Access(file, "one", "team-b")


def test_the_default_path(tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".kube"
    folder.mkdir(parents=True)
    file = write(folder / "config", "one", one=None)
    assert access.find() == access.Access(str(file), "one", "default")


def test_several_files_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = write(tmp_path / "a", "one", one="team-a"), write(tmp_path / "b", "", two="team-b")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}:{tmp_path / 'missing'}")
    found = access.find("two")
    assert found is not None
    assert found.namespace == "team-b"
    assert access.find().context == "one"  # type: ignore[union-attr]


@pytest.mark.usefixtures("pod")
def test_a_pod_is_its_service_account(tmp_path: Path) -> None:
    found = access.find()
    assert found == access.Access(None, "", "mine")
    assert found.how == "this pod's service account"


@pytest.mark.usefixtures("pod")
def test_a_kubeconfig_in_a_pod_is_meant(tmp_path: Path) -> None:
    found = access.find(file=str(write(tmp_path / "config", "one", one="team-a")))
    assert found is not None
    assert found.context == "one"


@pytest.mark.usefixtures("pod")
def test_a_kubeconfig_in_which_no_cluster_is_chosen_leaves_the_pod(tmp_path: Path) -> None:
    assert access.find(file=str(write(tmp_path / "config", ""))) == access.Access(None, "", "mine")


def test_no_context_is_chosen(tmp_path: Path) -> None:
    assert access.find(file=str(write(tmp_path / "config", "", one=None))) is None


def test_a_context_that_is_not_there_is_said_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has one, two"):
        access.find("three", file=str(write(tmp_path / "config", "one", one=None, two=None)))


@pytest.mark.parametrize("content", ["{", "[1]", "text", "contexts: [1]", "contexts: 3", "\x00"])
def test_a_damaged_kubeconfig_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    with pytest.raises(BackendError, match="cannot be read"):
        access.find(file=str(file))


def test_the_official_client_is_imported_when_it_is_needed() -> None:
    code = "import sys, kfnb.backends.kubernetes.backend; print({'kubernetes', 'aiohttp'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"


def refused(status: int, message: str, reason: str = "") -> ApiError:
    body = {"kind": "Status", "message": message, "reason": reason, "code": status}
    return explain(status, json.dumps(body).encode(), "Making pods in team-a")


def test_a_missing_right_is_named() -> None:
    error = refused(
        403,
        'trainjobs.trainer.kubeflow.org is forbidden: User "carol" cannot create resource "trainjobs" in API group'
        ' "trainer.kubeflow.org" in the namespace "team-a"',
        "Forbidden",
    )
    assert error.what == "Making pods in team-a needs a right that carol does not have."
    assert error.why == "It is to create trainjobs.trainer.kubeflow.org in the namespace team-a."
    assert (error.status, error.reason) == (403, "Forbidden")


def test_a_quota_says_what_there_is() -> None:
    error = refused(
        403,
        'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=4, used:'
        " requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=2",
    )
    assert "the quota gpus has no room" in error.what
    assert (
        error.why
        == "Asked for requests.nvidia.com/gpu=4, in use requests.nvidia.com/gpu=0 of requests.nvidia.com/gpu=2."
    )


def test_a_webhook_keeps_its_words() -> None:
    words = 'admission webhook "validator.example" denied the request: spec.x: Invalid value: 3: must be even'
    assert refused(400, words).why == words


@pytest.mark.parametrize("body", [b"", b"<html>bad</html>", b"[1, 2]", b'{"kind": "Other"}', b"\xff\xfe", b"[" * 9999])
def test_what_a_proxy_says_is_text(body: bytes) -> None:
    error = explain(502, body, "Reading pods")
    assert error.status == 502
    assert "has a problem (502)" in error.what
    assert len(error.why) <= 300
