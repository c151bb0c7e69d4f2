"""Samples in memory are copied when their batch is asked for; nobody who gets the batches can tell."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import SourceError
from holdfast.sources import ArraySource, Columns, Ragged
from holdfast.sources.base import Indices
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader
from holdfast.stream.batch import MemoryRows

ROWS = 600
WIDTH = 64


def wide() -> ArraySource:
    return ArraySource({"x": np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH), "y": np.arange(ROWS)})


def loader_over(source: ArraySource, **options: Any) -> StreamingShardLoader:
    config = StreamingConfig(**{"batch_size": 32, "epochs": 2, "prefetch_buffer_size": 512, **options})
    return StreamingShardLoader(StreamDataset(source, name="a"), config)


class Failing(ArraySource):
    """Refuses to read one sample, as a damaged file would."""

    def read(self, indices: Indices) -> Columns:
        if 77 in indices:
            raise OSError("bad sector")
        return super().read(indices)


@given(st.integers(1, 40), st.integers(0, 30), st.integers(1, 3), st.integers(0, 3))
def test_any_lazy_reading_holds_the_batches_of_one_read_ahead(batch: int, step: int, world: int, number: int) -> None:
    loader = loader_over(wide(), batch_size=batch, world_size=world, rank=world - 1)
    first = min(step, ROWS // batch // world)
    steps = range(first, min(first + 1 + number, loader.schedule.total_steps or 1))
    reader = loader._reader(first)
    now, later = reader(steps), reader(steps, lazy=True)
    assert later.lazy
    assert all(isinstance(batch.content, MemoryRows) for batch in later.batches)
    assert later.by_source == now.by_source
    for found, expected in zip(later.batches, now.batches, strict=True):
        assert found[:3] == expected[:3]
        lazy, made = found.make(), expected.make()
        assert lazy.keys() == made.keys()
        assert all(torch.equal(lazy[name], made[name]) for name in made)


@pytest.mark.parametrize(
    "source",
    [
        ArraySource({"x": Ragged.from_rows([np.arange(3)] * 40)}),
        ArraySource({"x": np.array(["a", "b"] * 20, dtype=object)}),
        ArraySource({"x": np.arange(40, dtype=">i4")}),
        ArraySource({"x": np.arange(80).reshape(40, 2)[:, :1]}),
        Failing({"x": np.arange(40)}),
    ],
    ids=["ragged", "objects", "other byte order", "strided", "reads in its own way"],
)
def test_where_reading_is_more_than_copying_nothing_is_lazy(source: ArraySource) -> None:
    assert not loader_over(source, batch_size=2)._reader(0)(range(1, 3), lazy=True).lazy


def test_a_loop_that_waits_has_its_batches_copied_when_it_asks_and_all_counted() -> None:
    loader = loader_over(wide(), batch_size=4, epochs=1)
    delivered = 0
    for batch in loader:
        delivered += len(batch["y"])
        stats = loader.get_stats()
        assert stats.local_samples >= delivered == stats.samples_loaded
    assert stats.local_samples == ROWS
    assert stats.bytes_read == ROWS * (WIDTH + 1) * 8
    assert stats.sources["a"][:3] == (ROWS, 0, stats.bytes_read)
    assert stats.avg_load_time_us > 0


def test_the_time_that_late_copying_takes_counts_as_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_over(wide())
    reading = loader._reader(0)(range(3), lazy=True)
    reading.seconds = 0.0
    monkeypatch.setattr("holdfast.stream.loader.perf_counter", itertools.count().__next__)
    batches = list(loader._hand_over(reading, loader._turn))
    assert len(batches) == 3
    assert loader._tally.busy == reading.seconds == 3  # a clock that is read before and after, and goes on by one


def test_a_batch_that_is_kept_is_never_written_to_again() -> None:
    loader = loader_over(wide())
    kept = list(loader)
    for step, batch in enumerate(kept):
        indices = [ref.index for ref in loader.samples_in(step)]
        assert batch["y"].tolist() == indices
        assert torch.equal(batch["x"][:, 0], torch.tensor(indices) * WIDTH)


def test_a_sample_that_cannot_be_gathered_is_named_at_its_own_step() -> None:
    loader = loader_over(Failing(wide()._given))
    step = loader.when("a", 77)[0].step
    with pytest.raises(SourceError, match="bad sector") as caught:
        list(loader)
    assert (caught.value.index, loader.step) == (77, step)


def test_a_sample_that_cannot_be_gathered_is_left_out_where_that_is_asked_for() -> None:
    loader = loader_over(Failing(wide()._given), on_error="skip", epochs=1)
    rows = [row for batch in loader for row in batch["y"].tolist()]
    assert sorted(rows) == [row for row in range(ROWS) if row != 77]
    assert loader.samples_failed == [("a", 77)]


def test_threads_that_read_side_by_side_count_every_sample_once() -> None:
    class Meeting(ArraySource):
        """Lets no read end before another has begun, as long as there are others."""

        def read(self, indices: Indices) -> Columns:
            columns = super().read(indices)
            try:
                barrier.wait(timeout=0.2)
            except threading.BrokenBarrierError:
                barrier.reset()
            return columns

    barrier = threading.Barrier(2)
    loader = loader_over(Meeting({"y": np.arange(64)}), batch_size=4, epochs=1, prefetch_threads=2)
    assert sum(len(batch["y"]) for batch in loader) == 64
    assert loader.get_stats().local_samples == 64
