"""Copy as script: what is written is Python that gives the same values, and nothing of a job's becomes code."""

from __future__ import annotations

import ast
import collections
import datetime
import decimal
import math
import os
import pathlib
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfnb.options import parse_train
from kfnb.record import Record
from kfnb.source import cell_source
from kfnb.spec import TrainSpec
from kfnb.views import script


def record(**options: Any) -> Record:
    return Record(
        id="digits-ab12c",
        spec=TrainSpec(name="digits", **options),
        created=0.0,
        owner="user",
        host="host",
        workdir="/work",
        bundle_sha256="",
        code="",
    )


def made(body: str, namespace: dict[str, object], history: list[str] | None = None, **options: Any) -> str:
    """The script of a cell that takes all of ``namespace``."""
    bundle = cell_source(
        body,
        first_line=2,
        namespace=namespace,
        use=[name for name in namespace if not name.startswith("_")],
        out=(),
        modules=(),
        pip=(),
        cwd=Path(),
        history=history or [],
    )
    return script.as_script(record(**options), bundle)


def ran(text: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "digits.py", "exec"), namespace)
    return namespace


VALUES: dict[str, Any] = {
    "number": 0.1,
    "large": 1 << 90,
    "negative": -(1 << 70),
    "infinite": float("-inf"),
    "text": 'it\'s "q" \\ \n \x1b[31m \u202e # no comment',
    "nothing": None,
    "pairs": {"a": [1, (2,), ()], "$": {1, 2}},
    "odd": {(1, 2): frozenset([3]), None: set()},
    "ordered": collections.OrderedDict([("z", 1), ("a", 2)]),
    "raw": b"\x00\xff",
    "mutable": bytearray(b"ab"),
    "imaginary": complex(1.5, float("inf")),
    "day": datetime.date(2026, 11, 30),
    "moment": datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.timezone.utc),
    "span": datetime.timedelta(hours=1),
    "exact": decimal.Decimal("0.10"),
    "steps": range(1, 10, 3),
    "place": pathlib.Path("/data/x y"),
    "array": numpy.array([[1, 2], [3, 4]], dtype="int16"),
    "scalar": numpy.float32(0.25),
    "truth": numpy.bool_(True),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_written_as_source(name: str) -> None:
    found = ran(made(f"got = {name}\n", {name: VALUES[name]}))["got"]
    assert type(found) is type(VALUES[name])
    if isinstance(found, numpy.ndarray):
        assert found.dtype == VALUES[name].dtype
        assert found.tolist() == VALUES[name].tolist()
    else:
        assert found == VALUES[name]


def test_nan_is_written() -> None:
    assert math.isnan(ran(made("got = x\n", {"x": float("nan")}))["got"])


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=10,
)


@given(_PLAIN)
def test_any_plain_value_comes_back(value: object) -> None:
    assert ran(made("got = x\n", {"x": value}))["got"] == value


def test_what_cannot_be_written_is_named() -> None:
    text = made("got = small\n", {"big": numpy.zeros(1000), "small": 1, "many": list(range(20_000))})
    assert "#     big, an array of shape (1000,) and dtype float64" in text
    assert "# big = ...  # set it here: an array of shape (1000,)" in text
    assert "# many = ...  # set it here" in text
    assert ran(text)["got"] == 1


def test_the_beginning_stays_the_beginning() -> None:
    text = made(
        '# first\n"""What it does."""\nfrom __future__ import annotations; got = x\ndef f(a: Missing): ...\n', {"x": 3}
    )
    found = ran(text)
    assert found["got"] == 3
    assert found["__doc__"] == "What it does."


@dataclass
class Here:
    x: int


def test_definitions_come_before_what_needs_them() -> None:
    cells = ["from __future__ import annotations\ndef double(x: Unknown):\n    return 2 * x\n"]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(cells[0], namespace)
    text = made("got = double(lr)\n", {"double": namespace["double"], "lr": 4}, cells)
    assert text.count("from __future__ import annotations") == 1
    assert ran(text)["got"] == 8


def test_shell_commands_are_written_as_they_run() -> None:
    text = made("files = !ls\n%env A=1\nprint(files)\n", {})
    ast.parse(text)
    assert "get_ipython()" in text
    assert "`kfnb train` only" in text


def test_the_command_gives_the_same_spec() -> None:
    options: dict[str, Any] = {
        "nodes": 2,
        "procs_per_node": 3,
        "env": ("A=b c", "TOKEN"),
        "pip": ("torch>=2,<3", "einops"),
        "module": ("a.py", "b"),
        "out": ("x", "y"),
        "timeout": "90",
        "grace": 2.5,
        "precision": "bf16",
        "args": ("--lr", "0.1; rm"),
        "use": ("lr",),
        "detach": True,
    }
    spec = TrainSpec(name="digits", **options)
    line = script.command(spec, "digits.py")
    assert line.startswith("kfnb train digits.py ")
    given = parse_train(line.removeprefix("kfnb train digits.py "))
    assert TrainSpec(**{"name": "digits", "use": ("lr",), "detach": True, **given}) == spec
    assert "# Set in your environment first: TOKEN" in made("x = 1\n", {}, env=("TOKEN",))


@pytest.mark.parametrize("word", ["a\nb", "\t", "\x1b[31m", "it's\na \\ b", "é\u202e", "\U000e0001", "", "a  b"])
def test_a_shell_gets_every_word_as_it_was(word: str) -> None:
    line = script.command(TrainSpec(name="digits", args=(word,), env=(f"A={word}",)), "digits.py")
    assert line.isprintable()
    shown = "import sys; print(ascii(sys.argv[1:]))"
    told = subprocess.run(
        ["bash", "-c", f"set -- {line}; {shlex.quote(sys.executable)} -c {shlex.quote(shown)} \"$@\""],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    ).stdout
    words = ast.literal_eval(told)
    assert words[words.index("--") + 1 :] == [word]
    assert f"A={word}" in words


def test_arrays_keep_their_shape_and_type() -> None:
    arrays = {"empty": numpy.zeros((0, 3)), "none": numpy.zeros((3, 0, 2), "i2"), "big": numpy.array([1, 2], ">i4")}
    found = ran(made("x = 1\n", dict(arrays)))
    for name, array in arrays.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
        assert found[name].tolist() == array.tolist()
    text = made("x = 1\n", {"wide": numpy.array([1], numpy.longdouble) / 3})
    assert "wide" not in ran(text)


@pytest.mark.parametrize(
    "body", ["x = 1\\\n\n", "from __future__ import annotations as ann\nx = ann is not None\n", "x = 1\n\n\n"]
)
def test_a_script_is_valid_where_its_cell_is(body: str) -> None:
    exec(compile(body, "cell", "exec"), {})
    assert ran(made(body, {}))["x"]


def test_nothing_in_a_record_becomes_code() -> None:
    evil = "a\nimport os\rraise SystemExit\x0c\u2028x"
    hostile = record(args=(evil,)).model_copy(update={"notebook": evil, "workdir": evil, "id": evil})
    bundle = cell_source("x = 1\n", first_line=2, namespace={}, use=(), out=(), modules=(), pip=(), cwd=Path())
    tree = ast.parse(script.as_script(hostile, bundle))
    assert [type(node) for node in tree.body] == [ast.Assign]
