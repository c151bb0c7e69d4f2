"""Any box of any stored tensor, into any destination: the same bits as torch's own reader gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.planners import read_box, run_plan
from tests.checkpoint.support import random_bits, raw_bytes, save
from torch.distributed.checkpoint.filesystem import FileSystemReader

from holdfast.checkpoint import ParallelFileSystemReader
from holdfast.checkpoint.slices import cut_box

STORED = {
    "vector": random_bits(50_000, seed=1),
    "matrix": random_bits(211, 307, seed=2),
    "wide": random_bits(6, 40_000, dtype=torch.bfloat16, seed=3),
    "cube": random_bits(17, 19, 23, dtype=torch.int64, seed=4),
    "transposed": random_bits(90, 110, seed=5).t(),
    "small": random_bits(4, 5, dtype=torch.uint8, seed=6),
    "scalar": random_bits(seed=7),
    "deep": random_bits(3, 4, 5, 6, 7, dtype=torch.float64, seed=8),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(STORED, tmp_path_factory.mktemp("slices") / "checkpoint", thread_count=2)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    fqn = draw(st.sampled_from(sorted(STORED)))
    start, lengths = [], []
    for size in STORED[fqn].shape:
        begin = draw(st.integers(0, size - 1))
        end = draw(st.integers(begin, size))
        if draw(st.booleans()):
            begin, end = 0, size  # whole dimensions are what real plans are made of
        start.append(begin)
        lengths.append(end - begin)
    return fqn, tuple(start), tuple(lengths)


def destination(lengths: tuple[int, ...], dtype: torch.dtype, kind: str) -> torch.Tensor:
    count = torch.Size(lengths).numel()
    if kind == "contiguous":
        return torch.zeros(lengths, dtype=dtype)
    if kind == "reversed" and lengths:
        return torch.zeros(lengths[::-1], dtype=dtype).permute(*range(len(lengths))[::-1])
    if kind == "spread":
        return torch.zeros((*lengths, 3), dtype=dtype)[..., 1]
    return torch.zeros(count + 5, dtype=dtype)[5:].view(lengths)


kinds = st.sampled_from(["contiguous", "reversed", "spread", "offset"])
plans = st.lists(st.tuples(boxes(), kinds), min_size=1, max_size=8)


@given(plan=plans, verify=st.sampled_from(["crc", "full", "off"]), workers=st.sampled_from([None, 1, 3]))
def test_every_plan_of_boxes_reads_what_torchs_reader_reads(
    folder: Path, plan: list[tuple[tuple[str, tuple[int, ...], tuple[int, ...]], str]], verify: str, workers: int | None
) -> None:
    items = [read_box(*box) for box, _ in plan]
    ours = [destination(box[2], STORED[box[0]].dtype, kind) for box, kind in plan]
    stock = [destination(box[2], STORED[box[0]].dtype, kind) for box, kind in plan]
    run_plan(FileSystemReader(folder), items, stock)
    reader = ParallelFileSystemReader(folder, verify=verify, num_workers=workers, memory_limit=99_999)
    run_plan(reader, items, ours)
    assert [raw_bytes(tensor) for tensor in ours] == [raw_bytes(tensor) for tensor in stock]
    assert reader.report is not None
    if verify == "full":
        assert reader.report.unverified == ()


@given(plan=plans)
def test_every_plan_resolves_on_the_calling_thread_and_commits_each_item_once(
    folder: Path, plan: list[tuple[tuple[str, tuple[int, ...], tuple[int, ...]], str]]
) -> None:
    items = [read_box(*box) for box, _ in plan]
    targets = [destination(box[2], STORED[box[0]].dtype, kind) for box, kind in plan]
    planner = run_plan(ParallelFileSystemReader(folder, num_workers=2), items, targets)
    for step in ("resolve", "commit"):
        assert sorted(number for call, number in planner.calls if call == step) == list(range(len(plan)))


def test_one_stored_chunk_wanted_by_several_items_is_read_once(folder: Path) -> None:
    half = (0, 0), (211, 200)
    items = [read_box("matrix", *half), read_box("matrix", (0, 100), (211, 207)), read_box("matrix", *half)]
    targets = [torch.zeros(item.lengths) for item in items]
    reader = ParallelFileSystemReader(folder)
    run_plan(reader, items, targets)
    assert reader.report is not None
    assert reader.report.bytes_read <= STORED["matrix"].nbytes + 4096
    assert all(
        torch.equal(
            target.view(torch.int32),
            STORED["matrix"][:, item.storage_offsets[1] :][:, : item.lengths[1]].contiguous().view(torch.int32),
        )
        for item, target in zip(items, targets, strict=True)
    )


def test_rows_of_a_large_tensor_are_read_without_the_rest(folder: Path) -> None:
    item = read_box("wide", (2, 0), (3, 40_000))
    reader = ParallelFileSystemReader(folder)
    run_plan(reader, [item], [torch.zeros(3, 40_000, dtype=torch.bfloat16)])
    assert reader.report is not None
    assert reader.report.bytes_read <= 1.05 * 3 * 40_000 * 2
    assert [entry.reason for entry in reader.report.unverified] == ["only a part of the record was read"]


def test_columns_that_lie_far_apart_are_read_one_by_one(folder: Path) -> None:
    item = read_box("wide", (0, 1000), (6, 100))
    reader = ParallelFileSystemReader(folder)
    run_plan(reader, [item], [torch.zeros(6, 100, dtype=torch.bfloat16)])
    assert reader.report is not None
    assert reader.report.bytes_read <= 6 * 100 * 2 + 4096


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    data=st.data(),
    block=st.integers(8, 200),
    skip=st.booleans(),
    direct=st.booleans(),
)
def test_the_leaves_of_any_box_cover_each_of_its_elements_once_and_fit_a_buffer(
    shape: list[int], data: st.DataObject, block: int, skip: bool, direct: bool
) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    strides = [0] * len(shape)
    step = 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    start = [data.draw(st.integers(0, size - 1)) for size in shape]
    lengths = [data.draw(st.integers(1, size - begin)) for size, begin in zip(shape, start, strict=True)]
    stored = torch.arange(step).as_strided(shape, strides)
    box = stored
    for dim in range(len(shape)):
        box = box.narrow(dim, start[dim], lengths[dim])
    seen = torch.full(lengths, -1)
    leaves = list(
        cut_box(
            box_start=start,
            lengths=lengths,
            strides=strides,
            storage_offset=0,
            itemsize=8,
            target_strides=seen.stride() if direct else None,
            block_bytes=block,
            skip_holes=skip,
        )
    )
    for leaf in leaves:
        first, count = leaf.offset // 8, leaf.length // 8
        part = seen
        for dim in range(len(shape)):
            part = part.narrow(dim, leaf.start[dim], leaf.lengths[dim])
        assert (part == -1).all()
        assert leaf.direct or leaf.length <= max(block, 8)
        if leaf.direct:
            place = part.storage_offset()
            seen.view(-1)[place : place + count] = torch.arange(first, first + count)
        else:
            part.copy_(torch.arange(first, first + count).as_strided(leaf.lengths, strides))
    assert torch.equal(seen, box)
    assert [leaf.offset for leaf in leaves] == sorted(leaf.offset for leaf in leaves)


overlaps = st.lists(
    st.tuples(st.sampled_from(["vector", "matrix"]), st.integers(0, 200), st.integers(1, 40), st.integers(0, 60)),
    min_size=2,
    max_size=10,
)


@given(plan=overlaps, workers=st.sampled_from([None, 1, 4]))
def test_destinations_that_overlap_in_any_way_end_as_torchs_reader_leaves_them(
    folder: Path, plan: list[tuple[str, int, int, int]], workers: int | None
) -> None:
    items, results = [], []
    for name, start, length, _ in plan:
        lengths = (length,) if name == "vector" else (min(length, 211 - start) or 1, 3)
        box_start = (start,) if name == "vector" else (min(start, 210), start % 300)
        items.append(read_box(name, box_start, lengths))
    for reader in (FileSystemReader(folder), ParallelFileSystemReader(folder, num_workers=workers)):
        shared = torch.zeros(300)
        targets = [
            shared[place : place + item.lengths.numel()].view(item.lengths)
            for item, (_, _, _, place) in zip(items, plan, strict=True)
        ]
        run_plan(reader, items, targets)
        results.append(raw_bytes(shared))
    assert results[0] == results[1]


@pytest.mark.parametrize("shape", [(3, 100), (2, 3, 50), (40, 2, 2)])
def test_rows_that_are_larger_than_a_buffer_are_cut(shape: tuple[int, ...]) -> None:
    strides = torch.empty(shape, device="meta").stride()
    leaves = cut_box(
        box_start=[0] * len(shape),
        lengths=shape,
        strides=strides,
        storage_offset=0,
        itemsize=8,
        target_strides=None,
        block_bytes=64,
    )
    lengths = [leaf.length for leaf in leaves]
    assert max(lengths) <= 64
    assert sum(lengths) == 8 * torch.Size(shape).numel()
