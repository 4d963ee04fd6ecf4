"""The bundle: everything of the user's that a job runs, as one zip whose bytes depend on nothing but its content."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from kfnb.errors import SourceError
from kfnb_worker import values as worker_values

LIMIT = 16 << 20  # bytes of captured values, and again of local files
UNPACKED_LIMIT = 64 << 20  # bytes that a stored bundle may unpack to
SMALL = 4096  # bytes of JSON up to which a value is kept in the record

MANIFEST = "_kfnb/bundle.json"
TRANSLATED = "_kfnb/translated.py"
VALUES = "_kfnb/"


def size_text(size: int) -> str:
    """A size in bytes for a person: `312 B`, `1.5 KiB`, `600.0 MiB`."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


@dataclass(frozen=True)
class Bundle:
    """The code of a job.

    ``files`` are its entries by path. ``notes`` are sentences to tell the user before anything starts. ``values`` are
    the captured values that are plain and at most 4 KiB of JSON each, for the record. ``shipped_definitions`` are the
    names of the notebook's functions, classes and imports that travel as source.
    """

    files: Mapping[str, bytes]
    notes: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    shipped_definitions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", MappingProxyType(dict(sorted(self.files.items()))))

    @cached_property
    def data(self) -> bytes:
        """The zip: entries sorted, dated 1980-01-01, mode 0644, deflated."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for name, content in self.files.items():
                info = zipfile.ZipInfo(name)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.create_system = 3
                info.external_attr = 0o100644 << 16
                archive.writestr(info, content)
        return buffer.getvalue()

    @cached_property
    def sha256(self) -> str:
        """Of ``data``, in hex."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def main(self) -> str:
        """The text of main.py: the body of the cell, the script, or the function and its call."""
        return self.files["main.py"].decode("utf-8", errors="replace")

    @property
    def manifest(self) -> dict[str, Any]:
        """`_kfnb/bundle.json`: {"v", "translated", "shell", "defs", "values", "out", "first_line"}."""
        manifest: dict[str, Any] = json.loads(self.files[MANIFEST])
        return manifest

    @property
    def first_line(self) -> int:
        """The line of the cell that main.py's line 1 is."""
        return int(self.manifest["first_line"])

    @property
    def captured(self) -> list[str]:
        """The names of the captured values."""
        index = self.files.get(VALUES + worker_values.INDEX)
        return sorted(json.loads(index)["values"]) if index else []

    @classmethod
    def from_bytes(cls, data: bytes) -> Bundle:
        """The bundle of a stored zip. Raises SourceError for one that is damaged or not ours."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                entries = archive.infolist()
                if sum(entry.file_size for entry in entries) > UNPACKED_LIMIT:
                    raise ValueError(f"it unpacks to more than {size_text(UNPACKED_LIMIT)}")
                for entry in entries:
                    if entry.filename.startswith("/") or {"..", ""} & set(entry.filename.split("/")):
                        raise ValueError(f"it has an entry called {entry.filename!r}")
                files = {entry.filename: archive.read(entry) for entry in entries}
            bundle = cls(files=files, values=_small(files))
            if bundle.manifest["v"] != 1 or "main.py" not in files:
                raise ValueError("it is of a version that this kfnb does not know")
        except Exception as problem:
            raise SourceError(
                "The stored code of this job cannot be read.", f"{problem}", "Submit the cell again from the notebook."
            ) from problem
        return bundle

    def with_values(self, changes: Mapping[str, object]) -> Bundle:
        """The same code with other captured values; only names that were captured can change. Raises SourceError."""
        index = json.loads(self.files[VALUES + worker_values.INDEX])["values"] if self.manifest["values"] else {}
        unknown = sorted(set(changes) - set(index))
        if unknown:
            raise SourceError(
                f"{', '.join(unknown)} cannot be changed: the job did not take {'it' if len(unknown) == 1 else 'them'}"
                " from the notebook.",
                f"Its captured values are: {', '.join(sorted(index)) or 'none'}.",
                "Name the value with --use when submitting the cell, then it can be changed in a later run.",
            )
        files = dict(self.files)
        for name, value in changes.items():
            i = index[name]["i"]
            for path in [path for path in files if path.startswith(f"{VALUES}values/{i}.")]:
                del files[path]
            index[name], written = pack_one(name, value, i)
            files.update(written)
        files[VALUES + worker_values.INDEX] = worker_values.dump_index(index)
        return Bundle(files, self.notes, _small(files), self.shipped_definitions)


def make(
    main: bytes,
    *,
    translated: str | None,
    shell: bool,
    definitions: list[str],
    captured: Mapping[str, bytes],
    modules: Mapping[str, bytes],
    requirements: tuple[str, ...],
    out: tuple[str, ...],
    first_line: int,
    notes: tuple[str, ...],
    shipped: tuple[str, ...],
) -> Bundle:
    """A bundle of parts that are already checked. ``captured`` is empty or has `_kfnb/values.json`."""
    files = {"main.py": main, **modules, **captured}
    if translated is not None:
        files[TRANSLATED] = translated.encode()
    names = [f"_kfnb/defs/{n}.py" for n in range(len(definitions))]
    files.update(zip(names, (text.encode() for text in definitions), strict=True))
    if requirements:
        files["_kfnb/requirements.txt"] = "".join(line + "\n" for line in requirements).encode()
    manifest = {
        "v": 1,
        "translated": translated is not None,
        "shell": shell,
        "defs": names,
        "values": bool(captured),
        "out": list(out),
        "first_line": first_line,
    }
    files[MANIFEST] = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    return Bundle(files, notes, _small(files), shipped)


class _Full(Exception):
    """A value is larger than a bundle may hold."""


class _Sink(io.BytesIO):
    """A file in memory that refuses to grow past what a bundle may hold."""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > LIMIT:
            raise _Full
        return super().write(data)

    def close(self) -> None:
        """Kept readable: what is written is taken when the value is whole."""


def pack_one(name: str, value: object, i: int) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The index entry and the files of one captured value. Raises SourceError."""
    sinks: dict[str, _Sink] = {}

    def create(path: str) -> _Sink:
        return sinks.setdefault(VALUES + path, _Sink())

    size = getattr(value, "nbytes", None)  # arrays and tensors know it
    if isinstance(size, int) and size > LIMIT:
        raise _too_large(name, size)
    try:
        entry = worker_values.encode_one(value, create, i)
    except _Full:
        raise _too_large(name, None) from None
    except worker_values.CannotTravel as problem:
        raise SourceError(
            f"The value {name} cannot be shipped to the job.",
            str(problem),
            f"Make {name} in the cell itself, or ship what it is made from.",
        ) from None
    return entry, {path: sink.getvalue() for path, sink in sinks.items()}


def pack(captured: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Index entries by name, and all files with the index; nothing for no values. Raises SourceError."""
    entries: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    sizes: dict[str, int] = {}
    for i, name in enumerate(sorted(captured)):
        entries[name], written = pack_one(name, captured[name], i)
        sizes[name] = sum(map(len, written.values()))
        if sizes[name] > LIMIT:
            raise _too_large(name, sizes[name])
        files.update(written)
    if sum(sizes.values()) > LIMIT:
        raise _too_large_together(sizes)
    if entries:
        files[VALUES + worker_values.INDEX] = worker_values.dump_index(entries)
    return entries, files


def _too_large(name: str, size: int | None) -> SourceError:
    """The refusal of one value; its size is not known where writing it was given up."""
    amount = f"more than {size_text(LIMIT)}" if size is None else size_text(size)
    return SourceError(
        f"The value {name} is {amount}; a job can take {size_text(LIMIT)} from the notebook in all.",
        "Captured values travel with the code.",
        f"Save {name} to a file that the job can read and load it in the cell, or make it in the cell.",
    )


def _too_large_together(sizes: Mapping[str, int]) -> SourceError:
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:5]
    total = size_text(sum(sizes.values()))
    return SourceError(
        f"The values are {total}; a job can take {size_text(LIMIT)} from the notebook in all.",
        "Largest: " + ", ".join(f"{name} ({size_text(size)})" for name, size in largest) + ".",
        f"Save {largest[0][0]} to a file that the job can read and load it in the cell, or make it in the cell.",
    )


def _small(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The captured values that are plain JSON (tuples as lists) and small."""
    index = files.get(VALUES + worker_values.INDEX)
    small: dict[str, Any] = {}
    for name, entry in json.loads(index)["values"].items() if index else ():
        if "pickle" in entry:
            continue
        tree = files[f"{VALUES}values/{entry['i']}.json"]
        try:
            plain = _plain(json.loads(tree))
            json.dumps(plain, ensure_ascii=False).encode()  # a record is UTF-8, which has no halves of characters
        except ValueError:
            continue
        if len(json.dumps(plain)) <= SMALL:
            small[name] = plain
    return small


def _plain(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_plain(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "$" not in tree:
        return {key: _plain(item) for key, item in tree.items()}
    if tree["$"] in ("tuple", "scalar"):
        return _plain(tree["v"])
    raise ValueError
