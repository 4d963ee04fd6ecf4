"""A bundle is the same bytes for the same thing, small, and safe to open."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import io
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfnb.errors import SourceError
from kfnb.source import Bundle, cell_source, function_source, script_source


def cell(body: str, **options: Any) -> Bundle:
    given: dict[str, Any] = {"first_line": 2, "namespace": None, "use": (), "out": (), "modules": (), "pip": ()}
    return cell_source(body, **{**given, "cwd": Path("/"), **options})


def test_what_a_bundle_holds() -> None:
    body = "import os\nmodel = 1  # é"
    bundle = cell(body, namespace={"lr": 0.1}, use=["lr"], out=["model"], pip=["tqdm>=4", " "])
    assert bundle.main == body
    kept = ["_kfnb/bundle.json", "_kfnb/requirements.txt", "_kfnb/values.json", "_kfnb/values/0.json", "main.py"]
    assert list(bundle.files) == kept
    assert bundle.files["_kfnb/requirements.txt"] == b"tqdm>=4\n"
    assert bundle.manifest == {
        "v": 1,
        "translated": False,
        "shell": False,
        "defs": [],
        "values": True,
        "out": ["model"],
        "first_line": 2,
    }
    assert bundle.values == {"lr": 0.1}
    assert Bundle.from_bytes(bundle.data) == dataclasses.replace(bundle, notes=())
    with zipfile.ZipFile(io.BytesIO(bundle.data)) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {entry.external_attr >> 16 for entry in archive.infolist()} == {0o100644}


def test_a_byte_order_mark_stays_in_main_py(tmp_path: Path) -> None:
    for text in ("\ufeffx = 1\r\nprint(x)\n", "\ufeff!ls\nx = 1"):
        bundle = cell(text, out=["x"])
        assert bundle.files["main.py"] == text.encode()
        assert bundle.manifest["translated"] == ("!" in text)
    (tmp_path / "helper.py").write_bytes("\ufeffimport other".encode())
    (tmp_path / "other.py").touch()
    with pytest.raises(SourceError, match=r"other \(line 1 of helper\.py\)"):
        cell("import helper", modules=["helper.py"], cwd=tmp_path)


def test_the_second_submission_is_the_first() -> None:
    options: dict[str, Any] = {"namespace": {"x": [1, {"a": 2}]}, "use": ["x"]}
    assert cell("print(x)", **options).data == cell("print(x)", **options).data


def test_other_values_for_the_same_code() -> None:
    bundle = cell("print(lr, data)", namespace={"lr": 0.1, "data": np.zeros(9)}, use=["lr", "data"])
    changed = bundle.with_values({"lr": 0.5})
    assert changed.values == {"lr": 0.5}
    assert changed.files["_kfnb/values/0.0.npy"] == bundle.files["_kfnb/values/0.0.npy"]
    assert changed.sha256 != bundle.sha256
    assert changed.with_values({"lr": 0.1}).data == bundle.data
    plain = bundle.with_values({"data": 3})
    assert plain.values == {"data": 3, "lr": 0.1}
    assert "_kfnb/values/0.0.npy" not in plain.files
    with pytest.raises(SourceError, match=r"batch cannot be changed[^$]*captured values are: data, lr"):
        bundle.with_values({"batch": 3})
    with pytest.raises(SourceError, match="captured values are: none"):
        cell("print(1)").with_values({"lr": 3})


def test_the_record_keeps_small_plain_values_only() -> None:
    namespace = {"t": (1, 2), "f": np.float32(0.5), "long": "x" * 5000, "nan": float("nan"), "s": {1}, "a": np.ones(2)}
    bundle = cell(f"print({', '.join(namespace)})", namespace=namespace, use=list(namespace))
    assert bundle.values == {"t": [1, 2], "f": 0.5}
    assert json.loads(json.dumps(bundle.values)) == bundle.values


def test_a_large_value_is_refused_with_its_name_and_size() -> None:
    with pytest.raises(SourceError, match=r"The value big is 600\.0 MiB; a job can take 16\.0 MiB"):
        cell("print(big)", namespace={"big": np.zeros(600 << 20, np.uint8)}, use=["big"])
    with pytest.raises(SourceError, match=r"The value big is more than 16\.0 MiB"):
        cell("print(big)", namespace={"big": {"inside": np.zeros((16 << 20) + 1, np.uint8)}}, use=["big"])
    with pytest.raises(SourceError, match=r"The value text is more than 16\.0 MiB"):
        cell("print(text)", namespace={"text": "x" * (17 << 20)}, use=["text"])
    half = np.zeros(9 << 20, np.uint8)
    with pytest.raises(SourceError, match=r"The values are 18\.0 MiB[^$]*a \(9\.0 MiB\), b \(9\.0 MiB\)"):
        cell("print(a, b)", namespace={"a": half, "b": half + 1, "c": 1}, use=["a", "b", "c"])


def zipped(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 and so on",
        zipped({}),
        zipped({"main.py": b"", "_kfnb/bundle.json": b'{"v": 2}'}),
        zipped({"main.py": b"", "_kfnb/bundle.json": b"[]"}),
        zipped({"_kfnb/bundle.json": b'{"v": 1}'}),
        zipped({"main.py": b"", "_kfnb/bundle.json": b'{"v": 1}', "../evil.py": b""}),
        zipped({"main.py": b"", "_kfnb/bundle.json": b'{"v": 1}', "/etc/evil": b""}),
        zipped({"main.py": bytes(65 << 20), "_kfnb/bundle.json": b'{"v": 1}'}),
    ],
)
def test_a_damaged_or_hostile_bundle_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError, match="stored code of this job cannot be read"):
        Bundle.from_bytes(data)


def test_requirements_are_one_a_line() -> None:
    with pytest.raises(SourceError, match="more than one line"):
        cell("1", pip=["a\n--index-url http://elsewhere"])


# ---- cells that do nothing, and results that never are


@pytest.mark.parametrize(
    ("body", "note"),
    [
        ("def train():\n    print(1)", r"only defines train and calls nothing.*train\(\)"),
        ("import os\n\nclass A: pass\n\nasync def a(): pass\ndef b(): pass", r"only defines a, b and .*b\(\)"),
        ("import os\nx = 1", "only defines and imports"),
        ("if True:\n    x = [1, -2]\nelse:\n    def f(): pass", "only defines and imports"),
    ],
)
def test_a_cell_that_does_nothing_is_warned_of(body: str, note: str) -> None:
    (found,) = cell(body).notes
    assert re.search(note, found)


@pytest.mark.parametrize(
    "body",
    [
        "def train(): pass\ntrain()",
        "x = print()",
        "if __name__ == '__main__':\n    print()",
        "for i in (): pass",
        "!ls",
        "await f()\nf = 1",
    ],
)
def test_a_cell_that_works_is_not(body: str) -> None:
    namespace = {"f": None}
    assert cell(body, namespace=namespace, use=["f"] if "await" in body else ()).notes == ()


@pytest.mark.parametrize("body", ["", "\n\n", "# nothing\n", "   "])
def test_an_empty_cell_is_refused(body: str) -> None:
    with pytest.raises(SourceError, match="no code to run"):
        cell(body)


def test_out_must_be_assigned() -> None:
    with pytest.raises(
        SourceError, match=r"--out model: the cell never assigns model[^$]*in train only[^$]*model = train"
    ):
        cell("def train():\n    model = 1\ntrain()", out=["model"])
    with pytest.raises(SourceError, match="--out mdoel"):
        cell("model = 1", out=["mdoel"])
    for body in [
        "for model in [1]: pass",
        "import os as model",
        "exec('model = 1')",
        "def f():\n  global model\n  model = 1\nf()",
    ]:
        cell(body, out=["model"])
    cell("print(model)", out=["model"], namespace={"model": 1}, use=["model"])


def test_pip_in_the_cell_is_said_to_run_in_every_rank() -> None:
    assert cell("x = 1\n!pip install tqdm").notes[0].startswith("Line 3 runs pip in every rank")
    assert cell("%pip install tqdm").notes[0].startswith("Line 2 runs pip in every rank")


# ---- scripts


def test_a_script_is_shipped_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"print(unknown)\r\n")
    bundle = script_source(Path("train.py"), cwd=tmp_path)
    assert bundle.files["main.py"] == b"print(unknown)\r\n"
    assert bundle.first_line == 1
    assert bundle.notes == ("unknown (line 1) is not defined in train.py as far as can be seen.",)


def test_a_script_that_cannot_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        script_source(Path("missing.py"), cwd=tmp_path)
    (tmp_path / "bad.py").write_text("x = 1\ny = = 2\n")
    with pytest.raises(SourceError, match=r"Line 2 of bad\.py is not Python"):
        script_source(Path("bad.py"), cwd=tmp_path)
    (tmp_path / "bad.py").write_bytes(b"x = '\xff'\n")
    with pytest.raises(SourceError, match="not Python source"):
        script_source(Path("bad.py"), cwd=tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/beside.py").touch()
    (tmp_path / "sub/run.py").write_text("import beside\n")
    with pytest.raises(SourceError, match=r"beside \(line 1\)[^$]*--module sub/beside\.py"):
        script_source(Path("sub/run.py"), cwd=tmp_path)
    assert "beside.py" in script_source(Path("sub/run.py"), modules=["sub/beside.py"], cwd=tmp_path).files


# ---- functions


def local_factory() -> Any:
    hidden = 3

    def inner() -> int:
        return hidden

    return inner


def train(lr: float, *, epochs: int = 1) -> float:
    return lr * epochs


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda: 1, "A lambda cannot be shipped"),
        (print, "not a function with source"),
        (functools.partial(train, 1), "not a function with source"),
        (int, "not a function with source"),
        (local_factory(), "inner cannot be imported"),
    ],
)
def test_what_is_no_function_with_source_is_refused(fn: Any, says: str) -> None:
    with pytest.raises(SourceError, match=says):
        function_source(fn, {}, cwd=Path("/"))


def test_the_call_is_checked_before_anything_starts() -> None:
    with pytest.raises(
        SourceError, match="train cannot be called with these kwargs: missing a required argument: 'lr'"
    ):
        function_source(train, {"epochs": 1}, cwd=Path("/"))
    with pytest.raises(SourceError, match="unexpected keyword argument 'lrr'"):
        function_source(train, {"lr": 1, "lrr": 1}, cwd=Path("/"))
    with pytest.raises(SourceError, match="cannot be passed by name"):
        function_source(lambda_free, {"train me": 1}, cwd=Path("/"))


def lambda_free(**anything: object) -> None: ...


def test_a_function_of_a_module_is_imported_and_a_local_module_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "training.py").write_text("BASE = 2\n\ndef fit(x):\n    return x * BASE\n")
    monkeypatch.syspath_prepend(tmp_path)
    training = importlib.import_module("training")
    monkeypatch.setitem(sys.modules, "training", training)  # gone after the test
    bundle = function_source(training.fit, {"x": 3}, out=["result"], cwd=tmp_path)
    assert bundle.main == "from training import fit\n\nresult = fit(x=x)\n"
    assert bundle.files["training.py"].startswith(b"BASE = 2")
    assert bundle.values == {"x": 3}
