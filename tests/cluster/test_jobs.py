"""Jobs on a cluster as a user runs them: through the same door as on this machine, with the same stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kfnb
from kfnb.backends.kubernetes.errors import Unreachable
from kfnb.backends.kubernetes.manifests import build
from kfnb.backends.kubernetes.target import KINDS, Kind, Runtime, Target
from kfnb.errors import BackendError, JobFailed, JobStopped, NotFound, UsageError
from kfnb.events import Gap, Phase, PhaseChanged
from kfnb.job import Job
from tests.cluster.conftest import Cluster
from tests.cluster.proxy import Proxy, kubeconfig_through, upstream_of
from tests.submissions import submission
from tests.waiting import wait_for

TRAINING = """
import torch
import torch.distributed as dist

import kfnb_worker as kf

dist.init_process_group("gloo")
torch.manual_seed(0)
weight = torch.zeros(1)
for step in range(30):
    share = torch.full((1,), float(kf.rank() + 1)) - weight
    dist.all_reduce(share)
    weight += 0.1 * share / kf.world_size()
    print("step", step, "of rank", kf.rank())
    kf.log(step, weight=weight.item())
    kf.progress(step + 1, 30)
answer = weight
dist.destroy_process_group()
"""

#: Prints lines until it is stopped.
ENDLESS = """
import time
import kfnb_worker as kf
number = 0
while not kf.stopping():
    print("line", number)
    number += 1
    time.sleep(0.01)
print("saved")
"""


@pytest.fixture(autouse=True)
def here(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))


@pytest.fixture
def train(cluster: Cluster) -> Iterator[Callable[..., Job]]:
    """Submits to the cluster, without waiting; nothing of a test is left there."""
    made: list[Job] = []

    def submit(code: str, **options: Any) -> Job:
        given = {"backend": "kubernetes", "namespace": cluster.namespace, "framework": "python", "detach": True}
        made.append(kfnb.train(code, **{**given, **options}))
        return made[-1]

    yield submit
    for job in made:
        try:
            if not job.phase.terminal:
                job.stop()
            job.delete()
        except (NotFound, Unreachable):  # it is gone, or the test's own way to it is
            continue


def lines_by_rank(job: Job) -> dict[int | None, list[str]]:
    found: dict[int | None, list[str]] = {}
    for line in job.logs():
        if line.text.startswith("step"):
            found.setdefault(line.rank, []).append(line.text)
    return found


def points(job: Job) -> dict[tuple[str, int | None], list[tuple[int, float]]]:
    scalars = job.scalars()
    return {
        (key.tag, key.rank): list(zip(scalars[key].step.tolist(), scalars[key].value.tolist(), strict=True))
        for key in scalars
    }


def kinds_left(cluster: Cluster) -> list[str]:
    """What is in the namespace that kfnb has made, or that came of it."""
    what = "trainjobs,jobsets,pytorchjobs,jobs,pods,services,secrets,configmaps"
    items = cluster.get(what, "-l", "kfnb.dev/job")["items"]
    return [f"{item['kind']}/{item['metadata']['name']}" for item in items]


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_is_what_it_is_on_this_machine(kind: Kind, cluster: Cluster, train: Callable[..., Job]) -> None:
    shape: dict[str, Any] = {"nodes": 2, "procs_per_node": 2, "out": "answer", "framework": "torch"}
    there = train(TRAINING, name="alike", kind=kind, memory="2Gi", **shape)
    result = there.result()
    assert there.phase is Phase.SUCCEEDED
    here = kfnb.train(TRAINING, name="alike-here", backend="local", detach=True, **shape)
    assert result["answer"].item() == pytest.approx(here.result()["answer"].item())
    assert lines_by_rank(there) == lines_by_rank(here)
    assert points(there) == points(here)

    # any process of the user's finds it, by id and by name
    assert kfnb.attach(there.id) == kfnb.attach("alike") == there
    [info] = [info for info in kfnb.jobs() if info.id == there.id]
    assert (info.backend, info.phase, info.nodes, info.procs) == ("kubernetes", Phase.SUCCEEDED, 2, 2)
    assert there.record.bundle_sha256 == here.record.bundle_sha256

    there.delete()
    wait_for(lambda: not kinds_left(cluster), timeout=60, what="everything of the job to be gone")
    with pytest.raises(NotFound):
        kfnb.attach(there.id)


@pytest.mark.parametrize("kind", KINDS)
def test_every_manifest_is_accepted_strictly(kind: Kind, cluster: Cluster) -> None:
    runtime = Runtime("torch-distributed", "ClusterTrainingRuntime") if kind == "trainjob" else None
    target = Target("", cluster.namespace, kind, "python:3.12", runtime)
    ttl = {} if kind == "trainjob" else {"ttl": 60}
    for nodes in (1, 3):
        made = submission("strict-ab1cd", nodes=nodes, procs_per_node=2, gpus=1, cpu="500m", memory="1Gi", **ttl)
        cluster.create(*build(made, target, "token"), dry_run=True)


def test_the_first_failing_ranks_traceback_comes_back(train: Callable[..., Job]) -> None:
    code = "import kfnb_worker as kf, time\nif kf.rank() == 1:\n    raise ValueError('on purpose')\ntime.sleep(60)"
    job = train(code, name="failing", nodes=2, kind="job")
    with pytest.raises(JobFailed, match=r"Rank 1 \(node 1\) raised ValueError: on purpose at line 3") as caught:
        job.wait()
    assert "raise ValueError('on purpose')" in caught.value.failure.traceback
    assert kfnb.attach("failing").phase is Phase.FAILED


def test_stop_lets_the_ranks_save_and_leaves_nothing(cluster: Cluster, train: Callable[..., Job]) -> None:
    job = train(ENDLESS, name="stopped", nodes=2)
    lines: list[str] = []
    phases: list[Phase] = []

    def follow() -> None:
        for batch in job.events():
            phases.extend(event.phase for event in batch.events if isinstance(event, PhaseChanged))
            lines.extend(getattr(event, "text", "") for event in batch.events)

    follower = threading.Thread(target=follow)
    follower.start()
    wait_for(lambda: lines.count("line 5") == 2, timeout=60, what="both nodes' lines")
    job.stop()
    follower.join(60)
    assert lines.count("saved") == 2
    assert phases[-1] is Phase.STOPPED
    wait_for(lambda: not kinds_left(cluster), timeout=60, what="everything of the job to be gone")


def test_a_waiting_cell_is_told_that_somebody_stopped_the_job(train: Callable[..., Job]) -> None:
    job = train(ENDLESS, name="waited-for", kind="job")
    wait_for(lambda: job.phase is Phase.RUNNING, timeout=60, what="the job to run")
    stopper = threading.Timer(0.5, lambda: kfnb.attach(job.id).stop())
    stopper.start()
    with pytest.raises(JobStopped):
        job.wait()
    stopper.join()
    # its objects are gone, and what a repeat needs is not
    assert kfnb.attach("waited-for").phase is Phase.STOPPED
    with pytest.raises(JobStopped):
        job.wait()
    assert job.record.code == ENDLESS
    job.delete()
    with pytest.raises(NotFound):
        kfnb.attach("waited-for")


def more(seen: dict[int | None, list[int]], before: dict[int | None, int]) -> bool:
    """Whether lines of both nodes have come since."""
    return len(seen) == 2 and all(len(numbers) > before.get(rank, 0) for rank, numbers in seen.items())


def test_no_line_is_lost_or_doubled_over_fifty_cut_connections(
    cluster: Cluster, train: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(*upstream_of(cluster.kubeconfig))
    try:
        through = kubeconfig_through(proxy, cluster.kubeconfig, tmp_path / "kubeconfig")
        monkeypatch.setenv("KUBECONFIG", str(through))
        job = train(ENDLESS, name="cut", nodes=2, kind="job")
        seen: dict[int | None, list[int]] = {}
        gaps: list[Gap] = []

        def follow() -> None:
            for batch in job.events():
                gaps.extend(event for event in batch.events if isinstance(event, Gap))
                for event in batch.events:
                    text = getattr(event, "text", "")
                    if text.startswith("line "):
                        seen.setdefault(getattr(event, "rank", None), []).append(int(text[5:]))

        follower = threading.Thread(target=follow)
        follower.start()
        cuts = 0
        while cuts < 50:
            before = {rank: len(numbers) for rank, numbers in seen.items()}
            wait_for(lambda before=before: more(seen, before), timeout=60, what="lines of both nodes")
            cuts += proxy.cut()
        job.stop()
        follower.join(90)
        assert not follower.is_alive()
        job.delete()
    finally:
        proxy.close()
    assert gaps == []
    for rank, numbers in seen.items():
        assert numbers == list(range(len(numbers))), f"rank {rank}"


def test_a_cursor_goes_on_where_another_client_was(train: Callable[..., Job]) -> None:
    job = train("for number in range(2000):\n    print('line', number)", name="resumed", nodes=2, kind="job")
    assert job.wait().phase is Phase.SUCCEEDED
    batches = list(job.events())
    whole = [event for batch in batches for event in batch.events]
    for position in range(0, len(batches), max(1, len(batches) // 5)):
        cursor = json.loads(json.dumps(batches[position].cursor))
        rest = [event for batch in job.events(cursor) for event in batch.events]
        lines = {(getattr(e, "rank", None), e.text) for e in rest if getattr(e, "text", "").startswith("line")}
        before = [event for batch in batches[: position + 1] for event in batch.events]
        seen = {(getattr(e, "rank", None), e.text) for e in before if getattr(e, "text", "").startswith("line")}
        assert not lines & seen
        assert len(lines) + len(seen) == 4000
        assert len([event for event in whole if isinstance(event, PhaseChanged)]) == len(
            [event for event in [*before, *rest] if isinstance(event, PhaseChanged)]
        )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"gpus": 99}, "it cannot be scheduled: .*Insufficient nvidia.com/gpu"),
        ({"image": "registry.invalid/x:1"}, "the image cannot be pulled: registry.invalid/x:1"),
    ],
)
def test_a_job_that_waits_says_for_what(options: dict[str, Any], reason: str, train: Callable[..., Job]) -> None:
    import re

    job = train("print('never')", name="waits", kind="job", **options)
    reasons: list[str] = []

    def told() -> bool:
        reasons.extend(
            event.reason
            for batch in job.events(follow=False)
            for event in batch.events
            if isinstance(event, PhaseChanged)
        )
        return any(re.search(reason, one) for one in reasons)

    wait_for(told, timeout=30, what=f"{reason} in {reasons}")


def test_a_quota_that_is_used_up_is_named(cluster: Cluster, train: Callable[..., Job]) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}}
    cluster.create({**quota, "spec": {"hard": {"requests.nvidia.com/gpu": "2"}}})
    try:
        for kind in KINDS:
            job = train("print('never')", name="large", kind=kind, gpus=4)
            told: list[str] = []

            def is_told(job: Job = job, told: list[str] = told) -> bool:
                found = [event for batch in job.events(follow=False) for event in batch.events]
                told.extend(event.reason for event in found if isinstance(event, PhaseChanged))
                return any("the quota small has no room: asked for requests.nvidia.com/gpu=4" in one for one in told)

            wait_for(is_told, timeout=30, what=f"the quota in {told} ({kind})")
            job.stop()
    finally:
        cluster.kubectl("delete", "resourcequota", "small")


def test_memory_beyond_the_limit_is_said(train: Callable[..., Job]) -> None:
    job = train("hold = bytearray(1 << 30)", name="hungry", kind="job", memory="64Mi")
    with pytest.raises(JobFailed, match="memory"):
        job.wait()


def test_a_copied_value_is_in_the_secret_and_nowhere_else(
    cluster: Cluster, train: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_MINE", "whisper-47-whisper")
    job = train("import os\nprint(len(os.environ['TOKEN_OF_MINE']))", name="hidden", env="TOKEN_OF_MINE")
    assert job.wait().phase is Phase.SUCCEEDED
    assert [line.text for line in job.logs()] == ["18"]
    found = cluster.kubectl("get", "-o", "yaml", "trainjobs,jobsets,jobs,pods,configmaps,events")
    assert "whisper-47" not in found
    assert "whisper-47" not in "".join(str(line) for line in job.logs())
    assert "whisper-47" not in job.record.model_dump_json()
    assert "TOKEN_OF_MINE" in job.record.model_dump_json()


@pytest.mark.parametrize("option", [{"pip": "attrs"}, {"workspace": "here"}, {"checkpoint": "here"}])
def test_what_is_not_there_yet_is_refused_before_anything_is_made(
    option: dict[str, Any], cluster: Cluster, train: Callable[..., Job]
) -> None:
    with pytest.raises(UsageError, match="not on a cluster yet"):
        train("print(1)", name="refused", **option)
    assert not [left for left in kinds_left(cluster) if "refused" in left]


def test_an_api_server_that_does_not_answer_is_an_error_that_names_the_way_out(
    cluster: Cluster, train: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy("127.0.0.1", 1)
    proxy.close()
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig_through(proxy, cluster.kubeconfig, tmp_path / "away")))
    with pytest.raises(BackendError, match="--backend local"):
        train("print(1)", name="away")


def test_no_cluster_at_all(train: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(BackendError, match="There is no cluster to train on"):
        train("print(1)", name="nowhere")
    with pytest.raises(UsageError, match="There is no context"):
        train("print(1)", name="nowhere", context="other")
