"""Light and dark, narrow and wide, and what a screen reader is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.cells import LOAD, Gate, cell, steps
from tests.browser.pages import DEADLINE, NotebookPage, View, expect
from tests.browser.servers import ROOT, Server

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"

WIDE = """
import kfnb_worker as kf
for step in range(200):
    kf.log(step, loss=1 / (1 + step), accuracy=step / 200)
    print("a line that is longer than a narrow page is wide, of step", step, flush=True)
"""


def barriers(view: View) -> list[str]:
    """What axe finds serious or critical in the view."""
    page = view.page
    if not page.evaluate("'axe' in window"):
        # added as a script of JupyterLab's page it would be taken for a module of its loader
        page.evaluate(AXE.read_text())
    found = view.root.evaluate("view => window.axe.run(view, {resultTypes: ['violations']})")
    assert found["passes"], "axe looked at nothing"
    return [
        f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def test_themes(notebook: NotebookPage, server: Server, tmp_path: Path) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci")
    gate = Gate(tmp_path / "gate")
    failing = cell("broken", "print('soon')\nraise ValueError('on purpose')", "--procs-per-node 2")
    code = steps("looked-at", 50, gate, 5, "--procs-per-node 4")
    notebook.open(server.write("looks.ipynb", LOAD, code, failing)).run(0).run(1)
    view = notebook.view().reach("Running")
    expect(view.line("step 49").first).to_be_visible(timeout=DEADLINE)
    for name, theme in (("JupyterLab Dark", "dark"), ("JupyterLab Light", "light")):
        notebook.theme(name)
        expect(view.root).to_have_attribute("data-theme", theme)
        notebook.take(f"{theme}-running", view)
        assert barriers(view) == []
    gate.open()
    view.reach("Succeeded")
    notebook.is_done(1).run(2)
    failed = View(notebook.cell(2).locator("section.kf-job")).reach("Failed")
    expect(failed.root.locator(".kf-failure")).to_contain_text("on purpose")
    for name, theme in (("JupyterLab Dark", "dark"), ("JupyterLab Light", "light")):
        notebook.theme(name)
        expect(failed.root).to_have_attribute("data-theme", theme)
        notebook.take(f"{theme}-failed", failed)
        assert barriers(failed) == []
        assert barriers(notebook.view()) == []


@pytest.mark.parametrize("width", [400, 2000])
def test_width(width: int, notebook: NotebookPage, server: Server) -> None:
    notebook.page.set_viewport_size({"width": width, "height": 1100})
    name = server.write("width.ipynb", LOAD, cell("wide", WIDE, "--procs-per-node 2"))
    notebook.open(name, base="doc/tree/").run(0).run(1)
    view = notebook.view().reach("Succeeded")
    notebook.is_done(1)
    expect(view.figure("accuracy")).to_have_attribute("data-points", "400")
    notebook.take("whole", view)
    assert view.root.evaluate("view => view.scrollWidth <= view.clientWidth"), "it is wider than its place"
    box, outer = view.root.bounding_box(), notebook.cell(1).bounding_box()
    assert box is not None
    assert outer is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= outer["x"] + outer["width"] + 1
