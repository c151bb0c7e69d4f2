"""Whatever torch's own reader loads, ours loads too, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.support import assert_same, blank, load, load_both, random_bits, save
from torch.distributed.checkpoint._extension import ZStandard
from torch.distributed.checkpoint.filesystem import FileSystemReader

from holdfast.checkpoint import ParallelFileSystemReader

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
]
SHAPES = [(), (0,), (0, 3), (1,), (7,), (3, 5), (2, 1, 4), (64, 129)]
WAYS: list[dict[str, Any]] = [
    {},
    {"verify": "off"},
    {"verify": "full"},
    {"num_workers": 3},
    {"parallel": False},
    {"memory_limit": 1000},
]


def test_every_dtype_and_shape_loads_the_same(tmp_path: Path) -> None:
    saved = {
        f"{dtype}.{shape}": random_bits(*shape, dtype=dtype, seed=number)
        for dtype in DTYPES
        for number, shape in enumerate(SHAPES)
    }
    folder = save(saved, tmp_path / "checkpoint")
    for way in WAYS:
        reader = load_both(saved, folder, **way)
        assert reader.report is not None
        assert reader.report.generic == (), way


@pytest.mark.parametrize("writer", [{}, {"thread_count": 4}, {"single_file_per_rank": False}], ids=str)
def test_large_and_small_tensors_in_one_file_or_many_load_the_same(tmp_path: Path, writer: dict[str, Any]) -> None:
    saved = {
        "giant": random_bits(5_000_000, seed=1),
        "matrix": random_bits(700, 900, dtype=torch.bfloat16, seed=2),
        **{f"small.{number}": random_bits(number % 50 + 1, 3, seed=number) for number in range(60)},
    }
    folder = save(saved, tmp_path / "checkpoint", **writer)
    assert_same(load(blank(saved), FileSystemReader(folder)), saved)
    for way in WAYS:
        assert_same(load(blank(saved), ParallelFileSystemReader(folder, **way)), saved, f"{way}: state")


def test_thousands_of_tiny_tensors_load_the_same_in_a_few_reads(tmp_path: Path) -> None:
    values = random_bits(2000, 5)
    saved = {"layers": {str(number): values[number].clone() for number in range(2000)}}
    reader = load_both(saved, save(saved, tmp_path / "checkpoint"))
    assert reader.report is not None
    assert reader.report.reads < 10
    assert reader.report.verified == 2000


def test_stored_views_and_transposed_tensors_load_the_same(tmp_path: Path) -> None:
    base = random_bits(300, 400)
    saved = {
        "transposed": base.t(),
        "slice": base[10:200, 30:90],
        "step": base[::3, ::2],
        "expanded": base[:1].expand(7, 400),
        "permuted": random_bits(20, 30, 40).permute(2, 0, 1),
        "channels_last": random_bits(2, 8, 30, 30).to(memory_format=torch.channels_last),
        "row": base[5],
    }
    folder = save(saved, tmp_path / "checkpoint")
    stock = {key: torch.zeros(value.shape) for key, value in saved.items()}
    ours = {key: torch.zeros(value.shape) for key, value in saved.items()}
    load(stock, FileSystemReader(folder))
    load(ours, ParallelFileSystemReader(folder))
    assert_same(ours, stock)
    assert_same(ours, {key: value.contiguous() for key, value in saved.items()})


def test_views_and_transposed_tensors_are_filled_in_place(tmp_path: Path) -> None:
    saved = {"matrix": random_bits(600, 500), "small": random_bits(7, 5), "vector": random_bits(70_000)}
    folder = save(saved, tmp_path / "checkpoint")
    backing = torch.zeros(2, 500, 600)
    wanted = {
        "matrix": backing[1].t(),
        "small": torch.zeros(14, 10)[::2, ::2],
        "vector": torch.zeros(70_000, 2)[:, 1],
    }
    before = {key: value.data_ptr() for key, value in wanted.items()}
    load(wanted, ParallelFileSystemReader(folder))
    assert {key: value.data_ptr() for key, value in wanted.items()} == before
    assert_same({key: value.contiguous() for key, value in wanted.items()}, saved)
    assert not backing[0].any()


def test_optimizer_states_and_objects_load_the_same(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.LayerNorm(40), torch.nn.Linear(40, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(8, 30)).square().sum().backward()
    optimizer.step()
    saved = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "objects": {"step": 7, "name": "run", "nothing": None, "flags": [True, False], "nested": {"lr": 1e-3}},
    }
    folder = save(saved, tmp_path / "checkpoint")
    stock = load(blank(saved), FileSystemReader(folder))
    ours = load(blank(saved), ParallelFileSystemReader(folder))
    assert_same(dict(ours["model"]), dict(stock["model"]))
    assert_same(ours["optimizer"], stock["optimizer"])
    assert_same(ours["objects"], saved["objects"])


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_zstd_compressed_items_load_the_same(tmp_path: Path, engine: str) -> None:
    saved = {
        "large": torch.arange(300_000).reshape(600, 500),
        "noise": random_bits(50_000, dtype=torch.bfloat16),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "object": {"step": 7},
    }
    folder = save(saved, tmp_path / "checkpoint", _extensions=[ZStandard()])
    reader = load_both(saved, folder, engine=engine, num_workers=1 if engine == "process" else 2)
    assert reader.report is not None
    assert reader.report.unverified == ()


def test_parameters_and_buffers_load_the_same(tmp_path: Path) -> None:
    saved: dict[str, Any] = {
        "parameter": torch.nn.Parameter(random_bits(20, 3)),
        "buffer": torch.nn.Buffer(random_bits(4)),
    }
    folder = save(saved, tmp_path / "checkpoint")
    ours = {"parameter": torch.nn.Parameter(torch.zeros(20, 3)), "buffer": torch.nn.Buffer(torch.zeros(4))}
    load(ours, ParallelFileSystemReader(folder))
    assert_same(
        {key: value.detach() for key, value in ours.items()}, {key: value.detach() for key, value in saved.items()}
    )


def test_items_stored_as_something_else_than_a_plain_tensor_take_torchs_loader(tmp_path: Path) -> None:
    saved = {"conjugate": random_bits(30, 4, dtype=torch.complex64).conj(), "plain": random_bits(3)}
    folder = save(saved, tmp_path / "checkpoint")
    target = {"conjugate": torch.zeros(30, 4, dtype=torch.complex64), "plain": torch.zeros(3)}
    stock = {key: value.clone() for key, value in target.items()}
    reader = ParallelFileSystemReader(folder)
    load(target, reader)
    load(stock, FileSystemReader(folder))
    assert_same(target, stock)
    assert reader.report is not None
    assert reader.report.generic == ("conjugate",)
    assert reader.report.verified == 2


def test_items_without_checksums_load_and_are_reported(tmp_path: Path) -> None:
    saved = {"large": random_bits(300_000), "small": random_bits(3)}
    torch.serialization.set_crc32_options(False)
    try:
        folder = save(saved, tmp_path / "checkpoint")
    finally:
        torch.serialization.set_crc32_options(True)
    reader = load_both(saved, folder)
    assert reader.report is not None
    assert reader.report.verified == 0
    assert {entry.reason for entry in reader.report.unverified} == {"no checksum was stored"}


@pytest.mark.soak
def test_an_item_beyond_four_gibibytes_loads_the_same(tmp_path: Path) -> None:
    saved = {"giant": torch.zeros((4 << 30) + (1 << 20), dtype=torch.uint8), "after": random_bits(1000)}
    saved["giant"][::123_457] = 7
    saved["giant"][-1] = 9
    folder = save(saved, tmp_path / "checkpoint")
    ours = {"giant": torch.full_like(saved["giant"], 1), "after": torch.zeros(1000)}
    reader = ParallelFileSystemReader(folder)
    load(ours, reader)
    assert torch.equal(ours["giant"], saved["giant"])
    assert_same(ours["after"], saved["after"])
    assert reader.report is not None
    assert reader.report.verified == 2
