"""The quickstart as somebody runs it who opens it for the first time."""

from __future__ import annotations

import json

from tests.browser.pages import DEADLINE, NotebookPage, expect
from tests.browser.servers import ROOT, Server

QUICKSTART = ROOT / "notebooks" / "quickstart.ipynb"
EPOCHS = 60


def quickstart() -> str:
    """As it is in the repository, without its outputs, and with epochs enough to look on."""
    notebook = json.loads(QUICKSTART.read_text())
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
            cell["source"] = [line.replace("epochs = 10", f"epochs = {EPOCHS}") for line in cell["source"]]
    return json.dumps(notebook)


def test_run_all(notebook: NotebookPage, server: Server) -> None:
    notebook.open(server.put("quickstart.ipynb", quickstart()))
    notebook.take("before")
    notebook.menu("Run", "Run All Cells")
    view = notebook.view().reach("Running")
    seen = view.more_points("loss/train", 0)
    expect(view.root.get_by_role("progressbar").first).to_be_visible()
    notebook.take("running", view)
    view.more_points("loss/train", seen)

    view.reach("Succeeded")
    expect(view.figure("accuracy/test")).to_have_attribute("data-points", str(EPOCHS), timeout=DEADLINE)
    notebook.take("succeeded", view)
    assert view.root.get_by_role("group", name="Ranks").get_by_role("button").count() == 4

    # the cell has ended, and the view goes on answering
    expect(notebook.page.get_by_text("test accuracy 0.9").first).to_be_visible(timeout=DEADLINE)
    lines = [line.text for line in view.job.logs()]
    expect(view.search("epoch 1")).to_contain_text(f"{sum('epoch 1' in line for line in lines)} match")
    expect(view.line("epoch 1:")).to_be_visible()
    expect(view.line("epoch 2:")).to_have_count(0)
    notebook.take("searched")

    saved = server.read(notebook.save().name)
    [train] = [c for c in saved["cells"] if "".join(c["source"]).startswith("%%kftrain")]
    kinds = [output.get("data", {}).keys() for output in train["outputs"]]
    whole = {"application/vnd.kfnb.record+json", "text/html", "image/png", "text/plain"}
    assert whole in kinds
