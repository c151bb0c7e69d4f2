"""Values that claim far more elements than are stored, such as ranges and expanded tensors: never walked or copied."""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import io
import pathlib
import pickle
import time
import traceback
import types
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoint.support import load, save
from tests.faults.test_checkpoint_tensors import Call, Payloads, Storage, archive_of, longs, put, tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader

from holdfast import checkpoint
from holdfast.checkpoint import ParallelFileSystemReader, verify_checkpoint
from holdfast.checkpoint.allowed_types import MAKERS
from holdfast.checkpoint.inert import DamagedPickleError, Inert, Name, Persistent
from holdfast.checkpoint.items import _Storages
from holdfast.checkpoint.pickle_machine import read_pickle
from holdfast.checkpoint.safe_metadata import load_metadata
from holdfast.checkpoint.safe_objects import RefusedNamesError, build_object
from holdfast.errors import UnsafeCheckpointError

ENDLESS = Inert(Name("builtins", "range"), (0, 10**18), made=False)
"""A value of a few bytes that takes eight exabytes as a list."""

VALUES: dict[str, Any] = {
    "namespace": argparse.Namespace(a=1),
    "simple namespace": types.SimpleNamespace(a=1),
    "path": pathlib.PurePosixPath("a/b"),
    "decimal": decimal.Decimal("1.5"),
    "complex": 1 + 2j,
    "slice": slice(1, 2, 3),
    "date": datetime.date(2024, 5, 6),
    "time": datetime.time(1, 2, tzinfo=datetime.UTC),
    "moment": datetime.datetime(2024, 5, 6, tzinfo=datetime.timezone(datetime.timedelta(hours=1), "x")),
    "frozenset": frozenset({1, 2}),
    "set": {1, 2},
    "deque": collections.deque([1, 2], 5),
    "ordered dict": OrderedDict(a=1),
    "counter": collections.Counter("aab"),
    "default dict": collections.defaultdict(list, a=1),
    "bytes": b"ab",
    "bytearray": bytearray(b"ab"),
    "file in memory": io.BytesIO(b"ab"),
    "uuid": uuid.UUID(int=5),
    "number type": np.dtype("<f8"),
    "time type": np.dtype("M8[3ns]"),
    "record type": np.dtype([("a", "<i4"), (("title", "b"), "<f8")], align=True),
    "array type": np.dtype(("<i4", (2, 3))),
    "type with metadata": np.dtype("<i4", metadata={"a": 1}),
    "array": np.arange(6.0).reshape(2, 3),
    "array of objects": np.array([1, "a", None], dtype=object),
    "array of records": np.zeros(2, dtype=[("a", "<i4"), ("b", "<U3")]),
    "number": np.float32(2),
    "layout": torch.sparse_coo,
    "device": torch.device("cpu"),
    "size": torch.Size([1, 2]),
    "tensor": torch.arange(6.0).reshape(2, 3),
    "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
    "rare dtype": torch.zeros(3, dtype=torch.uint16),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "tensor of no elements": torch.ones(3, device="meta"),
}
WARNED_OF: dict[str, Callable[[], Any]] = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 3, torch.quint8),
    "quantized by channel": lambda: torch.quantize_per_channel(
        torch.ones(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8
    ),
}
"""Torch warns when these are made."""


def tree_of(value: Any, protocol: int) -> tuple[Any, dict[str, bytes]]:
    """The pickle that torch would save, as data, and the records of its storages."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_protocol=protocol)
    buffer.seek(0)
    reader = torch._C.PyTorchFileReader(buffer)
    records = {name: reader.get_record(name) for name in reader.get_all_records()}
    return read_pickle(records["data.pkl"]), records


def places(value: Any) -> Iterator[Callable[[Any], Any]]:
    """For each part of a tree, a function that returns the tree with that part replaced."""
    yield lambda new: new
    if type(value) in (tuple, list):
        for at, part in enumerate(value):
            yield from _within(part, partial(_with_entry, value, at))
    elif type(value) is dict:
        for key, part in value.items():
            yield from _within(part, partial(_with_key, value, key))
    elif type(value) is Persistent:
        yield from _within(value.identity, Persistent)
    elif type(value) is Inert:
        for field in ("arguments", "state", "items", "values"):
            yield from _within(getattr(value, field), partial(_changed, value, field))


def _within(part: Any, rebuild: Callable[[Any], Any]) -> Iterator[Callable[[Any], Any]]:
    return (partial(_rebuilt, rebuild, inner) for inner in places(part))


def _rebuilt(rebuild: Callable[[Any], Any], inner: Callable[[Any], Any], new: Any) -> Any:
    return rebuild(inner(new))


def _with_entry(value: Any, at: int, new: Any) -> Any:
    return type(value)([*value[:at], new, *value[at + 1 :]])


def _with_key(value: dict[Any, Any], key: Any, new: Any) -> Any:
    return {**value, key: new}


def _changed(value: Inert, field: str, new: Any) -> Inert:
    if field != "state" and type(new) not in (tuple, list):  # what the machine that reads pickles makes sure of
        new = (new,)
    if field == "items":
        new = [pair if type(pair) is tuple else (pair, pair) for pair in new]
    made = Inert(value.function, value.arguments, made=value.made)
    made.state, made.items, made.values = value.state, value.items, value.values
    setattr(made, field, new)
    return made


class Watched:
    """Stands for a value that claims to be endless, and notes whether anybody walks, copies or compares it."""

    def __init__(self, walks: list[str]) -> None:
        self._walks = walks

    def _walked(self, *_: Any) -> Any:
        self._walks.append("".join(traceback.format_stack(limit=4)))
        raise TypeError("walked")

    __iter__ = __len__ = __getitem__ = __bytes__ = __contains__ = __eq__ = _walked

    def __hash__(self) -> int:
        return id(self)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("kind", [*VALUES, *WARNED_OF])
def test_no_part_of_an_object_is_walked_before_its_type_is_known(
    monkeypatch: pytest.MonkeyPatch, kind: str, protocol: int
) -> None:
    tree, records = tree_of(WARNED_OF[kind]() if kind in WARNED_OF else VALUES[kind], protocol)
    walks: list[str] = []
    monkeypatch.setitem(MAKERS, ENDLESS.function, lambda *_: Watched(walks))

    for number, replaced in enumerate(places(tree)):
        with suppress(DamagedPickleError, RefusedNamesError):
            build_object(replaced(ENDLESS), _Storages(records).load)
        assert not walks, f"part {number} of {kind}: {walks[0]}"


DTYPE_STATES: dict[str, tuple[Any, ...]] = {
    "sub-array": (3, "<", range(10**18), None, None, 0, -1, 0),
    "its shape": (3, "<", (np.dtype("f4"), range(10**18)), None, None, 4, 1, 16),
    "names": (3, "<", None, range(10**18), {}, 4, 1, 16),
    "a field": (3, "<", None, ("a",), {"a": range(10**18)}, 4, 1, 16),
    "all of it": range(10**18),  # type: ignore[dict-item]
}


class Type:
    """Pickled as a NumPy dtype with some state."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __reduce__(self) -> Any:
        return np.dtype, ("i4", False, True), self._state


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("part", DTYPE_STATES)
def test_a_dtype_with_an_endless_part_is_refused(tmp_path: Path, part: str, parallel: bool) -> None:
    folder = save({"o": (Type(DTYPE_STATES[part]),)}, tmp_path / "c")
    assert verify_checkpoint(folder).verdict == "incomplete"
    with pytest.raises(UnsafeCheckpointError, match="expected"):
        load({"o": None}, ParallelFileSystemReader(folder, parallel=parallel))


N = 10**12
"""Elements that expanded tensors claim: 8 TB, or a walk of an hour."""


def expanded(size: tuple[int, ...], storage: Storage, strides: tuple[int, ...] | None = None) -> Call:
    """A tensor that claims many elements of a storage with one."""
    strides = (0,) * len(size) if strides is None else strides
    return Call(torch._utils._rebuild_tensor_v2, storage, 0, size, strides, False, OrderedDict())


def floats(count: int = 1) -> Storage:
    return Storage(count=count)


def whole(count: int = 1) -> Storage:
    return Storage("1", torch.LongStorage, count)


PAYLOADS = {"data/0": np.ones(1, dtype=np.float32).tobytes(), "data/1": longs(0)}


def sparse(layout: torch.layout, *parts: Any) -> tuple[Call, Payloads]:
    return Call(torch._utils._rebuild_sparse_tensor, layout, parts), PAYLOADS


def quantized(size: tuple[int, ...], *parameters: Any) -> tuple[Call, Payloads]:
    storage = Storage("2", torch.QInt8Storage, 1)
    hooks: OrderedDict[Any, Any] = OrderedDict()
    call = Call(torch._utils._rebuild_qtensor, storage, 0, size, (0,) * len(size), parameters, False, hooks)
    return call, {**PAYLOADS, "data/2": bytes(1)}


CLAIMS: dict[str, tuple[Call, Payloads]] = {
    "indices and values": sparse(
        torch.sparse_coo, expanded((1, N), whole()), expanded((N,), floats()), Call(torch.Size, (5,)), False
    ),
    "coalesced indices": sparse(
        torch.sparse_coo, expanded((1, N), whole()), expanded((N,), floats()), Call(torch.Size, (5,)), True
    ),
    "indices of no dimension": sparse(
        torch.sparse_coo, expanded((0, N), whole()), expanded((N, 0), floats()), Call(torch.Size, (0,)), True
    ),
    "values of many columns": sparse(
        torch.sparse_coo, expanded((1, 1), whole()), expanded((1, N), floats()), Call(torch.Size, (5, N)), False
    ),
    "rows": sparse(
        torch.sparse_csr,
        expanded((N + 1,), whole()),
        tensor((0,), whole(1)),
        tensor((0,), floats()),
        Call(torch.Size, (N, 2)),
    ),
    "columns": sparse(
        torch.sparse_csc,
        expanded((2,), whole()),
        expanded((N,), whole()),
        expanded((N,), floats()),
        Call(torch.Size, (N, 1)),
    ),
    "blocks": sparse(
        torch.sparse_bsr,
        expanded((2,), whole()),
        tensor((1,), whole()),
        expanded((1, N, 1), floats()),
        Call(torch.Size, (N, 1)),
    ),
    "channels": quantized((N,), torch.per_channel_affine, expanded((N,), floats()), expanded((N,), whole()), 0),
    "channels of nothing": quantized(
        (N, 0), torch.per_channel_affine, expanded((N,), floats()), expanded((N,), whole()), 0
    ),
    "quantized elements": quantized((N,), torch.per_tensor_affine, 1.0, 0),
    "elements to convert": (
        Call(
            torch._utils._rebuild_device_tensor_from_cpu_tensor, expanded((N,), floats()), torch.float64, "cpu", False
        ),
        PAYLOADS,
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("kind", CLAIMS)
def test_a_tensor_whose_parts_claim_more_than_is_stored_is_refused_before_they_are_walked(
    tmp_path: Path, kind: str, parallel: bool
) -> None:
    folder = save({"step": 5}, tmp_path / "c", single_file_per_rank=False)
    put(folder, "step", archive_of(*CLAIMS[kind]))
    (refused,) = verify_checkpoint(folder).unsafe
    assert "are stored (it was expanded)" in refused.reason
    with pytest.raises(UnsafeCheckpointError, match=r"claims 1\d{12} elements where \d are stored"):
        load({"step": None}, ParallelFileSystemReader(folder, parallel=parallel))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_equal_values_of_a_sparse_tensor_may_share_memory(tmp_path: Path) -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    graph = torch.sparse_coo_tensor(edges, torch.ones(1).expand(3), (3, 3))
    checkpoint.save({"o": (graph, torch.ones(1).expand(1000))}, tmp_path / "c", step=1)
    assert verify_checkpoint(tmp_path / "c").sound
    state: dict[str, Any] = {"o": None}
    checkpoint.load(state, tmp_path / "c")
    assert torch.equal(state["o"][0].to_dense(), graph.to_dense())
    assert state["o"][1].stride() == (0,)


def test_a_path_in_the_metadata_that_is_huge_as_text_is_not_written_out(tmp_path: Path) -> None:
    """Shared tuples of 50 million leaves in a kilobyte; their text took minutes."""
    part: Any = ("a",) * 8
    for _ in range(8):
        part = (part,) * 7
    folder = save({"a": torch.ones(1)}, tmp_path / "c")
    metadata = FileSystemReader(folder).read_metadata()
    metadata.planner_data = {"a": ("a",), "b": (part,)}
    before = time.thread_time()
    load_metadata(pickle.dumps(metadata), file=".metadata")
    assert time.thread_time() - before < 1
