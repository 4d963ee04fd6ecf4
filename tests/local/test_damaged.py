"""A damaged run directory is one job's trouble: the others go on, nothing hangs, and it can be deleted."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kfnb
from kfnb.errors import KfnbError
from kfnb.events import Phase


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def directory_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def phases(run: Path, *lines: str) -> None:
    (run / "phases.jsonl").write_text("".join(line + "\n" for line in lines))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty record": lambda run: (run / "record.json").write_text(""),
    "record without fields": lambda run: (run / "record.json").write_text("{}"),
    "record of a newer version": lambda run: edit(run / "record.json", version=99),
    "record with odd types": lambda run: edit(run / "record.json", created="x", first_line=[]),
    "record at no time": lambda run: (run / "record.json").write_text(
        (run / "record.json").read_text().replace('"created": ', '"created": 1e999, "was": ')
    ),
    "record that is a list": lambda run: (run / "record.json").write_text("[]"),
    "spec of a newer version": lambda run: edit(run / "record.json", spec={"version": 2, "name": "x"}),
    "plan without fields": lambda run: (run / "plan.json").write_text("{}"),
    "plan with odd types": lambda run: edit(run / "plan.json", nodes="x", local=3),
    "no plan": lambda run: (run / "plan.json").unlink(),
    "no bundle": lambda run: (run / "bundle.zip").unlink(),
    "bundle that is none": lambda run: (run / "bundle.zip").write_bytes(b"PK"),
    "no phases": lambda run: (run / "phases.jsonl").unlink(),
    "phases in a directory": lambda run: directory_instead(run / "phases.jsonl"),
    "a phase that nobody knows": lambda run: phases(run, '{"t": 1, "phase": "Foo", "reason": "", "a": 0}'),
    "a phase at no time": lambda run: phases(run, '{"phase": "Succeeded"}', '{"t": "x", "phase": "Failed"}'),
    "a phase at the end of time": lambda run: phases(run, '{"t": 1e999, "phase": "Failed", "reason": 3, "a": "x"}'),
    "a failure that is none": lambda run: phases(
        run, '{"t": 1, "phase": "Failed", "reason": "", "a": 0, "failure": {"source": "supervisor", "r": "x"}}'
    ),
    "supervisor with odd types": lambda run: edit(run / "supervisor.json", workers=7, pid="x", started=[]),
    "nodes by odd names": lambda run: shutil.copytree(run / "nodes" / "0", run / "nodes" / "²"),
    "a step beyond 64 bits": lambda run: (run / "nodes" / "0" / "0.log").write_text(
        '[kfnb:0] {"e":"s","a":0,"r":0,"d":".","src":"log","p":{"x":[[99999999999999999999999],[1.0],[1.0]]}}\n'
    ),
    "a log in a directory": lambda run: directory_instead(run / "nodes" / "0" / "0.log"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_one_damaged_job(home: Path, tmp_path: Path, damage: Callable[[Path], object]) -> None:
    good = kfnb.train("print(1)", name="good", framework="python")
    bad = kfnb.train("import kfnb_worker as kf\nkf.log(1, x=1)\nprint(2)", name="bad", framework="python")
    damage(home / "jobs" / bad.id)

    assert {info.id: info.phase for info in kfnb.jobs()}[good.id] is Phase.SUCCEEDED
    assert bad.id in [info.id for info in kfnb.jobs()]
    assert [line.text for line in kfnb.attach("good").logs()] == ["1"]
    for ask in (
        lambda: bad.info,
        lambda: bad.record,
        lambda: list(bad.events()),
        lambda: bad.wait(timeout=60),
        lambda: bad.scalars().keys(),
        lambda: bad.result().keys(),
        lambda: bad.stacks().keys(),
        lambda: bad.export(tmp_path / "kept"),
        lambda: kfnb.compare("good", bad.id),
    ):
        with contextlib.suppress(KfnbError):
            ask()
    bad.stop(wait=False)
    bad.delete()
    assert [info.id for info in kfnb.jobs()] == [good.id]
