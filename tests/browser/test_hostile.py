"""What a job prints, calls its series, or a notebook says of it, is text."""

from __future__ import annotations

import json

from tests.browser.cells import LOAD, cell
from tests.browser.pages import DEADLINE, NotebookPage, View, expect
from tests.browser.servers import Server

IMG = "<img src=x onerror=window.__pwned=1>"
BODY = rf"""
import kfnb_worker as kf
for step in range(3):
    kf.log(step, **{{{IMG!r}: step, "\x1b[31mred\x1b[0m": step, "<script>window.__pwned=1</script>": float("nan")}})
print({IMG!r})
print("\x1b[31mred\x1b[0m plain \x1b[2J\x1b[H\x1b]0;title\x07 after")
print("\x1b]8;;javascript:window.__pwned=1\x1b\\click me\x1b]8;;\x1b\\")
print("long " + "x" * 1_000_000 + " END")
print("\u202etxet desrever\u202c and \u0634\u0631\u062d")
print("\u2028<svg/onload=window.__pwned=1>\x00\x08\x7f")
print("the last one")
"""


def assert_text_only(view: View) -> None:
    assert view.page.evaluate("window.__pwned") is None
    found = view.root.evaluate(
        """(view) => {
            const root = view.getRootNode();
            const bad = root.querySelectorAll('a, img, script, iframe, object, embed, [onload], [onerror], [href]');
            return [root instanceof ShadowRoot, ...[...bad].map((element) => element.outerHTML)];
        }"""
    )
    assert found == [True]


def test_lines_and_tags(notebook: NotebookPage, server: Server) -> None:
    notebook.open(server.write("hostile.ipynb", LOAD, cell("hostile", BODY))).run(0).run(1)
    view = notebook.view().reach("Succeeded")
    notebook.is_done(1)
    expect(view.line("the last one")).to_be_visible(timeout=DEADLINE)
    expect(view.line(IMG)).to_be_visible()
    red = view.line("red plain")
    expect(red).to_contain_text("after")
    assert "\x1b" not in (red.text_content() or "")
    assert "title" not in (red.text_content() or "")
    link = view.line("click me").text_content() or ""
    assert "\x1b" not in link
    long = view.line("long xxx")
    expect(long).to_be_visible()
    assert len(long.text_content() or "") <= 2_001
    tags = view.root.locator("figure").evaluate_all("figures => figures.map((figure) => figure.dataset.tag)")
    assert IMG in tags
    expect(view.figure(IMG)).to_contain_text(IMG)
    notebook.take("text")
    assert_text_only(view)

    # the whole of a long line is there for who asks for it
    long.click()
    notebook.page.keyboard.press("Enter")
    detail = view.root.get_by_role("region", name="Line ")
    expect(detail).to_contain_text("1,000,009 characters", timeout=DEADLINE)
    assert len(detail.text_content() or "") > 50_000
    notebook.take("whole-line")
    assert_text_only(view)


def test_a_record_in_a_notebook(notebook: NotebookPage, server: Server) -> None:
    """A notebook from somebody else, whose output says that a job has such a name."""
    name = server.write("record.ipynb", "pass")
    content = server.read(name)
    record = {"id": f"{IMG}-12345", "version": 1, "options": {"name": IMG}, "notebook": IMG}
    data = {"application/vnd.kfnb.record+json": record, "text/html": "<b>static</b>", "text/plain": "static"}
    outputs = [{"output_type": "display_data", "metadata": {}, "data": data}]
    for id in ("../../api/status", "x" * 100_000, None, {"a": 1}):
        outputs.append(json.loads(json.dumps(outputs[0])))
        outputs[-1]["data"]["application/vnd.kfnb.record+json"]["id"] = id
    content["cells"][0].update(outputs=outputs, execution_count=1)
    server.put(name, json.dumps(content))
    server.trust(name)
    notebook.open(name)
    shown = notebook.cell(0).get_by_text("static", exact=True)
    expect(shown).to_have_count(len(outputs), timeout=DEADLINE)
    assert notebook.page.evaluate("window.__pwned") is None
    assert notebook.cell(0).locator("img").count() == 0
