"""A bundle's code in a real process: what a cell does in a notebook, it does in a rank."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from kfnb.source import Bundle, cell_source, function_source, script_source
from kfnb_worker import values

ROOT = Path(__file__).resolve().parents[2]
RANK = """
import json, sys
from kfnb_worker import execute, values
code, results, *argv = sys.argv[1:]
try:
    execute.run(code, argv)
except BaseException as error:
    print("FAILURE " + json.dumps(execute.failure(error)), file=sys.stderr)
    raise SystemExit(1)
names = execute.Code(code).bundle["out"]
saved = values.save_results(names, execute.main_globals(), results)
assert saved["errors"] == {}, saved["errors"]
"""


@dataclass
class Ran:
    code: int
    out: str
    err: str
    results: dict[str, Any]

    @property
    def failure(self) -> dict[str, Any]:
        line = next(line for line in self.err.splitlines() if line.startswith("FAILURE "))
        return dict(json.loads(line[len("FAILURE ") :]))


def run(bundle: Bundle, folder: Path, *argv: str, python: tuple[str, ...] = (sys.executable,)) -> Ran:
    """The bundle in a process of its own, unpacked from its bytes."""
    code, results = folder / "code", folder / "results"
    with zipfile.ZipFile(io.BytesIO(bundle.data)) as archive:
        archive.extractall(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [*python, "-c", RANK, str(code), str(results), *argv],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return Ran(done.returncode, done.stdout, done.stderr, values.load_results(str(results))[0])


def cell(body: str, **options: Any) -> Bundle:
    given: dict[str, Any] = {"first_line": 2, "namespace": None, "use": (), "out": (), "modules": (), "pip": ()}
    return cell_source(dedent(body).removeprefix("\n"), **{**given, "cwd": Path("/"), **options})


def good(ran: Ran) -> Ran:
    assert ran.code == 0, ran.err
    return ran


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    """A shell of IPython whose namespace is `__main__`, as in a kernel."""
    shell = InteractiveShell()  # type: ignore[no-untyped-call]
    monkeypatch.setitem(sys.modules, "__main__", shell.user_module)
    return shell


def execute_cells(shell: InteractiveShell, *cells: str) -> dict[str, Any]:
    """Runs cells; gives the options of cell_source that a kernel would."""
    for text in cells:
        result = shell.run_cell(dedent(text), store_history=True)  # type: ignore[no-untyped-call]
        result.raise_error()
    return {"namespace": shell.user_ns, "history": shell.user_ns["In"]}


# ---- the cell as it is


def test_main_is_the_cell_byte_for_byte_and_runs_as_main(tmp_path: Path) -> None:
    body = (
        '"""What it is."""\nfrom __future__ import annotations\n# é\nimport sys\ndef f(x: NotDefined): pass\n'
        "print(__name__, __doc__, __file__ == sys.argv[0], sys.argv[1:])"
    )
    bundle = cell(body)
    assert bundle.files["main.py"] == body.encode()
    ran = good(run(bundle, tmp_path, "--lr", "0.1"))
    assert ran.out == "__main__ What it is. True ['--lr', '0.1']\n"


def test_a_cell_with_a_byte_order_mark(tmp_path: Path) -> None:
    ran = good(run(cell("\ufeffx = 'é'\nprint(x)\n", out=["x"]), tmp_path))
    assert (ran.out, ran.results) == ("é\n", {"x": "é"})


def test_a_cell_that_asks_whether_it_is_main(tmp_path: Path) -> None:
    assert (
        good(run(cell("def main():\n    print('ran')\nif __name__ == '__main__':\n    main()"), tmp_path)).out
        == "ran\n"
    )


def test_top_level_await(tmp_path: Path) -> None:
    body = """
    import asyncio

    async def double(x):
        await asyncio.sleep(0)
        return 2 * x

    y = await double(4)
    async with asyncio.Lock():
        z = [await double(i) async for i in agen()] if False else y
    print(z)
    """
    ran = good(run(cell(body.replace(" async for i in agen()", " for i in range(2)"), out=["y"]), tmp_path))
    assert ran.out == "8\n"
    assert ran.results == {"y": 8}


def test_a_traceback_shows_the_lines_of_the_cell_and_none_of_ours(tmp_path: Path) -> None:
    body = """
    def inner(x):
        return 1 / x  # here

    try:
        inner(0)
    except ZeroDivisionError as error:
        raise RuntimeError("the outer one") from error
    """
    ran = run(cell(body), tmp_path)
    assert ran.code == 1
    failure = ran.failure
    assert failure["type"] == "RuntimeError"
    assert failure["message"] == "the outer one"
    assert failure["line"] == 7
    assert "return 1 / x  # here" in failure["traceback"]
    assert "direct cause" in failure["traceback"]
    assert "kfnb_worker" not in failure["traceback"]
    assert failure["traceback"].count("main.py") == 3


def test_a_traceback_through_await_begins_in_the_cell(tmp_path: Path) -> None:
    failure = run(cell("import asyncio\nawait asyncio.sleep(0)\nraise KeyError('k')"), tmp_path).failure
    assert failure["line"] == 3
    assert failure["type"] == "KeyError"
    assert "runners.py" not in failure["traceback"]
    assert "raise KeyError('k')" in failure["traceback"]


def test_a_traceback_of_a_group_has_all_of_it(tmp_path: Path) -> None:
    failure = run(cell("raise ExceptionGroup('several', [ValueError('one'), TypeError('two')])"), tmp_path).failure
    assert "ValueError: one" in failure["traceback"]
    assert "TypeError: two" in failure["traceback"]


def test_the_failing_line_is_the_innermost_of_the_cell(tmp_path: Path) -> None:
    failure = run(cell("import json\ndef f():\n    json.loads('{')\n\nf()"), tmp_path).failure
    assert failure["line"] == 3
    assert failure["type"] == "json.decoder.JSONDecodeError"


def test_a_failure_that_cannot_be_told_is_told(tmp_path: Path) -> None:
    body = "class Bad(Exception):\n    def __str__(self): raise ValueError\nraise Bad()"
    assert run(cell(body), tmp_path).failure["type"] == "Bad"
    long = run(cell("raise ValueError('x' * 1_000_000)"), tmp_path / "long").failure
    assert len(long["message"]) < 5000
    assert "characters left out" in long["message"]


# ---- the notebook's own syntax


def test_commands_and_magics(tmp_path: Path) -> None:
    body = """
    %%time
    from __future__ import annotations
    import os
    name = "wor" + "ld"
    !echo hello {name} \\
        again
    x = !printf 'one\\ntwo\\n'; echo $name >&2
    print(x, x.n)
    %env KFNB_TRIED=yes
    print(os.environ["KFNB_TRIED"])
    %time y = sum(range(10))
    z = %time y + 1
    if z:
        %cd /
        here = %pwd
    print(y, z, here)
    !exit 3
    print(_exit_code)
    !awk 'BEGIN {print "as it is"}'
    %matplotlib inline
    display(z)
    raise ValueError
    """
    bundle = cell(body)
    assert len(bundle.files["_kfnb/translated.py"].split(b"\n")) >= bundle.main.count("\n") + 1
    ran = run(bundle, tmp_path)
    lines = [line for line in ran.out.splitlines() if not line.startswith(("CPU times", "Wall time"))]
    assert lines == [
        "hello world again",
        "['one', 'two', 'world'] one",
        "two",
        "world",
        "env: KFNB_TRIED=yes",
        "yes",
        "45 46 /",
        "3",
        "as it is",
        "46",
    ]
    assert ran.out.count("Wall time") == 2  # the cell itself did not come to its end
    assert ran.failure["line"] == 22
    assert "raise ValueError" in ran.failure["traceback"]


def test_a_failing_command_line_shows_as_the_user_wrote_it(tmp_path: Path) -> None:
    failure = run(cell("x = 1\n%time y = 1 / 0\n"), tmp_path).failure
    assert failure["line"] == 2
    assert "%time y = 1 / 0" in failure["traceback"]


def test_code_that_asks_for_a_notebook_is_told_there_is_none(tmp_path: Path) -> None:
    body = "try:\n    get_ipython()\n    print('notebook')\nexcept NameError:\n    print('script')"
    assert good(run(cell(body), tmp_path)).out == "script\n"


# ---- what travels with it


def test_functions_classes_and_values_of_the_notebook(tmp_path: Path, notebook: InteractiveShell) -> None:
    options = execute_cells(
        notebook,
        "import numpy as np, torch\nfrom dataclasses import dataclass, field\nimport math",
        """
        from __future__ import annotations
        lr = 0.5

        @dataclass(frozen=True)
        class Config:
            width: NotDefinedAnywhere
            extra: list = field(default_factory=list)

        config = Config(3)
        data = {"x": np.arange(3, dtype=">i2"), "t": torch.ones(2)}
        """,
        "def scale(x):\n    return x * lr * factor()\ndef factor(): return math.floor(2.5)",
        "class Net(torch.nn.Module):\n    def forward(self, x):\n        return scale(x)\nnet = Net()",
    )
    body = """
    y = scale(4)
    print(y, config, type(config).__module__)
    print(data["x"].dtype, data["t"].sum().item(), isinstance(net, Net))
    total = {"y": y, "config": config}
    """
    bundle = cell(body, use=["scale", "lr", "config", "data", "net", "Net"], out=["total"], **options)
    assert bundle.values == {"lr": 0.5}
    assert any(note.startswith("net (a Net) travels as a pickle of Python") for note in bundle.notes)
    ran = good(run(bundle, tmp_path))
    assert ran.out == "4.0 Config(width=3, extra=[]) __main__\n>i2 2.0 True\n"
    assert ran.results == {"total": {"y": 4.0, "config": {"width": 3, "extra": []}}}
    changed = good(run(bundle.with_values({"lr": 2}), tmp_path / "again"))
    assert changed.results["total"]["y"] == 16


def test_local_modules(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("from pkg.inner import N\nimport pkg.data\nTEXT = pkg.data.read()\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").touch()
    (tmp_path / "pkg/inner.py").write_text("N = 5\n")
    (tmp_path / "pkg/data.py").write_text(
        "from pathlib import Path\ndef read(): return Path(__file__).with_name('data.txt').read_text()\n"
    )
    (tmp_path / "pkg/data.txt").write_text("text")
    bundle = cell("import helpers\nprint(helpers.N, helpers.TEXT)", modules=["helpers.py", "pkg"], cwd=tmp_path)
    assert good(run(bundle, tmp_path / "job")).out == "5 text\n"


def test_a_function_of_the_notebook(tmp_path: Path, notebook: InteractiveShell) -> None:
    execute_cells(
        notebook,
        "import math\ndef area(r): return math.floor(math.pi * r * r)",
        "async def train(r, *, n=1):\n    assert r, 'no radius'\n    return area(r) * n",
    )
    train = notebook.user_ns["train"]
    ran = good(run(function_source(train, {"r": 2}, out=["result"], cwd=tmp_path), tmp_path))
    assert ran.results == {"result": 12}
    failure = run(function_source(train, {"r": 0}, cwd=tmp_path), tmp_path / "fails").failure
    assert failure["line"] == 2
    assert "assert r, 'no radius'" in failure["traceback"]


def test_a_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes("# coding: latin-1\nimport sys\nprint('é', sys.argv[1:])\nx = 3\n".encode("latin-1"))
    bundle = script_source(Path("train.py"), out=["x"], cwd=tmp_path)
    assert bundle.files["main.py"] == script.read_bytes()
    ran = good(run(bundle, tmp_path / "job", "a b"))
    assert ran.out == "é ['a b']\n"
    assert ran.results == {"x": 3}


def test_a_pickle_of_another_python_is_refused_before_it_is_loaded(tmp_path: Path, notebook: InteractiveShell) -> None:
    options = execute_cells(notebook, "import fractions\nf = fractions.Fraction(1, 2)")
    bundle = cell("print(f)", use=["f"], **options)
    files = dict(bundle.files)
    index = json.loads(files["_kfnb/values.json"])
    index["values"]["f"]["pickle"]["python"] = "3.1"
    files["_kfnb/values.json"] = json.dumps(index).encode()
    failure = run(Bundle(files), tmp_path).failure
    assert failure["message"].startswith("f: this fractions.Fraction was pickled by Python 3.1 and the job runs")
    assert failure["line"] is None


# ---- processes that the cell starts

SPAWNING = """
import multiprocessing, os, sys
from collections import namedtuple
import torch
from torch.utils.data import DataLoader, Dataset

SIZE = 4 * 2
device = torch.device("cpu")
Pair = namedtuple("Pair", "a b")
print("the cell runs", file=sys.stderr)

class Squares(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, i):
        return Pair(torch.tensor(i * offset, device=device), os.getpid())

def collate(items):
    return Pair(torch.stack([item.a for item in items]), {item.b for item in items})

def double(x):
    return 2 * scaled(x)

def report(rank, queue):
    queue.put((rank, double(rank)))

"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_data_loaders_and_pools_find_the_cell_and_do_not_run_it_again(
    tmp_path: Path, notebook: InteractiveShell, method: str
) -> None:
    options = execute_cells(notebook, "offset = 3\ndef scaled(x): return x * offset")
    body = f"""{SPAWNING}
loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context="{method}", collate_fn=collate)
batches = list(loader)
print(torch.cat([batch.a for batch in batches]).tolist(), os.getpid() in set.union(*(batch.b for batch in batches)))
with multiprocessing.get_context("{method}").Pool(2) as pool:
    print(pool.map(double, range(3)))
context = torch.multiprocessing.get_context("{method}")
queue = context.SimpleQueue()
torch.multiprocessing.start_processes(report, args=(queue,), nprocs=2, start_method="{method}")
print(sorted(queue.get() for _ in range(2)))
"""
    ran = good(run(cell(body, use=["offset", "scaled"], **options), tmp_path))
    assert ran.out.splitlines() == ["[0, 3, 6, 9, 12, 15, 18, 21] False", "[0, 6, 12]", "[(0, 0), (1, 6)]"]
    assert ran.err.count("the cell runs") == 1


def test_spawned_children_of_a_translated_cell_and_a_failure_in_one(tmp_path: Path) -> None:
    body = """
    import multiprocessing
    !echo once
    def fails(x):
        raise ValueError(f"bad {x}")

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(fails, [7])
    """
    ran = run(cell(body), tmp_path)
    assert ran.out == "once\n"
    assert ran.failure["type"] == "ValueError"
    assert ran.failure["line"] == 7
    assert 'raise ValueError(f"bad {x}")' in ran.failure["traceback"]


def test_a_child_says_why_it_lacks_a_definition(tmp_path: Path) -> None:
    body = """
    import multiprocessing, os
    size = len(os.environ)

    def work(x, n=size):
        return x

    if __name__ == "__main__":
        process = multiprocessing.get_context("spawn").Process(target=work, args=(7,))
        process.start()
        process.join()
        print(process.exitcode)
    """
    ran = good(run(cell(body), tmp_path))
    assert ran.out == "1\n"
    assert "work is not defined in a process that the cell has spawned: line 4 of the cell failed there" in ran.err
    assert "name 'size' is not defined" in ran.err


def test_a_class_that_comes_back_from_a_child_is_the_cells(tmp_path: Path) -> None:
    body = """
    import concurrent.futures, multiprocessing

    class Point:
        def __init__(self, x):
            self.x = x

    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        point = pool.submit(Point, 3).result()
    print(type(point) is Point, point.x)
    """
    assert good(run(cell(body), tmp_path)).out == "True 3\n"


# ---- the same thing is the same bytes

DETERMINED = """
import os, sys, time
from pathlib import Path
import numpy as np, torch
from kfnb.source import cell_source
here = Path(sys.argv[1])
names = {name: {name, "x", 1.5, (1, "y")} for name in {"a", "b", "c", "dd"}}
values = {**names, "t": {"w": torch.arange(3.0), "v": torch.ones(2)}, "n": np.arange(3), "p": frozenset("abc")}
pairs = list(values.items())
namespace = dict(pairs if sys.argv[2] == "0" else reversed(pairs))
order = ["pkg", "one.py"] if sys.argv[2] == "0" else ["one.py", "pkg"]
for path in here.rglob("*"):
    os.utime(path, (1, int(sys.argv[2]) * 1000))
bundle = cell_source("!ls\\nprint(a, b)", first_line=2, namespace=namespace, use=list(namespace), out=(), modules=order,
                     pip=(), cwd=here)
print(bundle.sha256)
"""


def test_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("x = 1")
    (tmp_path / "pkg").mkdir()
    for name in "zyx":
        (tmp_path / "pkg" / f"{name}.py").write_text(name)
    found = set()
    for seed in "01":
        (tmp_path / "one.py").chmod(0o600 if seed == "0" else 0o755)
        done = subprocess.run(
            [sys.executable, "-c", DETERMINED, str(tmp_path), seed],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1
