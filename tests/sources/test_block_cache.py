"""The block cache stays within its limit, drops what was used longest ago, and never gives out a damaged block."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import SourceError
from holdfast.sources.block_cache import BlockCache

PAGE = 4096  # what file systems allocate at a time
BLOCK = PAGE


def cache_at(folder: Path, *, limit: int, key: str = "file") -> BlockCache:
    return BlockCache(folder, key, block_size=BLOCK, limit=limit)


def held(folder: Path) -> int:
    """Return the bytes that blocks take on disk, while other processes add and drop some."""
    return sum(bytes_on_disk(path) for path in folder.glob("*/*.blocks"))


def read(cache: BlockCache, number: int, size: int = BLOCK) -> bytes | None:
    found = cache.get(number, size)
    return None if found is None else bytes(found)


def bytes_on_disk(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def use(folder: Path, group: int, nanoseconds: int) -> None:
    """Say when a group was used last; clocks of file systems are too coarse to tell by waiting."""
    (path,) = (folder / "file").glob(f"{group:09d}-*.blocks")
    os.utime(path, ns=(nanoseconds, nanoseconds))


def test_a_block_kept_is_given_back(tmp_path: Path) -> None:
    cache = cache_at(tmp_path, limit=100 * PAGE)
    cache.put(3, [b"abc"])
    assert read(cache, 3, 3) == b"abc"
    assert read(cache, 4, 3) is None


@given(first=st.integers(0, 200), sizes=st.lists(st.just(BLOCK), max_size=150), last=st.integers(1, BLOCK))
def test_any_run_of_blocks_is_given_back_block_by_block(
    tmp_path_factory: pytest.TempPathFactory, first: int, sizes: list[int], last: int
) -> None:
    cache = cache_at(tmp_path_factory.mktemp("cache"), limit=2**30)
    blocks = [bytes([number % 256]) * size for number, size in enumerate([*sizes, last])]
    cache.put(first, blocks)
    assert [read(cache, first + number, len(block)) for number, block in enumerate(blocks)] == blocks
    assert cache.get(first - 1, BLOCK) is None
    assert cache.get(first + len(blocks), BLOCK) is None


@pytest.mark.parametrize("size", [1, 1000, 5000])
def test_blocks_of_any_size_are_kept(tmp_path: Path, size: int) -> None:
    cache = BlockCache(tmp_path, "file", block_size=size, limit=2**30)
    blocks = [os.urandom(size) for _ in range(70)]
    cache.put(5, blocks)
    assert [read(cache, 5 + number, size) for number in range(70)] == blocks


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 300), st.integers(1, 12)), max_size=40))
def test_any_sequence_of_blocks_stays_within_the_limit(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[str, int, int]]
) -> None:
    folder, limit = tmp_path_factory.mktemp("cache"), 64 * PAGE
    caches = {key: cache_at(folder, limit=limit, key=key) for key in "ab"}
    for key, first, count in runs:
        caches[key].put(first, [bytes(BLOCK)] * count)
        assert held(folder) <= limit
        assert all(read(caches[key], number) == bytes(BLOCK) for number in range(first, first + count))


def test_the_blocks_used_longest_ago_go_first(tmp_path: Path) -> None:
    cache = cache_at(tmp_path, limit=7 * PAGE)  # too little for several blocks in a group
    for number in range(3):
        cache.put(number, [bytes(BLOCK)])
        use(tmp_path, number, (number + 1) * 10**9)
    cache.get(0, BLOCK)  # used now, so 1 is the oldest
    cache.put(3, [bytes(BLOCK)])
    assert [number for number in range(4) if cache.get(number, BLOCK) is not None] == [0, 2, 3]


def test_a_damaged_or_torn_block_counts_as_missing(tmp_path: Path) -> None:
    cache = cache_at(tmp_path, limit=2**30)
    cache.put(0, [bytes(BLOCK), bytes(BLOCK)])
    cache.put(64, [bytes(BLOCK)])
    damaged, torn = sorted((tmp_path / "file").iterdir())
    with open(damaged, "r+b") as file:
        file.write(b"evil")
    os.truncate(torn, 100)
    later = cache_at(tmp_path, limit=2**30)
    assert read(later, 0) is None
    assert read(later, 1) == bytes(BLOCK)
    assert read(later, 64) is None
    later.put(0, [bytes(BLOCK)])
    assert read(later, 0) == bytes(BLOCK)


def test_a_block_without_its_checksum_counts_as_missing(tmp_path: Path) -> None:
    cache = cache_at(tmp_path, limit=2**30)
    cache.put(0, [bytes(BLOCK)] * 2)
    (group,) = (tmp_path / "file").iterdir()
    with open(group, "r+b") as file:  # as if killed between writing the second block and its checksum
        file.seek(-8, os.SEEK_END)
        file.write(bytes(8))
    later = cache_at(tmp_path, limit=2**30)
    assert read(later, 0) == bytes(BLOCK)
    assert read(later, 1) is None


def test_a_block_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = cache_at(tmp_path, limit=PAGE)
    cache.put(0, [bytes(BLOCK)])
    assert cache.get(0, BLOCK) is None
    assert held(tmp_path) == 0


def test_a_limit_of_zero_keeps_nothing_and_makes_no_folder(tmp_path: Path) -> None:
    cache = cache_at(tmp_path / "none", limit=0)
    cache.put(0, [b"x"])
    assert cache.get(0, 1) is None
    assert not (tmp_path / "none").exists()


def test_what_others_left_behind_is_counted_and_cleared(tmp_path: Path) -> None:
    limit = 16 * PAGE
    cache_at(tmp_path, limit=limit).put(0, [bytes(BLOCK)] * 4)
    (tmp_path / "1-1.incoming").write_bytes(bytes(5000))  # of an earlier version
    (tmp_path / "file" / "000000000.block").write_bytes(bytes(4 * PAGE))
    (tmp_path / "lock").write_bytes(b"garbage")
    fresh = cache_at(tmp_path, limit=limit, key="other")
    for number in range(20):
        fresh.put(number, [bytes(BLOCK)])
    assert sum(bytes_on_disk(path) for path in tmp_path.glob("*/*")) <= limit
    assert not (tmp_path / "1-1.incoming").exists()


def test_a_child_that_is_forked_meanwhile_holds_no_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    end, theirs = context.Pipe()
    child = context.Process(target=theirs.recv)
    cache = cache_at(tmp_path, limit=2**30)
    with cache._reserved(PAGE):
        child.start()
    for name in ("lock", "writing"):
        with open(tmp_path / name) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    end.send(None)
    child.join()


def test_a_folder_that_cannot_be_made_is_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SourceError, match="cache_dir"):
        cache_at(tmp_path / "file" / "below", limit=10)


def fill(folder: Path, seed: int, failures: multiprocessing.Queue[str]) -> None:
    limit = 64 * PAGE
    cache = cache_at(folder, limit=limit, key="shared")
    for step in range(200):
        number = (step * 7 + seed) % 40
        expected = [bytes([number + more]) * BLOCK for more in range(3)]
        found = cache.get(number, BLOCK)
        if found is not None and found != expected[0]:
            failures.put(f"block {number} holds another's bytes")
        if found is None:
            cache.put(number, expected)
        if held(folder) > limit:
            failures.put("over the limit")


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
