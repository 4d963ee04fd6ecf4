"""How a value is read back from its TREE and its files. `kfnb_worker.values` has the format, and who may be trusted."""

from __future__ import annotations

import collections
import importlib
import json
import os
import pickle
from typing import Any, BinaryIO, List, Mapping, Optional

from kfnb_worker.encoding import FROM_JSON, PYTHON, CannotTravel, Opener

_BUILD = {"tuple": tuple, "set": set, "frozenset": frozenset}


def read_json(opened: Opener, name: str, limit: Optional[int] = None) -> Any:
    """A file's JSON; `limit` is in bytes. Raises CannotTravel, OSError, ValueError or RecursionError."""
    with opened(name) as file:
        if limit is not None and os.fstat(file.fileno()).st_size > limit:
            raise CannotTravel("%s is over %d MiB" % (name, limit >> 20))
        return json.loads(file.read(), parse_constant=_no_constant)


def _no_constant(text: str) -> Any:
    raise ValueError("%s is not JSON" % text)


class Decoder:
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

    def read(self, limit: Optional[int] = None) -> Any:
        """The value; `limit` is for its TREE, in bytes."""
        return self.value(read_json(self.opened, "values/%d.json" % self.i, limit))

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
        if tag in FROM_JSON:
            return FROM_JSON[tag](v)
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


def unpickle(file: BinaryIO, made: Mapping[str, str], main: Mapping[str, Any]) -> Any:
    """A captured value from its pickle, once the versions of Python are known to agree. `made` is its index entry's."""
    if made["python"] != PYTHON:
        raise CannotTravel(
            "this %s was pickled by Python %s and the job runs %s; use an image with Python %s, or ship plain data"
            % (made["type"], made["python"], PYTHON, made["python"])
        )
    unpickler = _Unpickler(file)
    unpickler.main = main
    return unpickler.load()
