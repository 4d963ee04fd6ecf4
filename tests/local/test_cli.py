"""The command line, as a shell and a program use it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.local.kernels import ROOT
from tests.processes import processes_of
from tests.waiting import wait_for

TIMEOUT = 120


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def argv(*words: object) -> list[str]:
    return [sys.executable, "-m", "kfnb", *map(str, words)]


def kfnb(*words: object, code: int = 0, input: str | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv(*words), capture_output=True, text=True, timeout=TIMEOUT, input=input)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "kfnb/" not in done.stderr, done.stderr  # no traceback of ours
    return done


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def script(tmp_path: Path, body: str, name: str = "job.py") -> Path:
    path = tmp_path / name
    path.write_text(body)
    return path


HELLO = "import sys\nprint('hello', sys.argv[1:])\nx = 3\n"
RAISES = "def train():\n    raise ValueError('bad batch')\n\ntrain()\n"
WAITS = """
import os, time
print("waiting", flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.05)
print("done")
"""


def test_a_script_runs_with_its_arguments(tmp_path: Path) -> None:
    path = script(tmp_path, HELLO)
    done = kfnb("train", path, "--framework", "python", "--name", "hi", "--out", "x", "--", "--lr", "0.1")
    lines = done.stdout.splitlines()
    assert "[0] hello ['--lr', '0.1']" in lines
    assert re.fullmatch(r"== hi-\w{5}: Succeeded", next(line for line in lines if "Succeeded" in line))
    assert lines[-1].startswith("== Results: x; ")


def test_code_from_standard_input() -> None:
    done = kfnb("train", "-", "--framework", "python", input="print('piped')")
    assert "[0] piped" in done.stdout


def test_a_failed_job(tmp_path: Path) -> None:
    done = kfnb("train", script(tmp_path, RAISES), "--framework", "python", code=5)
    assert "JobFailed: " in done.stderr
    assert "raised ValueError: bad batch at line 2 of main.py" in done.stderr
    assert 'File "main.py", line 4, in <module>' in done.stderr
    kfnb("attach", "job", code=5)
    again = events(kfnb("attach", "job", "--json", code=5).stdout)
    assert again[-1]["phase"] == "Failed"
    assert [event["type"] for event in again if event["event"] == "failure"] == ["ValueError"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("attach", "nobody"), 3, "There is no job 'nobody'"),
        (("train", "missing.py"), 2, "missing.py"),
        (("train", "x.py", "--nodes", "0"), 2, "--nodes"),
        (("train", "x.py", "--nodse", "2"), 2, "--nodse"),
        (("run", "nobody", "--use", "1x=3"), 2, "1x"),
        (("export", "nobody", "out"), 3, "nobody"),
        ((), 2, ""),
        (("frobnicate",), 2, "frobnicate"),
    ],
)
def test_exit_codes(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    script(tmp_path, HELLO, "x.py")
    assert said in kfnb(*words, code=code).stderr


def test_every_command_in_json(tmp_path: Path) -> None:
    path = script(tmp_path, HELLO)
    stream = events(kfnb("train", path, "--framework", "python", "--name", "one", "--json").stdout)
    assert stream[0]["event"] == "submitted"
    id = stream[0]["id"]
    assert stream[-1] == {"event": "end", "id": id, "phase": "Succeeded", "reason": ""}
    assert [event["text"] for event in stream if event["event"] == "log"] == ["hello []"]
    [listed] = events(kfnb("jobs", "--json").stdout)
    assert (listed["id"], listed["phase"], listed["nodes"]) == (id, "Succeeded", 1)
    [line] = events(kfnb("logs", "one", "--json", "--rank", "0").stdout)
    assert (line["rank"], line["text"]) == (0, "hello []")
    second = events(kfnb("run", "one", "--nodes", "2", "--json").stdout)[0]["id"]
    [compared] = events(kfnb("compare", id, second, "--json").stdout)
    assert compared["ids"] == [id, second]
    options = {entry["option"]: entry for entry in events(kfnb("config", "--json").stdout)}
    assert options["nodes"] == {"option": "nodes", "value": 1, "source": "default"}
    [exported] = events(kfnb("export", id, "out", "--json").stdout)
    assert (Path(exported["path"]) / "log.txt").read_text() == "[0] hello []\n"
    assert events(kfnb("stop", id, "--json").stdout) == [{"id": id, "phase": "Succeeded", "had_ended": True}]
    removals = events(kfnb("prune", "--age", "0", "--dry-run", "--json").stdout)
    assert {removal["name"] for removal in removals} == {id, second}
    assert events(kfnb("delete", id, second, "--json").stdout)[0] == {"id": id, "deleted": True}
    assert events(kfnb("jobs", "--json").stdout) == []
    [planned] = events(kfnb("train", path, "--framework", "python", "--dry-run", "--json").stdout)
    assert '"nodes": 1' in planned["plan"]


def test_without_json(tmp_path: Path) -> None:
    assert kfnb("jobs").stdout == "You have no jobs.\n"
    kfnb("train", script(tmp_path, HELLO), "--framework", "python", "--name", "one")
    assert "one-" in kfnb("jobs").stdout
    assert kfnb("logs", "one").stdout == "[0] hello []\n"
    assert "--nodes" in kfnb("config").stdout
    assert "nothing to remove" in kfnb("prune").stdout
    assert "one-" in kfnb("delete", "one").stdout


def test_stop_and_stacks_of_a_detached_job(tmp_path: Path, home: Path) -> None:
    path = script(tmp_path, WAITS.format(go=str(tmp_path / "never")))
    started = kfnb("train", path, "--framework", "python", "--detach")
    assert "runs on its own. To see it: kfnb attach job-" in started.stdout
    wait_for(lambda: "waiting" in kfnb("logs", "job").stdout, timeout=60, what="the job to wait")
    assert re.search(
        r'^rank 0$.*File "main\.py", line [45] in <module>', kfnb("stacks", "job").stdout, re.MULTILINE | re.DOTALL
    )
    assert kfnb("stop", "job").stdout.strip().endswith(": Stopped")
    kfnb("attach", "job", code=6)
    wait_for(lambda: not processes_of(home), timeout=60, what="the job's processes to end")


def test_control_c_detaches(tmp_path: Path) -> None:
    go = tmp_path / "go"
    path = script(tmp_path, WAITS.format(go=str(go)))
    process = subprocess.Popen(
        argv("train", path, "--framework", "python"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    seen = ""
    while "[0] waiting" not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    id = re.findall(r"job-\w{5}", seen)[0]
    assert error == f"Detached: {id} goes on. To see it: kfnb attach {id}. To stop it: kfnb stop {id}\n"
    go.touch()
    assert "[0] done" in kfnb("attach", id).stdout


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    path = script(tmp_path, "for index in range(50_000):\n    print('line', index)\n")
    kfnb("train", path, "--framework", "python", "--name", "long")
    for words in (("logs", "long"), ("logs", "long", "--follow"), ("attach", "long", "--json")):
        process = subprocess.Popen(argv(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(TIMEOUT) == 141
    assert kfnb("logs", "long", "--tail", "2").stdout == "[0] line 49998\n[0] line 49999\n"


def test_a_terminal_gets_a_status_line(tmp_path: Path) -> None:
    path = script(tmp_path, "print('\\x1b[32mgreen\\x1b[2J')\n")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(argv("train", path, "--framework", "python"), stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not data:
            break
        seen += data
    os.close(ours)
    assert process.wait(TIMEOUT) == 0
    assert b"\r\x1b[K" in seen
    assert b"\x1b[32mgreen\x1b[0m" in seen
    assert b"\x1b[2J" not in seen


def test_a_removed_working_directory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = script(tmp_path, HELLO)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "The current directory is gone" in kfnb("train", path, code=2).stderr


def test_a_closed_standard_output_is_no_error(tmp_path: Path) -> None:
    command = " ".join(argv("train", script(tmp_path, HELLO), "--framework", "python"))
    done = subprocess.run(f"{command} >&-", shell=True, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("option", ["--workspace", "--logdir", "--checkpoint"])
def test_a_folder_that_is_a_file_is_refused_before_anything_runs(tmp_path: Path, option: str) -> None:
    path = script(tmp_path, HELLO)
    assert "File exists" in kfnb("train", path, option, path, code=4).stderr
    assert kfnb("jobs", "--json").stdout == ""


@pytest.mark.parametrize("value", ["x=[1,{a:None}]", "x=0.1,2y", "x='a", "x=(1"])
def test_a_value_that_only_begins_like_a_literal_is_refused(tmp_path: Path, value: str) -> None:
    kfnb("train", script(tmp_path, HELLO), "--framework", "python")
    assert "begins like a Python literal" in kfnb("run", "job", "--use", value, code=2).stderr


def test_a_job_is_called_as_its_script(tmp_path: Path) -> None:
    path = script(tmp_path, HELLO, "2_Fine Tune.v2.py")
    # a digit begins no name
    assert kfnb("train", path, "--framework", "python", "--detach").stdout.startswith("train-")
    path = script(tmp_path, HELLO, "Fine_Tune.v2.py")
    assert kfnb("train", path, "--framework", "python", "--detach").stdout.startswith("fine-tune-v2-")
    assert kfnb("train", path, "--framework", "python", "--name", "x", "--detach").stdout.startswith("x-")


def test_a_rank_that_is_not_there_is_said(tmp_path: Path) -> None:
    kfnb("train", script(tmp_path, HELLO), "--framework", "python", "--procs-per-node", "2")
    assert "it has ranks 0 to 1" in kfnb("logs", "job", "--rank", "2", code=2).stderr


def test_arguments_of_the_script_without_the_dashes_get_a_hint(tmp_path: Path) -> None:
    assert "after `--`" in kfnb("train", script(tmp_path, HELLO), "--lr", "1", code=2).stderr
    assert "-- " in kfnb("train", "--help").stdout
