"""Streams over remote files: the same batches as from disk, from few bytes and few round trips."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.sources.servers import FaultyServer

import holdfast as hfast
from holdfast.errors import RemoteReadError
from holdfast.order import Shuffle, WindowShuffle
from holdfast.sources import ParquetSource, RemoteOptions, Source, TokenFileSource
from holdfast.sources.fetch import look_ahead
from holdfast.sources.fetch.process import fetcher_of

LENGTH, FILES, PER_FILE = 50, 4, 1000
NEEDED = FILES * PER_FILE * LENGTH * 2
BLOCK = 2_000


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    made = {
        f"{number}.bin": np.arange(number * 50_000, (number + 1) * 50_000).astype("<u2").tobytes()
        for number in range(FILES)
    }
    packed = pa.BufferOutputStream()
    table = pa.table({"id": np.arange(4000), "value": np.random.default_rng(0).random(4000)})
    parquet.write_table(table, packed, row_group_size=200)
    return {**made, "table.parquet": packed.getvalue().to_pybytes()}


@pytest.fixture(scope="module")
def server(files: dict[str, bytes]) -> Iterator[FaultyServer]:
    with FaultyServer(files) as running:
        yield running


@pytest.fixture(scope="module")
def folder(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    for name, content in files.items():
        (made / name).write_bytes(content)
    return made


def tokens(server: FaultyServer, options: RemoteOptions) -> TokenFileSource:
    return TokenFileSource([server.url(f"{number}.bin") for number in range(FILES)], LENGTH, remote=options)


def loader_of(source: Source, shuffle: Any = "auto", **options: Any) -> hfast.StreamingShardLoader:
    options = {"rank": 0, "world_size": 1, "batch_size": 32, "epochs": 1, **options}
    dataset = hfast.StreamDataset(source, name="data", shuffle=shuffle, seed=3)
    return hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(**options))


def same(ours: Any, theirs: Any) -> bool:
    return len(ours) == len(theirs) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a if name != "metrics")
        for a, b in zip(ours, theirs, strict=True)
    )


@settings(max_examples=6, phases=[Phase.explicit, Phase.generate])
@given(
    kind=st.sampled_from(["tokens", "table"]),
    shuffle=st.sampled_from(["full", "none", WindowShuffle(16, 4)]),
    batch_size=st.integers(1, 200),
    world_size=st.integers(1, 3),
    block_size=st.integers(500, 50_000),
    memory_limit=st.sampled_from([0, 20_000, 10**8]),
    cached=st.booleans(),
    faults=st.lists(st.sampled_from(["ok", "500", "reset", "truncated"]), max_size=6),
    start=st.integers(0, 5),
)
def test_remote_batches_are_those_from_disk_also_after_a_resume(
    server: FaultyServer,
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    shuffle: Shuffle | str,
    batch_size: int,
    world_size: int,
    block_size: int,
    memory_limit: int,
    cached: bool,
    faults: list[str],
    start: int,
) -> None:
    options = RemoteOptions(
        cache_dir=tmp_path_factory.mktemp("blocks"),
        cache_limit=10**7 if cached else 0,
        block_size=block_size,
        memory_limit=memory_limit,
        first_pause=0.0001,
        longest_pause=0.0002,
        attempts=8,
    )
    if kind == "tokens":
        remote, local = tokens(server, options), TokenFileSource(folder, LENGTH)
    else:
        remote, local = ParquetSource(server.url("table.parquet"), remote=options), ParquetSource(folder)  # type: ignore[assignment]
    where = {"rank": world_size - 1, "world_size": world_size, "batch_size": batch_size}
    ours, theirs = loader_of(remote, shuffle, **where), loader_of(local, shuffle, **where)
    first = list(islice(ours, start))
    state = ours.state_dict()
    server.faults.clear()
    server.faults.extend(faults)
    again = loader_of(remote, shuffle, **where)
    again.load_state_dict(state)
    count = min(12, len(theirs))
    expected = list(islice(theirs, count))
    rest = list(islice(again, count - len(first)))
    server.faults.clear()
    assert same([*first, *rest], expected)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", ["none", "auto", "full"])
def test_every_block_is_fetched_once(server: FaultyServer, tmp_path: Path, shuffle: str, workers: int) -> None:
    # On a busy machine an answer may be late, and asked for twice.
    options = RemoteOptions(cache_dir=tmp_path, block_size=BLOCK, cache_limit=NEEDED * 2, hedge=False)
    source = tokens(server, options)
    len(source)
    server.ranges.clear()
    seen = sum(batch["tokens"].numel() for batch in loader_of(source, shuffle, num_workers=workers))
    assert seen * 2 == NEEDED
    assert sum(stop - start for _, start, stop in server.ranges) == NEEDED


@pytest.mark.parametrize("in_memory", [16, 4], ids=["less than a window", "two windows"])
def test_a_window_needs_a_cache_of_a_part_of_the_data_only(in_memory: int, tmp_path: Path) -> None:
    needed, block = 8 * 2**20, 32 * 2**10  # a file system keeps no block in less than a page
    files = {f"{number}.bin": np.arange(needed // 8, dtype="<u2").tobytes() for number in range(FILES)}
    options = RemoteOptions(
        cache_dir=tmp_path, block_size=block, cache_limit=needed // 2, memory_limit=needed // in_memory, hedge=False
    )
    with FaultyServer(files) as server:
        loader = loader_of(tokens(server, options), batch_size=512)
        for _ in loader:
            pass
    assert sum(stop - start for _, start, stop in server.ranges) <= 1.1 * needed  # stretches of 8 blocks share ends
    assert loader.get_stats().cache_hits < 4 * needed // block  # not mapped again for every sample
    held = sum(path.stat().st_blocks * 512 for path in tmp_path.glob("*/*.blocks"))
    assert needed // 4 < held <= needed // 2


def test_a_window_without_a_cache_fits_into_memory() -> None:
    needed, block = 8 * 2**20, 32 * 2**10
    files = {f"{number}.bin": np.arange(needed // 8, dtype="<u2").tobytes() for number in range(FILES)}
    options = RemoteOptions(block_size=block, cache_limit=0, memory_limit=needed // 2, hedge=False)
    with FaultyServer(files) as server:
        for _ in loader_of(tokens(server, options), batch_size=512):
            pass
    assert sum(stop - start for _, start, stop in server.ranges) <= 1.1 * needed


def test_a_remote_source_is_shuffled_by_windows_that_its_repr_states(server: FaultyServer, tmp_path: Path) -> None:
    small = RemoteOptions(cache_dir=tmp_path, block_size=BLOCK, cache_limit=NEEDED // 2)
    shown = repr(hfast.StreamDataset(tokens(server, small), name="data"))
    assert shown == "holdfast.StreamDataset('data', shuffle='window of about 500 samples from 4 of 32 shards')"
    large = RemoteOptions(cache_dir=tmp_path, block_size=BLOCK)
    assert repr(hfast.StreamDataset(tokens(server, large), name="data")) == "holdfast.StreamDataset('data')"


def test_the_first_batch_takes_few_round_trips_after_the_index(files: dict[str, bytes], tmp_path: Path) -> None:
    with FaultyServer(files, in_rounds=True) as server:
        source = tokens(server, RemoteOptions(cache_dir=tmp_path, block_size=BLOCK))
        loader = loader_of(source, WindowShuffle(32, 8), batch_size=100)
        server.rounds = 0
        next(iter(loader))
        starts = [2 * LENGTH * sample.index for sample in loader.samples_in(0)]
        size = PER_FILE * LENGTH * 2
        needed = {(f"{start // size}.bin", start % size // BLOCK * BLOCK) for start in starts}
        rounds = [
            number
            for (name, start, stop), number in server.round_of.items()
            if any((name, at) in needed for at in range(start, stop, BLOCK))
        ]
        assert len(needed) > 40
        assert max(rounds) <= 3


def test_statistics_tell_what_remote_reading_took(server: FaultyServer, tmp_path: Path) -> None:
    options = RemoteOptions(cache_dir=tmp_path, block_size=BLOCK, first_pause=0.001, hedge=False)
    loader = loader_of(tokens(server, options), "none")
    server.faults.extend(["500"])
    for _ in loader:
        pass
    stats = loader.get_stats()
    assert (stats.bytes_read, stats.bytes_fetched) == (NEEDED, NEEDED)
    assert stats.remote_retries >= 1
    assert stats.cache_hits == 0
    fetcher_of(options).wait_until_idle()  # blocks are kept beside the reading
    again = loader_of(tokens(server, RemoteOptions(cache_dir=tmp_path, block_size=BLOCK, memory_limit=0)), "none")
    for _ in again:
        pass
    assert again.get_stats().bytes_fetched == 0
    assert again.get_stats().cache_hits > 0
    (only,) = again.get_stats().sources.values()
    assert only.bytes_read == NEEDED


def test_the_footers_of_many_files_come_side_by_side_and_are_kept(tmp_path: Path) -> None:
    packed = pa.BufferOutputStream()
    parquet.write_table(pa.table({"id": np.arange(50), "value": np.random.default_rng(0).random(50)}), packed)
    many = {f"{number}.parquet": packed.getvalue().to_pybytes() for number in range(60)}
    with FaultyServer(many, in_rounds=True) as server:
        urls = [server.url(name) for name in many]
        options = RemoteOptions(cache_dir=tmp_path)
        assert len(ParquetSource(urls, remote=options)) == 60 * 50
        assert (server.heads, len(server.ranges)) == (0, 60)
        assert server.rounds <= 3
        server.ranges.clear()
        assert len(ParquetSource(urls, remote=options)) == 60 * 50
        assert not server.ranges


class Unsteady(hfast.ArraySource):
    """A source that says it is remote, and cannot fetch ahead."""

    is_remote = True

    def prefetch(self, indices: Any, reader: int) -> bool:
        if len(indices):
            raise RemoteReadError("not now", file="x")
        return True


def test_a_fault_of_looking_ahead_is_no_fault_of_a_batch() -> None:
    batches = list(loader_of(Unsteady({"x": np.arange(200)}), "none"))
    assert torch.cat([batch["x"] for batch in batches]).tolist() == list(range(200))


class Recording(hfast.ArraySource):
    """A source that says it is remote, always has room, and keeps what was named to it."""

    is_remote = True

    def __init__(self, count: int) -> None:
        super().__init__({"x": np.arange(count)})
        self.named: list[int] = []

    def prefetch(self, indices: Any, reader: int) -> bool:
        self.named += indices.tolist()
        return True


def test_samples_are_named_once_in_their_order_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_ahead, "MAX_RANGES_AHEAD", 40)
    source = Recording(100)
    schedule = loader_of(source, "none", batch_size=2, epochs=None).schedule
    ahead = look_ahead.LookAhead([source], schedule, 0, start=0, stop=None, each=3)
    for step in (0, 3, 6):
        ahead.before(range(step, step + 3))
    assert source.named == [position % 100 for position in range(2 * (6 + 3 * 40))]


def test_sources_end_to_end_are_read_ahead_though_the_first_is_here(server: FaultyServer, tmp_path: Path) -> None:
    here = hfast.ArraySource({"tokens": np.zeros((10, LENGTH), dtype=np.int64)})
    remote = tokens(server, RemoteOptions(cache_dir=tmp_path, block_size=BLOCK))
    both = hfast.sources.ConcatSource([here, remote])
    assert both.prefetch(np.empty(0, dtype=np.int64), reader=1)  # there is room


def test_a_loader_is_closed_at_once_while_a_server_does_not_answer(files: dict[str, bytes], tmp_path: Path) -> None:
    with FaultyServer(files) as silent:
        options = RemoteOptions(cache_dir=tmp_path, block_size=BLOCK, timeout=3600.0, hedge=False)
        loader = loader_of(tokens(silent, options), "none", prefetch_threads=2)
        silent.faults.extend(["stall"] * 1000)
        filling = threading.Thread(target=loader.prefetch, args=(64,), daemon=True)
        filling.start()
        while len(silent.faults) == 1000:
            threading.Event().wait(0.001)
        # In a thread, so that the test fails where closing waits for an answer, and does not hang.
        closing = threading.Thread(target=loader.close, daemon=True)
        closing.start()
        closing.join(timeout=60)
        assert not closing.is_alive()


def test_what_was_named_and_is_not_read_any_more_is_taken_back() -> None:
    forgotten: list[int] = []

    class Forgetting(Recording):
        def forget(self, reader: int) -> None:
            forgotten.append(reader)

    source = Forgetting(2000)
    for _ in loader_of(source, "none"):
        break
    assert len(forgotten) == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "drop",
    [
        pytest.param(lambda loader, batches: loader, id="a loader that reads ahead"),
        pytest.param(lambda loader, batches: batches, id="an iterator in use"),
    ],
)
def test_a_reader_that_the_collector_ends_waits_for_no_lock_that_its_thread_holds(
    server: FaultyServer, tmp_path: Path, drop: Callable[[Any, Any], Any]
) -> None:
    options = RemoteOptions(cache_dir=tmp_path, block_size=BLOCK)
    before = set(threading.enumerate())
    loader = hfast.StreamingShardLoader(
        hfast.StreamDataset(tokens(server, options), name="tokens", seed=1),
        hfast.StreamingConfig(batch_size=8, prefetch_buffer_size=64),
    )
    batches = iter(loader)
    next(batches)
    loader.prefetch(64)
    cycle: list[Any] = [drop(loader, batches)]
    cycle.append(cycle)
    del loader, batches
    with fetcher_of(options)._lock:  # as in any thread that uses the fetcher, when it allocates memory
        del cycle
        gc.collect()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("holdfast-read"):
            thread.join(30)
            assert not thread.is_alive()
