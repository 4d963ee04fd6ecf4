"""A job as a script: one Python file that ``kfnb train`` runs as the cell ran, with its values and definitions."""

from __future__ import annotations

import ast
import datetime
import importlib.util
import io
import json
import pathlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kfnb.options import OPTIONS
from kfnb.record import Record
from kfnb.source.bundle import TRANSLATED, VALUES, Bundle
from kfnb.source.translate import parse
from kfnb.spec import TrainSpec
from kfnb.views import words
from kfnb_worker import values as worker_values
from kfnb_worker.encoding import FROM_JSON

#: A value whose source is longer than this, in characters, is left to be set by hand.
VALUE_LIMIT = 20_000

#: Arrays with more elements than this are left to be set by hand.
ARRAY_LIMIT = 200

_TRANSLATED = "; commands and magics are written as Python, which means something to `kfnb train` only"

#: What belongs to the notebook, and what the command says in another way.
_NOT_OPTIONS = frozenset({"name", "use", "args", "detach", "dry_run"})


class _Unwritable(Exception):
    """A value has no source; the message says what it is."""


def filename(record: Record) -> str:
    """What the script is to be called, so that its job has the name that this one has."""
    return f"{record.spec.name}.py"


def as_script(record: Record, bundle: Bundle) -> str:
    """The script's text: how to run it, what the notebook gave it, and the code itself.

    Nothing of the bundle is executed or unpickled. A value that cannot be written is named where it is to be set.
    """
    translated = bundle.manifest["translated"]
    main = importlib.util.decode_source(bundle.files[TRANSLATED if translated else "main.py"])
    definitions = [bundle.files[path].decode() for path in bundle.manifest["defs"]]
    early, late, imports, unset = _values(bundle)
    head, futures, body = _prologue(main.removeprefix("\ufeff"))
    shipped = []
    for text in definitions:
        _, names, rest = _prologue(text)
        futures |= names
        shipped.append(rest.strip("\n"))
    parts = [
        "\n".join(_header(record, bundle, unset)),
        head,
        f"from __future__ import {', '.join(sorted(futures))}" if futures else "",
        "\n".join(f"import {name}" for name in sorted(imports)),
        "\n".join(["# Values of the notebook", *early]) if early else "",
        "# Definitions of the notebook\n\n" + "\n\n\n".join(shipped) if shipped else "",
        "\n".join(late),
        f"# The code{_TRANSLATED if translated else ''}\n{_ended(body.strip(chr(10)))}",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _ended(body: str) -> str:
    """A last line that goes on needs a line to go on to."""
    return f"{body}\n" if body.endswith("\\") else body


def command(spec: TrainSpec, path: str) -> str:
    """The command line that runs the script at ``path`` as the job was run."""
    parts = ["kfnb", "train", path]
    for field, value in spec.changed().items():
        if field in _NOT_OPTIONS:
            continue
        flag = f"--{OPTIONS[field].name}"
        if OPTIONS[field].flag:
            parts.append(flag)
        elif not isinstance(value, list):
            parts += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
        elif OPTIONS[field].metavar.endswith(",..."):
            parts += [flag, ",".join(value)]
        else:
            parts += [word for item in value for word in (flag, item)]
    if spec.args:
        parts += ["--", *spec.args]
    return " ".join(map(_quoted, parts))


def _quoted(word: str) -> str:
    """For a shell, and on one line: in bash's own way where the word holds what no line shows."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(_escaped(character) for character in word) + "'"


def _escaped(character: str) -> str:
    if character.isprintable():
        return f"\\{character}" if character in "\\'" else character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def _header(record: Record, bundle: Bundle, unset: Mapping[str, str]) -> Iterator[str]:
    when = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    source = f", from {record.notebook}" if record.notebook else ""
    # what comes from a record is one line of a comment, whatever it holds
    yield f"# {_one_line(record.id)} of {when}{_one_line(source)}. To run it the same, in {_one_line(record.workdir)}:"
    yield "#"
    yield f"#     {command(record.spec, filename(record))}"
    if record.spec.env_copies:
        yield "#"
        yield f"# Set in your environment first: {', '.join(record.spec.env_copies)}"
    modules = sorted(path for path in bundle.files if path != "main.py" and not path.startswith(VALUES))
    if modules:
        yield "#"
        yield f"# It imports {_one_line(', '.join(modules[:20]))}{' and more' if len(modules) > 20 else ''}."
    if unset:
        yield "#"
        yield "# These values of the notebook cannot be written as source. Set each of them where it says so below:"
        yield from (f"#     {name}, {_one_line(what)}" for name, what in unset.items())


def _one_line(text: str) -> str:
    return re.sub(r"\s", " ", words.clean(text))


def _prologue(source: str) -> tuple[str, set[str], str]:
    """(what has to stay the file's beginning: comments and the docstring, names imported of __future__, the rest)."""
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    names: set[str] = set()
    try:
        body = parse(source).body
    except (RecursionError, MemoryError):  # code that Python runs may be too deep to be looked into
        body = []
    kept, cut = b"", 0
    for index, node in enumerate(body):
        end = starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
        match node:
            case ast.Expr(ast.Constant(str())) if index == 0:
                kept = data[:end]
            case ast.ImportFrom(module="__future__"):
                names.update(ast.unparse(alias) for alias in node.names)
            case _:
                break
        cut = end
    rest = re.sub(rb"\A[ \t]*;[ \t]*", b"", data[cut:])
    return kept.decode().strip("\n"), names, rest.decode()


# -- values --------------------------------------------------------------------------------------------------------


def _values(bundle: Bundle) -> tuple[list[str], list[str], set[str], dict[str, str]]:
    """(assignments, those that need the definitions, modules that they use, what each value is that has none)."""
    early: list[str] = []
    late: list[str] = []
    imports: set[str] = set()
    unset: dict[str, str] = {}
    content = bundle.files.get(VALUES + worker_values.INDEX)
    for name, entry in sorted(json.loads(content)["values"].items()) if content else ():
        writer = _Writer(bundle, entry)
        try:
            text = f"{name} = {writer.value()}"
            imports |= writer.imports
        except _Unwritable as problem:
            unset[name] = str(problem)
            text = f"# {name} = ...  # set it here: {_one_line(str(problem))}"
        (late if worker_values.is_late(entry) else early).append(text)
    return early, late, imports, unset


class _Writer:
    """The source of one captured value; ``imports`` are the modules that it needs."""

    def __init__(self, bundle: Bundle, entry: Mapping[str, Any]) -> None:
        self._bundle, self._entry = bundle, entry
        self.imports: set[str] = set()

    def value(self) -> str:
        if "pickle" in self._entry:
            raise _Unwritable(f"an object of {self._entry['pickle']['type']}")
        tree = self._bundle.files[f"{VALUES}values/{self._entry['i']}.json"]
        if len(tree) > VALUE_LIMIT:
            raise _Unwritable(f"{len(tree):,} characters of plain data")
        return self._source(json.loads(tree))

    def _source(self, tree: Any) -> str:
        if isinstance(tree, list):
            return f"[{', '.join(map(self._source, tree))}]"
        if not isinstance(tree, dict):
            return repr(tree)
        if "$" not in tree:
            return f"{{{', '.join(f'{key!r}: {self._source(item)}' for key, item in tree.items())}}}"
        kind = tree["$"]
        written = _SPECIAL.get(kind)
        if written is not None:
            return written(self, tree)
        if kind in FROM_JSON:
            return self._atom(FROM_JSON[kind](tree["v"]))
        raise _Unwritable({"tensor": "a tensor", "generic": "a numpy scalar"}.get(kind, f"data of the kind {kind}"))

    def _items(self, tree: Any) -> str:
        return ", ".join(f"{self._source(key)}: {self._source(item)}" for key, item in tree["v"])

    def _joined(self, tree: Any) -> str:
        return ", ".join(map(self._source, tree["v"]))

    def _tuple(self, tree: Any) -> str:
        return f"({self._joined(tree)}{',' if len(tree['v']) == 1 else ''})"

    def _set(self, tree: Any) -> str:
        return f"{{{self._joined(tree)}}}" if tree["v"] else "set()"

    def _ordered(self, tree: Any) -> str:
        self.imports.add("collections")
        return f"collections.OrderedDict({{{self._items(tree)}}})"

    def _scalar(self, tree: Any) -> str:
        self.imports.add("numpy")
        name = {"bool": "bool_"}.get(tree["dtype"], tree["dtype"])
        if name in ("longdouble", "float96", "float128"):
            raise _Unwritable(f"a numpy.{name}")
        return f"numpy.{name}({self._source(tree['v'])})"

    def _dataclass(self, tree: Any) -> str:
        module, _, name = tree["class"].partition(":")
        if module != "__main__":
            self.imports.add(module)
            name = f"{module}.{name}"
        return f"{name}({', '.join(f'{field}={self._source(item)}' for field, item in tree['v'].items())})"

    def _atom(self, value: Any) -> str:
        if isinstance(value, pathlib.PurePath):
            self.imports.add("pathlib")
            return f"pathlib.Path({str(value)!r})"
        if isinstance(value, complex):  # repr() of one that is not finite is no source
            return f"complex({str(value)!r})"
        module = type(value).__module__
        if module == "builtins":
            return repr(value)
        self.imports.add(module)
        text = repr(value)
        return text if text.startswith(f"{module}.") else f"{module}.{text}"

    def _array(self, tree: Any) -> str:
        import numpy as np

        content = self._bundle.files[f"{VALUES}values/{self._entry['i']}.{int(tree['k'])}.npy"]
        array = np.load(io.BytesIO(content), allow_pickle=False)
        written = array.dtype.kind in "biuf" and array.dtype.itemsize <= 8  # no wider float has a Python number
        if array.size > ARRAY_LIMIT or not written or not np.isfinite(array).all():
            raise _Unwritable(f"an array of shape {array.shape} and dtype {array.dtype}")
        self.imports.add("numpy")
        dtype = array.dtype.name if array.dtype.isnative else array.dtype.str
        if not array.size:  # whose shape no list tells
            return f"numpy.zeros({array.shape!r}, dtype={dtype!r})"
        return f"numpy.array({array.tolist()!r}, dtype={dtype!r})"


_SPECIAL: dict[str, Callable[[_Writer, Any], str]] = {
    "int": lambda writer, tree: str(tree["v"]),
    "float": lambda writer, tree: f"float({tree['v']!r})",
    "tuple": _Writer._tuple,
    "set": _Writer._set,
    "frozenset": lambda writer, tree: f"frozenset([{writer._joined(tree)}])",
    "dict": lambda writer, tree: f"{{{writer._items(tree)}}}",
    "odict": _Writer._ordered,
    "scalar": _Writer._scalar,
    "dataclass": _Writer._dataclass,
    "npy": _Writer._array,
}
