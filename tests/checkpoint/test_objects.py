"""The objects people keep in checkpoints: loaded as they were saved, by the default, without running foreign code."""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import functools
import io
import pathlib
import random
import types
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoint.support import load, save
from torch.distributed.checkpoint._extension import ZStandard
from torch.distributed.fsdp import ShardingStrategy

from holdfast import checkpoint
from holdfast.checkpoint import ParallelFileSystemReader, verify_checkpoint
from holdfast.errors import CheckpointError, ConfigError, UnsafeCheckpointError


def beyond_its_end() -> io.BytesIO:
    stream = io.BytesIO(b"abc")
    stream.seek(10)
    return stream


OBJECTS: dict[str, Any] = {
    "array": np.arange(6.0).reshape(2, 3),
    "fortran array": np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
    "empty array": np.zeros((0, 3)),
    "array of text": np.array(["ab", "c"]),
    "array of objects": np.array([1, "a", None], dtype=object),
    "fortran array of objects": np.array([["a", "b", "c"], ["d", None, 1]], dtype=object, order="F"),
    "transposed array of objects": np.array([["a", "b"], ["c", "d"], ["e", [1, 2]]], dtype=object).T,
    "array of objects with metadata": np.zeros(2, dtype=np.dtype("O", metadata={"a": 1})),
    "array of dates": np.array(["2024-05-06"], dtype="M8[D]"),
    "record array": np.zeros(3, dtype=[("x", "f4"), ("y", "i8")]),
    "record array with arrays in it": np.ones(2, dtype=[("a", "i4"), ("b", "f8", (2,)), ("c", "U2", (1, 2))]),
    "record array with aligned fields": np.ones(2, dtype=np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    "array of many dimensions": np.ones((1,) * 32),
    "array of bytes without length": np.zeros(4096, dtype=[("a", "S0")])["a"],
    "array of text without length": np.zeros((2, 3), dtype=[("a", "U0")])["a"],
    "no text without length": np.zeros(0, dtype=[("a", "U0")])["a"],
    "array of nothing": np.zeros(3, dtype="V0"),
    "records of text without length": np.zeros(3, dtype=[("a", "S0"), ("b", "U0"), ("c", "i4")]),
    "scalar of no bytes": np.bytes_(b""),
    "scalar of no text": np.str_(""),
    "periods": np.array([1, 2], dtype="m8[25s]"),
    "periods without a unit": np.array([1, 2], dtype="m8"),
    "scalar": np.float32(1.5),
    "integer scalar": np.int64(3),
    "dtype": np.dtype("float16"),
    "dtype of arrays": np.dtype(("f4", (2, 3))),
    "dtype of arrays in records in records": np.dtype([("a", [("b", ">i2", (3,))], (2,))]),
    "dtype with titles": np.dtype([(("the title", "a"), "i4"), ("b", "f8")]),
    "aligned dtype": np.dtype([("a", "i1"), ("b", "f8"), ("c", "i1", (3,))], align=True),
    "dtype with gaps": np.dtype({"names": ["a"], "formats": ["i2"], "offsets": [4], "itemsize": 4 << 20}),
    "dtype with metadata": np.dtype("O", metadata={"vlen": str}),
    "dates with metadata": np.dtype("M8[D]", metadata={"a": 1}),
    "records with metadata": np.dtype([("a", "i4")], metadata={"a": 1}),
    "numpy random state": np.random.RandomState(3).get_state(),
    "generator state": np.random.default_rng(3).bit_generator.state,
    "python random state": random.Random(3).getstate(),
    "torch random state": torch.get_rng_state(),
    "namespace": argparse.Namespace(lr=0.1, path=pathlib.Path("a/b"), tags=["x"]),
    "simple namespace": types.SimpleNamespace(a=[1]),
    "path": pathlib.Path("a/b"),
    "pure path": pathlib.PurePosixPath("a/b"),
    "date": datetime.date(2024, 5, 6),
    "datetime": datetime.datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=datetime.timezone.utc),
    "timedelta": datetime.timedelta(days=1, seconds=2),
    "time": datetime.time(1, 2),
    "deque": collections.deque([1, 2], maxlen=5),
    "frozenset": frozenset({1, (2, "x")}),
    "set": {1, 2},
    "range": range(2, 9, 3),
    "slice": slice(1, None, 2),
    "slice of text": slice("a", "b"),
    "slice of numbers": slice(1.5, True),
    "slice of labels of two levels": slice(("a", 1), ("b", None), (2,)),
    "decimal": decimal.Decimal("1.25"),
    "uuid": uuid.UUID(int=77),
    "enum of torch": ShardingStrategy.FULL_SHARD,
    "enum of torch in C++": torch.distributed.ReduceOp.SUM,
    "big integer": 2**1000 + 1,
    "bytes": b"abc\xff",
    "no bytes": b"",
    "bytearray": bytearray(b"abc"),
    "bytes io": io.BytesIO(b"abc"),
    "bytes io at a place beyond its end": beyond_its_end(),
    "complex": 1 + 2j,
    "default dict": collections.defaultdict(list, a=[1]),
    "ordered dict": collections.OrderedDict(b=1, a=2),
    "counter": collections.Counter("aab"),
    "torch dtype": torch.bfloat16,
    "torch size": torch.Size((1, 2)),
    "torch device": torch.device("cpu"),
    "torch device with a number": torch.device("cuda", 1),
    "parameter": [torch.nn.Parameter(torch.ones(2)), torch.eye(2).to_sparse()],
    "empty sparse tensors": [torch.zeros(3, 4).to_sparse(), torch.zeros(0)],
    "tuple keys": {(1, "a"): 2},
}


def same_metadata(left: np.dtype[Any], right: np.dtype[Any]) -> bool:
    """Return whether two types carry the same metadata: NumPy 1 restores a date without any with an empty dict."""
    return (left.metadata or {}) == (right.metadata or {})


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return str(left) == str(right)
    if isinstance(left, np.ndarray):
        alike = (repr(left.dtype), left.shape, left.flags.f_contiguous) == (
            repr(right.dtype),
            right.shape,
            right.flags.f_contiguous,
        )
        return bool(alike and same_metadata(left.dtype, right.dtype) and (left == right).all())
    if isinstance(left, np.dtype):
        return repr(left) == repr(right) and same_metadata(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, io.BytesIO):
        return (left.getvalue(), left.tell()) == (right.getvalue(), right.tell())
    return bool(left == right)


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_people_store_loads_by_default(tmp_path: Path, parallel: bool) -> None:
    # In namespaces, which DCP does not take apart.
    saved = {name: types.SimpleNamespace(value=value) for name, value in OBJECTS.items()}
    folder = save(saved, tmp_path / "c")
    state = load(dict.fromkeys(saved), ParallelFileSystemReader(folder, parallel=parallel))
    assert [name for name in saved if not same(state[name].value, saved[name].value)] == []
    assert verify_checkpoint(folder).sound


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_people_store_is_decoded_from_any_protocol(protocol: int) -> None:
    from holdfast.checkpoint.items import decode_item

    for name, value in OBJECTS.items():
        buffer = io.BytesIO()
        torch.save({"value": value}, buffer, pickle_protocol=protocol)
        decoded = decode_item(memoryview(buffer.getvalue()), check=True, tensor=name, file="f")
        assert same(decoded.value["value"], value), name


class First:
    """A class of the user's own."""

    def __init__(self) -> None:
        self.number = 7


class Second(First):
    """Another."""


def test_every_refused_class_is_named_at_once_with_the_line_to_paste(tmp_path: Path) -> None:
    folder = save({"mine": [First(), Second(), First()], "x": torch.ones(2)}, tmp_path / "c")
    with pytest.raises(UnsafeCheckpointError) as caught:
        load({"mine": [None], "x": torch.zeros(2)}, ParallelFileSystemReader(folder))
    error = caught.value
    names = [f"{__name__}.First", f"{__name__}.Second"]
    assert error.names == names
    assert f"torch.serialization.add_safe_globals([{', '.join(names)}])" in str(error)
    assert "\x1b" not in str(error)


@pytest.mark.parametrize("options", [{}, {"parallel": False}, {"num_workers": 3}], ids=repr)
@pytest.mark.parametrize("extensions", [[], [ZStandard()]], ids=["plain", "compressed"])
def test_the_refused_classes_of_every_key_are_named_at_once(
    tmp_path: Path, options: dict[str, Any], extensions: list[Any]
) -> None:
    saved = {"one": First(), "two": Second(), "step": 7, "three": [First()], "x": torch.ones(2)}
    folder = save(saved, tmp_path / "c", _extensions=extensions, single_file_per_rank=False)
    with pytest.raises(UnsafeCheckpointError) as caught:
        load({**dict.fromkeys(saved), "x": torch.zeros(2)}, ParallelFileSystemReader(folder, **options))
    names = [f"{__name__}.First", f"{__name__}.Second"]
    assert caught.value.names == names
    assert caught.value.tensor == "one, three, two"
    assert f"torch.serialization.add_safe_globals([{', '.join(names)}])" in str(caught.value)


def test_classes_that_the_user_allows_load(tmp_path: Path) -> None:
    folder = save({"mine": [First(), Second()]}, tmp_path / "c")
    with torch.serialization.safe_globals([First, Second]):
        state = load({"mine": [None, None]}, ParallelFileSystemReader(folder))
        assert verify_checkpoint(folder).sound
    assert [type(one) for one in state["mine"]] == [First, Second]
    assert state["mine"][1].number == 7


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.soak)])
def test_each_flipped_bit_of_a_file_of_objects_loads_the_same_or_is_damage(tmp_path: Path, every: int) -> None:
    options = types.SimpleNamespace(lr=0.1, betas=(0.9, 0.95), scale=np.float64(2.5))
    saved = {"step": 5, "name": "abc", "options": options}
    folder = save(saved, tmp_path / "c")
    (path,) = folder.glob("*.distcp")
    whole = path.read_bytes()
    chance = random.Random(4)
    outcomes = collections.Counter[str]()
    for place in range(0, len(whole), every):
        data = bytearray(whole)
        data[place] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        verdict = verify_checkpoint(folder, num_workers=1).verdict
        try:
            state = load(dict.fromkeys(saved), ParallelFileSystemReader(folder))
        except CheckpointError:
            state = {}
        assert (verdict == "sound") == same(state, saved), (place, verdict)
        outcomes[verdict] += 1
    assert outcomes["damaged"] > outcomes["sound"] > 0
    assert outcomes["incomplete"] == 0


def test_values_under_keys_that_are_numbers_are_restored_where_they_were(tmp_path: Path) -> None:
    """As an optimizer has them: torch makes a text of every key, and adds new entries under those."""

    def state(value: int) -> dict[str, Any]:
        return {
            "optimizer": {0: {"step": value, "moment": torch.full((2,), float(value))}, 1: {"step": value}},
            "plain": {(1, 2): [value], "0": value},
            "list": [{3: value, "t": torch.full((1,), float(value))}],
            "mixed": {0: {"al": [torch.full((1,), float(value)), None, value], "t": value}, True: {"u": [value, {}]}},
            "a.b": {"c": value},
            "a": {"b": {"d": value}},
        }

    checkpoint.save(state(7), tmp_path / "c", step=1)
    into = state(0)
    checkpoint.load(into, tmp_path / "c")
    assert str(into) == str(state(7))


def test_keys_that_torch_cannot_sort_or_keep_apart_are_refused(tmp_path: Path) -> None:
    mixed: dict[Any, Any] = {1: 2, "t": torch.ones(1)}
    with pytest.raises(ConfigError, match=r"cannot be sorted together: int, str"):
        checkpoint.save(mixed, tmp_path / "c", step=1)
    with pytest.raises(ConfigError, match=r"'1' and 1 in the state\['s'\]\[0\] are the same key"):
        checkpoint.save({"s": [{"1": {"a": 5}, 1: {"b": 6}}]}, tmp_path / "c", step=1)
    checkpoint.save({"t": torch.ones(1)}, tmp_path / "c", step=1)
    with pytest.raises(CheckpointError, match="cannot be sorted together"):
        checkpoint.load(mixed, tmp_path / "c")


def test_classes_of_torch_load_as_the_classes_themselves(tmp_path: Path) -> None:
    saved = {"types": {"shape": torch.Size, "device": (torch.device, 1), "tensor": torch.Tensor}}
    checkpoint.save(saved, tmp_path / "c", step=1)
    state: dict[str, Any] = {"types": {"shape": None, "device": None, "tensor": None}}
    checkpoint.load(state, tmp_path / "c")
    assert state == saved


def test_a_function_that_rebuilds_tensors_is_not_a_value(tmp_path: Path) -> None:
    folder = save({"f": torch._utils._rebuild_tensor_v2}, tmp_path / "c")
    with pytest.raises(UnsafeCheckpointError, match="_rebuild_tensor_v2"):
        load({"f": None}, ParallelFileSystemReader(folder))


def test_the_singletons_of_python_load(tmp_path: Path) -> None:
    saved = {"index": (slice(0, 2), ...), "answer": [NotImplemented]}
    folder = save({"o": saved}, tmp_path / "c")
    assert load({"o": {"index": None, "answer": None}}, ParallelFileSystemReader(folder)) == {"o": saved}
    assert verify_checkpoint(folder).sound


def test_an_allowed_value_without_a_name_does_not_make_checkpoints_unreadable(tmp_path: Path) -> None:
    folder = save({"w": torch.ones(3), "o": argparse.Namespace(a=1)}, tmp_path / "c")
    with torch.serialization.safe_globals([Ellipsis, functools.partial(int)]):  # type: ignore[list-item]
        assert verify_checkpoint(folder).sound
