"""Local files and packages: what is shipped, what is left out, what is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from kfnb.errors import SourceError
from kfnb.source import cell_source
from kfnb.source.modules import collect


def cell(body: str, cwd: Path, **options: Any) -> Any:
    given: dict[str, Any] = {"first_line": 2, "namespace": None, "use": (), "out": (), "modules": (), "pip": ()}
    return cell_source(body, **{**given, "cwd": cwd, **options})


def tree(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def test_files_and_packages_lie_side_by_side(tmp_path: Path) -> None:
    tree(tmp_path, "utils.py", "src/pkg/__init__.py", "src/pkg/sub/data.json", "other/one.py")
    files, notes = collect(["utils.py", "src/pkg", str(tmp_path / "other/one.py")], tmp_path)
    assert sorted(files) == ["one.py", "pkg/__init__.py", "pkg/sub/data.json", "utils.py"]
    assert files["pkg/sub/data.json"] == b"src/pkg/sub/data.json"
    assert notes == ()


@pytest.mark.parametrize("entry", ["pkg", "pkg/", "./pkg", "pkg.sub", "../here/pkg"])
def test_ways_to_name_a_package(tmp_path: Path, entry: str) -> None:
    here = tmp_path / "here"
    tree(here, "pkg/__init__.py", "pkg/sub.py")
    assert sorted(collect([entry], here)[0]) == ["pkg/__init__.py", "pkg/sub.py"]


def test_a_module_by_name_and_a_whole_directory(tmp_path: Path) -> None:
    tree(tmp_path, "utils.py", "a/b.py")
    assert list(collect(["utils"], tmp_path)[0]) == ["utils.py"]
    assert sorted(collect(["."], tmp_path)[0]) == ["a/b.py", "utils.py"]


def test_histories_caches_environments_and_secrets_stay_here(tmp_path: Path) -> None:
    tree(
        tmp_path,
        *("pkg/a.py", "pkg/.git/objects/big", "pkg/__pycache__/a.pyc", "pkg/.venv/x.py", "pkg/node_modules/m/i.js"),
        *(
            "pkg/.ipynb_checkpoints/a.py",
            "pkg/b.pyc",
            "pkg/.env",
            "pkg/my-env/pyvenv.cfg",
            "pkg/my-env/lib/x.py",
            "pkg/.DS_Store",
        ),
    )
    assert list(collect(["pkg"], tmp_path)[0]) == ["pkg/a.py"]


def test_links_are_safe(tmp_path: Path) -> None:
    tree(tmp_path, "pkg/a.py", "secret.txt", "big/data")
    (tmp_path / "pkg/inside.py").symlink_to("a.py")
    (tmp_path / "pkg/outside.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "pkg/loop").symlink_to(tmp_path / "pkg")
    (tmp_path / "pkg/data").symlink_to(tmp_path / "big")
    (tmp_path / "pkg/broken.py").symlink_to("nowhere.py")
    os.mkfifo(tmp_path / "pkg/pipe")
    files, notes = collect(["pkg"], tmp_path)
    assert files == {"pkg/a.py": b"pkg/a.py", "pkg/inside.py": b"pkg/a.py"}
    assert sorted(note.split(": ")[1].split(" is ")[0] for note in notes) == ["data", "loop", "outside.txt"]
    (tmp_path / "link.py").symlink_to("secret.txt")
    assert collect(["link.py"], tmp_path)[0] == {"link.py": b"secret.txt"}  # named by the user


def test_too_much_is_refused_with_the_five_largest(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    for n in range(7):
        with (tmp_path / f"pkg/{n}.bin").open("wb") as file:
            file.truncate((n + 1) << 20)
    with pytest.raises(SourceError) as refused:
        collect(["pkg"], tmp_path)
    assert "28.0 MiB; a job can take 16.0 MiB" in refused.value.what
    assert refused.value.why == (
        "Largest: pkg/6.bin (7.0 MiB), pkg/5.bin (6.0 MiB), pkg/4.bin (5.0 MiB), pkg/3.bin (4.0 MiB), "
        "pkg/2.bin (3.0 MiB)."
    )


@pytest.mark.parametrize("name", ["main.py", "_kfnb/x.py", "kfnb_worker/x.py", "main/__init__.py"])
def test_names_that_the_job_needs_itself(tmp_path: Path, name: str) -> None:
    tree(tmp_path, name)
    with pytest.raises(SourceError, match="a name that the job needs for itself"):
        collect([name.partition("/")[0]], tmp_path)


def test_clashes_missing_files_and_hidden_modules(tmp_path: Path) -> None:
    tree(tmp_path, "a/utils.py", "b/utils.py", "random.py")
    with pytest.raises(SourceError, match=r"Two modules would be utils\.py"):
        collect(["a/utils.py", "b/utils.py"], tmp_path)
    assert collect(["a/utils.py", "a/utils.py"], tmp_path)[0] == {"utils.py": b"a/utils.py"}
    with pytest.raises(SourceError, match=r"--module nope: there is no such file"):
        collect(["nope"], tmp_path)
    assert collect(["random.py"], tmp_path)[1] == ("random.py hides the standard library's module random in the job.",)


def test_local_imports_that_nobody_ships_are_refused(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def f():\n    import deeper\n")
    (tmp_path / "deeper.py").write_text("x = 1\n")
    (tmp_path / "space").mkdir()
    (tmp_path / "space/m.py").touch()
    (tmp_path / "data").mkdir()
    with pytest.raises(SourceError) as refused:
        cell("import os\nimport helper, numpy\nfrom space.m import x\nimport data", tmp_path)
    assert "helper (line 3): a file beside the notebook" in refused.value.why
    assert "space (line 4): a package beside the notebook" in refused.value.why
    assert "--module helper.py --module space ships" in refused.value.fix
    assert "data" not in refused.value.what
    for body in (
        "try:\n    import helper\nexcept ImportError:\n    helper = None",
        "try:\n    import helper\nexcept:\n    helper = None",
        "import sys\nsys.path.insert(0, '/data/code')\nimport helper",
    ):
        (note,) = (note for note in cell(body, cwd=tmp_path).notes if "helper" in note)
        assert note.endswith("is a file beside the notebook, and not shipped; --module helper.py ships it.")
    assert not any("helper" in note for note in cell("if 0:\n    import helper\nprint(1)", cwd=tmp_path).notes)
    with pytest.raises(SourceError, match=r"deeper \(line 2 of helper\.py\)"):
        cell("import helper", tmp_path, modules=["helper.py"])
    cell("import helper", tmp_path, modules=["helper.py", "deeper.py"])


def test_local_modules_of_a_path_that_the_notebook_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "src/added.py", "nb/x")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "src")])
    with pytest.raises(SourceError, match=f"--module {tmp_path}/src/added.py"):
        cell("import added", tmp_path / "nb")


def test_installed_and_standard_modules_are_no_local_ones(tmp_path: Path) -> None:
    tree(tmp_path, "json.py", "torch/readme.txt")
    cell("import json, torch, kfnb_worker, not_there_at_all", tmp_path)
