"""The memory of blocks: used again when nobody sees it any more, and let go when a block was read to its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.servers import FaultyServer
from tests.sources.support import rows

from holdfast.sources import RemoteOptions
from holdfast.sources.fetch import memory
from holdfast.sources.fetch.buffers import MAX_KEPT_BYTES, MIN_KEPT_BYTES, Buffers
from holdfast.sources.fetch.pace import FIRST_ANSWERS, FIRST_CONNECTIONS, RECEIVING, Pace
from holdfast.sources.fetch.process import fetcher_of
from holdfast.sources.remote import RemoteFile

BLOCK = 1000
BLOB = np.random.default_rng(0).integers(0, 256, 40 * BLOCK, dtype=np.uint8).tobytes()


def place(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).__array_interface__["data"][0])


def test_memory_is_lent_again_when_its_last_view_is_gone() -> None:
    buffers = Buffers()
    first = buffers.lend(MIN_KEPT_BYTES)
    where = place(first)
    part, array = first[10:20].toreadonly(), np.frombuffer(first[100:], dtype=np.uint8)
    del first
    assert place(buffers.lend(MIN_KEPT_BYTES)) != where
    del part
    assert place(buffers.lend(MIN_KEPT_BYTES)) != where
    del array
    assert place(buffers.lend(MIN_KEPT_BYTES)) == where


@given(st.lists(st.tuples(st.sampled_from([MIN_KEPT_BYTES, 2 * MIN_KEPT_BYTES, 100]), st.integers(0, 5)), max_size=40))
def test_no_memory_is_lent_twice_at_a_time(steps: list[tuple[int, int]]) -> None:
    buffers, lent = Buffers(), list[tuple[int, memoryview]]()
    for number, (size, end) in enumerate(steps):
        view = buffers.lend(size)
        assert len(view) == size
        view[:] = bytes([number % 256]) * size
        lent.append((number % 256, view[size // 2 :]))
        del view, lent[:end]
    assert all(bytes(view) == bytes([mark]) * len(view) for mark, view in lent)


def test_little_memory_is_kept() -> None:
    buffers = Buffers()
    views = [buffers.lend(2**20) for _ in range(MAX_KEPT_BYTES // 2**20 + 3)]
    del views
    assert [len(free) for free in buffers._free.values()] == [MAX_KEPT_BYTES // 2**20]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[RemoteFile]:
    with FaultyServer({"blob": BLOB}) as server:
        options = RemoteOptions(cache_dir=tmp_path / "blocks", cache_limit=0, block_size=BLOCK, max_connections=7)
        found = RemoteFile(server.url("blob"), options)
        found.stamp()
        yield found


def test_blocks_read_to_their_end_are_let_go(file: RemoteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_SPENT_BYTES", 3 * BLOCK)
    file.want(rows(0), rows(len(BLOB)), 5)
    assert file.read(0, 20 * BLOCK + 500) == BLOB[: 20 * BLOCK + 500]
    fetcher = fetcher_of(file.options)
    fetcher.wait_until_idle()
    held = {number for _, number in fetcher._memory.blocks}
    assert {number for number in held if number >= 20} == set(range(20, 40))  # the half of one, and those to come
    assert len(held) == 3 + 20
    assert fetcher._memory.held_bytes == len(held) * BLOCK
    file.read(20 * BLOCK + 500, 21 * BLOCK)
    assert len(fetcher._memory.blocks) == 3 + 19


def test_a_block_that_was_let_go_is_read_again(file: RemoteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_SPENT_BYTES", 0)
    for _ in range(2):
        assert file.read(0, len(BLOB)) == BLOB
    own = file._reach()[1].key
    assert not [number for key, number in fetcher_of(file.options)._memory.blocks if key == own]


@pytest.mark.parametrize(
    ("waiting", "receiving", "expected"),
    [(0.0, 0.01, RECEIVING), (0.2, 0.02, 11 * RECEIVING), (0.03, 0.6, RECEIVING), (0.05, 0.05, 2 * RECEIVING)],
)
def test_connections_are_set_by_how_long_the_first_answers_kept_waiting(
    waiting: float, receiving: float, expected: int
) -> None:
    pace = Pace(128)
    for number in range(FIRST_ANSWERS):
        assert pace.connections == FIRST_CONNECTIONS
        pace.answered(2**20, waiting + receiving, 0.001 * number, busy=True, waited=waiting)
    assert pace.connections == expected
