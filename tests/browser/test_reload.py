"""The page is only a page: the job and its log are whole again after whatever has become of it, and of the kernel."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.browser.cells import LOAD, Gate, steps
from tests.browser.pages import DEADLINE, NotebookPage, View, expect
from tests.browser.servers import Server
from tests.waiting import wait_for

FIRST, THEN = 300, 200


def assert_whole(view: View) -> None:
    """Every line once and in order, and every point."""
    printed = [line.text for line in view.job.logs()]
    assert len(printed) == FIRST + THEN
    assert [text for text in view.all_lines().values() if text in set(printed)] == printed
    expect(view.figure("loss")).to_have_attribute("data-points", str(FIRST + THEN))


def test_mid_run(notebook: NotebookPage, server: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    notebook.open(server.write("reload.ipynb", LOAD, steps("reloaded", FIRST, gate, THEN))).run(0).run(1)
    view = notebook.view().reach("Running")
    expect(view.line(f"step {FIRST - 1}")).to_be_visible(timeout=DEADLINE)
    notebook.save().reload()
    view = notebook.view().reach("Running")
    expect(view.line(f"step {FIRST - 1}")).to_be_visible(timeout=DEADLINE)
    notebook.take("reloaded")
    gate.open()
    view.more_points("loss", FIRST)
    view.reach("Succeeded")
    assert_whole(notebook.view())


def test_after_the_server_was_killed(notebook: NotebookPage, server: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    notebook.open(server.write("away.ipynb", LOAD, steps("away", FIRST, gate, THEN))).run(0).run(1)
    view = notebook.view().reach("Running")
    expect(view.line(f"step {FIRST - 1}")).to_be_visible(timeout=DEADLINE)
    server.kill()
    expect(view.root).to_have_attribute("data-status", "lost", timeout=DEADLINE)
    expect(view.root).to_contain_text("Connection lost")
    notebook.take("away", view)
    server.start()
    expect(view.root).to_have_attribute("data-status", "open", timeout=DEADLINE)
    gate.open()
    view.more_points("loss", FIRST)
    view.reach("Succeeded")
    assert_whole(view)
    notebook.problems.clear()  # that the server was away


def test_after_the_kernel_was_killed(notebook: NotebookPage, server: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    cells = [LOAD, steps("killed", FIRST, gate, THEN), f"{LOAD}\n%kfattach killed"]
    notebook.open(server.write("killed.ipynb", *cells)).run(0).run(1)
    view = notebook.view().reach("Running")
    expect(view.line(f"step {FIRST - 1}")).to_be_visible(timeout=DEADLINE)
    notebook.save()
    old = notebook.kernel_pid
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: notebook.kernel_pid not in (0, old), timeout=60, what="another kernel")
    notebook.reload().ready()
    view = notebook.view().reach("Running")
    expect(view.line(f"step {FIRST - 1}")).to_be_visible(timeout=DEADLINE)
    notebook.take("kernel-gone")

    notebook.run(2)
    attached = View(notebook.cell(2).locator("section.kf-job"))
    attached.root.wait_for(timeout=DEADLINE)
    attached.reach("Running")
    gate.open()
    attached.reach("Succeeded")
    notebook.is_done(2).take("reattached")
    assert_whole(attached)
    view.root.scroll_into_view_if_needed()  # until it is seen a view does not draw
    assert_whole(view.reach("Succeeded"))
