"""What pods and jobs say, in the words that a person reads: pure functions of what an API server tells."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kfnb.backends.kubernetes import errors, names, phases, pods, references, refusals
from kfnb.backends.kubernetes.access import Access
from kfnb.backends.kubernetes.discovery import PYTHON_IMAGE, TORCH_IMAGE, Offer, choose
from kfnb.backends.kubernetes.references import Reference
from kfnb.backends.kubernetes.target import Kind, Runtime
from kfnb.errors import BackendError, UsageError
from kfnb.events import Phase
from kfnb.spec import TrainSpec

START = "2026-12-01T10:00:00Z"
LATER = "2026-12-01T10:05:00Z"


def pod(index: int = 0, state: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    status = {"name": "node", "restartCount": 0, "state": state or {}, **more.pop("container", {})}
    limits = more.pop("limits", {})
    return {
        "metadata": {
            "name": f"pod-{index}",
            "uid": f"uid-{index}",
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
        },
        "spec": {"containers": [{"name": "node", "image": "an/image:1", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending", "containerStatuses": [status], **more},
    }


RUNNING = {"running": {"startedAt": START}}


def ended(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    told = {"exitCode": code, "reason": reason, "message": message, "startedAt": START, "finishedAt": LATER}
    return {"terminated": told}


@pytest.mark.parametrize(
    ("metadata", "node"),
    [
        ({"annotations": {"batch.kubernetes.io/job-completion-index": "3"}}, 3),
        ({"labels": {"training.kubeflow.org/replica-type": "master", "training.kubeflow.org/replica-index": "0"}}, 0),
        ({"labels": {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "1"}}, 2),
        ({"labels": {"app": "else"}}, None),
        ({}, None),
    ],
)
def test_which_node_a_pod_is(metadata: dict[str, Any], node: int | None) -> None:
    assert pods.node_of({"metadata": metadata}) == node


def test_the_containers_whose_logs_there_are() -> None:
    assert pods.incarnations(pod(state={"waiting": {"reason": "ContainerCreating"}})) == []
    [first] = pods.incarnations(pod(1, RUNNING))
    assert (first.node, first.pod, first.uid, first.restart, first.previous, first.ended) == (
        1,
        "pod-1",
        "uid-1",
        0,
        False,
        False,
    )
    again = pod(state=RUNNING, container={"restartCount": 2, "lastState": ended(1)})
    assert [(one.restart, one.previous, one.ended) for one in pods.incarnations(again)] == [
        (1, True, True),
        (2, False, False),
    ]


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}


@pytest.mark.parametrize(
    ("waiting", "sentence", "stuck"),
    [
        (
            pod(conditions=[UNSCHEDULABLE]),
            "it cannot be scheduled: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu. (pod-0)",
            False,
        ),
        (
            pod(state={"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}),
            "the image cannot be pulled: an/image:1: Back-off (pod-0)",
            False,
        ),
        (
            pod(state={"waiting": {"reason": "InvalidImageName"}}),
            "the image's name is not valid: an/image:1: InvalidImageName (pod-0)",
            True,
        ),
        (
            pod(state={"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}}),
            'the container cannot be configured: secret "x" not found (pod-0)',
            False,
        ),
        (pod(state={"waiting": {"reason": "ContainerCreating"}}), "its containers are being made (pod-0)", False),
        (pod(state=RUNNING), "", False),
        (pod(phase="Succeeded", conditions=[UNSCHEDULABLE]), "", False),
    ],
)
def test_what_a_pod_waits_for(waiting: dict[str, Any], sentence: str, stuck: bool) -> None:
    assert pods.waits_for([waiting]) == (sentence, stuck)


def test_many_pods_that_wait_for_the_same_are_one_sentence() -> None:
    told = pods.waits_for([pod(index, conditions=[UNSCHEDULABLE]) for index in range(5)])[0]
    assert told.endswith("(pod-0, pod-1, pod-2 and 2 more)")


FAILURE = {"outcome": "failed", "node": 1, "r": 3, "a": 0, "kind": "exception", "type": "ValueError", "t": 5.0}


def test_the_first_failing_ranks_words_come_before_what_followed_from_them() -> None:
    told = pod(1, ended(1, json.dumps({**FAILURE, "message": "on purpose", "line": 2})))
    lost = pod(0, ended(75, json.dumps({**FAILURE, "kind": "lost", "message": "node 1 was lost", "t": 4.0})))
    failure = pods.first_failure([lost, told], first_line=7)
    assert failure is not None
    assert (failure.rank, failure.message, failure.line, failure.first_line) == (3, "on purpose", 2, 7)


@pytest.mark.parametrize(
    ("state", "limits", "message"),
    [
        (ended(137, reason="OOMKilled"), {"memory": "64Mi"}, "it used more memory than its limit of 64Mi"),
        (ended(137, reason="OOMKilled"), {}, "the node had no memory left for it"),
        (ended(127, "not json", "StartError"), {}, "its container ended with exit code 127 (StartError)"),
        (ended(1, '{"outcome":"failed"}'), {}, "its container ended with exit code 1 (Error)"),
        (ended(1, "[1]"), {}, "its container ended with exit code 1 (Error)"),
    ],
)
def test_what_the_kubelet_says_where_a_worker_could_not(
    state: dict[str, Any], limits: dict[str, str], message: str
) -> None:
    failure = pods.first_failure([pod(2, state, limits=limits)])
    assert failure is not None
    assert (failure.node, failure.rank, failure.message) == (2, None, message)


@pytest.mark.parametrize("code", [0, 75, 143])
def test_a_worker_that_only_followed_has_not_failed(code: int) -> None:
    assert pods.first_failure([pod(0, ended(code))]) is None


def job(*conditions: dict[str, Any], status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "j", "creationTimestamp": START, **metadata},
        "status": {"conditions": list(conditions), **(status or {})},
    }


def true(kind: str, message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": "True", "message": message, "lastTransitionTime": LATER}


@pytest.mark.parametrize(
    ("kind", "made", "there", "phase", "reason"),
    [
        ("trainjob", job(), [], Phase.PENDING, "its pods are being made"),
        ("trainjob", job(), [pod(conditions=[UNSCHEDULABLE])], Phase.PENDING, "it cannot be scheduled"),
        ("trainjob", job(), [pod(state=RUNNING)], Phase.RUNNING, ""),
        ("trainjob", job(status={"jobsStatus": [{"name": "node", "ready": 1}]}), [], Phase.RUNNING, ""),
        ("trainjob", job(true("Complete", "jobset completed")), [], Phase.SUCCEEDED, ""),
        ("trainjob", job(true("Failed", "jobset failed")), [], Phase.FAILED, "jobset failed"),
        ("trainjob", job(true("Suspended", "waits")), [], Phase.QUEUED, "waits"),
        ("trainjob", job({**true("Suspended"), "status": "False"}), [], Phase.PENDING, "its pods are being made"),
        ("pytorchjob", job(true("Created"), true("Running")), [], Phase.RUNNING, ""),
        ("pytorchjob", job(true("Succeeded")), [], Phase.SUCCEEDED, ""),
        ("pytorchjob", job(true("Failed", "worker 1")), [], Phase.FAILED, "worker 1"),
        ("job", job(status={"ready": 1}), [], Phase.RUNNING, ""),
        ("job", job(true("Complete")), [], Phase.SUCCEEDED, ""),
        ("job", job(true("Failed", "BackoffLimitExceeded")), [], Phase.FAILED, "BackoffLimitExceeded"),
        ("job", job(deletionTimestamp=LATER), [pod(state=RUNNING)], Phase.STOPPING, "it was asked to stop"),
        ("job", job(annotations={names.STOPPED: "1"}), [], Phase.STOPPING, "it was asked to stop"),
    ],
)
def test_a_jobs_phase(
    kind: Kind, made: dict[str, Any], there: list[dict[str, Any]], phase: Phase, reason: str
) -> None:
    life = phases.life_of(kind, made, there)
    assert life.phase is phase
    assert life.reason.startswith(reason)
    assert bool(life.reason) == bool(reason)
    assert life.created == pods.seconds(START)
    assert (life.ended is not None) == phase.terminal


def test_times_are_those_of_the_cluster() -> None:
    life = phases.life_of("job", job(true("Complete")), [pod(state=ended(0))])
    assert (life.started, life.ended) == (pods.seconds(START), pods.seconds(LATER))
    assert pods.seconds("nonsense") == pods.seconds(None) == 0.0


# -- refusals ----------------------------------------------------------------------------------------------------


def status(message: str, reason: str = "Forbidden") -> bytes:
    return json.dumps({"kind": "Status", "message": message, "reason": reason}).encode()


def test_a_missing_right_is_named() -> None:
    told = 'User "carol" cannot create resource "secrets" in API group "" in the namespace "team-a"'
    error = errors.explain(403, status(told), "Making secrets in team-a")
    assert (error.status, error.reason) == (403, "Forbidden")
    assert error.what == "Making secrets in team-a needs a right that carol does not have."
    assert error.why == "It is to create secrets in the namespace team-a."


def test_a_quota_says_how_much_there_is() -> None:
    told = (
        'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=4, used: '
        "requests.nvidia.com/gpu=6, limited: requests.nvidia.com/gpu=8"
    )
    error = errors.explain(403, status(told), "Making pods in team-a")
    assert error.what == "Making pods in team-a was refused: the quota gpus has no room."
    gpu = "requests.nvidia.com/gpu"
    assert error.why == f"Asked for {gpu}=4, in use {gpu}=6 of {gpu}=8."


def test_a_webhooks_own_words_are_kept() -> None:
    told = 'admission webhook "v.example" denied the request: no'
    error = errors.explain(400, status(told, "BadRequest"), "Making it")
    assert error.what == "Making it was refused by the API server (400)."
    assert error.why == told


@pytest.mark.parametrize("body", [b"", b"<html>\xff", b"[]", b"null", b'{"kind": "Other"}'])
def test_whatever_a_proxy_answers_is_an_error_too(body: bytes) -> None:
    error = errors.explain(502, body, "Reading jobs")
    assert error.what == "Reading jobs failed: the API server, or what is before it, has a problem (502)."


EVENT = {"type": "Warning", "reason": "FailedCreate", "metadata": {"creationTimestamp": START}}


def event(name: str, message: str, kind: str = "Job", when: str = START) -> dict[str, Any]:
    return {**EVENT, "involvedObject": {"kind": kind, "name": name}, "message": message, "lastTimestamp": when}


def test_why_a_jobs_pods_are_not_made_is_told_by_the_newest_event_about_it() -> None:
    told = [
        event("mine-12345-node-0", "a newer refusal", when=LATER),
        event("mine-12345", "an older one"),
        event("mine-123456", "another job's", when=LATER),
        event("mine-12345-node-0-0-abcde", "a pod's own", kind="Pod", when=LATER),
    ]
    assert refusals.newest(told, "mine-12345") == "its pods are not made: a newer refusal"
    assert refusals.newest(told[2:], "mine-12345") == ""
    quota = "pods x is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"
    expected = "the quota q has no room: asked for pods=1, in use pods=2 of pods=2"
    assert refusals.newest([event("mine-12345", quota)], "mine-12345") == expected


# -- what a job becomes --------------------------------------------------------------------------------------------

ACCESS = Access("config", "ctx", "team-a")
STOCK = Runtime("torch-distributed", "ClusterTrainingRuntime", "torch")
OURS = Runtime("kfnb-torch", "ClusterTrainingRuntime", "torch", ours=True)
JAX = Runtime("jax-distributed", "ClusterTrainingRuntime", "jax")
OLD = Runtime("torch-old", "ClusterTrainingRuntime", "torch", deprecated=True)
ALL = Offer(("trainjob", "pytorchjob", "job"), (OLD, JAX, STOCK, OURS), "runtimePatches")


@pytest.mark.parametrize(
    ("options", "offer", "kind", "runtime", "image"),
    [
        ({}, ALL, "trainjob", "kfnb-torch", None),
        ({"image": "mine:1"}, ALL, "trainjob", "kfnb-torch", "mine:1"),
        ({"runtime": "torch-old"}, ALL, "trainjob", "torch-old", None),
        ({}, Offer(("trainjob", "job"), (STOCK, JAX), "runtimePatches"), "trainjob", "torch-distributed", None),
        ({}, Offer(("trainjob", "pytorchjob", "job"), (JAX,), "runtimePatches"), "pytorchjob", None, TORCH_IMAGE),
        ({}, Offer(("pytorchjob", "job")), "pytorchjob", None, TORCH_IMAGE),
        ({}, Offer(("job",)), "job", None, TORCH_IMAGE),
        ({"kind": "job", "framework": "python"}, ALL, "job", None, "python:"),
    ],
)
def test_what_a_cluster_makes_of_a_job(
    options: dict[str, Any], offer: Offer, kind: str, runtime: str | None, image: str | None
) -> None:
    target = choose(TrainSpec(**options), offer, ACCESS)
    assert (target.kind, target.runtime.name if target.runtime else None) == (kind, runtime)
    assert target.image == image or (image == "python:" and str(target.image).startswith(PYTHON_IMAGE[:7]))
    assert (target.context, target.namespace) == ("ctx", "team-a")


@pytest.mark.parametrize(
    ("options", "offer", "error", "words"),
    [
        ({"kind": "pytorchjob"}, Offer(("job",)), UsageError, "does not serve it"),
        ({"runtime": "nope"}, ALL, UsageError, "There are jax-distributed, kfnb-torch, torch-distributed, torch-old"),
        ({"runtime": "x"}, Offer(("job",)), UsageError, "Kubeflow Trainer"),
        ({"kind": "trainjob"}, Offer(("trainjob", "job"), (JAX,)), BackendError, "no runtime"),
        ({"env": ("TOKEN",)}, Offer(("job",), secrets=False), BackendError, "You may not make Secrets in team-a"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused_with_what_it_can(
    options: dict[str, Any], offer: Offer, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        choose(TrainSpec(**options), offer, ACCESS)


# -- references ------------------------------------------------------------------------------------------------------


def test_a_submitted_job_is_remembered_until_it_is_deleted() -> None:
    one = Reference("a-12345", "a", "/config", "ctx", "team-a", 1.0)
    two = Reference("b-12345", "b", None, "", "team-b", 2.0)
    for reference in (one, two):
        references.remember(reference)
    assert references.recall("a-12345") == one
    assert references.everyone() == [two, one]
    references.forget("a-12345")
    references.forget("a-12345")
    assert references.recall("a-12345") is None
    for name, content in (("c-12345", "{}"), ("d-12345", "torn")):
        (references._folder() / name).mkdir()
        (references._folder() / name / "reference.json").write_text(content)
    assert references.everyone() == [two]


def test_what_a_repeat_needs_is_kept_with_it() -> None:
    one = Reference("a-12345", "a", "/config", "ctx", "team-a", 1.0)
    assert references.kept("a-12345", "record.json") is None
    references.remember(one, "{}", b"zip")
    references.remember(replace(one, stopped=2.0))
    assert references.recall("a-12345") == replace(one, stopped=2.0)
    assert (references.kept("a-12345", "record.json"), references.kept("a-12345", "bundle.zip")) == (b"{}", b"zip")
