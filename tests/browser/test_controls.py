"""What can be done with a job in its view while the cell waits, and after."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import kfnb
from tests.browser.cells import LOAD, Gate, cell, steps
from tests.browser.pages import DEADLINE, NotebookPage, expect
from tests.browser.servers import Server
from tests.waiting import wait_for


@pytest.mark.parametrize("kernel", ["answering", "stopped", "killed"])
def test_stop(kernel: str, notebook: NotebookPage, server: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "never")
    notebook.open(server.write("stop.ipynb", LOAD, steps("held", 3, gate, 1))).run(0).run(1)
    view = notebook.view().reach("Running")
    expect(view.line("rank 0 step 2")).to_be_visible(timeout=DEADLINE)
    pid = notebook.kernel_pid
    if kernel != "answering":
        os.kill(pid, signal.SIGSTOP if kernel == "stopped" else signal.SIGKILL)
    if kernel == "killed":
        notebook.page.get_by_role("dialog").get_by_role("button", name="Ok").click()
    try:
        view.button("Stop").click()
        view.reach("Stopped")
        notebook.take("stopped")
    finally:
        if kernel == "stopped":
            os.kill(pid, signal.SIGCONT)
    assert view.job.phase == "Stopped"
    if kernel != "killed":
        notebook.is_done(1)
        expect(notebook.cell(1)).to_contain_text("JobStopped")
        view = notebook.view()
    expect(view.button("Run again")).to_be_enabled()


def test_ranks_and_search(notebook: NotebookPage, server: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    code = steps("several", 20, gate, 10, "--nodes 2 --procs-per-node 2")
    notebook.open(server.write("search.ipynb", LOAD, code)).run(0).run(1)
    view = notebook.view().reach("Running")
    ranks = view.root.get_by_role("group", name="Ranks")
    chip = ranks.locator('button[data-rank="3"]')
    expect(chip).to_have_attribute("data-state", "running", timeout=DEADLINE)
    wait_for(lambda: len(list(view.job.logs())) == 80, timeout=60, what="all lines before the gate")

    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "true")
    expect(view.line("rank 3 step 19")).to_be_visible()
    expect(view.line("rank 1 step")).to_have_count(0)
    expect(view.search("STEP 1")).to_contain_text("11 matches")  # 1, 10 to 19; whatever the case
    notebook.take("one-rank")
    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "false")
    expect(view.search("step 1")).to_contain_text("44 matches")
    expect(view.search("no such thing")).to_contain_text("no matches")
    expect(view.search("step 29")).to_contain_text("no matches")

    gate.open()  # what is searched for is found as it comes
    expect(view.log.locator(".kf-matches")).to_contain_text("4 matches", timeout=DEADLINE)
    view.reach("Succeeded")
    notebook.is_done(1)
    expect(notebook.view().search("rank 2")).to_contain_text("30 matches")
    notebook.take("searched")


def test_scrolled_away_and_back(notebook: NotebookPage, server: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    tall = "from IPython.display import HTML; HTML('<div style=height:4000px>tall</div>')"
    notebook.open(server.write("scroll.ipynb", LOAD, steps("away", 5, gate, 5), tall)).run(0).run(1).run(2)
    view = notebook.view().reach("Running")
    expect(view.line("rank 0 step 4")).to_be_visible(timeout=DEADLINE)
    gate.open()
    notebook.cell(2).get_by_text("tall").wait_for(timeout=DEADLINE)
    notebook.page.locator(".jp-WindowedPanel-outer").first.evaluate("panel => { panel.scrollTop = panel.scrollHeight }")
    notebook.page.locator(".jp-WindowedPanel-outer").first.evaluate("panel => { panel.scrollTop = 0 }")
    expect(notebook.view().reach("Succeeded").line("rank 0 step 9")).to_be_visible()


def test_copy_as_script(notebook: NotebookPage, server: Server) -> None:
    notebook.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    code = cell("copied", "print('three times', 3 * number)", "--use number")
    notebook.open(server.write("script.ipynb", LOAD, "number = 14", code)).run(0).run(1).run(2)
    view = notebook.view().reach("Succeeded")
    view.button("Copy as script").click()
    expect(view.root).to_contain_text("Copied")
    notebook.take("copied")
    script = notebook.page.evaluate("navigator.clipboard.readText()")
    assert "print('three times', 3 * number)" in script
    assert "number = 14" in script
    compile(script, "script.py", "exec")


def test_run_again(notebook: NotebookPage, server: Server) -> None:
    notebook.open(server.write("again.ipynb", LOAD, cell("again", "print('here')"))).run(0).run(1)
    view = notebook.view().reach("Succeeded")
    first = view.id
    notebook.is_done(1)
    view.button("Run again").click()
    second = wait_for(
        lambda: next((job.id for job in kfnb.jobs() if job.name == "again" and job.id != first), None),
        timeout=60,
        what="the second job",
    )
    expect(view.root).to_have_attribute("aria-label", f"Job {second}", timeout=DEADLINE)
    view.reach("Succeeded")
    expect(view.line("here")).to_be_visible()
    notebook.take("again")
    notebook.page.get_by_role("button", name="previous:").click()
    expect(view.root).to_have_attribute("aria-label", f"Job {first}")
