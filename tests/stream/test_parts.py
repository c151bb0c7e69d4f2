"""Where reading is a plain gather, chunks are read in parts; nobody who gets the batches can tell."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import SourceError
from holdfast.sources import ArraySource, Columns, Ragged, TokenFileSource
from holdfast.sources.base import Indices
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader
from holdfast.stream.steps import PART_BYTES

ROWS = 600
WIDTH = 512  # of int64: a batch of 32 takes 128 KiB, so that a part holds four


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


@given(st.integers(1, 40), st.integers(0, 30), st.data())
def test_any_part_of_a_chunk_holds_the_batches_of_the_whole(batch: int, step: int, data: st.DataObject) -> None:
    steps = loader_over(wide(), batch_size=batch)._delivery.step_reader(min(step, ROWS // batch), None)
    number = data.draw(st.integers(0, 3))
    count = len(steps.steps_of(number))
    begin = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(begin + 1, count))
    whole, part = steps.read(number), steps.read(number, begin, end)
    assert len(part) == end - begin
    for place in range(begin, end):
        found, expected = part.batch(place - begin), whole.batch(place)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)


def test_a_part_is_as_many_batches_as_stay_in_the_cache_and_never_less_than_one() -> None:
    row = wide().row_bytes
    assert row == WIDTH * 8 + 8
    assert loader_over(wide())._delivery.step_reader(0, None).part_steps == PART_BYTES // (32 * row) == 3
    assert loader_over(wide(), batch_size=512)._delivery.step_reader(0, None).part_steps == 1


@pytest.mark.parametrize("targets", [False, True])
def test_token_files_say_how_much_memory_a_sequence_takes(tmp_path: Path, targets: bool) -> None:
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "a.bin")
    source = TokenFileSource(tmp_path / "a.bin", 7, targets=targets)
    assert source.row_bytes == sum(column.nbytes for column in source.read(np.array([3])).values())


@pytest.mark.parametrize(
    "source",
    [
        ArraySource({"x": Ragged.from_rows([np.arange(3)] * 40)}),
        ArraySource({"x": np.array(["a", "b"] * 20, dtype=object)}),
    ],
)
def test_where_reading_is_more_than_a_gather_a_chunk_is_read_whole(source: ArraySource) -> None:
    assert source.row_bytes is None
    steps = loader_over(source, batch_size=2)._delivery.step_reader(0, None)
    assert steps.part_steps == steps.chunk_steps


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
