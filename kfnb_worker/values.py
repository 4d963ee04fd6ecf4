"""Values that travel: from the notebook into the job (captured), and from rank 0 back to the notebook (results).

A folder holds `values.json`, the index, and `values/<i>.<k>.npy`, `values/<i>.pt`, `values/<i>.pickle`, where i is
the place of the value's name in sorted order. The index is {"v": 1, "values": {name: entry}}; an entry is

    {"i": i, "tree": TREE, "tensors": bool, "classes": ["module:qualname", ...]}        or
    {"i": i, "pickle": {"python": "3.11", "type": "module.Class"}, "classes": [...]}

TREE is JSON in which an object with the key "$" stands for what JSON lacks: `{"$": "tuple", "v": [...]}`, `{"$":
"npy", "k": 0}`, `{"$": "tensor", "k": 0}`, and so on. Tensors of one value share one file, so that tied weights stay
tied.

Captured values are the user's own and may be pickled. Results come from a job and are never unpickled: they are read as
hostile input. Arrays are read with allow_pickle=False, tensors with weights_only=True, and no class is looked up.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import dataclasses
import datetime
import decimal
import importlib
import io
import json
import os
import pathlib
import pickle
import stat
import sys
from typing import Any, BinaryIO, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

INDEX = "values.json"
INDEX_LIMIT = 64 << 20  # bytes of a results index that the notebook is willing to parse
PYTHON = "%d.%d" % sys.version_info[:2]

Opener = Callable[[str], "contextlib.AbstractContextManager[BinaryIO]"]


class CannotTravel(Exception):
    """A value cannot be shipped or brought back; the message is a sentence that says why."""


def _iso(moment: Any) -> str:
    if moment.tzinfo is not None and type(moment.tzinfo) is not datetime.timezone:
        raise CannotTravel("a time with the zone %r has no plain form; use a fixed offset" % (moment.tzinfo,))
    if moment.fold:
        raise CannotTravel("a time with fold=1 has no plain form")
    return str(moment.isoformat())


# What JSON lacks and one string or list of JSON carries: type -> (tag, to JSON, from JSON).
_ATOMS: Dict[type, Tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("bytes", lambda v: base64.b64encode(v).decode(), lambda v: base64.b64decode(v, validate=True)),
    bytearray: ("bytearray", lambda v: base64.b64encode(v).decode(), lambda v: bytearray(base64.b64decode(v))),
    complex: ("complex", lambda v: [repr(v.real), repr(v.imag)], lambda v: complex(float(v[0]), float(v[1]))),
    datetime.date: ("date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.datetime: ("datetime", _iso, datetime.datetime.fromisoformat),
    datetime.time: ("time", _iso, datetime.time.fromisoformat),
    datetime.timedelta: (
        "timedelta",
        lambda v: [v.days, v.seconds, v.microseconds],
        lambda v: datetime.timedelta(v[0], v[1], v[2]),
    ),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    range: ("range", lambda v: [v.start, v.stop, v.step], lambda v: range(v[0], v[1], v[2])),
    type(pathlib.Path()): ("path", str, pathlib.Path),
}
_FROM_JSON = {tag: decode for tag, _, decode in _ATOMS.values()}
_SEQUENCES: Dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_BUILD = {"tuple": tuple, "set": set, "frozenset": frozenset}


def _type_name(value: object) -> str:
    kind = type(value)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "." + kind.__qualname__
    )


# ------------------------------------------------------------------------------------------------ writing


class _Encoder:
    """Turns one value into a TREE, and writes its arrays and tensors as it meets them."""

    def __init__(self, create: Opener, i: int, results: bool) -> None:
        self.create = create
        self.i = i
        self.results = results  # no classes then: what is a subclass of a plain type goes as that plain type
        self.tensors: List[Any] = []
        self.classes: Set[str] = set()
        self._arrays = 0
        self._open: Set[int] = set()  # ids of the containers that are being written, to find cycles

    def tree(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if abs(value) < 1 << 63 else {"$": "int", "v": hex(value)}
        if kind is float:
            return value if value - value == 0 else {"$": "float", "v": repr(value)}
        if kind in _ATOMS:
            tag, encode, _ = _ATOMS[kind]
            return {"$": tag, "v": encode(value)}
        array = self._array(value)
        if array is not None:
            return array
        if id(value) in self._open:
            raise CannotTravel("it contains itself")
        self._open.add(id(value))
        try:
            return self._container(value, kind)
        finally:
            self._open.discard(id(value))

    def _container(self, value: Any, kind: type) -> Any:
        if kind is list:
            return [self.tree(item) for item in value]
        if kind is dict:
            return self._dict(value)
        if kind is collections.OrderedDict:
            return {"$": "odict", "v": self._items(value)}
        if kind in _SEQUENCES:
            items = [self.tree(item) for item in value]
            if kind is not tuple:  # the order of a set depends on the hash seed of the process
                items.sort(key=_dumps)
            return {"$": _SEQUENCES[kind], "v": items}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, kind)
        if self.results:
            return self._plain(value)
        raise CannotTravel("a %s has no plain form" % _type_name(value))

    def _plain(self, value: Any) -> Any:
        state = getattr(value, "state_dict", None)
        if callable(state) and type(value).__module__ != "builtins":
            return self.tree(_state_dict(value))
        bases: Tuple[Any, ...] = (str, int, float, dict, list, tuple, set, frozenset)
        for base in bases:
            if isinstance(value, base):
                return self.tree(base(value))
        if isinstance(value, collections.deque):
            return self.tree(list(value))
        raise CannotTravel(
            "a %s cannot be brought back: results are numbers, text, containers, arrays, tensors and modules"
            % _type_name(value)
        )

    def _dict(self, value: Mapping[Any, Any]) -> Any:
        if all(type(key) is str for key in value) and "$" not in value:
            return {key: self.tree(item) for key, item in value.items()}
        return {"$": "dict", "v": self._items(value)}

    def _items(self, value: Mapping[Any, Any]) -> Any:
        return [[self.tree(key), self.tree(item)] for key, item in value.items()]

    def _dataclass(self, value: Any, kind: type) -> Any:
        fields = {
            f.name: self.tree(getattr(value, f.name)) for f in dataclasses.fields(value) if hasattr(value, f.name)
        }
        if self.results:
            return fields  # their names are identifiers, so never "$"
        if "<locals>" in kind.__qualname__:
            raise CannotTravel(
                "its class %s is defined inside a function; define it at the top of a cell" % kind.__name__
            )
        name = kind.__module__ + ":" + kind.__qualname__
        self.classes.add(name)
        return {"$": "dataclass", "class": name, "v": fields}

    def _array(self, value: Any) -> Any:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and isinstance(value, numpy.generic):
            if value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
                return {"$": "scalar", "dtype": value.dtype.name, "v": self.tree(value.item())}
            return {"$": "generic", "v": self._npy(numpy, numpy.asarray(value))}
        if numpy is not None and isinstance(value, numpy.ndarray):
            if type(value) not in (numpy.ndarray, numpy.memmap):
                raise CannotTravel("a %s has no plain form; numpy.asarray() of it has" % _type_name(value))
            return self._npy(numpy, value)
        if torch is not None and isinstance(value, torch.Tensor):
            self.tensors.append(_portable(torch, value, self.results))
            return {"$": "tensor", "k": len(self.tensors) - 1}
        return None

    def _npy(self, numpy: Any, array: Any) -> Any:
        if array.dtype.hasobject:
            raise CannotTravel("an array of Python objects (dtype %s) has no plain form" % array.dtype)
        if numpy.lib.format.descr_to_dtype(numpy.lib.format.dtype_to_descr(array.dtype)) != array.dtype:
            raise CannotTravel("an array of dtype %s has no plain form" % array.dtype)
        k, self._arrays = self._arrays, self._arrays + 1
        with self.create("values/%d.%d.npy" % (self.i, k)) as file:
            # BytesIO in between: numpy writes to a real file by its descriptor, which would go past `file`.
            numpy.lib.format.write_array(_Plain(file), array, allow_pickle=False)
        return {"$": "npy", "k": k}

    def finish(self) -> bool:
        """Writes the tensors of the value; whether it has any."""
        if self.tensors:
            with self.create("values/%d.pt" % self.i) as file:
                sys.modules["torch"].save(self.tensors, _Plain(file))
        return bool(self.tensors)


class _Plain:
    """A file that can only be written: keeps numpy and torch from taking the file's descriptor or its name."""

    def __init__(self, file: BinaryIO) -> None:
        self.write = file.write
        self.flush = file.flush


def _portable(torch: Any, tensor: Any, results: bool) -> Any:
    """The tensor on the CPU, without its graph, and without the rest of a larger storage that it is a view of."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise CannotTravel(
            "a %s has no plain form; gather it to a plain tensor on all ranks first" % _type_name(tensor)
        )
    if tensor.is_meta:
        raise CannotTravel("a tensor on the meta device has no data")
    plain = tensor.detach().cpu()
    if plain.layout == torch.strided and not plain.is_quantized:
        untyped = getattr(plain, "untyped_storage", None)  # since torch 2.0
        held = untyped().nbytes() if untyped else len(plain.storage()) * plain.element_size()
        if held > plain.numel() * plain.element_size():
            plain = plain.clone()
    if results:
        return plain
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(plain, requires_grad=tensor.requires_grad)
    return plain.requires_grad_(True) if tensor.requires_grad else plain


def _state_dict(value: Any) -> Any:
    """The state of a module, optimizer or scheduler, under the names that the module has without its wrappers."""
    while True:
        if type(value).__name__ in ("DistributedDataParallel", "DataParallel"):
            value = value.module
        elif type(value).__name__ == "OptimizedModule":
            value = value._orig_mod
        else:
            break
    if type(value).__name__ in ("FullyShardedDataParallel", "FSDPModule"):
        raise CannotTravel(
            "the state of a sharded module must be gathered on all ranks; assign it in the cell and bring that back"
        )
    state = value.state_dict()
    return dict(state) if isinstance(state, dict) else state


class _Pickler(pickle.Pickler):
    """Notes the classes and functions that a pickle refers to by name."""

    classes: Set[str]

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) or hasattr(obj, "__code__"):
            self.classes.add("%s:%s" % (obj.__module__, obj.__qualname__))
        return NotImplemented


def _pickle(value: object, create: Opener, i: int) -> Dict[str, Any]:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, protocol=4)
    pickler.classes = set()
    try:
        pickler.dump(value)
    except CannotTravel:
        raise
    except Exception as problem:
        raise CannotTravel(
            "a %s cannot be shipped: %s" % (_type_name(value), str(problem) or type(problem).__name__)
        ) from None
    with create("values/%d.pickle" % i) as file:
        file.write(buffer.getbuffer())
    return {"i": i, "pickle": {"python": PYTHON, "type": _type_name(value)}, "classes": sorted(pickler.classes)}


def encode_one(value: object, create: Opener, i: int, *, results: bool = False) -> Dict[str, Any]:
    """The index entry of one value; its files are written through `create(name)`.

    Raises CannotTravel. With results=False, what has no plain form is pickled; with results=True never.
    """
    encoder = _Encoder(create, i, results)
    try:
        tree = encoder.tree(value)
    except RecursionError:
        raise CannotTravel("it is nested too deeply") from None
    except CannotTravel:
        if results:
            raise
        return _pickle(value, create, i)
    return {"i": i, "tree": tree, "tensors": encoder.finish(), "classes": sorted(encoder.classes)}


def _dumps(data: object) -> str:
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def dump_index(entries: Mapping[str, Any]) -> bytes:
    return _dumps({"v": 1, "values": {name: entries[name] for name in sorted(entries)}}).encode()


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
            errors[name] = "%s could not be written: %s: %s" % (name, type(problem).__name__, problem)
    with create(INDEX + ".new") as file:
        file.write(dump_index(entries))
    size = sum(os.path.getsize(path) for path in written)
    os.replace(os.path.join(directory, INDEX + ".new"), os.path.join(directory, INDEX))
    return {"names": sorted(entries), "errors": errors, "bytes": size}


# ------------------------------------------------------------------------------------------------ reading


class _Decoder:
    """Builds one value from its TREE.

    `main` is where classes of __main__ are looked up; None: no class is looked up at all.
    """

    def __init__(self, opened: Opener, entry: Mapping[str, Any], main: Optional[Mapping[str, Any]]) -> None:
        self.opened = opened
        self.i = entry["i"]
        self.main = main
        self.tensors: Optional[List[Any]] = None
        if type(self.i) is not int or self.i < 0:
            raise CannotTravel("its entry in the index is damaged")

    def value(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return [self.value(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        if "$" not in tree:
            return {key: self.value(item) for key, item in tree.items()}
        tag = tree["$"]
        if tag == "tensor":
            return self._tensor(tree["k"])
        if tag == "npy":
            return self._npy(tree["k"])
        if tag == "dataclass":
            return self._dataclass(tree["class"], tree["v"])
        v = tree["v"]
        if tag == "generic":
            return self._npy(v["k"])[()]
        if tag == "scalar":
            return self._scalar(tree["dtype"], self.value(v))
        if tag == "int":
            return int(v, 16)
        if tag == "float":
            return float(v)
        if tag == "dict":
            return {self.value(key): self.value(item) for key, item in v}
        if tag == "odict":
            return collections.OrderedDict((self.value(key), self.value(item)) for key, item in v)
        if tag in _BUILD:
            return _BUILD[tag](self.value(item) for item in v)
        if tag in _FROM_JSON:
            return _FROM_JSON[tag](v)
        raise CannotTravel("it has a part of an unknown kind, %.40r" % (tag,))

    def _scalar(self, dtype: Any, value: Any) -> Any:
        import numpy

        kind = numpy.dtype(str(dtype))
        if kind.kind not in "biuf" or not isinstance(value, (int, float)):
            raise CannotTravel("it has a damaged number")
        return kind.type(value)

    def _npy(self, k: Any) -> Any:
        import numpy

        with self.opened("values/%d.%d.npy" % (self.i, int(k))) as file:
            version = numpy.lib.format.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise CannotTravel("its array has an unknown format")
            read = (
                numpy.lib.format.read_array_header_1_0 if version == (1, 0) else numpy.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read(file)
            count = dtype.itemsize
            for size in shape:
                count *= size
            # numpy would set aside whatever the header asks for before it looks at the file
            if dtype.hasobject or min(shape, default=0) < 0 or count > os.fstat(file.fileno()).st_size:
                raise CannotTravel("its array is damaged")
            file.seek(0)
            return numpy.lib.format.read_array(file, allow_pickle=False)

    def _tensor(self, k: Any) -> Any:
        import torch

        if self.tensors is None:
            with self.opened("values/%d.pt" % self.i) as file:
                if file.read(4) != b"PK\x03\x04":  # torch's older formats have had holes in their weights_only reader
                    raise CannotTravel("its tensors are damaged")
                file.seek(0)
                loaded = torch.load(file, map_location="cpu", weights_only=True)
            if type(loaded) is not list or not all(isinstance(item, torch.Tensor) for item in loaded):
                raise CannotTravel("its tensors are damaged")
            self.tensors = loaded
        if type(k) is not int or k < 0:
            raise CannotTravel("its tensors are damaged")
        return self.tensors[k]

    def _dataclass(self, name: Any, fields: Mapping[str, Any]) -> Any:
        if self.main is None:
            raise CannotTravel("results hold no classes")
        kind = _find(name, self.main)
        value = object.__new__(kind)
        for field, tree in fields.items():
            object.__setattr__(value, field, self.value(tree))  # so frozen ones work, and nothing of the class is run
        return value


def _find(name: str, main: Mapping[str, Any]) -> Any:
    """The object called "module:qualname", where __main__ is `main`."""
    module, _, qualname = name.partition(":")
    first, *rest = qualname.split(".")
    try:
        found = (
            main[first] if module in ("__main__", "__mp_main__") else getattr(importlib.import_module(module), first)
        )
        for part in rest:
            found = getattr(found, part)
    except (KeyError, AttributeError, ImportError) as problem:
        raise CannotTravel("the job has no %s of the module %s (%s)" % (qualname, module, problem)) from None
    return found


class _Unpickler(pickle.Unpickler):
    main: Mapping[str, Any]

    def find_class(self, module: str, name: str) -> Any:
        if module in ("__main__", "__mp_main__"):
            return _find(module + ":" + name, self.main)
        return super().find_class(module, name)


def is_late(entry: Mapping[str, Any]) -> bool:
    """Whether the value needs definitions of the job, so that it is built after those have run."""
    return any(name.startswith("__main__:") for name in entry["classes"])


def decode(directory: str, *, late: Optional[bool] = None, main: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
    """Captured values by name. `late` picks those that need the job's definitions, or those that do not; None: all.

    `main` is the namespace in which classes of the notebook are found. Raises CannotTravel, its message begins with
    the name.
    """
    namespace = sys.modules["__main__"].__dict__ if main is None else main
    index = json.loads(_read(directory, INDEX))
    values = {}
    for name, entry in index["values"].items():
        if late is None or is_late(entry) == late:
            try:
                values[name] = _decode_captured(directory, entry, namespace)
            except CannotTravel as problem:
                raise CannotTravel("%s: %s" % (name, problem)) from None
    return values


def _decode_captured(directory: str, entry: Mapping[str, Any], main: Mapping[str, Any]) -> Any:
    if "pickle" not in entry:
        return _Decoder(_opener(directory), entry, main).value(entry["tree"])
    made = entry["pickle"]
    if made["python"] != PYTHON:
        raise CannotTravel(
            "this %s was pickled by Python %s and the job runs %s; use an image with Python %s, or ship plain data"
            % (made["type"], made["python"], PYTHON, made["python"])
        )
    with _opener(directory)("values/%d.pickle" % entry["i"]) as file:
        unpickler = _Unpickler(file)
        unpickler.main = main
        return unpickler.load()


def load_results(directory: str) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Results by name, and sentences for those that could not be read.

    Never raises for what a job wrote, and never unpickles it.
    The names are the job's word: assign only those that were asked for.
    """
    values: Dict[str, Any] = {}
    errors: Dict[str, str] = {}
    try:
        index = json.loads(_read(directory, INDEX, INDEX_LIMIT), parse_constant=_no_constant)
        entries = dict(index["values"])
    except FileNotFoundError:
        return {}, {}
    except Exception as problem:
        return {}, {"*": "the results are damaged: %s" % (str(problem) or type(problem).__name__)}
    for name, entry in entries.items():
        if not name.isidentifier():
            continue
        try:
            values[name] = _Decoder(_opener(directory), entry, None).value(entry["tree"])
        except ImportError as problem:
            errors[name] = "%s needs a package that is not here: %s" % (name, problem)
        except Exception as problem:
            errors[name] = "%s cannot be read: %s" % (name, str(problem) or type(problem).__name__)
    return values, errors


def _no_constant(text: str) -> Any:
    raise ValueError("%s is not JSON" % text)


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


def _read(directory: str, name: str, limit: Optional[int] = None) -> bytes:
    with _opener(directory)(name) as file:
        if limit is not None and os.fstat(file.fileno()).st_size > limit:
            raise CannotTravel("%s is over %d MiB" % (name, limit >> 20))
        return file.read()
