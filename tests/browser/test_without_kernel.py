"""An executed notebook is opened by who has no kernel, no script, or no trust in it: the run can be read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kfnb
from tests.browser.cells import LOAD, cell
from tests.browser.pages import DEADLINE, SCREENSHOTS, NotebookPage, expect
from tests.browser.servers import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

BODY = """
import kfnb_worker as kf
for step in range(50):
    kf.log(step, loss=1 / (1 + step))
    print("step", step, flush=True)
"""


@pytest.fixture
def executed(notebook: NotebookPage, server: Server) -> str:
    """The notebook that was run and saved."""
    name = server.write("executed.ipynb", LOAD, cell("kept", BODY, "--procs-per-node 2"))
    notebook.open(name).run(0).run(1)
    notebook.view().reach("Succeeded")
    notebook.is_done(1).save()
    return name


def assert_readable(where: Locator) -> None:
    """The sentence, the log and the picture, as HTML of no script."""
    expect(where).to_contain_text("Succeeded", timeout=DEADLINE)
    expect(where).to_contain_text("step 49")
    picture = where.locator("img").first
    expect(picture).to_be_visible()
    assert picture.evaluate("picture => picture.naturalWidth") > 100


def test_as_a_page_without_scripts(executed: str, server: Server, browser: Browser, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "nbconvert", "--to", "html", "--output-dir", str(tmp_path)]
    subprocess.run([*argv, str(server.notebooks / executed)], check=True, capture_output=True, timeout=120)
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "executed.html").as_uri(), wait_until="domcontentloaded")
    assert_readable(page.locator(".jp-Cell").nth(1))
    page.screenshot(path=SCREENSHOTS / "nbconvert-without-scripts.png", full_page=True)
    context.close()


def without_kernelspec(server: Server, name: str, copy: str) -> str:
    """A copy that asks which kernel it is to have."""
    content = server.read(name)
    del content["metadata"]["kernelspec"], content["metadata"]["language_info"]
    return server.put(copy, json.dumps(content))


def choose_no_kernel(notebook: NotebookPage, name: str) -> None:
    notebook.page.goto(notebook.server.address(f"lab/tree/{name}"))
    dialog = notebook.page.locator(".jp-Dialog")
    dialog.wait_for(timeout=DEADLINE)
    notebook.take("which-kernel")
    dialog.get_by_role("combobox").select_option(label="No Kernel")
    dialog.get_by_role("button", name="Select").click()
    notebook.cells.first.wait_for(timeout=DEADLINE)


def test_trusted(executed: str, notebook: NotebookPage, server: Server) -> None:
    """The server still knows the job: the view is there, whole and interactive. Then it is deleted."""
    name = without_kernelspec(server, executed, "trusted.ipynb")
    server.trust(name)
    server.end_work()
    choose_no_kernel(notebook, name)
    view = notebook.view().reach("Succeeded")
    expect(view.line("step 49").first).to_be_visible()
    expect(view.search("step 1")).to_contain_text("22 matches")
    notebook.take("trusted")
    kfnb.attach("kept").delete()
    choose_no_kernel(notebook, name)
    assert_readable(notebook.cell(1))
    notebook.take("job-deleted")


def test_untrusted(executed: str, notebook: NotebookPage, server: Server) -> None:
    name = without_kernelspec(server, executed, "untrusted.ipynb")
    server.end_work()
    choose_no_kernel(notebook, name)
    assert_readable(notebook.cell(1))
    assert notebook.page.locator("section.kf-job").count() == 0
    notebook.take("untrusted")
