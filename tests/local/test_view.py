"""The live view of a cell, at the end of its comm where a page is, and what stays in the notebook when it has ended."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import ipykernel
import nbformat
import pytest
from nbclient import NotebookClient

import kfnb
from kfnb.views.notebook import RECORD_TYPE
from tests.local.kernels import ROOT, Cell, Kernel
from tests.local.pages import VIEW_TYPE, Page

pytestmark = [
    pytest.mark.xdist_group("view"),
    pytest.mark.skipif(not (ROOT / "kfnb/views/static/jobview.js").exists(), reason="the view is not built"),
]
answering = pytest.mark.skipif(ipykernel.version_info < (7,), reason="ipykernel 6 holds back messages from a cell")

#: Prints ten lines, of which the last five come once the file is there.
WAITS = """
import os, time
import kfnb_worker as kf
for index in range(10):
    while index == 5 and not os.path.exists({go!r}):
        time.sleep(0.05)
    print("line", index, flush=True)
    kf.log(index, loss=1 / (index + 1))
answer = 42
"""

#: The flag of a line that nobody printed: what happened to the job.
NOTE = 8

LINES = [f"[0] line {index}" for index in range(10)]


def waits(name: str, go: Path, options: str = "--out answer") -> str:
    return f"%%kftrain {name} --framework python {options}" + WAITS.format(go=str(go))


def data_of(cell: Cell) -> dict[str, Any]:
    """The only display's data."""
    [data] = cell.displays.values()
    return data


def assert_static(cell: Cell) -> None:
    """The output is one that needs no kernel and no script."""
    data = data_of(cell)
    assert set(data) == {RECORD_TYPE, "text/html", "image/png", "text/plain"}
    png = base64.b64decode(data["image/png"])
    assert png.startswith(b"\x89PNG")
    assert f'<img src="data:image/png;base64,{base64.b64encode(png).decode()}"' in data["text/html"]
    assert cell.log() == LINES


@answering
def test_a_page_follows_the_job_while_the_cell_waits(kernel: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = kernel.start(waits("seen", go))
    page = Page(kernel, cell)
    data = data_of(cell)
    assert set(data) == {RECORD_TYPE, VIEW_TYPE, "text/html", "text/plain"}
    assert (data[RECORD_TYPE]["version"], data[RECORD_TYPE]["id"]) == (1, page.state["job_id"])
    assert page.heard() == []  # nothing is sent to a page that has not asked
    page.hello()
    kernel.until(lambda: page.head().get("lines") == 5, "the first lines")
    reply, _ = page.call("script")
    assert reply["result"]["filename"] == "seen.py"
    assert "#     kfnb train seen.py --framework python --out answer" in reply["result"]["text"]
    updates = cell.updates
    assert f"To see it: %kfattach {page.state['job_id']}" in data["text/plain"]  # if it is saved so
    go.touch()
    kernel.finish(cell)
    assert cell.status == "ok"
    assert cell.updates == updates + 1  # a page that shows the job is left alone until the end
    numbers = [header["n"] for header, _ in page.heard("batch")]
    assert numbers == sorted(set(numbers))
    assert_static(cell)
    kernel.until(lambda: page.closed, "the view to be closed")
    kernel.ok("assert answer == 42")


@answering
def test_two_pages_share_a_view(kernel: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = kernel.start(waits("shared", go))
    pages = [Page(kernel, cell, client) for client in ("a", "b")]
    assert [page.hello()["to"] for page in pages] == ["a", "b"]
    go.touch()
    kernel.finish(cell)
    assert_static(cell)


@answering
def test_the_page_can_stop_the_job(kernel: Kernel, tmp_path: Path) -> None:
    cell = kernel.start(waits("stopped", tmp_path / "never"))
    page = Page(kernel, cell)
    page.hello()
    kernel.until(lambda: page.head().get("lines") == 5, "the first lines")
    reply, _ = page.call("stop")
    assert reply["ok"], reply
    kernel.finish(cell)
    assert cell.error is not None
    assert cell.error["ename"] == "JobStopped"
    assert "Stopped" in cell.shown
    assert VIEW_TYPE not in data_of(cell)


@answering
def test_a_page_that_sends_nonsense_does_no_harm(kernel: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = kernel.start(waits("nonsense", go))
    page = Page(kernel, cell)
    for message in ({}, {"type": "x"}, {"type": "call"}, {"type": "hello"}, {"type": ["ack"]}, None, 3, "hello", [1]):
        page.send(message)  # type: ignore[arg-type]
    assert page.hello()["head"]["id"] == page.state["job_id"]
    go.touch()
    assert kernel.finish(cell).status == "ok"


def test_where_no_page_asks_the_static_form_is_renewed(kernel: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = kernel.start(waits("unseen", go))
    kernel.until(lambda: cell.displays and len(cell.log()) == 5, "the first lines")
    data = data_of(cell)
    assert RECORD_TYPE in data
    assert "line 4" in data["text/html"]
    assert (VIEW_TYPE in data) == (ipykernel.version_info >= (7,))
    go.touch()
    kernel.finish(cell)
    assert_static(cell)


def test_after_an_interrupt_the_view_goes_on_to_the_end(kernel: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = kernel.start(waits("left", go))
    kernel.until(lambda: cell.displays and len(cell.log()) == 5, "the first lines")
    kernel.manager.interrupt_kernel()
    kernel.finish(cell)
    assert "Detached" in cell.shown
    if ipykernel.version_info >= (7,):
        page = Page(kernel, cell)
        page.hello()
        go.touch()
        kernel.until(lambda: page.head().get("phase") == "Succeeded", "the page to see the end")
        kernel.until(lambda: VIEW_TYPE not in data_of(cell), "the form that stays")
        assert_static(cell)
        assert "Detached" not in cell.shown
    go.touch()
    kernel.ok("%kfattach left")


def test_detached_it_is_shown_too(kernel: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = kernel.ok(waits("detached", go, "--detach"))
    assert "%kfattach" in cell.text
    page = Page(kernel, cell)
    page.hello()
    kernel.until(lambda: page.head().get("lines") == 5, "the first lines")
    go.touch()
    kernel.until(lambda: VIEW_TYPE not in data_of(cell), "the form that stays")
    assert_static(cell)
    assert kernel.ok("1 + 1").results == [{"text/plain": "2"}]


def test_show_needs_no_waiting(kernel: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    kernel.ok(waits("shown", go, "--detach"))
    running = kernel.ok("import kfnb\nkfnb.show('shown')")
    assert running.results == []
    page = Page(kernel, running)
    page.hello()
    go.touch()
    kernel.until(lambda: VIEW_TYPE not in data_of(running), "the form that stays")
    assert_static(running)
    ended = kernel.ok("kfnb.show(kfnb.attach('shown'))")
    page = Page(kernel, ended)
    assert page.hello()["head"]["phase"] == "Succeeded"
    assert set(data_of(ended)) == {RECORD_TYPE, VIEW_TYPE, "text/html", "image/png", "text/plain"}
    assert ended.log() == LINES
    missing = kernel.run("kfnb.show('nobody')")
    assert missing.error is not None
    assert missing.error["ename"] == "NotFound"


def test_a_page_sees_the_job_that_repeats_this_one_too(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    kernel.ok(waits("twice", tmp_path / "go"))
    shown = kernel.ok("import kfnb\nkfnb.show('twice')")
    page = Page(kernel, shown)
    page.hello()
    reply, _ = page.call("again")
    again = Page(kernel, shown, "page-2", job=reply["result"]["id"])
    assert again.hello()["head"]["id"] == reply["result"]["id"] != page.state["job_id"]
    kernel.until(lambda: again.head()["phase"] == "Succeeded", "the repeated job to end")
    again.send({"type": "bye", "client": "page-2", "job": reply["result"]["id"]})
    for nonsense in ("../twice", 3, ["a"], {}, None):
        page.send({"type": "hello", "client": "page-1", "version": 1, "job": nonsense})
    assert page.hello()["head"]["id"] == page.state["job_id"]


@answering
def test_after_kill_9_another_kernels_page_sees_all(start_kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = start_kernel()
    cell = first.start(waits("orphan", go))
    page = Page(first, cell)
    page.hello()
    first.until(lambda: page.head().get("lines") == 5, "the first lines")
    os.kill(first.pid, signal.SIGKILL)
    second = start_kernel()
    attached = second.start("%kfattach orphan")
    page = Page(second, attached)
    page.hello()
    second.until(lambda: page.head().get("lines") == 5, "the lines so far")
    reply, buffers = page.call("lines", first=0, count=100)
    assert reply["ok"], reply
    told = zip(buffers[0].decode().split("\n"), buffers[3], strict=True)
    assert [text for text, flags in told if not flags & NOTE] == [f"line {index}" for index in range(5)]
    go.touch()
    second.finish(attached)
    assert attached.status == "ok"
    assert_static(attached)


def test_an_unattended_notebook_has_no_widget(start_kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    kernel = start_kernel(attended=False)
    (tmp_path / "go").touch()
    cell = kernel.ok(waits("batch", tmp_path / "go"))
    assert_static(cell)
    shown = kernel.ok("import kfnb; kfnb.show('batch')")
    assert_static(shown)
    assert [message for message in kernel.others if message["msg_type"].startswith("comm_")] == []
    assert kernel.ok("import sys; print('ipywidgets' in sys.modules)").text == "False\n"


def test_without_anywidget_it_says_so_and_goes_on(start_kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    kernel = start_kernel()
    kernel.ok("import sys; sys.modules['anywidget'] = None")
    (tmp_path / "go").touch()
    cell = kernel.ok(waits("plain", tmp_path / "go", "--detach"))
    kernel.until(lambda: "image/png" in data_of(cell), "the form that stays")
    assert "This is the static form of the view: import of anywidget halted" in cell.shown
    assert_static(cell)


def test_loading_takes_nothing_that_a_view_needs(start_kernel: Callable[..., Kernel]) -> None:
    kernel = start_kernel()
    code = "import sys, time\nwhile 'kfnb.views.notebook' not in sys.modules: time.sleep(0.05)\n"
    code += "print([name for name in ('anywidget', 'ipywidgets', 'matplotlib', 'numpy') if name in sys.modules])"
    assert kernel.ok(code).text == "[]\n"


CONSOLE = """\
import sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
def heard(message):
    if message["msg_type"] == "stream":
        sys.stdout.write(message["content"]["text"])
    elif "display" in message["msg_type"] or message["msg_type"].startswith("comm"):
        sys.stdout.write("<" + message["msg_type"] + ">")
for code in ["%load_ext kfnb", sys.argv[1]]:
    client.execute_interactive(code, output_hook=heard, timeout=100)
client.stop_channels()
manager.shutdown_kernel()
"""


def test_a_console_gets_lines(home: Path, tmp_path: Path) -> None:
    program = tmp_path / "jupyter-console"
    program.write_text(CONSOLE)
    (tmp_path / "go").touch()
    done = subprocess.run(
        [sys.executable, str(program), waits("typed", tmp_path / "go")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / "ipython")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "<" not in done.stdout, done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("[0]")] == LINES
    assert "Succeeded" in done.stdout
    assert "Assigned in the notebook: answer" in done.stdout


def test_outside_of_a_notebook_it_is_printed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = kfnb.train("print('hello')\n", framework="python", name="printed")
    assert kfnb.show("printed") is None
    said = capsys.readouterr().out
    assert said.startswith(f"{job.id} · Succeeded")
    assert "[0] hello" in said


# -- what stays ----------------------------------------------------------------------------------------------------

HOSTILE = {
    "markup": "</pre></div><img src=x onerror=alert(1)><script>alert(2)</script>",
    "link": "\x1b]8;;javascript:alert(1)\x1b\\click\x1b]8;;\x1b\\",
    "colours": "\x1b[31mred\x1b[0m \x1b[2J\x1b[Hgone",
    "direction": "\u202eevil\u2066",
    "mathtext": r"$\frac{a} $^_{",
}

HOSTILE_CELL = """\
import kfnb_worker as kf
texts = {texts!r}
for step in range(3):
    for text in texts:
        print(text)
        kf.log(step, **{{text: float(step)}})
print("x" * 1_000_000)
"""


class Markup(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_what_a_job_says_stays_text(kernel: Kernel) -> None:
    cell = kernel.ok("%%kftrain hostile --framework python\n" + HOSTILE_CELL.format(texts=list(HOSTILE.values())))
    data = data_of(cell)
    page = Markup(data["text/html"])
    assert {tag for tag, _ in page.found} <= {"div", "bdi", "details", "summary", "pre", "span", "i", "img"}
    assert {name for _, attributes in page.found for name in attributes} <= {"style", "open", "src", "alt"}
    [image] = [attributes for tag, attributes in page.found if tag == "img"]
    assert re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]+", image["src"] or "")
    assert "<img src=x onerror=alert(1)>" in page.text
    assert "<img src=x onerror=alert(1)>" in (image["alt"] or "")
    assert "\x1b" not in data["text/html"]
    assert "javascript:" not in data["text/html"]
    assert "\x1b" not in data["text/plain"]
    assert "1,000,000" in page.text or "998,000" in page.text
    assert len(data["text/html"]) < 300_000
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")


def test_the_executed_notebook_can_be_read_anywhere(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "go").touch()
    cells = ["%load_ext kfnb", waits("read", tmp_path / "go")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata
    [display, _] = notebook.cells[1].outputs
    assert set(display.data) == {RECORD_TYPE, "text/html", "image/png", "text/plain"}
    nbformat.write(notebook, tmp_path / "run.ipynb")
    argv = [sys.executable, "-m", "nbconvert", "--to", "html", "--template", "basic", "run.ipynb"]
    subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True)
    page = (tmp_path / "run.html").read_text()
    seen = Markup(page)
    assert "Succeeded · 1 node x 1 rank" in seen.text
    assert "Assigned in the notebook: answer" in seen.text
    assert all(line in seen.text for line in LINES)
    images = [attributes for tag, attributes in seen.found if tag == "img"]
    assert [image["alt"] for image in images] == ["loss 0.1 at step 9"]
    assert "jobview" not in page
    assert json.dumps(display.data[RECORD_TYPE]) not in page
