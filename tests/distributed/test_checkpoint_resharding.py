"""Resharding under torchrun: one rank's checkpoint loads on two, theirs on three, and back, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.distributed import checkpoint_worker
from tests.forking import torchrun

WORLD_SIZES = [1, 2, 3, 2, 1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ranks of every scenario left what they found, all from one launch."""
    folder = tmp_path_factory.mktemp("resharding")
    torchrun(max(WORLD_SIZES), checkpoint_worker.__name__, str(folder), *map(str, WORLD_SIZES))
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """What every rank of every hop found."""
    ranks = [(hop, rank) for hop, size in enumerate(WORLD_SIZES) if hop for rank in range(size)]
    return [json.loads((folder / f"hop{hop}.{rank}.json").read_text()) for hop, rank in ranks]


pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


def test_every_rank_of_every_hop_reported(found: list[dict[str, Any]]) -> None:
    assert [report["world_size"] for report in found] == [2, 2, 3, 3, 3, 2, 2, 1]


def test_dtensor_and_fsdp2_states_load_as_torchs_reader_loads_them(found: list[dict[str, Any]]) -> None:
    assert [report["differs_from_stock"] for report in found] == [[]] * len(found)


def test_dtensor_and_fsdp2_states_load_as_they_were_first_saved(found: list[dict[str, Any]]) -> None:
    assert [report["differs_from_saved"] for report in found] == [[]] * len(found)


def test_full_verification_leaves_nothing_unverified(found: list[dict[str, Any]]) -> None:
    assert [report["unverified"] for report in found] == [0] * len(found)


def test_row_resharding_reads_no_more_than_five_percent_beyond_its_rows(found: list[dict[str, Any]]) -> None:
    for report in found:
        assert report["bytes_needed"] > 900_000
        assert report["bytes_read"] <= 1.05 * report["bytes_needed"]


def test_a_shard_that_one_rank_finds_damaged_fails_on_every_rank_with_the_tensor_named(folder: Path) -> None:
    for rank in range(2):
        found = json.loads((folder / f"damaged.{rank}.json").read_text())
        assert found == {"failures": {"1": ["CorruptRecordError", "w", "__1_0.distcp"]}, "threads": []}
