"""Metadata that does not add up, or belongs to something else: refused by a load and by verify, never loaded wrong."""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.support import assert_same, load, random_bits, save
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan

from holdfast import checkpoint
from holdfast.checkpoint import ParallelFileSystemReader, pickle_machine, tiling, verify_checkpoint
from holdfast.checkpoint.inert import DamagedPickleError, Inert
from holdfast.checkpoint.pickle_machine import read_pickle
from holdfast.checkpoint.safe_metadata import load_metadata
from holdfast.checkpoint.tiling import check_tiling
from holdfast.errors import CheckpointError, HoldfastError, UnsafeCheckpointError, UnusableCheckpointError

SAVED: dict[str, Any] = {"weight": random_bits(10, 4, seed=1), "other": random_bits(10, 4, seed=2), "step": 5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(SAVED, tmp_path / "c")


def entry_of(metadata: Metadata, fqn: str = "weight") -> Any:
    return metadata.state_dict_metadata[fqn]


def chunk(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))


def fewer_rows(metadata: Metadata) -> None:
    entry_of(metadata).chunks = [chunk((0, 0), (8, 4))]


def no_chunks(metadata: Metadata) -> None:
    entry_of(metadata).chunks = []


def twice(metadata: Metadata) -> None:
    entry_of(metadata).chunks *= 2


def other_dtype(metadata: Metadata) -> None:
    entry_of(metadata).properties.dtype = torch.int32


def other_shape(metadata: Metadata) -> None:
    entry_of(metadata).size = torch.Size((4, 10))
    entry_of(metadata).chunks = [chunk((0, 0), (4, 10))]


def larger(metadata: Metadata) -> None:
    entry_of(metadata).size = torch.Size((12, 4))


def two_halves(metadata: Metadata) -> None:
    entry_of(metadata).chunks = [chunk((0, 0), (5, 4)), chunk((5, 0), (5, 4))]
    info = metadata.storage_data[MetadataIndex("weight", torch.Size((0, 0)))]
    metadata.storage_data[MetadataIndex("weight", torch.Size((5, 0)))] = copy.copy(info)


def same_place(metadata: Metadata) -> None:
    places = metadata.storage_data
    places[MetadataIndex("other", torch.Size((0, 0)))] = copy.copy(places[MetadataIndex("weight", torch.Size((0, 0)))])


def same_place_by_another_name(metadata: Metadata) -> None:
    weight, other = (metadata.storage_data[MetadataIndex(name, torch.Size((0, 0)))] for name in ("weight", "other"))
    weight.relative_path, weight.offset, weight.length = f"./{other.relative_path}", other.offset, other.length


def no_place(metadata: Metadata) -> None:
    del metadata.storage_data[MetadataIndex("other", torch.Size((0, 0)))]


def place_of_nothing(metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex("ghost", torch.Size((0,)))] = _StorageInfo("__0_0.distcp", 1 << 30, 100)


def object_for_tensor(metadata: Metadata) -> None:
    metadata.state_dict_metadata["weight"] = metadata.state_dict_metadata["step"]


def negative(metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex("weight", torch.Size((0, 0)))].offset = -5


def gigantic(metadata: Metadata) -> None:
    entry_of(metadata).size = torch.Size((1 << 40, 1 << 40))
    entry_of(metadata).chunks = [chunk((0, 0), (1 << 40, 1 << 40))]


CHANGES: list[Callable[[Metadata], None]] = [
    fewer_rows, no_chunks, twice, other_dtype, other_shape, larger, two_halves, same_place,
    same_place_by_another_name, no_place,
    place_of_nothing, object_for_tensor, negative, gigantic,
]  # fmt: skip


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_metadata_that_does_not_fit_what_is_stored_is_refused(
    folder: Path, change: Callable[[Metadata], None], parallel: bool
) -> None:
    metadata = FileSystemReader(folder).read_metadata()
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    state = {"weight": torch.zeros(10, 4), "other": torch.zeros(10, 4), "step": None}
    with pytest.raises((CheckpointError, CheckpointException)):  # some are refused by torch's own planner
        load(state, ParallelFileSystemReader(folder, parallel=parallel))
    with contextlib.suppress(UnusableCheckpointError):
        assert verify_checkpoint(folder).verdict == "damaged"


def shared_byte(metadata: Metadata) -> None:
    first = min(metadata.storage_data.values(), key=lambda info: info.offset)
    first.length += 1


def wrong_path(metadata: Metadata) -> None:
    metadata.planner_data["weight"] = ("model", "weight")


def many_dimensions(metadata: Metadata) -> None:
    entry_of(metadata).size = torch.Size((10, 4, *[1] * 100))


def place_that_is_true(metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex("weight", torch.Size((0, 0)))].offset = True


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (shared_byte, "same place"),
        (wrong_path, "leads elsewhere"),
        (many_dimensions, "a size"),
        (place_that_is_true, "where weight is stored"),
    ],
)
def test_metadata_that_does_not_add_up_says_why(folder: Path, change: Callable[[Metadata], None], said: str) -> None:
    metadata = FileSystemReader(folder).read_metadata()
    change(metadata)
    with pytest.raises(UnusableCheckpointError, match=said):
        load_metadata(pickle.dumps(metadata), file=".metadata")


def longer_nothing(metadata: Metadata) -> None:
    entry_of(metadata, "empty").size = torch.Size((0, 35))


def index_with(name: str, offset: torch.Size | None) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        (old,) = [index for index in metadata.storage_data if index.fqn == name]
        metadata.storage_data[MetadataIndex(name, offset)] = metadata.storage_data.pop(old)

    return change


def index_without_offset(metadata: Metadata) -> None:
    (old,) = [index for index in metadata.storage_data if index.fqn == "scalar"]
    place = metadata.storage_data.pop(old)
    del old.__dict__["offset"]
    metadata.storage_data[old] = place


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (longer_nothing, "the parts of empty"),
        (index_with("scalar", None), "a location of scalar"),
        (index_with("step", torch.Size(())), "a location of step"),
        (index_without_offset, "a location of scalar"),
    ],
    ids=["longer nothing", "scalar without offset", "object with offset", "no offset at all"],
)
def test_a_tensor_of_no_or_one_element_must_be_what_its_parts_say(
    tmp_path: Path, change: Callable[[Metadata], None], said: str
) -> None:
    """Where there is nothing to count, or a single place, that a load finds it is still to be checked."""
    folder = save({"empty": torch.zeros(0, 3), "scalar": torch.tensor(1.0), "step": 5}, tmp_path / "c")
    metadata = FileSystemReader(folder).read_metadata()
    assert load_metadata(pickle.dumps(metadata), file=".metadata") == metadata
    change(metadata)
    with pytest.raises(UnusableCheckpointError, match=said):
        load_metadata(pickle.dumps(metadata), file=".metadata")


@pytest.mark.parametrize(
    "boxes", [[((0, 0), (0, 8))], [((0, 0), (0, 3)), ((0, 3), (0, 5))], [((0, 0), (0, 8)), ((0, 8), (0, 0))], []]
)
def test_parts_that_reach_to_the_ends_of_a_tensor_without_elements_make_it_up(boxes: Any) -> None:
    check_tiling((0, 8), boxes)


def test_a_grid_with_one_cell_twice_and_another_missing_is_no_tiling() -> None:
    cells = [(0, 0), (0, 0), (0, 1), (1, 1)]
    with pytest.raises(ValueError, match="overlap"):
        check_tiling((2, 2), [(cell, (1, 1)) for cell in cells])


@pytest.mark.parametrize(
    "data",
    [b"\x80\x02K\x01q\x00K\x02q\x00\x86.", b"\x80\x02cargparse\nNamespace\n)\x81}b}b."],
    ids=["a place of the memo twice", "a state twice"],
)
def test_a_pickle_that_no_pickler_writes_is_refused(data: bytes) -> None:
    pickle.loads(data)  # noqa: S301 — shows that Python reads it
    with pytest.raises(DamagedPickleError):
        read_pickle(data)


def test_a_list_of_empty_parts_shared_by_many_tensors_is_refused_before_it_is_walked_for_each(tmp_path: Path) -> None:
    state = {f"empty.{number}": torch.zeros(0) for number in range(100)}
    save(state, tmp_path)
    metadata = FileSystemReader(tmp_path).read_metadata()
    tensors = [entry for entry in metadata.state_dict_metadata.values() if isinstance(entry, TensorStorageMetadata)]
    (part,) = tensors[0].chunks
    shared = [part] * 20_000
    for entry in tensors:
        entry.chunks = shared
    data = pickle.dumps(metadata)
    assert len(data) < 100_000
    with pytest.raises(UnusableCheckpointError, match="far more parts than there are places"):
        load_metadata(data, file=".metadata", trusted=False)


def test_two_places_under_one_name_are_refused(folder: Path) -> None:
    """A dict cannot hold both, but its pickle can: the last one would count, and nobody would miss the first."""
    metadata = FileSystemReader(folder).read_metadata()
    places = metadata.storage_data
    places[MetadataIndex("wEIGHt", torch.Size((0, 0)))] = _StorageInfo("__0_0.distcp", 1 << 30, 1577)
    data = pickle.dumps(metadata)
    assert data.count(b"wEIGHt") == 1
    with pytest.raises(UnusableCheckpointError, match="two places"):
        load_metadata(data.replace(b"wEIGHt", b"weight"), file=".metadata")


def test_metadata_of_a_subclass_with_plans_of_its_own_loads(folder: Path) -> None:
    """Megatron's metadata: a subclass, with fields of plain data, and the save plans of all ranks."""
    metadata = FileSystemReader(folder).read_metadata()
    megatron = type("MCoreMetadata", (Metadata,), {"__module__": __name__})
    globals()["MCoreMetadata"] = megatron
    larger_one = megatron(**vars(metadata))
    larger_one.mcore_data = {"weight": {"nd_reformulated_orig_global_shape": (10, 4)}}
    from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

    item = WriteItem(MetadataIndex("step"), WriteItemType.BYTE_IO)
    larger_one.all_local_plans = [SavePlan([item])]
    (folder / ".metadata").write_bytes(pickle.dumps(larger_one))
    reader = ParallelFileSystemReader(folder)
    assert vars(reader.read_metadata())["mcore_data"] == larger_one.mcore_data
    state = {"weight": torch.zeros(10, 4), "other": torch.zeros(10, 4), "step": None}
    assert_same(load(state, reader), SAVED)
    assert verify_checkpoint(folder).sound


@pytest.mark.parametrize("name", [b"Metadat!", b"evilRoot"])
def test_metadata_of_a_class_that_torch_does_not_have_is_damaged(folder: Path, name: bytes) -> None:
    content = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(content.replace(b"\x8c\x08Metadata", b"\x8c\x08" + name))
    with pytest.raises(UnusableCheckpointError, match="expected Metadata"):
        verify_checkpoint(folder)


def test_metadata_of_a_class_that_nobody_has_imported_is_refused_by_its_name(folder: Path) -> None:
    content = (folder / ".metadata").read_bytes()
    module = b"torch.distributed.checkpoint.metadata"
    foreign = content.replace(module, b"x" * len(module), 1)
    with pytest.raises(UnsafeCheckpointError, match=r"x+\.Metadata"):
        load_metadata(foreign, file=".metadata")


def test_whatever_metadata_with_one_flipped_bit_is_accepted_torch_can_unpickle(tmp_path: Path) -> None:
    nested = {"w": random_bits(35).reshape(5, 7), "m": {"x": torch.arange(4)}, "step": 7}
    content = (save(nested, tmp_path / "c") / ".metadata").read_bytes()
    accepted = 0
    for place in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        try:
            load_metadata(bytes(flipped), file=".metadata")
        except HoldfastError:
            continue
        stock = pickle.loads(flipped)  # noqa: S301 — one bit of our own file
        assert isinstance(stock, Metadata)
        assert all(isinstance(index, MetadataIndex) for index in stock.storage_data)
        accepted += 1
    assert 0 < accepted < 8 * len(content)


def test_parts_too_irregular_to_be_compared_are_not_called_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [((row, 0), (1, 2)) for row in range(4)]
    columns = [((0, 2 + column), (4, 1)) for column in range(2)]
    check_tiling((4, 4), rows + columns)
    monkeypatch.setattr(tiling, "MAX_COMPARISONS", 3)
    with pytest.raises(UnusableCheckpointError, match="too irregularly"):
        check_tiling((4, 4), rows + columns)


def test_a_planner_may_add_its_own_data_to_the_metadata(tmp_path: Path) -> None:
    class Annotating(DefaultSavePlanner):
        def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
            plans, metadata = super().create_global_plan(all_plans)
            return plans, replace(metadata, planner_data={**metadata.planner_data, "git": "4f9f69a", "shape": (1, 2)})

    folder = tmp_path / "annotated"
    checkpoint.save(SAVED, folder, step=1, planner=Annotating())
    state = {"weight": torch.zeros(10, 4), "other": torch.zeros(10, 4), "step": None}
    checkpoint.load(state, folder)
    assert_same(state, SAVED)
    assert verify_checkpoint(folder).sound


def test_metadata_with_the_older_tensor_properties_loads(folder: Path) -> None:
    content = (folder / ".metadata").read_bytes()
    metadata = FileSystemReader(folder).read_metadata()
    from torch.distributed._shard.sharded_tensor.metadata import TensorProperties

    for entry in metadata.state_dict_metadata.values():
        if hasattr(entry, "properties"):
            entry.properties = TensorProperties(dtype=entry.properties.dtype)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    assert (folder / ".metadata").read_bytes() != content
    state = {"weight": torch.zeros(10, 4), "other": torch.zeros(10, 4), "step": None}
    assert_same(load(state, ParallelFileSystemReader(folder)), SAVED)


def test_tensors_described_by_the_same_bytes_are_read_as_pickle_reads_them_and_kept_apart(tmp_path: Path) -> None:
    shapes = [(), (3,), (2, 3), (2, 3, 4), (2, 1, 3, 1), (1, 2, 1, 2, 1), (300, 2)]
    kinds = [torch.float32, torch.bfloat16, torch.int64]
    saved = {
        f"{number}.{shape}.{kind}": torch.zeros(shape, dtype=kind)
        for number in range(4)
        for shape in shapes
        for kind in kinds
    }
    data = (save(saved, tmp_path / "many") / ".metadata").read_bytes()
    for protocol in (2, 4, 5):
        expected = pickle.loads(data)  # noqa: S301 — saved above
        metadata = load_metadata(pickle.dumps(expected, protocol), file=".metadata")
        assert metadata == expected
    entries: list[Any] = [metadata.state_dict_metadata[f"{number}.(3,).torch.float32"] for number in range(4)]
    assert len({id(entry.properties) for entry in entries}) == len({id(entry.chunks) for entry in entries}) == 4


def _spelled(value: Any) -> Any:
    """What a pickle was read as, to compare."""
    if isinstance(value, Inert):
        return [_spelled(getattr(value, name)) for name in Inert.__slots__]
    if isinstance(value, dict):
        return [[_spelled(key), _spelled(entry)] for key, entry in value.items()]
    return [_spelled(entry) for entry in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("behind", [b"\x8c\x05third", b"."], ids=["two", "all"])
def test_a_description_that_is_read_once_for_several_tensors_is_never_changed(
    tmp_path: Path, behind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the memo holds is changed: that is refused, or read as it is read opcode by opcode."""
    names = ("weight", "other", "third")
    metadata = FileSystemReader(save({name: torch.zeros(10, 4) for name in names}, tmp_path / "c")).read_metadata()
    metadata.state_dict_metadata = {name: metadata.state_dict_metadata[name] for name in names}
    metadata.storage_data = metadata.planner_data = None
    data = pickle.dumps(metadata, 4)
    data = data[:2] + data[11:]  # without the frame, whose length would be wrong
    at = len(data) - 1 if behind == b"." else data.index(behind)
    changes = [
        b"(j" + place.to_bytes(4, "little") + change + pickle.POP_MARK
        for place in range(data[:at].count(pickle.MEMOIZE))
        for change in (b"Na", b"(NNe", b"NNs", b"(NNu", b"Nb", b"}b")
    ]

    def read(change: bytes) -> Any:
        try:
            return _spelled(read_pickle(data[:at] + change + data[at:]))
        except DamagedPickleError:
            return None

    found = [read(change) for change in changes]
    for name in ("TENSOR", "INSTANCE"):
        monkeypatch.setattr(pickle_machine, name, re.compile(rb"(?!)"))
    expected = [read(change) for change in changes]
    assert all(one in (None, other) for one, other in zip(found, expected, strict=True))
    refused = {change[6:-1] for change, one, other in zip(changes, found, expected, strict=True) if one != other}
    assert refused == {b"Na", b"(NNe", b"NNs", b"(NNu", b"Nb", b"}b"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"_MEM_FORMAT_ENCODING\x94\x93\x94K\x00", b"_MEM_FORMAT_ENCODING\x94\x93\x94J\xff\xff\xff\xff"),
        (b"\x80\x04", b"\x80\x04\x95\xff\xff\x00\x00\x00\x00\x00\x00"),
    ],
    ids=["negative memory format", "frame beyond the end"],
)
def test_metadata_that_pickle_would_refuse_is_refused(folder: Path, old: bytes, new: bytes) -> None:
    data = (folder / ".metadata").read_bytes()
    data = data[:2] + data[11:] if data[2:3] == pickle.FRAME else data  # the frame's length would be wrong
    assert load_metadata(data, file=".metadata") is not None
    assert old in data
    with pytest.raises(UnusableCheckpointError):
        load_metadata(data.replace(old, new, 1), file=".metadata")


def _covered_once(shape: tuple[int, ...], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    count = torch.zeros(shape, dtype=torch.int64)
    for offsets, sizes in boxes:
        if any(start + size > extent for start, size, extent in zip(offsets, sizes, shape, strict=True)):
            return False
        count[tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))] += 1
    return bool((count == 1).all())


def _cut(
    chance: random.Random, offsets: tuple[int, ...], sizes: tuple[int, ...], depth: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    dim = chance.randrange(len(sizes))
    if not depth or sizes[dim] < 2:
        return [(offsets, sizes)]
    at = chance.randrange(1, sizes[dim])
    first = (*sizes[:dim], at, *sizes[dim + 1 :])
    rest = (*sizes[:dim], sizes[dim] - at, *sizes[dim + 1 :])
    moved = (*offsets[:dim], offsets[dim] + at, *offsets[dim + 1 :])
    return _cut(chance, offsets, first, depth - 1) + _cut(chance, moved, rest, depth - 1)


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
    seed=st.integers(0, 1 << 30),
    changes=st.integers(0, 3),
)
def test_tiling_agrees_with_counting_every_element(shape: tuple[int, ...], seed: int, changes: int) -> None:
    chance = random.Random(seed)
    boxes = _cut(chance, (0,) * len(shape), shape, 4)
    chance.shuffle(boxes)
    for _ in range(changes):
        place = chance.randrange(len(boxes))
        offsets, sizes = (list(part) for part in boxes[place])
        dim = chance.randrange(len(shape))
        chance.choice((offsets, sizes))[dim] += chance.choice((-1, 1))
        offsets[dim], sizes[dim] = max(0, offsets[dim]), max(0, sizes[dim])
        boxes[place] = (tuple(offsets), tuple(sizes))
    try:
        check_tiling(shape, boxes)
        tiles = True
    except ValueError:
        tiles = False
    assert tiles == _covered_once(shape, boxes)
