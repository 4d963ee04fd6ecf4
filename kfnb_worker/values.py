"""Values that travel: from the notebook into the job (captured), and from rank 0 back to the notebook (results).

A folder holds `values.json`, the index, and `values/<i>.json`, `values/<i>.<k>.npy`, `values/<i>.pt`,
`values/<i>.pickle`, where i is the place of the value's name in sorted order. The index is
{"v": 1, "values": {name: entry}}; an entry is

    {"i": i, "classes": ["module:qualname", ...]}        or
    {"i": i, "pickle": {"python": "3.11", "type": "module.Class"}, "classes": [...]}

`values/<i>.json` is the value's TREE: JSON in which an object with the key "$" stands for what JSON lacks: `{"$":
"tuple", "v": [...]}`, `{"$": "npy", "k": 0}`, `{"$": "tensor", "k": 0}`, and so on. Tensors of one value share one
file, so that tied weights stay tied.

Captured values are the user's own and may be pickled. Results come from a job and are never unpickled: they are read as
hostile input. Arrays are read with allow_pickle=False, tensors with weights_only=True, and no class is looked up.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from typing import Any, BinaryIO, Dict, Iterable, Iterator, Mapping, Optional, Tuple

from kfnb_worker.decoding import Decoder, read_json, unpickle
from kfnb_worker.encoding import TREE_LIMIT, CannotTravel, Opener, dumps, encode_one

__all__ = [
    "INDEX",
    "CannotTravel",
    "decode",
    "dump_index",
    "encode",
    "encode_one",
    "is_late",
    "load_results",
    "save_results",
]

INDEX = "values.json"
INDEX_LIMIT = 16 << 20  # bytes of a results index that the notebook is willing to parse
WHY_LIMIT = 2000  # characters of the sentence that says why a value has not come


def dump_index(entries: Mapping[str, Any], errors: Optional[Mapping[str, str]] = None) -> bytes:
    index: Dict[str, Any] = {"v": 1, "values": {name: entries[name] for name in sorted(entries)}}
    if errors:
        index["errors"] = errors
    return dumps(index).encode()


def _creator(directory: str) -> Opener:
    os.makedirs(os.path.join(directory, "values"), exist_ok=True)
    return lambda name: open(os.path.join(directory, name), "wb")


def encode(values: Mapping[str, object], directory: str) -> Dict[str, Any]:
    """Writes captured values into `directory`; gives the index.

    Raises CannotTravel, its message begins with the name.
    """
    create = _creator(directory)
    entries = {}
    for i, name in enumerate(sorted(values)):
        try:
            entries[name] = encode_one(values[name], create, i)
        except CannotTravel as problem:
            raise CannotTravel("%s: %s" % (name, problem)) from None
    data = dump_index(entries)
    with create(INDEX) as file:
        file.write(data)
    return {"v": 1, "values": entries}


def save_results(names: Iterable[str], namespace: Mapping[str, object], directory: str) -> Dict[str, Any]:
    """Writes the values of `names`; gives {"names": [saved], "errors": {name: sentence}, "bytes": on disk}.

    Raises OSError only.
    The index is renamed in last: a reader finds either all of the results or none.
    """
    written = []

    @contextlib.contextmanager
    def create(name: str) -> Iterator[BinaryIO]:
        os.makedirs(os.path.join(directory, "values"), exist_ok=True)
        path = os.path.join(directory, name)
        written.append(path)
        with open(path, "wb") as file:
            yield file

    entries: Dict[str, Any] = {}
    errors: Dict[str, str] = {}
    for i, name in enumerate(sorted(set(names))):
        if name not in namespace:
            errors[name] = "the cell ended without a value named %s at its top level" % name
            continue
        try:
            entries[name] = encode_one(namespace[name], create, i, results=True)
        except CannotTravel as problem:
            errors[name] = "%s: %s" % (name, problem)
        except OSError:
            raise
        except Exception as problem:  # a user's class may do anything when its parts are read
            errors[name] = ("%s could not be written: %s: %s" % (name, type(problem).__name__, problem))[:WHY_LIMIT]
    with create(INDEX + ".new") as file:
        file.write(dump_index(entries, errors))
    size = sum(os.path.getsize(path) for path in written)
    os.replace(os.path.join(directory, INDEX + ".new"), os.path.join(directory, INDEX))
    return {"names": sorted(entries), "errors": errors, "bytes": size}


def is_late(entry: Mapping[str, Any]) -> bool:
    """Whether the value needs definitions of the job, so that it is built after those have run."""
    return any(name.startswith("__main__:") for name in entry["classes"])


def decode(directory: str, *, late: Optional[bool] = None, main: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
    """Captured values by name. `late` picks those that need the job's definitions, or those that do not; None: all.

    `main` is the namespace in which classes of the notebook are found. Raises CannotTravel, its message begins with
    the name.
    """
    namespace = sys.modules["__main__"].__dict__ if main is None else main
    index = read_json(_opener(directory), INDEX)
    values = {}
    for name, entry in index["values"].items():
        if late is None or is_late(entry) == late:
            try:
                values[name] = _decode_captured(directory, entry, namespace)
            except CannotTravel as problem:
                raise CannotTravel("%s: %s" % (name, problem)) from None
            except Exception as problem:
                kind = type(problem).__name__
                raise CannotTravel("%s: cannot be made in the job: %s: %s" % (name, kind, problem)) from problem
    return values


def _decode_captured(directory: str, entry: Mapping[str, Any], main: Mapping[str, Any]) -> Any:
    if "pickle" not in entry:
        return Decoder(_opener(directory), entry, main).read()
    with _opener(directory)("values/%d.pickle" % entry["i"]) as file:
        return unpickle(file, entry["pickle"], main)


def load_results(directory: str) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Results by name, and sentences for those that could not be stored, or not be read.

    Never raises for what a job wrote, and never unpickles it.
    The names are the job's word: assign only those that were asked for.
    """
    values: Dict[str, Any] = {}
    errors: Dict[str, str] = {}
    try:
        index = read_json(_opener(directory), INDEX, INDEX_LIMIT)
        entries = dict(index["values"])
        told = index.get("errors", {}).items()
        errors.update((str(name), str(why)[:WHY_LIMIT]) for name, why in told if name.isidentifier())
    except FileNotFoundError:
        return {}, {}
    except Exception as problem:
        return {}, {"*": "the results are damaged: %s" % (str(problem) or type(problem).__name__)}
    for name, entry in entries.items():
        if not name.isidentifier():
            continue
        try:
            values[name] = Decoder(_opener(directory), entry, None).read(TREE_LIMIT)
        except ImportError as problem:
            errors[name] = "%s needs a package that is not here: %s" % (name, problem)
        except Exception as problem:
            errors[name] = "%s cannot be read: %s" % (name, str(problem) or type(problem).__name__)
    return values, errors


def _opener(directory: str) -> Opener:
    @contextlib.contextmanager
    def opened(name: str) -> Iterator[BinaryIO]:
        # Neither a link out of the folder nor a pipe that never ends.
        descriptor = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CannotTravel("%s is not a file" % name)
            yield file

    return opened
