"""A million scalars of TensorBoard event files, in both forms: to load them, and the thousand that come next.

Beside TensorBoard's two own readers, by turns, each in a fresh process and on the same files: EventAccumulator, and
tensorboard-data-server, whose figures hold its start and one request for all points. Each has the best of its rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._common import tell

POINTS, NEXT, TAGS, ROUNDS = 1_000_000, 1_000, 10, 3

# What each reader's process runs; it prints seconds to load, seconds for the next points, megabytes more.
COMMON = """
import json, os, sys, time
import psutil
def rss(pid=None):
    return psutil.Process(pid).memory_info().rss / 1e6
path, more, points, following, tags = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
def grow():
    with open(more, "rb") as source, open(path, "ab") as file:
        file.write(source.read())
def report(load, tail, memory):
    print(json.dumps([load, tail, memory]))
"""
OURS = """
from kfnb_worker.eventfile import EventFile
before, began = rss(), time.perf_counter()
file = EventFile(path)
columns = file.poll()
load, memory = time.perf_counter() - began, rss() - before
assert sum(len(steps) for steps, _, _ in columns.values()) == points
grow()
began = time.perf_counter()
news = file.poll()
tail = time.perf_counter() - began
assert sum(len(steps) for steps, _, _ in news.values()) == following
report(load, tail, memory)
"""
ACCUMULATOR = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
def count():
    found = accumulator.Tags()
    values = sum(len(accumulator.Scalars(tag)) for tag in found["scalars"])
    return values + sum(len(accumulator.Tensors(tag)) for tag in found["tensors"])
before, began = rss(), time.perf_counter()
accumulator = EventAccumulator(path, size_guidance={"scalars": 0, "tensors": 0})
accumulator.Reload()
load, memory = time.perf_counter() - began, rss() - before
assert count() == points, count()
grow()
began = time.perf_counter()
accumulator.Reload()
tail = time.perf_counter() - began
assert count() == points + following
report(load, tail, memory)
"""
SERVER = """
import threading
import grpc, tensorboard_data_server
from tensorboard.data import server_ingester
from tensorboard.data.proto import data_provider_pb2
from tensorboard.util import grpc_util
wanted = data_provider_pb2.ReadScalarsRequest()
wanted.plugin_filter.plugin_name = "scalars"
wanted.downsample.num_points = 1 << 30
pause = threading.Event()
def count():
    answer = ingester.data_provider._stub.ReadScalars(wanted)
    return sum(len(tag.data.step) for run in answer.runs for tag in run.tags)
def until(number):
    while count() < number:
        pause.wait(0.005)
before, began = rss(), time.perf_counter()
ingester = server_ingester.SubprocessServerDataIngester(
    server_binary=server_ingester.get_server_binary(), logdir=os.path.dirname(path), reload_interval=1,
    channel_creds_type=grpc_util.ChannelCredsType.LOCAL, samples_per_plugin={"scalars": 0},
)
ingester.start()
until(points)
load = time.perf_counter() - began
memory = rss() - before + sum(rss(child.pid) for child in psutil.Process().children())
grow()
began = time.perf_counter()
until(points + following)
tail = time.perf_counter() - began
report(load, tail, memory)
"""


def write(path: Path, first: int, points: int, tensors: bool, began: float = 1.7e9) -> None:
    """An event file as TensorBoard's writer makes it, with `points` scalars over `TAGS` tags, from `began` on."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.scalar.metadata import create_summary_metadata
    from tensorboard.summary.writer.record_writer import RecordWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    metadata = create_summary_metadata("", "")
    with path.open("wb") as file:
        writer = RecordWriter(file)
        if first == 0:
            writer.write(Event(wall_time=began, file_version="brain.Event:2").SerializeToString())
        for number in range(first, first + points):
            event = Event(wall_time=began + number / 1000, step=number // TAGS)
            value = event.summary.value.add(tag=f"train/metric_{number % TAGS}")
            if tensors:
                value.tensor.CopyFrom(make_tensor_proto(number / points, dtype="float32"))
                value.metadata.CopyFrom(metadata)
            else:
                value.simple_value = number / points
            writer.write(event.SerializeToString())


def measure(code: str, whole: bytes, more: Path) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.out.tfevents.1700000000.host.1.0"
        path.write_bytes(whole)
        argv = [sys.executable, "-c", COMMON + code, str(path), str(more), str(POINTS), str(NEXT), str(TAGS)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"{argv[2]}\n{done.stderr[-4000:]}")
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    readers = {"kfnb": OURS, "EventAccumulator": ACCUMULATOR, "data-server": SERVER}
    print(f"{POINTS} scalars of {TAGS} tags")
    print("form    reader             load events/s      x   next 1,000   memory more")
    for form, tensors in (("simple", False), ("tensor", True)):
        with tempfile.TemporaryDirectory() as folder:
            first, more = Path(folder) / "first", Path(folder) / "more"
            write(first, 0, POINTS, tensors)
            write(more, POINTS, NEXT, tensors)
            whole = first.read_bytes()
            rounds = [[measure(code, whole, more) for code in readers.values()] for _ in range(ROUNDS)]
        best = {
            name: [min(found) for found in zip(*turns, strict=True)]
            for name, turns in zip(readers, zip(*rounds, strict=True), strict=True)
        }
        slow = best["EventAccumulator"][0]
        for name, (load, tail, memory) in best.items():
            figures = f"{POINTS / load:12,.0f} {slow / load:6.1f} {1000 * tail:9.2f} ms {memory:10.0f} MB"
            print(f"{form}  {name:17} {figures}", flush=True)
        load, tail, memory = best["kfnb"]
        tell(f"{form} load", f"{slow / load:.1f} x", "12 x EventAccumulator", slow / load >= 12)
        tell(f"{form} next {NEXT}", f"{1000 * tail:.2f} ms", "under 2 ms", tail < 0.002)
        tell(f"{form} memory", f"{memory:.0f} MB more", "under 50 MB", memory < 50)


if __name__ == "__main__":
    main()
