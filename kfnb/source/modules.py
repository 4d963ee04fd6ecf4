"""Local files and packages that travel with the code, and local modules that the code imports and nobody ships."""

from __future__ import annotations

import fnmatch
import os
import site
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from kfnb.errors import SourceError
from kfnb.source.bundle import LIMIT, size_text

#: What is never shipped with a directory: histories, caches, environments, and files that hold secrets.
EXCLUDED = (
    ".git", ".hg", ".svn", "__pycache__", "*.pyc", "*.pyo", ".venv", "venv", ".tox", ".nox", "node_modules",
    "*.egg-info", ".eggs", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".cache",
    ".idea", ".vscode", ".DS_Store", ".env", ".netrc", ".aws", ".ssh", ".kube",
)  # fmt: skip
_RESERVED = {"main.py", "_kfnb", "kfnb_worker", "main"}
_GIVEN = {"kfnb_worker", "__main__"}


def collect(modules: Sequence[str], cwd: Path) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The files of the modules by their path in the bundle, and notes on what was left out. Raises SourceError."""
    found: dict[str, Path] = {}
    notes: list[str] = []
    for entry in modules:
        root = _locate(entry, cwd)
        for name, path in _files(root, entry, notes):
            if name.partition("/")[0] in _RESERVED:
                raise SourceError(
                    f"--module {entry} has {name}, a name that the job needs for itself.",
                    "main.py is the cell.",
                    "Rename it, or ship a directory that does not have it at its top.",
                )
            if found.setdefault(name, path) != path:
                raise SourceError(
                    f"Two modules would be {name} in the job.",
                    f"They are {found[name]} and {path}.",
                    "Modules lie side by side in the job; rename one of them.",
                )
    sizes = {name: path.stat().st_size for name, path in found.items()}
    if sum(sizes.values()) > LIMIT:
        raise _too_large(sizes)
    try:
        files = {name: path.read_bytes() for name, path in sorted(found.items())}
    except OSError as problem:
        raise SourceError(f"{problem.filename} cannot be read.", str(problem.strerror)) from problem
    notes += [
        f"{name}.py hides the standard library's module {name} in the job."
        for name in sorted(shipped_names(files) & sys.stdlib_module_names)
    ]
    return files, tuple(notes)


def shipped_names(files: Mapping[str, bytes]) -> set[str]:
    """The top-level modules that the files can be imported as."""
    return {first.removesuffix(".py") for first in (name.partition("/")[0] for name in files)}


def _locate(entry: str, cwd: Path) -> Path:
    """The file or directory that an entry of --module means: a path, or a module of the working directory by name."""
    plain = Path(os.path.normpath(cwd / Path(entry).expanduser()))
    named = cwd / entry.partition(".")[0]
    candidates = [plain]
    if all(part.isidentifier() for part in entry.split(".")):
        candidates += [named.with_name(named.name + ".py"), named]
    for path in candidates:
        if path.exists():
            return path
    raise SourceError(
        f"--module {entry}: there is no such file or directory.",
        f"Looked for {', '.join(str(path) for path in dict.fromkeys(candidates))}.",
        "Give a path from the notebook's directory, or an absolute one.",
    )


def _files(root: Path, entry: str, notes: list[str]) -> Iterator[tuple[str, Path]]:
    """Paths in the bundle and on the disk. Links are followed to files inside the directory only."""
    if root.is_file():
        yield root.name, root
        return
    inside = root.resolve()
    prefix = "" if Path(entry) == Path() else root.name + "/"
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if not _is_excluded(here / name))
        links = [(here / name).relative_to(root) for name in folders if (here / name).is_symlink()]
        notes += [f"--module {entry}: {link} is a link to a directory and is not shipped." for link in links]
        for name in sorted(names):
            path = here / name
            if _is_excluded(path):
                continue
            where = path.relative_to(root).as_posix()
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                notes.append(f"--module {entry}: {where} is a link out of the directory and is not shipped.")
            elif path.exists() and stat.S_ISREG(path.stat().st_mode):
                try:
                    where.encode()
                except UnicodeEncodeError:
                    raise SourceError(
                        f"--module {entry}: the name of {where!r} is not UTF-8.", "", "Rename the file."
                    ) from None
                yield prefix + where, path


def _is_excluded(path: Path) -> bool:
    # os.path: a directory that cannot be entered is no error, and has nothing to ship
    return any(fnmatch.fnmatchcase(path.name, pattern) for pattern in EXCLUDED) or os.path.exists(path / "pyvenv.cfg")


def _too_large(sizes: Mapping[str, int]) -> SourceError:
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:5]
    return SourceError(
        f"The modules are {size_text(sum(sizes.values()))}; a job can take {size_text(LIMIT)} of local files.",
        "Largest: " + ", ".join(f"{name} ({size_text(size)})" for name, size in largest) + ".",
        "Ship a smaller directory with --module, or move data out of it to where the job can read it.",
    )


def missing(imports: Iterable[str], shipped: set[str], folders: Sequence[Path]) -> dict[str, Path]:
    """Of the imported modules, the local ones that are not shipped: top-level name -> file or directory."""
    found: dict[str, Path] = {}
    for name in dict.fromkeys(full.partition(".")[0] for full in imports):
        if name and name not in shipped | _GIVEN | sys.stdlib_module_names:
            path = find_local(name, folders)
            if path is not None:
                found[name] = path
    return found


def find_local(name: str, folders: Sequence[Path]) -> Path | None:
    """The file or directory of a top-level module that is found here, and would not be in a process elsewhere."""
    installed = _installed()
    places = [str(folder) for folder in folders] + [entry for entry in sys.path if os.path.isdir(entry)]
    local = [place for place in dict.fromkeys(places) if os.path.realpath(place) not in installed]
    spec = _find_spec(name, local)
    if spec is None:
        return None
    if spec.origin is not None:
        path = Path(spec.origin)
        return path.parent if path.name == "__init__.py" else path
    folder = Path(next(iter(spec.submodule_search_locations or [])))
    if next(folder.glob("*.py"), None) is None or _find_spec(name, sorted(installed)) is not None:
        return None  # a directory of data, or hidden by an installed package
    return folder


def _find_spec(name: str, places: list[str]) -> ModuleSpec | None:
    try:
        return PathFinder.find_spec(name, places)
    except (ImportError, ValueError, OSError):
        return None


@cache
def _installed() -> frozenset[str]:
    """The directories that any Python of this environment imports from."""
    folders = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    folders |= {str(Path(folder) / "lib-dynload") for folder in folders}
    for folder in list(folders):
        for file in Path(folder).glob("*.pth"):
            lines = file.read_text(errors="replace").splitlines()
            folders |= {
                os.path.join(folder, line.strip()) for line in lines if line.strip() and not line.startswith("import")
            }
    folders |= {entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    return frozenset(os.path.realpath(folder) for folder in folders)
