"""Replicated tensors are read once per node: counted in bytes, under torchrun with four ranks."""

from __future__ import annotations

import json
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.distributed import checkpoint_sharing_worker
from tests.distributed.checkpoint_sharing_worker import Dying, Stalling, one_fails
from tests.forking import Started, torchrun

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

LARGE_BYTES = 1500 * 1001 * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharing")
    torchrun(4, checkpoint_sharing_worker.__name__, str(folder))
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "step-1").glob("*.distcp"))


def test_every_rank_gets_what_was_saved_and_all_of_it_is_verified(found: list[dict[str, Any]]) -> None:
    for name in ("alone", "node", "pairs"):
        assert [rank[name]["equal"] for rank in found] == [True] * 4, name
        assert [rank[name]["unverified"] for rank in found] == [0] * 4, name


def test_a_node_reads_every_stored_byte_about_once(folder: Path, found: list[dict[str, Any]]) -> None:
    """Objects, and the one tensor that does not lie in one piece, are read by every rank: 3 times 240 KB too much."""
    read = sum(rank["node"]["read"] for rank in found)
    assert read <= 1.02 * stored_bytes(folder) + 3 * 300 * 200 * 4
    assert sum(rank["alone"]["read"] for rank in found) > 3 * stored_bytes(folder)


def test_two_nodes_of_two_ranks_read_it_about_twice(folder: Path, found: list[dict[str, Any]]) -> None:
    for pair in (found[:2], found[2:]):
        assert sum(rank["pairs"]["read"] for rank in pair) <= 1.02 * stored_bytes(folder) + 300 * 200 * 4


def test_what_a_rank_does_not_read_it_receives(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["alone"]["received"] == 0
        assert rank["node"]["needed"] == rank["alone"]["needed"]
        assert rank["node"]["read"] + rank["node"]["received"] >= rank["node"]["needed"]
    assert sum(rank["node"]["received"] for rank in found) > 3 * LARGE_BYTES


def test_it_works_where_nobody_can_pass_a_reader(found: list[dict[str, Any]]) -> None:
    assert [rank["installed"] for rank in found] == [True] * 4


def test_a_planner_that_changes_what_it_commits_gets_the_stored_values_on_every_rank(
    found: list[dict[str, Any]],
) -> None:
    assert [rank["doubled"] for rank in found] == [True] * 4


def test_ranks_that_want_other_dtypes_do_not_share(found: list[dict[str, Any]]) -> None:
    assert [rank["mixed"] for rank in found] == [True] * 4
    assert sorted(rank["mixed received"] for rank in found) == [0, 0, LARGE_BYTES, LARGE_BYTES]
    assert found[1]["mixed received"] == 0


def test_an_interrupt_of_one_rank_lets_no_other_wait(found: list[dict[str, Any]]) -> None:
    assert [rank["interrupted"][0] for rank in found] == [
        "CheckpointError", "KeyboardInterrupt", "CheckpointError", "CheckpointError"
    ]  # fmt: skip


def test_damage_that_one_rank_finds_is_raised_on_every_rank_it_reads_for(found: list[dict[str, Any]]) -> None:
    assert [rank["damaged"] for rank in found] == [["CorruptRecordError", "large"]] * 4


def test_a_group_of_other_ranks_is_refused(found: list[dict[str, Any]]) -> None:
    assert [rank["stranger"] for rank in found] == [True] * 4


@pytest.mark.parametrize("fault", ["dead", "stalled"])
def test_a_rank_that_dies_or_stops_is_an_error_on_each_of_the_others(tmp_path: Path, fault: str) -> None:
    """Long before the default group gives up, which would be after half an hour."""
    layer, seconds = {"dead": (Dying(), 20), "stalled": (Stalling(), 3)}[fault]
    with Started(one_fails, tmp_path, layer, timedelta(seconds=seconds)) as started:
        done = started.wait()
    assert done.returncode == 0, done.stderr[-4000:]
    expected = {"dead": [0, 0, 17], "stalled": [0, 0, -signal.SIGKILL]}
    assert json.loads((tmp_path / "statuses.json").read_text()) == expected[fault], done.stderr[-4000:]
    for rank in (0, 2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == [["CheckpointReadError", None]] * 2
