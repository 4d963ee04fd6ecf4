"""Jupyter servers, a browser and pages: what somebody sees is tested, and out/screenshots shows it at each stage.

They are skipped where there is no browser: $KFNB_TEST_BROWSER, else /usr/bin/chromium, else chromium on the PATH.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import servers
from tests.browser.servers import Server
from tests.processes import processes_of
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

    from tests.browser.pages import NotebookPage

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.browser)
            # one server and one browser for all that can share them
            item.add_marker(pytest.mark.xdist_group("browser"))


def _executable() -> str:
    if find_spec("playwright") is None:
        pytest.skip("playwright is not installed")
    named = os.environ.get("KFNB_TEST_BROWSER")
    if named:
        if shutil.which(named) is None:
            pytest.fail(f"KFNB_TEST_BROWSER={named}: there is no such program")
        return named
    found = shutil.which("/usr/bin/chromium") or shutil.which("chromium")
    if found is None:
        pytest.skip("there is no browser: KFNB_TEST_BROWSER is not set, and chromium is not on the PATH")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For a module: Playwright's event loop must be gone before tests that have one of their own."""
    executable = _executable()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=servers.options_of())
        yield started
        started.close()


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Starts a server, or gives the one that was started so before."""
    started: dict[tuple[str, bool], Server] = {}

    def start(app: str = "jupyterlab", *, extended: bool = True) -> Server:
        why = servers.missing() or (f"{app} is not installed" if find_spec(app) is None else "")
        if why:
            pytest.skip(why)
        if (app, extended) not in started:
            started[app, extended] = Server(tmp_path_factory.mktemp(app) / "s", app, extended=extended)
        return started[app, extended]

    yield start
    for server in started.values():
        server.close()
        wait_for(lambda home=server.home: not processes_of(home), timeout=30, what="the server's processes to end")


@pytest.fixture
def server(start_server: Callable[..., Server], request: pytest.FixtureRequest) -> Server:
    """JupyterLab; another one by ``@pytest.mark.parametrize("server", [("notebook", True)], indirect=True)``."""
    app, extended = getattr(request, "param", ("jupyterlab", True))
    return start_server(app, extended=extended)


@pytest.fixture(autouse=True)
def work(server: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test's jobs are those of the server; none of them, and no kernel, is left."""
    monkeypatch.setenv("KFNB_HOME", str(server.home))
    yield
    server.end_work()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    made.set_default_timeout(30_000)
    yield made
    made.close()


@pytest.fixture
def notebook(context: BrowserContext, server: Server, request: pytest.FixtureRequest) -> Iterator[NotebookPage]:
    """A page for a notebook. Fails a test in which the page said an error, and shows how it looked in the end."""
    from tests.browser.pages import SCREENSHOTS, NotebookPage

    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page = NotebookPage(context.new_page(), server, request.node.name.removeprefix("test_"))
    yield page
    page.take("end")
    if page.problems:
        pytest.fail("\n".join(["the page said:", *page.problems]), pytrace=False)
