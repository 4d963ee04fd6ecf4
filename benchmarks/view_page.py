"""64 ranks of 20 lines/s and 20 tags of 10 points/s in a real page: how busy page, kernel and server are.

Once by the server's WebSocket and once by the kernel's widget. The ranks are plain Python, so that they leave the
machine to what is measured.
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks._browser import DEADLINE, a_page, a_server, open_notebook, run_cell
from benchmarks._common import tell

if TYPE_CHECKING:
    from playwright.sync_api import Locator

RANKS, LINES, TAGS, POINTS = 64, 20, 20, 10  # lines and points a second
SECONDS = 30
CELL = f"""\
%%kftrain busy --framework python --procs-per-node {RANKS}
import time
import kfnb_worker as kf
began, text, n = time.time(), "x" * 150, 0
while True:
    print(n, text, flush=True)
    if kf.rank() == 0 and n % {LINES // POINTS} == 0:
        kf.log(n, **{{f"tag{{tag:02d}}": (n * (tag + 1)) % 97 for tag in range({TAGS})}})
    n += 1
    time.sleep(max(0.0, began + n / {LINES} - time.time()))
"""

# Long tasks, and how late the page comes to a click and to the frame after it
WATCH = """
window.watched = {tasks: [], delays: [], frames: []};
new PerformanceObserver((list) => {
    for (const task of list.getEntries()) window.watched.tasks.push([task.startTime, task.duration]);
}).observe({type: 'longtask'});
addEventListener('pointerdown', (event) => {
    const pressed = event.timeStamp;
    window.watched.delays.push(performance.now() - pressed);
    requestAnimationFrame(() => window.watched.frames.push(performance.now() - pressed));
}, {capture: true});
"""


class Share:
    """A process's own share of a core since this was made."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._began, self._before = time.monotonic(), self._used()

    def _used(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def percent(self) -> float:
        return 100 * (self._used() - self._before) / (time.monotonic() - self._began)


def seen(view: Locator) -> tuple[int, int]:
    """The lines and the points of one series that the page knows of."""
    lines = re.sub(r"\D", "", view.locator(".kf-matches").inner_text())
    return int(lines), int(view.locator("figure[data-tag=tag00]").get_attribute("data-points") or 0)


def measure(folder: Path, *, extended: bool) -> None:
    carrier = "server" if extended else "widget"
    with a_server(folder, extended=extended) as server, a_page() as page:
        page.add_init_script(WATCH)
        name = server.write("busy.ipynb", "%load_ext kfnb", CELL)
        open_notebook(page, server, name)
        run_cell(page, 0)
        run_cell(page, 1)
        view = page.locator("section.kf-job")
        view.wait_for(timeout=DEADLINE)
        view.locator('button[data-rank="63"][data-state="running"]').wait_for(timeout=DEADLINE)
        view.get_by_role("button", name=f"Show all {TAGS}").click(timeout=DEADLINE)
        view.locator(f'figure[data-tag="tag{TAGS - 1}"]').wait_for(state="attached", timeout=DEADLINE)
        view.scroll_into_view_if_needed()
        pause = threading.Event()
        pause.wait(5)  # the page has laid out what there is
        shares = {"kernel": Share(server.kernel_pid(name)), "server": Share(server.process.pid)}
        before, since = seen(view), page.evaluate("performance.now()")
        page.evaluate("window.watched.delays.length = window.watched.frames.length = 0")
        follow = view.get_by_role("button", name="Follow", exact=True)
        for _ in range(SECONDS):
            follow.click()
            pause.wait(1)
        came = [after - first for first, after in zip(before, seen(view), strict=True)]
        used = {who: share.percent() for who, share in shares.items()}
        watched = page.evaluate("window.watched")
        view.get_by_role("button", name="Stop", exact=True).click()
    print(f"{carrier}: {came[0]} lines and {TAGS} x {came[1]} points came in {SECONDS} s", flush=True)
    if came[0] < 0.9 * RANKS * LINES * SECONDS or came[1] < 0.9 * POINTS * SECONDS:
        sys.exit("the page, or the ranks, did not keep up")
    if not watched["tasks"]:
        sys.exit("the page said of no long task, not even of those in which it was loaded")
    tasks = [duration for start, duration in watched["tasks"] if start >= since]
    longest, delay, frame = max(tasks, default=0.0), max(watched["delays"]), max(watched["frames"])
    tasks_said = f"{longest:.0f} ms, {len(tasks)} over 50 ms in {SECONDS} s" if tasks else f"none in {SECONDS} s"
    tell(f"{carrier}: long tasks of the page", tasks_said, "none over 50 ms", longest <= 50)
    said = f"{delay:.0f} ms, to the next frame {frame:.0f} ms, the longest of {len(watched['delays'])}"
    tell(f"{carrier}: input delay", said, "under 100 ms", frame < 100)
    tell(f"{carrier}: kernel, CPU", f"{used['kernel']:.1f}% of a core", "under 15%", used["kernel"] < 15)
    # the kernel's share and the server's are one feed's each: none may cost more than the other's limit
    tell(f"{carrier}: Jupyter server, CPU", f"{used['server']:.1f}% of a core", "under 15%", used["server"] < 15)


def main() -> None:
    print(f"{RANKS} ranks x {LINES} lines/s, {TAGS} tags x {POINTS} points/s")
    with tempfile.TemporaryDirectory() as folder:
        for extended in (True, False):
            measure(Path(folder) / str(extended), extended=extended)


if __name__ == "__main__":
    main()
