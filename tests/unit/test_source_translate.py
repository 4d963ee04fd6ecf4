"""The notebook's own syntax becomes Python on the same lines, or is refused by name and line."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfnb.errors import SourceError
from kfnb.source.translate import translate


@pytest.mark.parametrize(
    "body",
    [
        "x = 1",
        "",
        "await f()",
        "s = '''\n%foo\n!ls\n'''",
        "x = (5\n% y)",
        '"""doc"""\nfrom __future__ import annotations\n',
        "# %timeit x\n",
        "async with a: pass",
        "\n\n  \nx = 1\n",
    ],
)
def test_python_stays_as_it_is(body: str) -> None:
    translation = translate(body, 2)
    assert not translation.changed
    assert translation.text == body


@pytest.mark.parametrize(
    ("line", "python"),
    [
        ("!ls -l {x}", "get_ipython().system('ls -l {x}')"),
        ("!!ls", "get_ipython().getoutput('ls')"),
        ("x = !ls 'a b'", "x = get_ipython().getoutput(\"ls 'a b'\")"),
        ("%env A=b c", "get_ipython().run_line_magic('env', 'A=b c')"),
        ("x = %env A", "x = get_ipython().run_line_magic('env', 'A')"),
        ("%time x = f(1)", "with get_ipython().time(): x = f(1)"),
        ("x = %time f(1)", "x = get_ipython().timed(lambda: f(1))"),
        ("%timeit -n 10 -r2 f(1)", "get_ipython().timeit(lambda: (f(1)), 10, 2)"),
        ("%timeit f(1)", "get_ipython().timeit(lambda: (f(1)), 0, 7)"),
        ("%matplotlib inline", "get_ipython().run_line_magic('matplotlib', 'inline')"),
        ("%pip install -q a", "get_ipython().run_line_magic('pip', 'install -q a')"),
    ],
)
def test_supported_syntax(line: str, python: str) -> None:
    assert translate(line, 2).text == python + "\n"
    assert translate(f"if x:\n    {line}\nlast", 2).text == f"if x:\n    {python}\nlast\n"


def test_a_byte_order_mark_is_no_part_of_the_code() -> None:
    assert translate("\ufeffx = 1", 2).text == "x = 1"
    assert translate("\ufeff%%time\nx = 1\n!ls", 2).text.startswith("\nx = 1\nget_ipython()")
    with pytest.raises(SourceError, match="Line 2 of the cell is not Python"):
        translate("\ufeffx = = 1", 2)
    with pytest.raises(SourceError, match="Line 3 of the cell is not Python"):
        translate("x = 1\n\ufeffy = 1", 2)


@pytest.mark.parametrize("comment", ["# coding: latin-1", "# -*- coding: not_there -*-", "#!/bin/sh\n# coding: utf-16"])
def test_a_declared_encoding_that_the_cell_is_not_in(comment: str) -> None:
    with pytest.raises(SourceError, match="declares an encoding"):
        translate(comment + "\nx = 'é'", 2)
    assert translate("# coding: utf-8\nx = 'é'", 2).text
    assert translate("\ufeff# coding: utf-8\nx = 'é'", 2).text


def test_lines_stay_where_they_are() -> None:
    body = "a = 1\n!echo a \\\n  b \\\n  c\nb = 2\nc = %env \\\n  HOME\nd = 3\ns = '''\n!no\n'''\n!last"
    text = translate(body, 2).text
    for number, line in enumerate(body.split("\n")):
        if " = " in line and "%" not in line:
            assert text.split("\n")[number] == line
    assert text.split("\n")[1].startswith("get_ipython().system(")
    assert text.split("\n")[11] == "get_ipython().system('last')"


def test_a_timed_cell_keeps_its_first_statements_first() -> None:
    text = translate('%%time\n"""doc"""\nfrom __future__ import annotations\nx = 1', 2).text
    assert text == '\n"""doc"""\nfrom __future__ import annotations\nx = 1\nget_ipython().cell_time()\n'


def test_indented_cells_and_prompts() -> None:
    assert translate("  x = 1\n  if x:\n    y = 2", 2).text == "x = 1\nif x:\n  y = 2\n"
    assert translate(">>> x = 1\n>>> y = 2", 2).text == "x = 1\ny = 2\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("x = 1\n%load_ext foo", "Line 3 of the cell has `%load_ext`"),
        ("%%bash\nls", "Line 2 of the cell has `%%bash`"),
        ("\n%%bash\nls", "Line 3 of the cell has `%%bash`"),
        ("x\nx?", r"Line 3 of the cell has `x\?`"),
        ("?x", r"Line 2 of the cell has `\?`"),
        ("/f 1", "Line 2 of the cell has `/`"),
        ("y = %who_ls", "Line 2 of the cell has `%who_ls`"),
        ("!ls\n%debug", "Line 3 of the cell has `%debug`"),
        ("%time for i in x: print(i)", "Line 2 of the cell: %time in a job takes a simple statement"),
        ("%timeit x = 1", "Line 2 of the cell: %timeit in a job takes an expression"),
        ("%%time x\n", "Line 2 of the cell: %%time takes nothing"),
        ("x = (1", r"Line 2 of the cell is not Python: '\(' was never closed"),
        ("x = 1\ny = = 2", "Line 3 of the cell is not Python: invalid syntax"),
        ("!ls \\\n -l\ny = = 2", "Line 4 of the cell is not Python"),
        ("return 1", "Line 2 of the cell is not Python: 'return' outside function"),
        ("def f():\n    x\n  y", "Line 4 of the cell is not Python"),
        ("break", "Line 2 of the cell is not Python: 'break' outside loop"),
        ("a\0b", "NUL"),
        ("x = '\ud800'", "UTF-8"),
        ("# coding: latin-1\nx = 'é'", "declares an encoding"),
    ],
)
def test_refused_with_the_line_of_the_cell(body: str, says: str) -> None:
    with pytest.raises(SourceError, match=says):
        translate(body, 2)


def test_a_harmless_coding_comment_is_no_reason() -> None:
    assert not translate("# -*- coding: utf-8 -*-\nx = 'é'", 2).changed
    assert not translate("# coding: latin-1\nx = 'e'", 2).changed


LINES = [
    "x = 1",
    "!echo a",
    "y = !ls",
    "%env A=b",
    "%time z = 1",
    "# a comment",
    "",
    "s = '''\n!no\n'''",
    "def f():\n    !echo b",
]


@given(st.lists(st.sampled_from(LINES), max_size=8))
def test_every_statement_keeps_its_line(lines: list[str]) -> None:
    body = "\n".join(lines)
    translation = translate(body, 1)
    starts, number = [], 1
    for line in lines:
        if line and not line.startswith("#"):
            starts.append(number)
        number += line.count("\n") + 1
    assert [node.lineno for node in translation.tree.body] == starts


@given(st.text(alphabet="!%?=x \n()'\\#:abc", max_size=30))
def test_any_text_is_translated_or_refused(body: str) -> None:
    try:
        translation = translate(body, 1)
    except SourceError:
        return
    assert isinstance(translation.tree, ast.Module)
