"""Log lines of 200 bytes from a kernel to its page, beside `print` and ipywidgets' Output: kernel CPU and bytes a line.

Each way in a fresh kernel, whose sockets are read as a page's server reads them, and as fast as it goes. Ours are a
job's events: folded, kept for paging and searching, and sent by the widget's comm, 100 lines a message.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from jupyter_client.manager import KernelManager

from benchmarks._common import tell

DEADLINE = 300.0

#: Of these the least CPU counts: what else runs on the machine only adds to it.
RUNS = 5

# Each way sets `lines` and `seconds`: kernel CPU
PRINT = """
import sys, time
text, lines = "x" * 199, 10_000
before = time.process_time()
for _ in range(lines):
    print(text)
sys.stdout.flush()
seconds = time.process_time() - before
"""
# every line sends all that came before it: with as many lines as above it would take minutes
OUTPUT = """
import time
from ipywidgets import Output
text, lines = "x" * 199 + "\\n", 1_000
output = Output()
before = time.process_time()
for _ in range(lines):
    output.append_stdout(text)
seconds = time.process_time() - before
"""
OURS = """
import asyncio, time
from kfnb import portal
from kfnb.events import Batch, LogLine, NodeStarted, Phase, PhaseChanged, RankState
from kfnb.job import Job
from kfnb.record import Record
from kfnb.spec import TrainSpec
from kfnb.views.feed import open_feed, subscriber
from kfnb.views.widget import JobWidget

subscriber.VISIBLE = 0  # a message for every batch of events
RANKS, FLUSHES, text = 4, 200, "x" * 200
batches = [
    Batch([LogLine(0, n % RANKS, n, text, time.time()) for n in range(flush * 100, flush * 100 + 100)], {"at": flush})
    for flush in range(FLUSHES)
]
began = [NodeStarted(0, 0, 1, RANKS, "3", "here", "0", 0.0), PhaseChanged(Phase.RUNNING, "", 0.0)]
began += [RankState(0, rank, "running", 1, None, 0.0) for rank in range(RANKS)]
started, measured = asyncio.Event(), []

async def sent():
    while feed.source.log.total > widget.total:
        await asyncio.sleep(0)

class Backend:
    name = "bench"

    async def record(self, id):
        facts = dict(created=0.0, owner="", host="", workdir="", bundle_sha256="", code="")
        return Record(id=id, spec=TrainSpec(), **facts)

    async def recent(self, id):
        return []

    async def events(self, id, cursor=None, *, follow=True):
        if not follow:
            yield Batch(began, {"at": 0})
            return
        await started.wait()
        before = time.process_time()
        for batch in batches:
            yield batch
            await sent()
        measured.append(time.process_time() - before)
        yield Batch([PhaseChanged(Phase.SUCCEEDED, "", 1.0)], {"at": -1})

class Widget(JobWidget):
    total = 0

    def _publish(self, header, buffers):
        super()._publish(header, buffers)
        if "log" in header:
            self.total = header["log"]["total"]
        if header["type"] == "batch" and header["n"] % 4 == 0:  # as the page would
            self._deliver({"type": "ack", "n": header["n"]})

job, lines = Job("bench-00000", Backend()), RANKS and 100 * FLUSHES
widget, feed = Widget(job), open_feed(job)
portal.loop().call_soon_threadsafe(widget._deliver, {"type": "hello", "client": "bench", "version": 1})
await asyncio.sleep(1)
portal.loop().call_soon_threadsafe(started.set)
await portal.wait(feed.wait())
await asyncio.sleep(0.5)
[seconds] = measured
"""


def measured(code: str) -> tuple[float, float]:
    """(microseconds of kernel CPU, bytes to the page) a line."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("KFNB_")}
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=env)
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=DEADLINE)
        asked = client.execute(code, store_history=False, user_expressions={"found": "[lines, seconds]"})
        size, deadline = 0, time.monotonic() + DEADLINE
        while True:
            message, received = _received(client, deadline)
            kind = message["header"]["msg_type"]
            if kind in ("stream", "comm_msg"):
                size += received
            ours = message["parent_header"].get("msg_id") == asked
            if ours and kind == "status" and message["content"]["execution_state"] == "idle":
                break
        reply = client.get_shell_msg(timeout=DEADLINE)["content"]
        if reply["status"] != "ok":
            raise SystemExit("\n".join(reply["traceback"]))
        lines, seconds = json.loads(reply["user_expressions"]["found"]["data"]["text/plain"])
        return seconds / lines * 1e6, size / lines
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _received(client: Any, deadline: float) -> tuple[dict[str, Any], int]:
    """The next message to the page, and its size as it travels."""
    socket = client.iopub_channel.socket
    if not socket.poll(max(deadline - time.monotonic(), 0) * 1000):
        raise SystemExit(f"the kernel has said nothing more for {DEADLINE:.0f} s")
    _, parts = client.session.feed_identities(socket.recv_multipart())
    return client.session.deserialize(parts), sum(map(len, parts))


def main() -> None:
    ours, ours_bytes = min(measured(OURS) for _ in range(RUNS))
    plain, plain_bytes = min(measured(PRINT) for _ in range(RUNS))
    output, output_bytes = measured(OUTPUT)
    beside = f"print {plain:.1f} us, Output.append_stdout {output:.0f} us"
    tell("kernel CPU of a line", f"{ours:.1f} us ({beside})", "at most 3 us", ours <= 3)
    beside = f"print {plain_bytes:.0f}, Output.append_stdout {output_bytes:,.0f}"
    tell("bytes of a line of 200", f"{ours_bytes:.0f} ({beside})", "at most 250", ours_bytes <= 250)


if __name__ == "__main__":
    main()
