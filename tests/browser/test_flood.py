"""A cell that prints far more than a page can show."""

from __future__ import annotations

from pathlib import Path

from tests.browser.cells import LOAD, Gate, cell
from tests.browser.pages import DEADLINE, NotebookPage, expect
from tests.browser.servers import Server

LINES = 200_000
BODY = """
import os, sys, time
began = time.time()
for block in range(500):
    for line in range(block * LINES // 500, (block + 1) * LINES // 500):
        sys.stdout.write(f"line {line} {'x' * 80}\\n")
    sys.stdout.flush()
    time.sleep(max(0, began + (block + 1) / 100 - time.time()))
print("the last one", flush=True)
while not os.path.exists(GATE):
    time.sleep(0.02)
"""


def test_200_000_lines_in_5_seconds(notebook: NotebookPage, server: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    code = cell("flood", f"LINES, GATE = {LINES}, {str(gate.path)!r}\n{BODY}")
    notebook.open(server.write("flood.ipynb", LOAD, code)).run(0).run(1)
    view = notebook.view().reach("Running")
    follow = view.button("Follow")
    expect(view.line("line ").first).to_be_visible(timeout=DEADLINE)
    # what is pressed in the middle of it does what it is to do
    expect(follow).to_have_attribute("aria-pressed", "true")
    for pressed in ("false", "true", "false", "true"):
        follow.click()
        expect(follow).to_have_attribute("aria-pressed", pressed)
    notebook.take("flooded")
    notebook.page.get_by_role("menuitem", name="View").first.click()
    notebook.page.keyboard.press("Escape")
    expect(view.line("the last one")).to_be_visible(timeout=DEADLINE)
    notebook.take("last")

    view.scroll_to(0)
    expect(view.line("line 0 x")).to_be_visible(timeout=DEADLINE)
    expect(follow).to_have_attribute("aria-pressed", "false")
    notebook.take("first")
    expect(view.search("line 123456 ")).to_contain_text("1 match", timeout=DEADLINE)
    expect(view.line("line 123456 x")).to_be_visible(timeout=DEADLINE)
    assert view.log.locator(".kf-line").count() < 1_000
    gate.open()
    view.reach("Succeeded")
