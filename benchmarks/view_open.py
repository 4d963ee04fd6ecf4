"""An ended job of a million points and a million lines opened in JupyterLab: until its first picture is drawn.

Beside TensorBoard on the same event files, from the start of its server, and from the navigation to one that has read
everything.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kfnb
from benchmarks._browser import DEADLINE, a_page, a_server, open_notebook
from benchmarks._common import median, tell
from benchmarks.eventfiles import TAGS

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.servers import Server

POINTS = LINES = 1_000_000
ROUNDS = 3
CODE = """\
import os, sys, time
import kfnb_worker as kf
sys.path.insert(0, {root!r})
from benchmarks.eventfiles import write
now, name = time.time(), os.uname().nodename
path = kf.logdir() / f"events.out.tfevents.{{int(now)}}.{{name}}.{{os.getpid()}}.0"
write(path, 0, {points}, tensors=False, began=now)
text = "x" * 180
for number in range({lines}):
    sys.stdout.write(f"line {{number}} {{text}}\\n")
"""

# From now: when the first picture is there (curves in a canvas, lines of the log), and when all of it is
LOOK = """
async ([notebook, points, lines]) => {
    const began = performance.now(), found = {};
    void window.jupyterapp.commands.execute('docmanager:open', {path: notebook});
    const drawn = (canvas) => {
        const {width, height} = canvas;
        return width > 0 && canvas.getContext('2d').getImageData(0, 0, width, height).data.some((value) => value > 0);
    };
    const views = () => [...document.querySelectorAll('.jp-OutputArea-output *')]
        .map((element) => element.shadowRoot?.querySelector('section.kf-job')).filter((view) => view);
    for (;;) {
        await new Promise(requestAnimationFrame);
        const [view] = views();
        const now = performance.now() - began;
        if (now > 120000) throw new Error('it was never whole: ' + JSON.stringify(found));
        if (!view) continue;
        found.view ??= now;
        const figures = [...view.querySelectorAll('figure[data-tag]')];
        const row = view.querySelector('.kf-line[data-kind="stdout"] .kf-text')?.textContent;
        if (found.first === undefined && row && figures.some((figure) => {
            const canvas = figure.querySelector('canvas');
            return Number(figure.dataset.points) > 0 && canvas && drawn(canvas);
        })) found.first = performance.now() - began;
        const total = Number(/([\\d,]+) lines/.exec(view.querySelector('[aria-label="Log"]')?.textContent)?.[1]
            .replaceAll(',', ''));
        if (found.first !== undefined && total >= lines && figures.length > 0
            && figures.every((figure) => Number(figure.dataset.points) === points)
            && !view.textContent.includes('Reading the log')) return {...found, whole: performance.now() - began};
    }
}
"""
CHARTS = """
() => {
    const found = (root) => [...root.querySelectorAll('*')].some(
        (element) => element.localName === 'line-chart' && element.querySelector('canvas, path')
            || (element.shadowRoot && found(element.shadowRoot)));
    return found(document);
}
"""


def make_job() -> kfnb.Job:
    root = str(Path(__file__).parents[1])
    return kfnb.train(CODE.format(root=root, points=POINTS, lines=LINES), name="large", framework="python")


def notebook_of(server: Server, job: str, name: str) -> str:
    """A notebook whose output is the job's, as it was saved."""
    server.write(name, "pass")
    content = server.read(name)
    record = {"version": 1, "id": job, "options": {"name": "large"}}
    data = {"application/vnd.kfnb.record+json": record, "text/plain": job}
    content["cells"][0]["outputs"] = [{"output_type": "display_data", "metadata": {}, "data": data}]
    server.put(name, json.dumps(content))
    server.trust(name)
    return name


def ours(job: kfnb.Job, server: Server, page: Page) -> dict[str, float]:
    name = notebook_of(server, job.id, "large.ipynb")
    open_notebook(page, server, server.write("empty.ipynb", "pass"))
    found: dict[str, float] = page.evaluate(LOOK, [name, POINTS // TAGS, LINES])
    return found


def loaded(address: str, points: int) -> None:
    """Wait until TensorBoard has read the last step."""
    pause, wanted = threading.Event(), f"{address}data/plugin/timeseries/timeSeries"
    requests = json.dumps([{"plugin": "scalars", "tag": f"train/metric_{TAGS - 1}"}])
    body = f'--x\r\nContent-Disposition: form-data; name="requests"\r\n\r\n{requests}\r\n--x--\r\n'.encode()
    while True:
        request = urllib.request.Request(wanted, data=body, headers={"Content-Type": "multipart/form-data; boundary=x"})
        with urllib.request.urlopen(request) as answer:
            [series] = json.loads(answer.read())
        runs: dict[str, Any] = series.get("runToSeries") or {}
        if any(values[-1]["step"] >= points - 1 for values in runs.values()):
            return
        pause.wait(0.05)


def tensorboard(logdir: str, page: Page) -> dict[str, float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/"
    argv = [sys.executable, "-m", "tensorboard.main", "--logdir", logdir, "--host", "127.0.0.1", "--port", str(port)]
    began, pause = time.monotonic(), threading.Event()
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                try:
                    urllib.request.urlopen(address).close()
                    break
                except urllib.error.URLError:
                    pause.wait(0.02)
            page.goto(f"{address}#timeseries")
            page.wait_for_function(CHARTS, timeout=DEADLINE)
            cold = time.monotonic() - began
            loaded(address, POINTS // TAGS)
            whole = time.monotonic() - began
            page.goto("about:blank")
            again = time.monotonic()
            page.goto(f"{address}#timeseries")
            page.wait_for_function(CHARTS, timeout=DEADLINE)
            return {"cold": cold, "whole": whole, "warm": time.monotonic() - again}
        finally:
            process.terminate()


def show(who: str, what: str, rounds: list[float]) -> None:
    print(f"{who:12} {what:44} {median(rounds):6.2f} s   {min(rounds):.2f} to {max(rounds):.2f}", flush=True)


def main() -> None:
    ours_found, theirs_found = [], []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        home = folder / "home"
        os.environ["KFNB_HOME"] = str(home)
        began = time.monotonic()
        job = make_job()
        print(f"{POINTS} points, {LINES} lines: made in {time.monotonic() - began:.0f} s", flush=True)
        for turn in range(ROUNDS):
            # a server of its own each time: one that was there would have the job read already
            with a_server(folder / f"server{turn}", home=home) as server, a_page() as page:
                ours_found.append(ours(job, server, page))
            with a_page() as page:
                theirs_found.append(tensorboard(str(home / "jobs" / job.id / "logdir"), page))
    for what, name in (
        ("the view is there", "view"),
        ("first picture: curves and log lines", "first"),
        ("all points and lines", "whole"),
    ):
        show("kfnb", what, [found[name] / 1000 for found in ours_found])
    for what, name in (
        ("from its start to the charts", "cold"),
        ("from its start until all is read", "whole"),
        ("all read: from navigation to the charts", "warm"),
    ):
        show("TensorBoard", what, [found[name] for found in theirs_found])
    first, cold = median([found["first"] / 1000 for found in ours_found]), median([f["cold"] for f in theirs_found])
    tell("an ended job opened", f"{first:.2f} s, TensorBoard {cold:.2f} s", "first picture under 1 s", first < 1)


if __name__ == "__main__":
    main()
