"""A notebook in a real page, as somebody who sits before it uses it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kfnb
from tests.browser.servers import ROOT, Server
from tests.waiting import wait_for

# Test modules take it from here: without playwright they are skipped as they are collected.
expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Error, Locator, Page

#: Milliseconds until a page is there, a kernel has started, a job has come to its end: on a busy machine with 2 cores.
DEADLINE = 90_000

SCREENSHOTS = ROOT / "out" / "screenshots"

#: What JupyterLab and its own extensions say by themselves.
_NOT_OURS = re.compile(
    r"favicon|/api/(sessions|kernels|terminals|contents|workspaces|lsp)|/lsp/|lab/api/(settings|workspaces|translations)"
    r"|404 \(Not Found\) .*/kfnb/api/jobs/"  # asked whether there is such a job: there is none
    r"|Comm not found for comm id"  # of a widget that another page had
    r"|ERR_(CONNECTION_REFUSED|NETWORK_CHANGED|ABORTED)|Kernel: (dead|restarting)|WebSocket connection to .*/channels"
)
#: The stack of an exception that is JupyterLab's or Notebook's alone.
_ONLY_JUPYTER = re.compile(r"[^\n]*(\n +at (?:[^\n]*/static/(?:lab|notebook)/[^\n]*|async Promise.all[^\n]*))+\n*")


class View:
    """One job view. ``root`` is its section; Playwright's locators see through its shadow root."""

    def __init__(self, root: Locator) -> None:
        self.root, self.page = root, root.page

    @property
    def id(self) -> str:
        name = self.root.get_attribute("aria-label") or ""
        return name.removeprefix("Job ")

    @property
    def job(self) -> kfnb.Job:
        return kfnb.attach(self.id)

    def reach(self, *phases: str) -> View:
        """Wait until the view shows one of ``phases``."""
        expect(self.root).to_have_attribute("data-phase", re.compile(f"^({'|'.join(phases)})$"), timeout=DEADLINE)
        return self

    def button(self, name: str) -> Locator:
        return self.root.get_by_role("button", name=name, exact=True)

    @property
    def log(self) -> Locator:
        return self.root.get_by_role("region", name="Log", exact=True)

    @property
    def scroller(self) -> Locator:
        return self.log.locator(".kf-lines")

    def line(self, text: str) -> Locator:
        return self.log.locator(".kf-line .kf-text").filter(has_text=text)

    def search(self, text: str) -> Locator:
        """Search the log; returns what says how many matches there are."""
        self.log.get_by_role("searchbox", name="Search the log").fill(text)
        return self.log.locator(".kf-matches")

    def scroll_to(self, top: int | str) -> None:
        """Scroll the log to a pixel, or to its ``"end"``."""
        self.scroller.evaluate("(lines, top) => { lines.scrollTop = top === 'end' ? lines.scrollHeight : top }", top)

    def all_lines(self) -> dict[int, str]:
        """Every line by its index, as somebody reads them who scrolls from the first to the last."""
        found: dict[int, str] = {}
        self.scroll_to(0)
        self.log.locator('.kf-line[data-index="0"]').wait_for(timeout=DEADLINE)
        while True:
            top, more = self.scroller.evaluate(
                """async (lines) => {
                    await new Promise((seen) => requestAnimationFrame(() => requestAnimationFrame(seen)));
                    return [lines.scrollTop, lines.scrollTop + lines.clientHeight < lines.scrollHeight - 1];
                }"""
            )
            self.log.locator('.kf-line[data-kind="missing"]').first.wait_for(state="detached", timeout=DEADLINE)
            rows = self.scroller.evaluate(
                """(lines) => [...lines.querySelectorAll('.kf-line')].map(
                    (line) => [Number(line.dataset.index), line.querySelector('.kf-text')?.textContent ?? null])"""
            )
            for index, text in rows:
                assert found.setdefault(index, text) == text
            if not more:
                return found
            self.scroll_to(top + self.scroller.evaluate("(lines) => lines.clientHeight") // 2)

    def figure(self, tag: str) -> Locator:
        return self.root.locator(f'figure[data-tag="{tag}"]')

    def points(self, tag: str) -> int:
        return int(self.figure(tag).get_attribute("data-points") or 0)

    def more_points(self, tag: str, than: int) -> int:
        """Wait until the plot has more points ``than``; returns how many."""
        handle = self.figure(tag).element_handle(timeout=DEADLINE)
        self.page.wait_for_function(
            "([figure, than]) => Number(figure.dataset.points) > than", arg=[handle, than], timeout=DEADLINE
        )
        return self.points(tag)


class NotebookPage:
    """A page of a browser with one notebook; ``take`` makes the screenshot of a stage."""

    def __init__(self, page: Page, server: Server, test: str) -> None:
        self.page, self.server, self.problems = page, server, list[str]()
        self._shots, self._test = 0, re.sub(r"\W+", "-", test).strip("-")
        self._name = ""
        page.on("console", self._said)
        page.on("pageerror", self._failed)
        page.on("dialog", lambda dialog: dialog.accept())  # leaving a page with unsaved work

    def _said(self, message: ConsoleMessage) -> None:
        where = message.location.get("url", "")
        if message.type == "error" and not _NOT_OURS.search(f"{message.text} {where}"):
            self.problems.append(f"console: {message.text} ({where})")

    def _failed(self, error: Error) -> None:
        if not _ONLY_JUPYTER.fullmatch(error.stack or ""):
            self.problems.append(f"uncaught: {error.stack or error.message}")

    def take(self, stage: str, view: View | None = None) -> Path:
        """Keep a picture of the page; of ``view`` as much as there is room for."""
        if view is not None:
            view.root.evaluate("view => view.scrollIntoView({block: 'start'})")
        self._shots += 1
        path = SCREENSHOTS / f"{self._test}-{self._shots:02d}-{stage}.png"
        self.page.screenshot(path=path)
        return path

    def open(self, name: str, base: str = "lab/tree/") -> NotebookPage:
        """Open the notebook and wait until its kernel is idle."""
        self._name = name
        self.page.goto(self.server.address(base + name))
        return self.ready()

    def ready(self) -> NotebookPage:
        self.cells.first.wait_for(timeout=DEADLINE)
        wait_for(lambda: self.server.is_connected(self._name), timeout=DEADLINE / 1000, what="the page at its kernel")
        idle = self.page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]')
        idle.first.wait_for(state="attached", timeout=DEADLINE)  # a narrow page has no room to show it
        return self

    def reload(self) -> NotebookPage:
        self.page.reload()
        self.cells.first.wait_for(timeout=DEADLINE)
        return self

    @property
    def name(self) -> str:
        """Of the notebook."""
        return self._name

    @property
    def cells(self) -> Locator:
        return self.page.locator(".jp-Notebook .jp-CodeCell")

    def cell(self, number: int) -> Locator:
        return self.cells.nth(number)

    def run(self, number: int) -> NotebookPage:
        """Run the code cell ``number`` as Shift+Enter does."""
        self.cell(number).locator(".jp-InputArea-editor").click()
        self.page.keyboard.press("Shift+Enter")
        expect(self.cell(number).locator(".jp-InputPrompt")).to_contain_text(re.compile(r"[*\d]"))  # it was accepted
        return self

    def menu(self, *names: str) -> NotebookPage:
        """Choose from the menu bar."""
        menu, *items = names
        self.page.locator(".lm-MenuBar-item").filter(has_text=re.compile(f"^{menu}$")).click()
        for item in items:
            label = self.page.locator(".lm-Menu-itemLabel").filter(has_text=re.compile(f"^{re.escape(item)}"))
            label.first.click()
        return self

    def save(self) -> NotebookPage:
        """Save, and wait until the file is written."""
        with self.page.expect_response(
            lambda answer: answer.request.method == "PUT" and f"api/contents/{self._name}" in answer.url
        ):
            self.page.keyboard.press("Control+s")
        return self

    def theme(self, name: str) -> NotebookPage:
        self.page.evaluate("name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})", name)
        expect(self.page.locator("#jupyterlab-splash")).to_have_count(0)
        return self

    @property
    def kernel_pid(self) -> int:
        return self.server.kernel_pid(self._name)

    def view(self, number: int = 0) -> View:
        """The job view of the page, once it is there."""
        root = self.page.locator("section.kf-job").nth(number)
        root.wait_for(timeout=DEADLINE)
        return View(root)

    def is_done(self, number: int) -> NotebookPage:
        """Wait until the cell has ended: its prompt has a number again."""
        prompt = self.cell(number).locator(".jp-InputPrompt").filter(has_text=re.compile(r"\[\d+\]"))
        prompt.wait_for(timeout=DEADLINE)
        return self
