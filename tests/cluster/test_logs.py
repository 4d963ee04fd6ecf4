"""Logs of real containers: each line once, over restarts of containers, an API server that is away, and torn lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfnb.backends.kubernetes import names
from kfnb.backends.kubernetes.access import Access
from kfnb.backends.kubernetes.client import Client
from kfnb.backends.kubernetes.follow import Where, follow
from kfnb.events import Cursor, Gap, JobEvent, LogLine, Note, Phase, PhaseChanged
from tests.cluster.conftest import Cluster
from tests.cluster.proxy import Proxy, kubeconfig_through, upstream_of

#: Writes as a worker does. /kfnb/run outlives the container, as it does in a job's pod.
WORKER = """
import json, os, sys, time
sequence = 0
def say(who, text):
    global sequence
    sys.stdout.write("[%s:%d] %s\\n" % (who, sequence, text))
    sys.stdout.flush()
    sequence += 1
def record(e, **more):
    say("kfnb", json.dumps({"e": e, "t": time.time(), "a": 0, **more}, separators=(",", ":")))
with open("/kfnb/run/starts", "a+") as file:
    file.write("x")
    start = file.tell() - 1
record("hello", nodes=2, procs=1, python="3", host="h", bundle="b", incarnation=str(start) + os.uname().nodename)
"""

#: Two starts that end in failure, each after its lines, and one that is the last.
RESTARTED = """
for number in range(200):
    say("0", "start %d line %d" % (start, number))
print("no number %d" % start, flush=True)
record("end", outcome="failed")
sys.exit(start < 2)
"""

#: Lines for some seconds; then it is killed in the middle of one.
TORN = """
end = time.time() + 8
number = 0
while time.time() < end:
    say("0", "line %d" % number)
    number += 1
    time.sleep(0.005)
sys.stdout.write("[0:%d] torn" % sequence)
sys.stdout.flush()
"""


def make(cluster: Cluster, id: str, code: str, *, nodes: int = 1, policy: str = "Never", backoff: int = 0) -> Where:
    labels = {names.JOB: id, names.MANAGED_BY: "kfnb"}
    container = {
        "name": "node",
        "image": "python:3.12",
        "command": ["python3", "-u", "-c", WORKER + code],
        "volumeMounts": [{"name": "run", "mountPath": "/kfnb/run"}],
    }
    pod = {"restartPolicy": policy, "containers": [container], "volumes": [{"name": "run", "emptyDir": {}}]}
    spec = {
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        "backoffLimit": backoff,
        "template": {"metadata": {"labels": labels}, "spec": {**pod, "terminationGracePeriodSeconds": 1}},
    }
    cluster.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": id, "labels": labels}, "spec": spec})
    return Where("job", f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs/{id}", cluster.namespace, id)


def followed(
    cluster: Cluster,
    where: Where,
    *,
    kubeconfig: Path | None = None,
    cursor: Cursor | None = None,
    seen: Callable[[list[JobEvent]], None] = lambda events: None,
    until: Callable[[list[JobEvent]], bool] = lambda events: False,
) -> tuple[list[JobEvent], Cursor]:
    """The events after ``cursor`` to the job's end, or ``until`` what has come says so, and where that is."""

    async def collect() -> tuple[list[JobEvent], Cursor]:
        context = cluster.kubectl("config", "current-context").strip()
        client = Client(Access(str(kubeconfig or cluster.kubeconfig), context, cluster.namespace))
        events: list[JobEvent] = []
        stood: Cursor = {}
        try:
            async with contextlib.aclosing(follow(client, where, cursor, to_end=True)) as batches:
                async for batch in batches:
                    events += batch.events
                    stood = json.loads(json.dumps(batch.cursor))
                    seen(batch.events)
                    if until(events):
                        break
        finally:
            await client.close()
        return events, stood

    return asyncio.run(asyncio.wait_for(collect(), 120))


def texts(events: list[JobEvent], node: int = 0) -> list[str]:
    return [event.text for event in events if isinstance(event, LogLine) and event.node == node]


def last_phase(events: list[JobEvent]) -> Phase:
    return [event.phase for event in events if isinstance(event, PhaseChanged)][-1]


def lost(events: list[JobEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, (Gap, Note))]


def test_every_line_of_containers_that_are_started_again_comes_once(cluster: Cluster) -> None:
    where = make(cluster, "restarted", RESTARTED, nodes=2, policy="OnFailure", backoff=6)
    events, _ = followed(cluster, where)
    assert last_phase(events) is Phase.SUCCEEDED
    for node in range(2):
        expected = [
            text
            for start in range(3)
            for text in [*(f"start {start} line {number}" for number in range(200)), f"no number {start}"]
        ]
        assert texts(events, node) == expected
        restarts = {event.restart for event in events if isinstance(event, LogLine) and event.node == node}
        assert restarts == {0, 1, 2}
    assert lost(events) == []


def test_an_api_server_that_is_away_for_seconds_costs_no_line(cluster: Cluster, tmp_path: Path) -> None:
    where = make(cluster, "away", TORN)
    host, port = upstream_of(cluster.kubeconfig)
    proxy = Proxy(host, port)
    away: list[float] = []

    def interrupt(events: list[JobEvent]) -> None:
        """Once, after the first lines: the connections end, and no other is let through for two seconds."""
        if texts(events) and not away:
            away.append(time.monotonic())
            proxy._upstream = ("127.0.0.1", 1)
            proxy.cut()
            asyncio.get_running_loop().call_later(2.0, setattr, proxy, "_upstream", (host, port))

    try:
        through = kubeconfig_through(proxy, cluster.kubeconfig, tmp_path / "kubeconfig")
        events, _ = followed(cluster, where, kubeconfig=through, seen=interrupt)
    finally:
        proxy.close()
    assert away
    assert last_phase(events) is Phase.SUCCEEDED
    *whole, torn = texts(events)
    assert torn == "torn"
    assert whole == [f"line {number}" for number in range(len(whole))]
    assert lost(events) == []


def test_what_a_deleted_pod_said_is_told_to_be_gone(cluster: Cluster) -> None:
    where = make(cluster, "gone", "while True:\n    say('0', 'on')\n    time.sleep(0.05)\n")

    def deleted(events: list[JobEvent]) -> None:
        if texts(events) and not asked:
            asked.append(True)
            cluster.kubectl("delete", "job", "gone", "--wait=false")
            cluster.kubectl("delete", "pods", "-l", f"{names.JOB}=gone", "--grace-period=0", "--force")

    asked: list[bool] = []
    events, _ = followed(cluster, where, seen=deleted)
    assert last_phase(events) is Phase.STOPPED
    [note] = lost(events)
    assert note.text == "What else node 0 has said is not here: its pod is gone, and its log with it."


def test_a_client_goes_on_by_a_cursor_in_the_middle_of_a_log(cluster: Cluster) -> None:
    where = make(cluster, "resumed", TORN)
    events: list[JobEvent] = []
    cursor: Cursor | None = None
    for count in (1, 200, 500):
        more, cursor = followed(cluster, where, cursor=cursor, until=lambda new, n=count: len(texts(new)) >= n)
        events += more
        assert not last_phase(events).terminal, "lines come while they are printed"
    more, _ = followed(cluster, where, cursor=cursor)
    *whole, torn = texts(events + more)
    assert torn == "torn"
    assert whole == [f"line {number}" for number in range(len(whole))]
    assert lost(events + more) == []


def test_what_a_rotation_took_is_counted(cluster: Cluster) -> None:
    code = "for number in range(12_000):\n    say('0', 'x' * 1000)\nrecord('end', outcome='succeeded')\n"
    where = make(cluster, "rotated", code)
    live, _ = followed(cluster, where)
    # the log may have been rotated, and the hello be gone, before it was read
    assert len(texts(live)) + sum(gap.count for gap in lost(live)) in (12_000, 12_001)
    late, _ = followed(cluster, where)  # the first line, the hello, is gone as well
    [gap] = lost(late)
    assert gap.count > 1_000
    assert len(texts(late)) + gap.count == 12_001
