"""The line of a magic: joined, expanded, and turned into a call that awaits."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfnb.errors import UsageError
from kfnb.magics import line, parsers
from kfnb.magics.cells import CellTransformer
from kfnb.options import parse_train, split_line


@pytest.mark.parametrize(
    ("text", "joined", "first_line"),
    [
        (" digits --nodes 2", "digits --nodes 2", 2),
        (" digits \\\n    --nodes 2 \\\n --out a", "digits  --nodes 2  --out a", 4),
        ("\n\n digits", "digits", 4),
        ("", "", 2),
        (" digits \\\r\n --nodes 2", "digits  --nodes 2", 3),
    ],
)
def test_continued_lines_are_joined_and_counted(text: str, joined: str, first_line: int) -> None:
    assert line.join(text) == (joined, first_line)


def test_names_expand_and_nothing_else_does() -> None:
    names = {"n": 3, "msg": "b c'\"", "xs": ["lr", "epochs"]}
    given = parse_train(line.expand('digits --nodes {n} --env "A={msg}" --use {xs} -- {n} {{n}} {12} {} $n', names))
    assert given["nodes"] == "3"
    assert given["env"] == ["A=b c'\""]
    assert given["use"] == ["lr,epochs"]
    assert given["args"] == ("3", "{n}", "{12}", "{}", "$n")


def test_a_shell_variable_is_left_alone() -> None:
    assert split_line(line.expand("x -- $PATH `id` $(id) {1+1}", {})) == (["x"], ("$PATH", "`id`", "$(id)", "{1+1}"))


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(UsageError, match=r"\{nodes\} names nothing: the notebook has no `nodes`"):
        line.expand("digits --nodes {nodes}", {"node": 1})


@pytest.mark.parametrize("text", ['--env "A=b c"', "--env 'A=b c'", 'x "--env" "A=b c"', "--env A='b c'"])
def test_both_quotings(text: str) -> None:
    assert parse_train(line.expand(text, {}))["env"] == ["A=b c"]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1))
def test_a_value_is_one_word_whatever_it_holds(value: str) -> None:
    assert split_line(line.expand("a={v} -- {v}", {"v": value})) == (["a=" + value], (value,))


# -- the cell ----------------------------------------------------------------------------------------------------


def transform(cell: str) -> tuple[str, str]:
    """(line, body) that the magic is called with."""
    shell: Any = SimpleNamespace(autoawait=False)
    [call] = CellTransformer(shell)(cell.splitlines(keepends=True))
    tree = ast.parse(call, mode="eval").body
    assert isinstance(tree, ast.Call)
    name, argument, body = map(ast.literal_eval, tree.args)
    assert name == "kftrain"
    return argument, body


@pytest.mark.parametrize(
    ("cell", "argument", "body"),
    [
        ("%%kftrain digits --nodes 2\nprint(1)\n", " digits --nodes 2", "print(1)\n"),
        ("%%kftrain\nx\n", "", "x\n"),
        ("\n  \n%%kftrain a\nx\n", "\n\n a", "x\n"),
        ("%%kftrain a \\\n  --nodes 2 \\\n  --out b\nx\n", " a \\\n  --nodes 2 \\\n  --out b", "x\n"),
        ("  %%kftrain a\n  if x:\n      y\n", " a", "if x:\n    y\n"),
        ("%%kftrain a\n", " a", "\n"),
        ("%%kftrain a\n'''\n%%kftrain\n'''\\\n\n", " a", "'''\n%%kftrain\n'''\\\n\n"),
        ("%%kftrain a\r\nx\r\n", " a", "x\r\n"),
    ],
)
def test_a_cell_becomes_a_call(cell: str, argument: str, body: str) -> None:
    assert transform(cell) == (argument, body)


@pytest.mark.parametrize(
    "cell", ["print(1)\n", "# a\n%%kftrain\nx\n", "%%kftrain?\n", "%%kftrains\n", "%kftrain\n", "", "\n\n"]
)
def test_other_cells_are_left_alone(cell: str) -> None:
    shell: Any = SimpleNamespace(autoawait=True)
    lines = cell.splitlines(keepends=True)
    assert CellTransformer(shell)(list(lines)) == lines


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")))
def test_the_body_arrives_as_written(body: str) -> None:
    assert transform("%%kftrain a\n" + body)[1] == (body or "\n")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("%%kftrain --no", "%%kftrain --no"),
        ("%%kftrain a \\\n --no", "%%kftrain a   --no"),
        ("%%kftrain a\nprint(--no", None),
        ("x = 1\n%kflogs dig", "%kflogs dig"),
        ("job = %kfattach dig", "job = %kfattach dig"),
        ("%kfattach", None),
        ("print(kf", None),
    ],
)
def test_completion_knows_its_lines(text: str, seen: str | None) -> None:
    assert CellTransformer.magic_line(text.split("\n")) == seen


# -- the values of a repeat --------------------------------------------------------------------------------------


def test_values_of_a_repeat() -> None:
    items = ["lr=0.1", "layers=[1, 2]", "name=adam", "flag=True", "epochs"]
    assert parsers.captured(items, {"epochs": 5}) == {
        "lr": 0.1,
        "layers": [1, 2],
        "name": "adam",
        "flag": True,
        "epochs": 5,
    }
    for wrong in ("1x=2", "missing"):
        with pytest.raises(UsageError, match=wrong.partition("=")[0]):
            parsers.captured([wrong], {})


def test_every_line_magic_has_a_parser_with_help() -> None:
    for magic in parsers.LINE_MAGICS:
        assert f"%{magic}" in parsers.magic_parser(magic).format_help()
    with pytest.raises(UsageError, match="NAME"):
        parsers.magic_parser("kfattach").parse_args([])
