"""Under torchrun: the loader's topology comes from the device mesh or the process group."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.distributed import stream_mesh
from tests.forking import torchrun

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    printed = torchrun(4, stream_mesh.__name__)
    told: list[dict[str, Any]] = json.loads(printed.splitlines()[-1])
    return told


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def test_tensor_parallel_peers_get_identical_batches_and_data_parallel_ranks_disjoint_ones(
    ranks: list[dict[str, Any]],
) -> None:
    by_group: dict[int, list[list[list[int]]]] = {}
    for told in ranks:
        by_group.setdefault(told["coordinate"][0], []).append(told["dp"])
    assert sorted(by_group) == [0, 1]
    for peers in by_group.values():
        assert peers[0] == peers[1]
    assert sorted(flat(by_group[0][0]) + flat(by_group[1][0])) == list(range(50))
    assert len(by_group[0][0]) == len(by_group[1][0])


@pytest.mark.parametrize("way", ["both", "group"])
def test_all_dimensions_of_the_mesh_and_the_bare_process_group_split_the_data_over_every_rank(
    ranks: list[dict[str, Any]], way: str
) -> None:
    assert sorted(index for told in ranks for index in flat(told[way])) == list(range(50))
    assert len({len(told[way]) for told in ranks}) == 1


def test_rank_and_dimension_order_agree_with_the_process_group(ranks: list[dict[str, Any]]) -> None:
    assert all(told["both"] == told["group"] for told in ranks)
