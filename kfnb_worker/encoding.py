"""How a value is written: a TREE of JSON, and files of arrays, tensors or a pickle (see `kfnb_worker.values`)."""

from __future__ import annotations

import base64
import collections
import contextlib
import dataclasses
import datetime
import decimal
import io
import json
import pathlib
import pickle
import sys
from typing import Any, BinaryIO, Callable, Dict, List, Mapping, Set, Tuple

PYTHON = "%d.%d" % sys.version_info[:2]
TREE_LIMIT = 128 << 20  # bytes of a result's TREE: about six million floats; the notebook parses no more

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
FROM_JSON = {tag: decode for tag, _, decode in _ATOMS.values()}
_SEQUENCES: Dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}


def type_name(value: object) -> str:
    kind = type(value)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "." + kind.__qualname__
    )


def a(noun: str) -> str:
    """The noun with its article."""
    return ("an " if noun[0] in "aeiouAEIOU" else "a ") + noun


def dumps(data: object) -> str:
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


class Encoder:
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
                items.sort(key=dumps)
            return {"$": _SEQUENCES[kind], "v": items}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, kind)
        if self.results:
            return self._plain(value)
        raise CannotTravel("%s has no plain form" % a(type_name(value)))

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
        if hasattr(value, "__array__") and type(value).__module__.partition(".")[0] in ("jax", "jaxlib", "tensorflow"):
            import numpy

            return self.tree(numpy.asarray(value))
        raise CannotTravel(
            "%s cannot be brought back: results are numbers, text, containers, arrays, tensors and modules"
            % a(type_name(value))
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
                raise CannotTravel("%s has no plain form; numpy.asarray() of it has" % a(type_name(value)))
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

    def finish(self) -> None:
        """Writes the tensors of the value."""
        if self.tensors:
            with self.create("values/%d.pt" % self.i) as file:
                sys.modules["torch"].save(self.tensors, _Plain(file))


class _Plain:
    """A file that can only be written: keeps numpy and torch from taking the file's descriptor or its name."""

    def __init__(self, file: BinaryIO) -> None:
        self.write = file.write
        self.flush = file.flush


def _portable(torch: Any, tensor: Any, results: bool) -> Any:
    """The tensor on the CPU, without its graph, and without the rest of a larger storage that it is a view of."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise CannotTravel(
            "%s has no plain form; gather it to a plain tensor on all ranks first" % a(type_name(tensor))
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
            "%s cannot be shipped: %s" % (a(type_name(value)), str(problem) or type(problem).__name__)
        ) from None
    with create("values/%d.pickle" % i) as file:
        file.write(buffer.getbuffer())
    return {"i": i, "pickle": {"python": PYTHON, "type": type_name(value)}, "classes": sorted(pickler.classes)}


def encode_one(value: object, create: Opener, i: int, *, results: bool = False) -> Dict[str, Any]:
    """The index entry of one value; its files are written through `create(name)`.

    Raises CannotTravel. With results=False, what has no plain form is pickled; with results=True never, and the TREE
    is limited.
    """
    encoder = Encoder(create, i, results)
    try:
        tree = dumps(encoder.tree(value)).encode()
    except RecursionError:
        raise CannotTravel("it is nested too deeply") from None
    except CannotTravel:
        if results:
            raise
        return _pickle(value, create, i)
    if results and len(tree) > TREE_LIMIT:
        raise CannotTravel(
            "it is %d MiB of text and numbers, and a result can have %d MiB of them; make it a numpy array or a tensor,"
            " which can be of any size" % (len(tree) >> 20, TREE_LIMIT >> 20)
        )
    encoder.finish()
    with create("values/%d.json" % i) as file:
        file.write(tree)
    return {"i": i, "classes": sorted(encoder.classes)}
