"""What a cell takes from its notebook: what is missing is listed with its way out, what is asked for travels whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from kfnb.errors import SourceError
from kfnb.source import Bundle, cell_source, function_source


class Notebook:
    """Cells that have run in a shell whose namespace is `__main__`, as in a kernel."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell

    def run(self, *cells: str) -> Notebook:
        for text in cells:
            self.shell.run_cell(dedent(text), store_history=True).raise_error()  # type: ignore[no-untyped-call]
        return self

    def submit(self, body: str, **options: Any) -> Bundle:
        given: dict[str, Any] = {"use": (), "out": (), "modules": (), "pip": (), "cwd": Path("/")}
        namespace = self.shell.user_ns
        return cell_source(
            dedent(body), first_line=2, namespace=namespace, history=namespace["In"], **{**given, **options}
        )

    def refused(self, body: str, **options: Any) -> SourceError:
        with pytest.raises(SourceError) as refused:
            self.submit(body, **options)
        return refused.value


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    shell = InteractiveShell()  # type: ignore[no-untyped-call]
    monkeypatch.setitem(sys.modules, "__main__", shell.user_module)
    yield Notebook(shell)
    shell.history_manager.end_session()


def definitions(bundle: Bundle) -> list[str]:
    return [bundle.files[name].decode() for name in bundle.manifest["defs"]]


# ---- what is missing


def test_every_name_is_listed_with_its_line_its_kind_and_its_way_out(notebook: Notebook) -> None:
    notebook.run(
        "import numpy as np, os\nfrom collections import OrderedDict as OD\nfrom math import pi",
        "lr = 0.1\ndata = np.ones(3)\nclass Net: pass\nnet = Net()\ndef helper(): return lr * scale\nscale = 2",
    )
    refused = notebook.refused("import os\nx = np.mean(data) * lr\ny = helper(OD(), net, pi)\nz = undefined\n")
    assert refused.what == (
        "The cell uses 9 names that the job would not have: data, lr, np, OD, helper, scale, net, pi, undefined."
    )
    assert refused.why.strip().splitlines() == [
        "data (line 3): a numpy.ndarray of the notebook",
        "  lr (line 3): a float of the notebook",
        "  np (line 3): the module numpy",
        "  OD (line 4): the class of collections",
        "  helper (line 4): a function of the notebook",
        "  scale (line 1 of helper): an int of the notebook",
        "  net (line 4): a Net of the notebook",
        "  pi (line 4): the float",
        "  undefined (line 5): not defined anywhere",
    ]
    assert "--use data,lr,helper,scale,net ships" in refused.fix
    assert "import numpy as np\n    from collections import OrderedDict as OD\n    from math import pi" in refused.fix
    assert "define or correct undefined" in refused.fix


def test_a_notebooks_value_used_before_the_cell_assigns_it(notebook: Notebook) -> None:
    notebook.run("model = 3")
    assert "--use model" in notebook.refused("model = model + 1").fix
    notebook.submit("model = model + 1", use=["model"], out=["model"])
    assert "assigns it further down only" in notebook.refused("print(lr)\nlr = 1").why


def test_names_in_commands_are_names_only_where_the_notebook_has_them(notebook: Notebook) -> None:
    notebook.run("folder = '/data'")
    assert "folder (line 3)" in notebook.refused("x = 1\n!ls {folder}").why
    assert "folder (line 2)" in notebook.refused("!ls $folder").why
    notebook.submit("!awk '{print $1}' $HOME {not_there}")
    notebook.submit("!ls {folder}", use=["folder"])


def test_names_of_pythons_own_that_the_notebook_has_given_a_meaning(notebook: Notebook) -> None:
    notebook.run("dir = '/data'\nsum = 0")
    refused = notebook.refused("def f(): return dir\nprint(max([1]), f())")
    assert "dir (line 2): a str of the notebook" in refused.why
    assert "max" not in refused.what
    notebook.submit("print(dir)", use=["dir"])
    notebook.submit("dir = 'x'\nprint(dir, open, exit, input)")


def test_a_value_that_the_cell_assigns_again_is_said(notebook: Notebook) -> None:
    notebook.run("lr = 0.1")
    (note,) = notebook.submit("lr = 0.2\nprint(lr)", use=["lr"]).notes
    assert note == "lr is assigned by the cell itself: the value that --use ships is not used."
    for body in ["lr = lr * 2", "try:\n    lr\nexcept NameError:\n    lr = 1", "if 'lr' not in globals():\n    lr = 1"]:
        assert notebook.submit(body + "\nprint(lr)", use=["lr"]).notes == ()


def test_star_imports_and_exec(notebook: Notebook) -> None:
    notebook.submit("from math import *\nprint(sqrt(pi))")
    bundle = notebook.submit("from not_loaded_here import *\nprint(thing)")
    assert bundle.notes == ("thing (line 3) is not defined in the cell as far as can be seen.",)
    notebook.run("lr = 1")
    assert notebook.submit("from not_loaded_here import *\nprint(lr)").notes == (
        "lr (line 3) is not defined in the cell as far as can be seen, and the notebook's is not shipped.",
    )
    assert "lr" in notebook.refused("from math import *\nprint(lr)").what
    assert notebook.submit("exec('q = 1')\nprint(q)").notes == (
        "q (line 3) is not defined in the cell as far as can be seen.",
    )


def test_without_a_notebook() -> None:
    with pytest.raises(SourceError, match=r"lr \(line 1\): not defined anywhere"):
        cell_source("print(lr)", first_line=1, namespace=None, use=(), out=(), modules=(), pip=(), cwd=Path("/"))


def test_use_of_what_is_not_there(notebook: Notebook) -> None:
    assert notebook.refused("print(1)", use=["lr"]).what == "--use lr: the notebook has no lr."


# ---- what travels


INNER = """@lru_cache(maxsize=None)
def inner(x):
    if x:
        return outer(x - 1)
    return F.relu(os.path.join(x))
"""


def test_functions_travel_with_what_they_need_in_order(notebook: Notebook) -> None:
    notebook.run(
        "import torch.nn.functional as F\nimport os.path, os\nfrom functools import lru_cache",
        "limit_of = int\ndef outer(x, low=limit_of(3)):\n    return inner(x)\n" + INNER,
        "del limit_of",
    )
    with pytest.raises(SourceError, match="limit_of"):
        notebook.submit("print(outer(1))", use=["outer"])
    notebook.run("def outer(x):\n    return inner(x)")
    bundle = notebook.submit("print(outer(1))", use=["outer"])
    assert definitions(bundle) == [
        "from functools import lru_cache\n",
        "import torch.nn.functional as F\n",
        "import os.path\nimport os\n",
        INNER,
        "def outer(x):\n    return inner(x)\n",
    ]
    assert bundle.shipped_definitions == ("lru_cache", "F", "os", "inner", "outer")


def test_the_definition_that_holds_now_is_shipped(notebook: Notebook) -> None:
    notebook.run(
        "def f():\n    return 1", "g = f", "def f():\n    return 2", "class A:\n    x = 1", "class A:\n    x = 2"
    )
    assert definitions(notebook.submit("print(f(), A.x)", use=["f", "A"])) == [
        "def f():\n    return 2\n",
        "class A:\n    x = 2\n",
    ]
    assert definitions(notebook.submit("print(g())", use=["g"])) == ["def g():\n    return 1\n"]


def test_classes_keep_decorators_futures_and_bases(notebook: Notebook) -> None:
    notebook.run(
        "from dataclasses import dataclass\nimport abc",
        """
        from __future__ import annotations

        if True:
            class Base(abc.ABC):
                def f(self): return 1

            @dataclass(frozen=True)
            class Config(Base):
                x: Anything
        """,
    )
    bundle = notebook.submit("print(Config(1))", use=["Config"])
    texts = definitions(bundle)
    assert texts[-1].endswith("\n@dataclass(frozen=True)\nclass Config(Base):\n    x: Anything\n")
    assert texts[-1].startswith("from __future__ import annotations\n")
    assert bundle.shipped_definitions == ("dataclass", "abc", "Base", "Config")


def test_an_indented_definition_keeps_its_strings(notebook: Notebook) -> None:
    notebook.run(
        'if True:\n    def h(x):\n        """doc\nflush left\n      """\n# a comment\n\n        return (x,\n 1)\n'
    )
    (text,) = definitions(notebook.submit("print(h(1))", use=["h"]))
    assert text == 'def h(x):\n    """doc\nflush left\n      """\n# a comment\n\n    return (x,\n1)\n'


def test_a_name_of_the_cell_itself_serves_a_shipped_function(notebook: Notebook) -> None:
    notebook.run("lr = 1\ndef f():\n    return lr\ndef g(x=lr):\n    return x")
    assert definitions(notebook.submit("lr = 2\nprint(f())", use=["f"])) == ["def f():\n    return lr\n"]
    assert "lr (line 1 of g)" in notebook.refused("lr = 2\nprint(g())", use=["g"]).why


def test_a_function_of_a_timed_cell(notebook: Notebook) -> None:
    notebook.run("%%time\ndef f():\n    return 1")
    assert definitions(notebook.submit("print(f())", use=["f"])) == ["def f():\n    return 1\n"]


def test_a_decorator_that_hides_the_function(notebook: Notebook) -> None:
    notebook.run(
        "def timed(f):\n    def wrapper(*a):\n        return f(*a)\n    return wrapper",
        "@timed\ndef work(x):\n    return x",
    )
    assert definitions(notebook.submit("work(1)", use=["work"]))[-1] == "@timed\ndef work(x):\n    return x\n"


@pytest.mark.parametrize(
    ("cells", "name", "says"),
    [
        ("f = lambda x: x", "f", "f is a lambda"),
        (
            "def outer():\n    def inner(): return 1\n    return inner\nf = outer()",
            "f",
            "f is defined inside the function outer",
        ),
        ("exec('def f(): return 1')", "f", "The source of f is not in the notebook's history"),
        ("import threading\nf = threading.Lock()", "f", "The value f cannot be shipped"),
        ("def g():\n    class L: pass\n    return L()\nf = g()", "f", "The value f cannot be shipped"),
        ("f = [lambda: 1]", "f", "The value f cannot be shipped"),
        ("f = (i for i in range(3))", "f", "The value f cannot be shipped"),
    ],
)
def test_what_cannot_be_shipped_is_refused_in_a_sentence(notebook: Notebook, cells: str, name: str, says: str) -> None:
    assert notebook.run(cells).refused(f"print({name})", use=[name]).what.startswith(says)


def test_the_class_of_a_value_travels_with_it(notebook: Notebook) -> None:
    notebook.run(
        "from dataclasses import dataclass\nclass Plain:\n    x = 1\n@dataclass\nclass Data:\n    x: int",
        "values = [Data(1)]\nplain = Plain()",
    )
    bundle = notebook.submit("print(values, plain)", use=["values", "plain"])
    assert bundle.shipped_definitions == ("Plain", "dataclass", "Data")
    (note,) = bundle.notes
    assert note.startswith(
        f"plain (a Plain) travels as a pickle of Python 3.{sys.version_info[1]}: the job needs the same"
    )


def test_a_definition_cannot_need_a_value_of_a_notebooks_class_at_once(notebook: Notebook) -> None:
    notebook.run("class A: pass\na = A()\ndef f(x=a): return x")
    assert "f needs a at its definition" in notebook.refused("f()", use=["f", "a"]).what


def test_a_module_by_use_is_its_import(notebook: Notebook) -> None:
    notebook.run("import numpy as np")
    assert definitions(notebook.submit("print(np.ones(2))", use=["np"])) == ["import numpy as np\n"]


def test_what_the_shell_gives_needs_no_shipping(notebook: Notebook) -> None:
    bundle = notebook.submit("display(1)\nget_ipython().system('ls')")
    assert bundle.manifest["shell"]
    assert not notebook.submit("print(1)").manifest["shell"]


# ---- functions


def test_a_function_ships_with_code_unasked_and_data_as_arguments(notebook: Notebook) -> None:
    notebook.run(
        "import math",
        "class Net: pass\ndef step(x):\n    return math.sqrt(x), Net",
        "def train(lr):\n    return step(lr)",
    )
    bundle = function_source(notebook.shell.user_ns["train"], {"lr": 0.1}, out=["result"], cwd=Path("/"))
    assert bundle.main == "def train(lr):\n    return step(lr)\n\n\nresult = train(lr=lr)\n"
    assert bundle.shipped_definitions == ("Net", "math", "step")
    assert bundle.values == {"lr": 0.1}
    notebook.run("def clash(step):\n    return other(step)\ndef other(x): return step")
    with pytest.raises(SourceError, match="step is both a value for the job and code"):
        function_source(notebook.shell.user_ns["clash"], {"step": 1}, cwd=Path("/"))
    notebook.run("rate = 3\ndef train(lr):\n    return rate")
    with pytest.raises(
        SourceError, match=r"^train uses a name[^$]*rate \(line 2\)[^$]*make rate a parameter of the function"
    ):
        function_source(notebook.shell.user_ns["train"], {"lr": 0.1}, cwd=Path("/"))
