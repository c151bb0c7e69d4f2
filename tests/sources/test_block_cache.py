"""The block cache stays within its limit, drops what was used longest ago, and never gives out a damaged block."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import SourceError
from holdfast.sources.block_cache import BlockCache


def held(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/*.block"))


def use(folder: Path, key: str, number: int, nanoseconds: int) -> None:
    """Say when a block was used last; clocks of file systems are too coarse to tell by waiting."""
    os.utime(folder / key / f"{number:09d}.block", ns=(nanoseconds, nanoseconds))


def test_a_block_kept_is_given_back(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, "file", limit=1000)
    cache.put(3, b"abc")
    assert bytes(cache.get(3, 3) or b"") == b"abc"
    assert cache.get(4, 3) is None


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 30), st.integers(0, 60)), max_size=40))
def test_any_sequence_of_blocks_stays_within_the_limit(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[tuple[str, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    caches = {key: BlockCache(folder, key, limit=200) for key in "ab"}
    for key, number, size in blocks:
        caches[key].put(number, bytes(size))
        assert held(folder) <= 200
        kept = caches[key].get(number, size)
        assert kept is not None
        assert bytes(kept) == bytes(size)


def test_the_block_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, "file", limit=340)
    for number in range(3):
        cache.put(number, bytes(100))
        use(tmp_path, "file", number, (number + 1) * 10**9)
    cache.get(0, 100)  # used now, so 1 is the oldest
    cache.put(3, bytes(100))
    assert [number for number in range(4) if cache.get(number, 100) is not None] == [0, 2, 3]


def test_a_damaged_or_torn_block_counts_as_missing(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, "file", limit=1000)
    cache.put(0, b"good bytes")
    cache.put(1, b"good bytes")
    path = tmp_path / "file" / "000000000.block"
    path.write_bytes(b"evil" + path.read_bytes()[4:])
    (tmp_path / "file" / "000000001.block").write_bytes(b"go")
    later = BlockCache(tmp_path, "file", limit=1000)
    assert later.get(0, 10) is None
    assert later.get(1, 10) is None


def test_a_block_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, "file", limit=50)
    cache.put(0, bytes(100))
    assert cache.get(0, 100) is None
    assert held(tmp_path) == 0


def test_a_limit_of_zero_keeps_nothing_and_makes_no_folder(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path / "none", "file", limit=0)
    cache.put(0, b"x")
    assert cache.get(0, 1) is None
    assert not (tmp_path / "none").exists()


def test_what_a_killed_process_left_behind_is_counted_and_cleared(tmp_path: Path) -> None:
    BlockCache(tmp_path, "file", limit=400).put(0, bytes(100))
    (tmp_path / "incoming.tmp").write_bytes(bytes(5000))
    (tmp_path / "lock").write_bytes(b"garbage")
    fresh = BlockCache(tmp_path, "other", limit=400)
    for number in range(10):
        fresh.put(number, bytes(100))
    assert held(tmp_path) <= 400
    assert not (tmp_path / "incoming.tmp").exists()


def test_a_folder_that_cannot_be_made_is_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SourceError, match="cache_dir"):
        BlockCache(tmp_path / "file" / "below", "key", limit=10)


def fill(folder: Path, seed: int, failures: multiprocessing.Queue[str]) -> None:
    cache = BlockCache(folder, "shared", limit=5_000)
    for step in range(200):
        number = (step * 7 + seed) % 40
        expected = bytes([number]) * 300
        found = cache.get(number, 300)
        if found is not None and found != expected:
            failures.put(f"block {number} holds another's bytes")
        if found is None:
            cache.put(number, expected)
        if held_now(folder) > 5_000:
            failures.put("over the limit")


def held_now(folder: Path) -> int:
    # Unlike `held`, while other processes add and drop blocks.
    return sum(size_if_there(path) for path in folder.glob("*/*.block"))


def size_if_there(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_several_processes_share_one_folder_within_one_limit(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    failures: multiprocessing.Queue[str] = context.Queue()
    workers = [context.Process(target=fill, args=(tmp_path, seed, failures)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert failures.empty()
