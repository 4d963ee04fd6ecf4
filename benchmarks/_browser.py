"""A Chromium and a Jupyter server for what is measured in a page."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser.servers import Server, missing, options_of
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

DEADLINE = 120_000  # ms


@contextlib.contextmanager
def a_page() -> Iterator[Page]:
    from playwright.sync_api import sync_playwright

    program = os.environ.get("KFNB_TEST_BROWSER") or shutil.which("/usr/bin/chromium") or shutil.which("chromium")
    if program is None:
        sys.exit("there is no browser: set KFNB_TEST_BROWSER, or install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=options_of())
        yield browser.new_page(viewport={"width": 1400, "height": 1000})
        browser.close()


@contextlib.contextmanager
def a_server(folder: Path, *, extended: bool = True, home: Path | None = None) -> Iterator[Server]:
    """JupyterLab, whose jobs are those of this process as well; ``extended``: with kfnb's server part and extension."""
    if why := missing():
        sys.exit(why)
    server = Server(folder, extended=extended, home=home)
    before = os.environ.get("KFNB_HOME")
    os.environ["KFNB_HOME"] = str(server.home)
    try:
        yield server
        server.end_work()
    finally:
        server.close()
        if before is None:
            del os.environ["KFNB_HOME"]
        else:
            os.environ["KFNB_HOME"] = before


def open_notebook(page: Page, server: Server, name: str) -> None:
    """Open it in JupyterLab and wait until its kernel waits for work."""
    page.goto(server.address(f"lab/tree/{name}"))
    wait_for(lambda: server.is_connected(name), timeout=DEADLINE / 1000, what="the page at its kernel")
    page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').first.wait_for(timeout=DEADLINE)


def run_cell(page: Page, number: int) -> None:
    page.locator(".jp-Notebook .jp-CodeCell").nth(number).locator(".jp-InputArea-editor").click()
    page.keyboard.press("Shift+Enter")
