"""Values keep their type and content on the way into a job and back, and results of a hostile job are harmless."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import io
import json
import os
import pathlib
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kfnb_worker import encoding, values
from kfnb_worker.encoding import PYTHON

atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers()
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(datetime.timezone(datetime.timedelta(hours=2)))).filter(
        lambda d: not d.fold
    )
    | st.timedeltas()
    | st.decimals(allow_nan=False)
)
keys = st.text() | st.integers() | st.tuples(st.integers(), st.text()) | st.none()
trees = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.dictionaries(st.sampled_from(["$", "v", "a"]), inner)
        | st.frozensets(st.integers() | st.text() | st.binary())
        | st.sets(st.floats(allow_nan=False))
    ),
    max_leaves=20,
)
fast = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)


def same(a: Any, b: Any) -> bool:
    """Equal in type too, with NaN equal to itself and -0.0 not to 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(list(x), list(y)) for x, y in zip(a.items(), b.items(), strict=True))
    return repr(a) == repr(b) if isinstance(a, (float, complex)) else a == b


def through_use(value: object, folder: Path) -> Any:
    values.encode({"x": value}, str(folder))
    return values.decode(str(folder))["x"]


def through_out(value: object, folder: Path) -> Any:
    saved = values.save_results(["x"], {"x": value}, str(folder))
    assert saved["errors"] == {}
    assert saved["names"] == ["x"]
    found, errors = values.load_results(str(folder))
    assert errors == {}
    return found["x"]


@fast
@given(trees)
def test_plain_values_survive_both_ways(tmp_path: Path, tree: Any) -> None:
    assert same(through_use(tree, tmp_path / "use"), tree)
    assert same(through_out(tree, tmp_path / "out"), tree)


@fast
@given(hnp.arrays(dtype=hnp.scalar_dtypes(), shape=hnp.array_shapes(min_dims=0, max_dims=3)))
def test_arrays_keep_dtype_shape_and_bytes(tmp_path: Path, array: np.ndarray) -> None:
    for way in (through_use, through_out):
        back = way(array, tmp_path / way.__name__)
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(3.5),
        np.zeros((0, 3)),
        np.array([("a", 1)], dtype=[("name", "U3"), ("n", "<i8")]),
        np.arange(4)[::-1],
    ],
)
def test_arrays_of_any_layout(tmp_path: Path, array: np.ndarray) -> None:
    back = through_out({"a": [array]}, tmp_path)["a"][0]
    assert back.dtype == array.dtype
    assert back.flags.writeable
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    "scalar", [np.float32(0.1), np.int64(3), np.bool_(True), np.float64("nan"), np.datetime64("2020-01-01")]
)
def test_numpy_scalars_keep_their_type(tmp_path: Path, scalar: Any) -> None:
    back = through_use(scalar, tmp_path)
    assert type(back) is type(scalar)
    assert repr(back) == repr(scalar)


def test_tensors_in_nests_keep_what_they_share(tmp_path: Path) -> None:
    shared = torch.arange(4.0)
    value = {"a": shared, "b": [shared.view(2, 2)], "half": torch.ones(2, dtype=torch.bfloat16), "n": 3}
    back = through_use(value, tmp_path)
    back["a"][0] = 7
    assert back["b"][0][0, 0] == 7
    assert back["half"].dtype == torch.bfloat16
    assert back["n"] == 3


def test_a_view_does_not_bring_its_whole_storage(tmp_path: Path) -> None:
    value = torch.zeros(1_000_000)[:3]
    assert torch.equal(through_use(value, tmp_path), value)
    assert (tmp_path / "values/0.pt").stat().st_size < 10_000


def test_parameters_and_gradients(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    assert isinstance(through_use(weight, tmp_path / "a"), torch.nn.Parameter)
    back = through_out(weight * 2, tmp_path / "b")
    assert not back.requires_grad


def test_a_module_comes_back_as_its_state_without_wrappers(tmp_path: Path) -> None:
    class DistributedDataParallel(torch.nn.Module):  # by name, so that no process group is needed
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

    model = torch.nn.Linear(2, 1)
    back = through_out(DistributedDataParallel(model), tmp_path)
    assert list(back) == ["weight", "bias"]
    model.load_state_dict(back)


def test_an_optimizer_comes_back_as_its_state(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    model(torch.ones(2)).backward()
    optimizer.step()
    torch.optim.Adam(model.parameters()).load_state_dict(through_out(optimizer, tmp_path))


@dataclasses.dataclass(frozen=True)
class Config:
    lr: float
    layers: tuple[int, ...] = ()
    weight: Any = None

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise ValueError("run again")


def test_a_dataclass_is_rebuilt_in_the_job_and_a_dict_on_the_way_back(tmp_path: Path) -> None:
    config = Config(0.1, (1, 2), Config(0.2))
    main = {"Config": Config}
    entry = values.encode({"config": config}, str(tmp_path / "use"))["values"]["config"]
    entry["classes"] = ["__main__:Config"]
    text = (tmp_path / "use/values.json").read_text().replace(f"{__name__}:", "__main__:")
    (tmp_path / "use/values.json").write_text(text)
    assert values.decode(str(tmp_path / "use"), main=main)["config"] == config
    assert through_out(config, tmp_path / "out") == {
        "lr": 0.1,
        "layers": (1, 2),
        "weight": {"lr": 0.2, "layers": (), "weight": None},
    }


def test_subclasses_of_plain_types_come_back_as_the_plain_type(tmp_path: Path) -> None:
    Point = collections.namedtuple("Point", "x y")
    value = [Point(1, 2), collections.defaultdict(list, a=[1]), collections.Counter("ab"), collections.deque([3])]
    assert through_out(value, tmp_path) == [(1, 2), {"a": [1]}, {"a": 1, "b": 1}, [3]]


def test_paths_ranges_and_ordered_dicts(tmp_path: Path) -> None:
    value = {
        "p": pathlib.Path("/data"),
        "r": range(1, 9, 2),
        "o": collections.OrderedDict(b=1, a=2),
        "d": decimal.Decimal("NaN"),
    }
    back = through_use(value, tmp_path)
    assert back["p"] == value["p"]
    assert back["r"] == value["r"]
    assert list(back["o"]) == ["b", "a"]
    assert back["d"].is_nan()


class Odd:
    def __init__(self, n: int) -> None:
        self.n = n


def test_other_objects_are_pickled_and_the_version_is_compared_first(tmp_path: Path) -> None:
    index = values.encode({"odd": Odd(3)}, str(tmp_path))["values"]["odd"]
    assert index["classes"] == [f"{__name__}:Odd"]
    assert values.decode(str(tmp_path))["odd"].n == 3
    text = (tmp_path / "values.json").read_text()
    (tmp_path / "values.json").write_text(text.replace(json.dumps(index["pickle"]["python"]), '"3.1"'))
    (tmp_path / "values/0.pickle").write_bytes(b"would fail if it were loaded")
    with pytest.raises(values.CannotTravel, match=r"odd: this .*Odd was pickled by Python 3\.1 and the job runs"):
        values.decode(str(tmp_path))


@pytest.mark.parametrize("value", [lambda: 1, (i for i in range(3)), [open]])
def test_what_cannot_travel_is_refused_by_name(tmp_path: Path, value: Any) -> None:
    if value == [open]:
        value = io.open(os.devnull)  # noqa: UP020, SIM115
    with pytest.raises(values.CannotTravel, match=r"^x: "):
        values.encode({"x": value}, str(tmp_path))


def test_a_value_that_contains_itself_is_refused(tmp_path: Path) -> None:
    value: list[Any] = []
    value.append(value)
    saved = values.save_results(["x"], {"x": value}, str(tmp_path))
    assert saved["errors"] == {"x": "x: it contains itself"}


def test_one_bad_result_does_not_take_the_others_along(tmp_path: Path) -> None:
    saved = values.save_results(["a", "b", "missing"], {"a": 1, "b": Odd(1)}, str(tmp_path))
    assert saved["names"] == ["a"]
    assert "Odd cannot be brought back" in saved["errors"]["b"]
    assert "without a value named missing" in saved["errors"]["missing"]
    assert values.load_results(str(tmp_path)) == ({"a": 1}, saved["errors"])


def test_one_result_that_is_too_large_does_not_take_the_others_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "TREE_LIMIT", 1 << 20)
    fits = ["a" * ((1 << 20) - 4)]
    namespace = {"array": np.zeros(1 << 20), "fits": fits, "long": [0.1] * (1 << 20), "text": "a" * (1 << 20)}
    saved = values.save_results(namespace, namespace, str(tmp_path))
    assert saved["names"] == ["array", "fits"]
    assert sorted(saved["errors"]) == ["long", "text"]
    assert "long: it is 4 MiB of text and numbers, and a result can have 1 MiB" in saved["errors"]["long"]
    assert "make it a numpy array or a tensor" in saved["errors"]["long"]
    found, errors = values.load_results(str(tmp_path))
    assert list(found) == ["array", "fits"]
    assert found["fits"] == fits
    assert errors == saved["errors"]


def test_a_history_of_three_million_floats_comes_back(tmp_path: Path) -> None:
    history = [n / 7 for n in range(3_000_000)]
    assert through_out(history, tmp_path) == history


def test_an_error_that_says_too_much_is_cut(tmp_path: Path) -> None:
    class Loud:
        @property
        def state_dict(self) -> None:
            raise ValueError("a" * (values.INDEX_LIMIT + 1))

    saved = values.save_results(["good", "loud"], {"good": 1, "loud": Loud()}, str(tmp_path))
    assert saved["errors"]["loud"].startswith("loud could not be written: ValueError: aaa")
    assert values.load_results(str(tmp_path)) == ({"good": 1}, saved["errors"])


def test_no_results_yet(tmp_path: Path) -> None:
    assert values.load_results(str(tmp_path)) == ({}, {})


def test_sets_are_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    forward, backward = {"a", "b", "c", 1}, {1, "c", "b", "a"}
    values.encode({"x": forward}, str(tmp_path / "a"))
    values.encode({"x": backward}, str(tmp_path / "b"))
    assert (tmp_path / "a/values.json").read_bytes() == (tmp_path / "b/values.json").read_bytes()


# ---- hostile results


class Evil:
    """Says so in a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def write(folder: Path, entry: Any, **files: bytes) -> None:
    (folder / "values").mkdir(exist_ok=True)
    if isinstance(entry, dict) and "tree" in entry:
        (folder / "values/0.json").write_text(json.dumps(entry.pop("tree")))
    index(folder, json.dumps({"v": 1, "values": {"x": entry}}).encode())
    for name, content in files.items():
        (folder / "values" / name.replace("_", ".")[1:]).write_bytes(content)


def index(folder: Path, content: bytes) -> None:
    (folder / "values.json").write_bytes(content)


def npy(header: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def pt(mark: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save([Evil(mark)], buffer)
    return buffer.getvalue()


def array(mark: Path) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Evil(mark)], dtype=object), allow_pickle=True)
    return buffer.getvalue()


HOSTILE: dict[str, Callable[[Path, Path], None]] = {
    "a pickle": lambda folder, mark: write(
        folder, {"i": 0, "pickle": {"python": PYTHON, "type": "x"}}, _0_pickle=pickle.dumps(Evil(mark))
    ),
    "a pickle for an array": lambda folder, mark: write(
        folder, {"i": 0, "tree": {"$": "npy", "k": 0}}, _0_0_npy=array(mark)
    ),
    "a bare pickle for an array": lambda folder, mark: write(
        folder, {"i": 0, "tree": {"$": "npy", "k": 0}}, _0_0_npy=pickle.dumps(Evil(mark))
    ),
    "a pickle for tensors": lambda folder, mark: write(
        folder, {"i": 0, "tree": {"$": "tensor", "k": 0}}, _0_pt=pt(mark)
    ),
    "an old format of torch": lambda folder, mark: write(
        folder, {"i": 0, "tree": {"$": "tensor", "k": 0}}, _0_pt=pickle.dumps(Evil(mark))
    ),
    "an array of a terabyte": lambda folder, mark: write(
        folder,
        {"i": 0, "tree": {"$": "npy", "k": 0}},
        _0_0_npy=npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (137438953472,)}\n"),
    ),
    "a negative array": lambda folder, mark: write(
        folder,
        {"i": 0, "tree": {"$": "npy", "k": 0}},
        _0_0_npy=npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}\n"),
    ),
    "a class": lambda folder, mark: write(
        folder, {"i": 0, "tree": {"$": "dataclass", "class": "subprocess:Popen", "v": {"args": "touch"}}}
    ),
    "a path out of the folder": lambda folder, mark: write(
        folder, {"i": "../../etc/passwd", "tree": {"$": "npy", "k": 0}}
    ),
    "a negative place": lambda folder, mark: write(folder, {"i": -1, "tree": 1}),
    "no tree": lambda folder, mark: write(folder, {"i": 0}),
    "a tree that is not JSON": lambda folder, mark: write(folder, {"i": 0}, _0_json=b"\xff{"),
    "NaN in a tree": lambda folder, mark: write(folder, {"i": 0}, _0_json=b"[NaN]"),
    "a deep tree": lambda folder, mark: write(folder, {"i": 0}, _0_json=b"[" * 100_000 + b"]" * 100_000),
    "a path in k": lambda folder, mark: write(folder, {"i": 0, "tree": {"$": "npy", "k": "../../../etc/passwd"}}),
    "a deep nest": lambda folder, mark: index(folder, b'{"values": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"),
    "not JSON": lambda folder, mark: index(folder, b"\xff{"),
    "NaN": lambda folder, mark: index(folder, b'{"values": {"x": NaN}}'),
    "a list": lambda folder, mark: index(folder, b"[1, 2]"),
    "an unknown tag": lambda folder, mark: write(folder, {"i": 0, "tree": {"$": "exec", "v": "print"}}),
    "an unhashable key": lambda folder, mark: write(folder, {"i": 0, "tree": {"$": "dict", "v": [[[], 1]]}}),
    "an object dtype": lambda folder, mark: write(folder, {"i": 0, "tree": {"$": "scalar", "dtype": "O", "v": 1}}),
    "an entry that is no object": lambda folder, mark: write(folder, [1]),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_results_are_refused_and_nothing_is_unpickled(tmp_path: Path, kind: str) -> None:
    mark = tmp_path / "mark"
    folder = tmp_path / "results"
    folder.mkdir()
    HOSTILE[kind](folder, mark)
    found, errors = values.load_results(str(folder))
    assert found == {}
    assert len(errors) == 1
    assert not mark.exists()


@pytest.mark.parametrize(("name", "limit"), [("0.json", encoding.TREE_LIMIT), ("../values.json", values.INDEX_LIMIT)])
def test_no_more_is_parsed_than_the_limit(tmp_path: Path, name: str, limit: int) -> None:
    write(tmp_path, {"i": 0, "tree": 1})
    os.truncate(tmp_path / "values" / name, limit + 1)
    found, (why,) = values.load_results(str(tmp_path))[0], values.load_results(str(tmp_path))[1].values()
    assert found == {}
    assert f"is over {limit >> 20} MiB" in why


def test_results_do_not_follow_links_or_wait_for_pipes(tmp_path: Path) -> None:
    secret = tmp_path / "secret.npy"
    np.save(secret, np.arange(3))
    folder = tmp_path / "results"
    folder.mkdir()
    write(folder, {"i": 0, "tree": {"$": "npy", "k": 0}})
    (folder / "values/0.0.npy").symlink_to(secret)
    assert values.load_results(str(folder))[0] == {}
    (folder / "values/0.0.npy").unlink()
    os.mkfifo(folder / "values/0.0.npy")
    assert values.load_results(str(folder))[0] == {}
    (folder / "values.json").unlink()
    os.mkfifo(folder / "values.json")
    assert values.load_results(str(folder))[0] == {}


@fast
@given(st.binary(max_size=200))
def test_any_bytes_for_an_index(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "values.json").write_bytes(content)
    assert values.load_results(str(tmp_path))[0] == {}


@fast
@given(st.data())
def test_any_damage_to_a_tensor_file(tmp_path: Path, data: st.DataObject) -> None:
    values.save_results(["x"], {"x": torch.arange(3)}, str(tmp_path))
    path = tmp_path / "values/0.pt"
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    found, errors = values.load_results(str(tmp_path))
    assert set(found) | set(errors) == {"x"}


def test_a_zip_without_tensors(tmp_path: Path) -> None:
    write(tmp_path, {"i": 0, "tree": {"$": "tensor", "k": 0}})
    with zipfile.ZipFile(tmp_path / "values/0.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps([1]))
    assert list(values.load_results(str(tmp_path))[1]) == ["x"]
