"""The magics as a user meets them: in a real kernel, with real jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ipykernel
import nbformat
import pytest
from nbclient import NotebookClient

from kfnb.views.notebook import RECORD_TYPE
from tests.local.kernels import ROOT, Kernel
from tests.processes import processes_of
from tests.waiting import wait_for

pytestmark = pytest.mark.xdist_group("magics")  # one kernel serves most of the tests

#: Rank 0 prints ten lines, of which the last five come once the file "go" is there.
WAITS = """
import os, time
for index in range(10):
    while index == 5 and not os.path.exists({go!r}):
        time.sleep(0.05)
    print("line", index, flush=True)
answer = 42
"""


def waits(name: str, go: Path, options: str = "--out answer") -> str:
    return f"%%kftrain {name} --framework python {options}" + WAITS.format(go=str(go))


def job_id(text: str) -> str:
    found = re.search(r"\b[a-z][-a-z0-9]*-[a-z0-9]{5}\b", text)
    assert found is not None, text
    return found[0]


LINES = [f"[0] line {index}" for index in range(10)]


def test_a_cell_becomes_a_job_and_gives_its_results(kernel: Kernel) -> None:
    kernel.ok("lr, layers, nodes = 0.1, [1, 2], 2")
    cell = kernel.ok(
        "%%kftrain digits --nodes {nodes} --framework python \\\n"
        "    --use lr,layers --out total,where\n"
        "import os\n"
        "total = lr * sum(layers)\n"
        "where = __name__\n"
        "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
    )
    assert sorted(cell.log()) == ["[0] rank 0 of 2", "[1] rank 1 of 2"]
    assert "Succeeded · 2 nodes x 1 rank" in cell.shown
    assert "Assigned in the notebook: total, where" in cell.shown
    [result] = cell.results
    id = job_id(cell.shown)
    assert result["text/plain"] == f"Job({id!r}, backend='local')"
    kernel.ok("assert (round(total, 6), where) == (0.3, '__main__')")
    [data] = cell.displays.values()
    record = data[RECORD_TYPE]
    assert (record["id"], record["values"]) == (id, {"lr": 0.1, "layers": [1, 2]})
    assert (record["options"]["nodes"], record["options"]["use"]) == (2, ["lr", "layers"])
    assert "[0]" in data["text/html"]


def test_a_failing_cell_shows_the_first_failing_rank_and_halts(kernel: Kernel) -> None:
    cell = kernel.start(
        "%%kftrain digits --nodes 2 \\\n  --framework python\n"
        "import os\n"
        "if os.environ['RANK'] == '1':\n"
        "    raise ValueError('bad <b>batch</b>')\n"
    )
    after = kernel.start("print('not reached')")
    kernel.finish(cell)
    kernel.until(lambda: after.reply is not None, "the next cell's reply")
    assert after.status == "aborted"
    assert cell.status == "error"
    assert cell.error is not None
    assert cell.error["ename"] == "JobFailed"
    traceback = "\n".join(cell.error["traceback"])
    assert "Rank 1 (node 1) raised ValueError: bad <b>batch</b> at line 5 of the cell" in traceback
    assert "line 3 (line 5 of the cell), in <module>" in traceback
    assert "kfnb/" not in traceback
    assert "! Rank 1" in cell.shown
    [data] = cell.displays.values()
    assert "<b>batch" not in data["text/html"]


def test_an_interrupt_detaches(kernel: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = kernel.start(waits("slow", go))
    kernel.until(lambda: cell.displays and len(cell.log()) == 5, "the first lines")
    kernel.manager.interrupt_kernel()
    kernel.finish(cell)
    id = job_id(cell.shown)
    assert cell.status == "error"
    assert cell.error is not None
    [said] = cell.error["traceback"]
    assert said == f"Detached: {id} goes on. To see it: %kfattach {id}. To stop it: %kfstop {id}"
    assert said in cell.shown
    kernel.ok(f"import kfnb; assert str(kfnb.attach({id!r}).phase) == 'Running'")
    go.touch()
    again = kernel.ok("%kfattach slow")
    assert again.log() == LINES
    kernel.ok("assert answer == 42")


@pytest.mark.skipif(ipykernel.version_info < (7,), reason="ipykernel 6 holds back every message while a cell runs")
def test_the_kernel_answers_while_the_cell_waits(kernel: Kernel, tmp_path: Path) -> None:
    kernel.ok(
        "def opened(comm, message):\n"
        "    comm.send({'echo': message['content']['data']['say']})\n"
        "get_ipython().kernel.comm_manager.register_target('echo', opened)\n"
    )
    go = tmp_path / "go"
    cell = kernel.start(waits("serving", go))
    kernel.until(lambda: cell.displays and len(cell.log()) == 5, "the first lines")
    session = kernel.client.session
    content = {"comm_id": "c1", "target_name": "echo", "data": {"say": "hello"}}
    kernel.client.shell_channel.send(session.msg("comm_open", content))

    def echoed() -> bool:
        return any(
            message["msg_type"] == "comm_msg" and message["content"]["data"] == {"echo": "hello"}
            for message in kernel.others
        )

    kernel.until(echoed, "the answer to a widget's message")
    assert not cell.idle
    go.touch()
    kernel.finish(cell)
    assert cell.status == "ok"
    assert cell.log() == LINES


def test_detached_leaves_the_kernel_free(kernel: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = kernel.ok(waits("background", go, "--detach --out answer"))
    id = job_id(cell.text)
    assert f"%kfattach {id}" in cell.text
    assert [result["text/plain"] for result in cell.results] == [f"Job({id!r}, backend='local')"]
    assert kernel.ok("print(6 * 7)").text == "42\n"
    go.touch()
    assert kernel.ok(f"_job = %kfattach {id}").log() == LINES


def test_a_killed_kernels_job_is_whole_in_the_next_one(start_kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = start_kernel()
    cell = first.start(waits("orphan", go))
    first.until(lambda: cell.displays and len(cell.log()) == 5, "the first lines")
    os.kill(first.pid, signal.SIGKILL)
    second, third = start_kernel(), start_kernel()
    attached = [kernel.start("%kfattach orphan") for kernel in (second, third)]
    for kernel, shown in zip((second, third), attached, strict=True):
        kernel.until(lambda shown=shown: shown.displays and len(shown.log()) == 5, "the lines so far")
    go.touch()
    for kernel, shown in zip((second, third), attached, strict=True):
        kernel.finish(shown)
        assert shown.status == "ok"
        assert shown.log() == LINES
        kernel.ok("assert answer == 42")


def test_an_unattended_kernels_job_ends_with_it(
    start_kernel: Callable[..., Kernel], home: Path, tmp_path: Path
) -> None:
    kernel = start_kernel(attended=False)
    cell = kernel.start(waits("batch", tmp_path / "never"))
    kernel.until(lambda: cell.displays and "Running" in cell.shown, "the job to run")
    assert len(processes_of(home)) > 1
    os.kill(kernel.pid, signal.SIGKILL)
    wait_for(lambda: not processes_of(home), timeout=60, what="the job to end with its kernel")


def test_a_noisy_job_stays_small_in_the_notebook(kernel: Kernel) -> None:
    cell = kernel.ok(
        "%%kftrain noisy --framework python\n"
        "import sys\n"
        "for index in range(200_000):\n"
        "    print('step', index, 'x' * 60)\n"
        "    if index % 100 == 0:\n"
        "        print(f'\\r{index / 2000:.0f}%|####', end='', file=sys.stderr)\n"
    )
    assert len(json.dumps(list(cell.displays.values()))) < 200_000
    [line] = [line for line in cell.shown.splitlines() if "lines not shown here" in line]
    log = cell.log()
    hidden = int(line.split()[1].replace(",", ""))
    assert hidden + len(log) >= 200_000
    assert log[0] == "[0] step 0 " + "x" * 60
    assert any("step 199999" in line for line in log)
    assert cell.updates < 1_000


def test_a_comment_above_explains_itself(kernel: Kernel) -> None:
    cell = kernel.run("# my job\n%%kftrain digits\nprint(1)")
    assert cell.error is not None
    assert "has to be the first line of its cell" in cell.error["evalue"]
    cell = kernel.run("%kftrain digits")
    assert cell.error is not None
    assert "two % signs" in cell.error["evalue"]


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("%%kftrain a --nodes {nobody}\nx = 1", "the notebook has no `nobody`"),
        ("%%kftrain a --nodes 0\nx = 1", "--nodes"),
        ("%%kftrain a --nodse 2\nx = 1", "--nodse"),
        ("%%kftrain My_Job\nx = 1", "My_Job"),
        ("%%kftrain a\n\n", "nothing below"),
        ("%%kftrain a --out 'x\ny = 1", "Close the quotes"),
        ("%kfattach", "NAME"),
        ("%kfattach nobody", "There is no job 'nobody'"),
        ("%kflogs --rank x y", "--rank"),
    ],
)
def test_what_is_wrong_is_named(kernel: Kernel, cell: str, said: str) -> None:
    run = kernel.run(cell)
    assert run.error is not None
    assert said in run.error["evalue"]
    assert "Traceback" not in "".join(run.error["traceback"])


@pytest.mark.parametrize("jedi", [True, False])
def test_completion(kernel: Kernel, folder: Path, jedi: bool) -> None:
    kernel.ok(f"%config IPCompleter.use_jedi = {jedi}")
    kernel.ok("learning_rate, import_this = 0.1, 2")
    kernel.ok("%%kftrain tabbed --framework python\nprint(1)")
    (folder / "helpers.py").write_text("")
    assert kernel.complete("%%kftrain a --node") == ["--nodes"]
    assert "--procs-per-node" in kernel.complete("%%kftrain a --")
    assert kernel.complete("%%kftrain a --framework ") == ["torch", "python"]
    assert kernel.complete("%%kftrain a --framework=py") == ["python"]
    assert kernel.complete("%%kftrain a --use x,learn") == ["learning_rate"]
    assert kernel.complete("%%kftrain a --module hel") == ["helpers.py"]
    assert kernel.complete("%%kftrain a \\\n   --preci") == ["--precision"]
    assert kernel.complete("%kflogs --fol") == ["--follow"]
    assert "tabbed" in kernel.complete("%kfattach ta")
    assert "tabbed" in kernel.complete("job = %kfstop ta")
    assert "--nodes" in kernel.complete("%kfrun tabbed --no")
    assert "--nodes" not in kernel.complete("%%kftrain a\n--no")
    cell = "%%kftrain a --out his\nhistory = []\ndef history_of(): ...\nhisteresis == 1\n"
    assert kernel.complete(cell, at=len("%%kftrain a --out his")) == ["history", "history_of"]
    kernel.ok("%%kftrain tabbed --framework python --use learning_rate\nprint(learning_rate)")
    assert kernel.complete("%kfrun tabbed --use ") == ["learning_rate="]
    assert "learning_rate" in kernel.complete("%%kftrain a\nlearn")


def test_help(kernel: Kernel) -> None:
    for asked, words in [("%%kftrain?", ["--nodes N", "{name}", "--dry-run"]), ("%kflogs?", ["--follow", "--tail"])]:
        [payload] = kernel.ok(asked).reply["payload"]  # type: ignore[index]
        assert all(word in payload["data"]["text/plain"] for word in words)
    assert "--rank" in kernel.ok("%kflogs --help").text


def test_the_line_magics(kernel: Kernel, tmp_path: Path) -> None:
    kernel.ok("lr = 0.1")
    kernel.ok("%%kftrain tune --framework python --use lr --out doubled\ndoubled = 2 * lr\nprint('lr is', lr)")
    again = kernel.ok("%kfrun tune --use lr=0.4 --nodes 2")
    assert sorted(again.log()) == ["[0] lr is 0.4", "[1] lr is 0.4"]
    kernel.ok("assert doubled == 0.8")
    id = job_id(again.shown)
    table = kernel.ok("%kfjobs").results[0]
    assert id in table["text/plain"]
    assert "<td" in table["text/html"]
    assert kernel.ok(f"%kflogs {id} --rank 1").text == "[1] lr is 0.4\n"
    assert "1 line not shown here" in kernel.ok(f"%kflogs {id} --tail 1").text
    followed = kernel.ok(f"%kflogs {id} --follow --rank 0")
    assert followed.log() == ["[0] lr is 0.4"]
    [first] = set(re.findall(r"tune-\w{5}", table["text/plain"])) - {id}
    compared = kernel.ok(f"%kfcompare {first} {id}").results[0]
    assert "lr" in compared["text/plain"]
    assert "0.4" in compared["text/plain"]
    assert "had ended already (Succeeded)" in kernel.ok(f"%kfstop {id}").text
    kernel.ok(f"%kfdelete {id}")
    gone = kernel.run(f"%kfattach {id}")
    assert gone.error is not None
    assert gone.error["ename"] == "NotFound"


def test_stacks_and_stop(kernel: Kernel, tmp_path: Path) -> None:
    id = job_id(kernel.ok(waits("hangs", tmp_path / "never", "--detach")).text)
    watching = kernel.start(f"%kfattach {id}")
    kernel.until(lambda: watching.displays and len(watching.log()) == 5, "the job to hang")
    kernel.manager.interrupt_kernel()
    kernel.finish(watching)
    stacks = kernel.ok(f"%kfstacks {id}").results[0]["text/plain"]
    assert stacks.startswith("rank 0\n")
    assert "main.py" in stacks
    assert f"{id}: Stopped" in kernel.ok(f"%kfstop {id}").text
    ended = kernel.run(f"%kfattach {id}")
    assert ended.error is not None
    assert ended.error["ename"] == "JobStopped"


def test_dry_run_starts_nothing(kernel: Kernel) -> None:
    before = kernel.ok("%kfjobs").results[0]["text/plain"].count("\n")
    cell = kernel.ok("%%kftrain planned --dry-run --nodes 3 --framework python\nprint(1)")
    assert '"nodes": 3' in cell.text
    assert cell.results == []
    assert kernel.ok("%kfjobs").results[0]["text/plain"].count("\n") == before


def test_configuration(kernel: Kernel, folder: Path) -> None:
    (folder / "kfnb.toml").write_text('nodes = 2\nimage = "evil"\n')
    try:
        refused = kernel.run("%kfconfig")
        assert refused.error is not None
        assert "%kfconfig --trust" in refused.error["evalue"]
        trusted = kernel.ok("%kfconfig --trust")
        assert "is trusted" in trusted.text
        rows = [line.split() for line in trusted.results[0]["text/plain"].splitlines()]
        assert ["--nodes", "2", str(folder / "kfnb.toml")] in rows
    finally:
        (folder / "kfnb.toml").unlink()


def test_a_cell_that_cannot_await_works_too(kernel: Kernel, tmp_path: Path) -> None:
    called = kernel.ok("job = get_ipython().run_cell_magic('kftrain', 'called --framework python', 'print(5)')")
    assert called.log() == ["[0] 5"]
    nested = kernel.ok("get_ipython().run_cell('%%kftrain nested --framework python\\nprint(6)'); None")
    assert nested.log() == ["[0] 6"]
    kernel.ok("%autoawait False")
    try:
        assert kernel.ok("%%kftrain plain --framework python\nprint(7)").log() == ["[0] 7"]
        cell = kernel.start(waits("blocks", tmp_path / "go"))
        kernel.until(lambda: cell.displays and len(cell.log()) == 5, "the first lines")
        kernel.manager.interrupt_kernel()
        kernel.finish(cell)
        assert cell.error is not None
        assert cell.error["ename"] == "Detached"
        kernel.ok("%kfstop blocks")
    finally:
        kernel.ok("%autoawait asyncio")


def test_a_result_that_cannot_travel_is_said(kernel: Kernel) -> None:
    cell = kernel.run(
        "%%kftrain odd --framework python --out good,bad\nimport threading\ngood, bad = 1, threading.Lock()"
    )
    assert cell.error is not None
    assert "bad: a _thread.lock cannot be brought back" in cell.error["evalue"]
    kernel.ok("assert good == 1")


def test_unload_and_load_again(kernel: Kernel) -> None:
    kernel.ok("%unload_ext kfnb")
    try:
        assert kernel.run("%%kftrain a\nx = 1").status == "error"
        assert "--nodes" not in kernel.complete("%%kftrain a --no")
    finally:
        kernel.ok("%load_ext kfnb")
    kernel.ok("%reload_ext kfnb")
    assert kernel.ok("%%kftrain again --framework python\nprint(1)").log() == ["[0] 1"]


def test_the_executed_notebook_holds_the_last_state(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cells = ["%load_ext kfnb", "%%kftrain saved --framework python --out x\nprint('hello')\nx = 1", "print(x)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    nbformat.validate(notebook)
    [display, result] = notebook.cells[1].outputs
    assert "Succeeded" in display.data["text/plain"]
    assert "[0] hello" in display.data["text/plain"]
    assert "hello" in display.data["text/html"]
    assert display.data[RECORD_TYPE]["id"] in result.data["text/plain"]
    assert notebook.cells[2].outputs[0].text == "1\n"


def test_loading_imports_next_to_nothing() -> None:
    script = "import sys, kfnb.magics; print(sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"pydantic", "numpy", "asyncio", "torch", "psutil", "IPython"} & set(
        json.loads(done.stdout.replace("'", '"'))
    )
