"""Defaults from files and the environment, and where each value comes from.

Later layers win: the spec's defaults, the user's ``$KFNB_HOME/kfnb.toml``, the project's ``kfnb.toml`` or
``[tool.kfnb]`` (the nearest one from the working directory upwards), ``KFNB_*`` variables, and what the cell or
command says. The names are those of the options everywhere.

A project's file may come from a stranger: what would run another image, run elsewhere, install from another place or
hand over the user's environment holds only once the user has trusted that very content (``%kfconfig --trust``).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfnb.errors import ConfigError, UsageError
from kfnb.home import home
from kfnb.options import OPTIONS, make_spec
from kfnb.spec import TrainSpec, option_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "kfnb.toml"

#: A requirement by name: extras, versions and a marker, and nothing that says where from.
_REQUIREMENT = re.compile(r" *[A-Za-z0-9][\w.-]* *(\[[\w ,.-]*\])? *([<>=!~][\w .,*+!<>=~]*)?(;[^@/\\\r\n]*)?")
_FILES = (".txt", ".whl", ".zip", ".gz", ".bz2", ".xz", ".tar")


def working_directory() -> Path:
    """The current directory. Raises ``UsageError`` where it has been removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError(
            "The current directory is gone.",
            "It was removed after this process started in it.",
            "Change to one that exists.",
        ) from None


@dataclass(frozen=True)
class Setting:
    """The value of one option and the layer it comes from, in words."""

    field: str
    value: Any
    source: str

    @property
    def name(self) -> str:
        return option_name(self.field)


#: Options that decide what runs, and with whose rights.
_ELSEWHERE = frozenset({"image", "backend", "context", "namespace", "runtime"})


@dataclass(frozen=True)
class ProjectFile:
    """A project's settings; ``sensitive`` names those that hold only once the content is trusted."""

    path: Path
    table: Mapping[str, Any]
    digest: str

    @property
    def sensitive(self) -> list[str]:
        return sorted(field for field, value in self.table.items() if _is_sensitive(field, value))


def _is_sensitive(field: str, value: Any) -> bool:
    if field == "env":
        return not isinstance(value, dict) and any("=" not in str(line) for line in _items(value))
    if field == "pip":
        return any(not _plain_requirement(str(line)) for line in _items(value))
    return field in _ELSEWHERE


def _plain_requirement(line: str) -> bool:
    # anything else (an option of pip, an address, a path, a file) may come from elsewhere than the user's own index
    return bool(_REQUIREMENT.fullmatch(line)) and not line.strip().endswith(_FILES)


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def settings(given: Mapping[str, Any], cwd: Path | None = None) -> dict[str, Setting]:
    """What holds for each option of the spec, layer by layer.

    Raises ``ConfigError`` for a file that cannot be read, names an unknown option, or has sensitive settings not yet
    trusted.
    """
    held = {field: Setting(field, option.default, "default") for field, option in OPTIONS.items()}
    held["name"] = Setting("name", TrainSpec.model_fields["name"].default, "default")

    def lay(values: Mapping[str, Any], source: str) -> None:
        for field, value in values.items():
            held[field] = Setting(field, value, source)

    user = home() / FILE
    if user.is_file():
        lay(_table(user, user.read_bytes(), whole=True), str(user))
    project = find_project_file(cwd or working_directory())
    if project is not None:
        if project.sensitive and not is_trusted(project):
            raise ConfigError(
                f"{project.path} sets {', '.join(map(option_name, project.sensitive))}, and has not been trusted.",
                "Such settings decide what runs and which of your variables it sees; the file may be somebody else's.",
                f"Read the file; if it is as you want it, run `%kfconfig --trust` (or `kfnb config --trust`) "
                f"in {project.path.parent}.",
            )
        lay(project.table, str(project.path))
    for field, value in _environment().items():
        lay({field: value}, f"KFNB_{field.upper()}")
    lay(given, "given")
    return held


def resolve(given: Mapping[str, Any], cwd: Path | None = None) -> TrainSpec:
    """The spec that ``given`` options and all layers below them make. Raises ``UsageError``."""
    held = {field: setting for field, setting in settings(given, cwd).items() if setting.source != "default"}
    sources = {field: setting.source for field, setting in held.items() if setting.source != "given"}
    return make_spec({field: setting.value for field, setting in held.items()}, sources)


def find_project_file(start: Path) -> ProjectFile | None:
    """The nearest ``kfnb.toml``, or ``pyproject.toml`` with ``[tool.kfnb]``, from ``start`` upwards."""
    for folder in (start, *start.parents):
        for name in (FILE, "pyproject.toml"):
            path = folder / name
            if path.is_file() and path != home() / FILE:
                content = path.read_bytes()
                table = _table(path, content, whole=name == FILE)
                if table or name == FILE:
                    return ProjectFile(path, table, hashlib.sha256(content).hexdigest())
    return None


def _table(path: Path, content: bytes, *, whole: bool) -> dict[str, Any]:
    try:
        document = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if not whole:
            return {}  # somebody else's broken pyproject.toml further up is not ours to complain about
        raise ConfigError(f"{path} cannot be read: {error}.", fix="Correct the file, or remove it.") from None
    table = document
    for part in () if whole else ("tool", "kfnb"):
        found = table.get(part)
        table = found if isinstance(found, dict) else {}
    fields = {str(name).replace("-", "_"): value for name, value in table.items()}
    known = set(OPTIONS) | {"name"}
    unknown = sorted(set(fields) - known)
    if unknown:
        raise ConfigError(
            f"{path} names unknown options: {', '.join(map(option_name, unknown))}.",
            fix=f"The options are: {', '.join(sorted(map(option_name, known)))}.",
        )
    return fields


def _environment() -> dict[str, Any]:
    if "KFNB_JOB" in os.environ:
        return {}  # inside a job KFNB_LOGDIR and its kin describe that job, and are no defaults for another one
    values: dict[str, Any] = {}
    for field, option in OPTIONS.items():
        text = os.environ.get(f"KFNB_{field.upper()}")
        if text:
            values[field] = text.splitlines() if option.many else text
    return values


def _trust_file() -> Path:
    return home() / "trusted.json"


def is_trusted(project: ProjectFile) -> bool:
    """Whether the user has trusted this very content at this place."""
    try:
        return bool(json.loads(_trust_file().read_bytes()).get(str(project.path)) == project.digest)
    except (OSError, ValueError, AttributeError):
        return False


def trust(project: ProjectFile) -> None:
    """Remember that the user has read and wants this content."""
    path = _trust_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError):
        known = {}
    known[str(project.path)] = project.digest
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(known, indent=1))
    temporary.replace(path)
