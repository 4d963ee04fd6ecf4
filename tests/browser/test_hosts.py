"""The same view where kfnb has no part in the server, and in Notebook 7."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.browser.cells import LOAD, Gate, steps
from tests.browser.pages import DEADLINE, NotebookPage, expect
from tests.browser.servers import Server


@pytest.mark.parametrize("server", [pytest.param(("jupyterlab", False), id="lab")], indirect=True)
def test_without_the_extension(notebook: NotebookPage, server: Server, tmp_path: Path) -> None:
    """By the widget of the kernel alone."""
    gate = Gate(tmp_path / "gate")
    code = steps("comm", 20, gate, 100_000, "--procs-per-node 2")
    notebook.open(server.write("comm.ipynb", LOAD, code)).run(0).run(1)
    view = notebook.view().reach("Running")
    expect(view.line("step 19").first).to_be_visible(timeout=DEADLINE)
    expect(view.figure("loss")).to_have_attribute("data-points", "20")
    gate.open()
    view.more_points("loss", 25)
    expect(view.search("rank 1 step 7")).to_contain_text(re.compile(r"\d+ match"))
    notebook.take("running")
    view.button("Stop").click()
    notebook.is_done(1)
    expect(notebook.cell(1)).to_contain_text("JobStopped")
    expect(notebook.cell(1)).to_contain_text("Stopped")
    notebook.take("stopped")


@pytest.mark.parametrize("server", [pytest.param(("notebook", True), id="notebook")], indirect=True)
def test_notebook_7(notebook: NotebookPage, server: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    notebook.open(server.write("seven.ipynb", LOAD, steps("seven", 20, gate, 20)), base="notebooks/").run(0).run(1)
    view = notebook.view().reach("Running")
    expect(view.line("rank 0 step 19")).to_be_visible(timeout=DEADLINE)
    notebook.take("running")
    gate.open()
    view.more_points("loss", 20)
    notebook.view().reach("Succeeded")
    notebook.is_done(1)
    expect(notebook.view().line("rank 0 step 39")).to_be_visible()
    notebook.take("succeeded")
