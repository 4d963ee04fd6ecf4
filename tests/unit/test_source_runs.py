"""A cell that runs as plain Python is never refused for a name: Python itself is asked, about programs of all kinds."""

from __future__ import annotations

import builtins
import contextlib
import io
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfnb.errors import SourceError
from kfnb.source import Bundle, cell_source


def submit(body: str, namespace: Mapping[str, object] | None = None) -> Bundle:
    return cell_source(
        body, first_line=1, namespace=namespace, use=(), out=(), modules=(), pip=(), cwd=Path("/"), history=()
    )


def run(body: str) -> dict[str, Any] | None:
    """What a plain Python module that has run has defined; None where it ended by an error."""
    module = types.ModuleType("plain")
    before = set(vars(builtins))
    sys.modules["plain"] = module
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            exec(compile(body, "plain.py", "exec", dont_inherit=True), module.__dict__)
    except Exception:
        return None
    finally:
        del sys.modules["plain"]
        for name in set(vars(builtins)) - before:
            delattr(builtins, name)
    return {name: value for name, value in vars(module).items() if not name.startswith("__")}


def indent(text: str) -> str:
    return "\n".join("    " + line for line in text.split("\n"))


names = st.sampled_from(["a", "b", "c"])
expressions = st.recursive(
    names | st.just("1"),
    lambda e: st.one_of(
        st.builds("({}, {})".format, e, e),
        st.builds("({} or {})".format, e, e),
        st.builds("({} is {} is {})".format, e, e, e),
        st.builds("({} if {} else {})".format, e, e, e),
        st.builds("{{1: {}, 2: {}}}".format, e, e),
        st.builds("({} := {})".format, names, e),
        st.builds("[{} for {} in [{}] if {}]".format, e, names, e, e),
        st.builds("list({} for {} in ({},))".format, e, names, e),
        st.builds("(lambda {}: {})".format, names, e),
        st.builds("(lambda {}={}: {})()".format, names, e, e),
        st.builds("f'{{{}!r}}'".format, e),
    ).filter(lambda text: "for" not in text or ":=" not in text),  # a walrus cannot rebind the variable of a `for`
    max_leaves=4,
)
simple = st.one_of(
    st.builds("{} = {}".format, names, expressions),
    st.builds("print({})".format, expressions),
    st.builds("{}: {} = {}".format, names, names, expressions),
    st.builds("x = {{}}\nx[{}] = {}\nx[{}] = []\nx[1] = {}".format, *[expressions.map("id({})".format)] * 4),
    st.builds("x = [[]]\nx[({} := 0)] += [{}]".format, names, expressions),
    st.builds("del {}".format, names),
    st.builds("import {} as {}".format, st.sampled_from(["json", "os.path"]), names),
    st.builds("from json import dumps as {}".format, names),
    st.builds("locals()['{}'] = 1".format, names),
    st.builds("vars().update({}=1)".format, names),
    st.builds("globals()['{}'] = 1".format, names),
    st.builds("exec('{} = 1')".format, names),
    st.builds("import sys\nsetattr(sys.modules[__name__], '{}', 1)".format, names),
    st.builds("import builtins\nbuiltins.{} = 1".format, names),
    st.sampled_from(["from string import *\nprint(digits)", "raise ValueError", "import sys\nsys.exit()"]),
)


def compound(b: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = b.map(indent)
    errors = st.sampled_from(
        ["", " Exception", " BaseException", " NameError", " (KeyError, NameError)", " ValueError", " Exception as e"]
    )
    tests = expressions | st.sampled_from(["False", "0", "not 1", "TYPE_CHECKING", "True", "not False"])
    return st.one_of(
        st.lists(b, min_size=2, max_size=4).map("\n".join),
        st.builds("if {}:\n{}\nelse:\n{}".format, tests, body, body),
        st.builds("for {} in range(2):\n{}\nelse:\n{}".format, names, body, body),
        st.builds("while {} and fuel and fuel.pop():\n{}".format, expressions, body),
        st.builds("try:\n{}\nexcept{}:\n{}\nelse:\n{}\nfinally:\n{}".format, body, errors, body, body, body),
        st.builds("try:\n{}\nfinally:\n{}".format, body, body),
        st.builds("import contextlib\nwith contextlib.suppress({}):\n{}".format,
                  st.sampled_from(["NameError", "Exception", "KeyError"]), body),
        st.builds("import contextlib\nwith contextlib.nullcontext({}) as {}:\n{}".format, expressions, names, body),
        st.builds("match {}:\n    case [{}, *{}]:\n{}\n    case {}:\n{}".format,
                  expressions, st.just("a"), st.just("b"), body.map(indent), names, body.map(indent)),
        st.builds("def {}({}={}):\n{}".format, names, names, expressions, body),
        st.builds("def f():\n    global {}\n{}\nf()".format, names, body),
        st.builds("def f():\n{}\nf()".format, body),
        st.builds("class {}:\n{}".format, names, body),
        st.builds("TYPE_CHECKING = False\nif TYPE_CHECKING:\n{}".format, body),
    )  # fmt: skip


programs = st.lists(st.recursive(simple, compound, max_leaves=8), min_size=1, max_size=4).map(
    lambda parts: "\n".join(["fuel = [1] * 9", *parts])  # for all rounds of `while` together
)


def compiles(body: str) -> bool:
    try:
        compile(body, "plain.py", "exec", dont_inherit=True)
    except SyntaxError:  # such as `global a` after a use of a, or an import * in a function
        return False
    return True


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # `1 is 2`
@settings(max_examples=1000, deadline=None)
@given(programs.filter(compiles))
def test_a_program_that_runs_is_not_refused(body: str) -> None:
    defined = run(body)
    if defined is None:
        return
    submit(body)
    submit(body, defined)  # nor when it has run in the notebook before, which then has all that it defines


# ---- the same by example

RUN = [
    "first = True\nwhile first or loss > 0.1:\n    loss = 0.05\n    first = False",
    "for i in range(2):\n    if i: print(x)\n    {}".format("def x(): pass"),
    "for i in range(2):\n    if i: print(x)\n    {}".format("class x: pass"),
    "for i in range(2):\n    if i: print(json)\n    {}".format("import json"),
    "for i in range(2):\n    if i: print(x)\n    {}".format("from json import dumps as x"),
    "for i in range(2):\n    if i: print(x)\n    {}".format("match i:\n        case x: pass"),
    "for i in range(2):\n    if i: print(x)\n    {}".format("match [i]:\n        case [*x]: pass"),
    "for i in range(2):\n    if i: print(x)\n    {}".format("match {i: i}:\n        case {**x}: pass"),
    "for i in range(2):\n    if i: print(x)\n    {}".format("(x := i)"),
    "for i in range(2):\n    if i: print(x)\n    {}".format("with open('/dev/null') as x: pass"),
    "for i in range(2):\n    if i: print(x)\n    {}".format("for x in [1]: pass"),
    "for i in range(2):\n    if i: print(x)\n    {}".format("(x, *y) = [1]"),
    "for i in range(2):\n    try:\n        1 / 0\n    except ZeroDivisionError as x:\n        print(x)",
    *[
        f"try:\n    del model\nexcept{kind}:\n    pass"
        for kind in ("", " Exception", " BaseException", " NameError", " (KeyError, NameError)", " Exception as e")
    ],
    "try:\n    del model\nexcept:\n    pass\nmodel = 1",
    "import contextlib\nwith contextlib.suppress(NameError):\n    del model",
    "from contextlib import suppress\nwith suppress(KeyError, NameError):\n    del model",
    (
        "from contextlib import contextmanager\n@contextmanager\ndef calm():\n    try: yield\n"
        "    except NameError: pass\nwith calm():\n    print(nothing)"
    ),
    "locals()['q'] = 1\nprint(q)",
    "vars().update(q=1)\nprint(q)",
    "globals().update(q=1)\nprint(q)",
    "import builtins\nbuiltins.q = 1\nprint(q)",
    "import sys\nsetattr(sys.modules[__name__], 'q', 1)\nprint(q)",
    "from sys import modules\nmodules[__name__].q = 1\nprint(q)",
    "def f(): pass\nf.__globals__['q'] = 1\nprint(q)",
    "import importlib\nsetattr(importlib.import_module('builtins'), 'q', 1)\nprint(q)",
    "exec('q = 1')\nprint(q)",
    "eval('(q := 1)')\nprint(q)",
    "e = exec\ne('q = 1')\nprint(q)",
    "__builtins__['q'] = 1\nprint(q)",
    "import gettext\ngettext.install('x')\nprint(_('hello'))",
    "from string import *\nprint(digits)",
    "if False:\n    print(undefined)",
    "if 0:\n    undefined()\nelif not True:\n    undefined()",
    "while False:\n    undefined()",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import kfnb_not_there\n    x: kfnb_not_there.X = unknown",
    "import typing\nif not typing.TYPE_CHECKING:\n    pass\nelse:\n    undefined()",
    "def never(): return undefined\nprint(never)",
    "debug = False\nif debug: undefined()",
    "for x in []: undefined(x)",
    "print([undefined for x in []], [x for x in [] if undefined])",
    "assert True, undefined",
    "import sys\nsys.exit()\nundefined()",
    "raise SystemExit\nundefined()",
    "x: x = 1",
    "print({1: (n := 1), n: n})",
    "x = [1]\nx[(i := 0)] += i",
    "class A((B := object)): pass\nprint(B)",
    "x = " + " + ".join(["1"] * 900),
    "x = ''" + ".strip()" * 600,
    "x = 1\nif x: pass\n" + "elif x: pass\n" * 600,
]


@pytest.mark.parametrize("body", RUN)
def test_what_runs_is_not_refused(body: str) -> None:
    defined = run(body)
    assert defined is not None
    submit(body)
    submit(body, defined)


@pytest.mark.parametrize(
    "body", ["try:\n    del model\nexcept:\n    pass", "locals()['model'] = 1\nprint(model)", "if 0: print(model)"]
)
def test_not_even_when_the_notebook_has_a_value_of_that_name(body: str) -> None:
    submit(body, {"model": 3})


def test_parameters_named_like_something_of_pythons_that_the_notebook_has_renamed() -> None:
    submit("def f(id, *, hash=1): return id, hash, [dir for dir in [1]]\nf(1)", {"id": 3, "hash": "ab", "dir": "/"})


@pytest.mark.parametrize(
    "body",
    ["print(lr)", "print(lr)\nlr = 1", "lr += 1", "class A:\n    x = lr", "@lr\ndef f(): pass", "[x for x in lr]"],
)
def test_what_cannot_run_is_refused(body: str) -> None:
    assert run(body) is None
    with pytest.raises(SourceError, match="lr"):
        submit(body)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("def f():\n    return lr\nf()", 2),
        ("for x in [1]:\n    lr", 2),
        ("with open('/dev/null'):\n    lr", 2),
        ("try:\n    lr\nexcept ValueError:\n    pass", 2),
    ],
)
def test_what_may_not_run_is_said(body: str, line: int) -> None:
    assert submit(body).notes == (f"lr (line {line}) is not defined in the cell as far as can be seen.",)
    with pytest.raises(SourceError, match=f"lr \\(line {line}\\): an int of the notebook"):
        submit(body, {"lr": 1})
