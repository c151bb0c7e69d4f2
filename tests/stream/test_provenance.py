"""Which sample was where: samples_in, batch_at, when and skip, from a loader and from a state alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from tests.strategies import partitions
from tests.stream.jobs import dataset_of

from holdfast.errors import EmptyPartitionError, OrderError, StreamError
from holdfast.stream import StreamingConfig, StreamingShardLoader, load_state
from holdfast.stream.provenance import samples_in, when


def lives(length: int = 60, **options: Any) -> tuple[StreamingShardLoader, list[dict[str, Any]]]:
    """A run at 1, then 3, then 2 ranks; gives rank 0's loader and its batches, step by step."""
    batches: list[dict[str, Any]] = []
    state = None
    for world, batch, steps in ((1, 4, 5), (3, 2, 4), (2, 5, 2)):
        config = StreamingConfig(world_size=world, rank=0, batch_size=batch, epochs=3, **options)
        loader = StreamingShardLoader(dataset_of({"a": length}), config)
        if state is not None:
            loader.load_state_dict(state)
        iterator: Iterator[Any] = iter(loader)
        batches += [next(iterator) for _ in range(steps)]
        state = loader.state_dict()
    return loader, batches


def test_samples_in_names_every_sample_of_any_past_step_over_resizes() -> None:
    loader, batches = lives()
    for step, batch in enumerate(batches):
        assert [ref.index for ref in loader.samples_in(step, rank=0)] == batch["index"].tolist()
    everyone = loader.samples_in(6)
    assert len(everyone) == 6
    assert {ref.rank for ref in everyone} == {0, 1, 2}
    assert sorted(ref.position for ref in everyone) == list(range(26, 32))


def test_batch_at_gives_any_past_or_future_batch_again_and_moves_nothing() -> None:
    loader, batches = lives()
    step = loader.step
    for number, batch in enumerate(batches):
        again = loader.batch_at(number)
        assert again.keys() == batch.keys()
        assert all(torch.equal(again[name], batch[name]) for name in batch)
    future = loader.batch_at(step)
    assert loader.step == step
    assert torch.equal(future["index"], next(iter(loader))["index"])


def test_batch_at_gives_what_another_rank_got() -> None:
    config = {"world_size": 3, "batch_size": 4}
    loaders = [StreamingShardLoader(dataset_of({"a": 60}), StreamingConfig(rank=r, **config)) for r in range(3)]  # type: ignore[arg-type]
    other = next(iter(loaders[2]))
    assert torch.equal(loaders[0].batch_at(0, rank=2)["index"], other["index"])


def test_a_step_that_does_not_exist_is_refused() -> None:
    loader, _ = lives()
    for step in (-1, 10_000):
        with pytest.raises((StreamError, OrderError)):
            loader.batch_at(step)


@given(st.data())
@settings(max_examples=20)
def test_when_is_the_inverse_of_samples_in_for_every_partition(data: st.DataObject) -> None:
    length = data.draw(st.integers(6, 40))
    config = StreamingConfig(
        world_size=data.draw(st.integers(1, 3)),
        rank=0,
        batch_size=data.draw(st.integers(1, 5)),
        epochs=2,
        partition_strategy=data.draw(partitions(length)),
    )
    try:
        loader = StreamingShardLoader(dataset_of({"a": length}), config)
    except EmptyPartitionError:  # a hash partition may leave a rank without a sample, which is refused at once
        reject()
    index = data.draw(st.integers(0, length - 1))
    seen = loader.when("a", index, epochs=2)
    assert [entry.epoch for entry in seen] == [0, 1]
    for entry in seen:
        assert entry.step is not None
        refs = loader.samples_in(entry.step, entry.rank)
        assert [ref.slot for ref in refs if ref.index == index and ref.position == entry.position] == [entry.slot]


def test_when_looks_at_the_epochs_begun_and_the_next_unless_told_otherwise() -> None:
    loader, batches = lives()
    index = int(batches[0]["index"][0])
    seen = loader.when("a", index)
    assert [entry.epoch for entry in seen] == [0, 1, 2]  # 64 of 60 are delivered: epoch 1 has begun
    assert (seen[0].step, seen[0].rank, seen[0].slot) == (0, 0, 0)
    with pytest.raises(OrderError, match="no such source"):
        loader.when("b", 0)
    with pytest.raises(OrderError):
        loader.when("a", 60)


def test_a_state_file_alone_answers_the_same_questions(tmp_path: Path) -> None:
    loader, _ = lives()
    schedule = load_state(loader.save(tmp_path)).rebuild()
    for step in range(loader.step + 3):
        assert samples_in(schedule, step) == loader.samples_in(step)
    assert when(schedule, "a", 17, epochs=3) == loader.when("a", 17, epochs=3)


def test_skipped_steps_close_up_and_the_rest_keeps_its_order() -> None:
    config = StreamingConfig(batch_size=4, epochs=1)
    plain = [batch["index"].tolist() for batch in StreamingShardLoader(dataset_of({"a": 40}), config)]
    loader = StreamingShardLoader(dataset_of({"a": 40}), config)
    iterator = iter(loader)
    got = [next(iterator)["index"].tolist() for _ in range(2)]
    loader.skip(steps=range(3, 6))
    got += [batch["index"].tolist() for batch in iterator]
    assert got == plain[:3] + plain[6:]


def test_skipped_samples_never_come_again_in_any_epoch_and_survive_a_resume_at_another_size() -> None:
    loader = StreamingShardLoader(dataset_of({"a": 40}), StreamingConfig(batch_size=4, epochs=3))
    first = next(iter(loader))["index"].tolist()
    bad = [index for index in range(40) if index not in first][:5]
    loader.skip(samples={"a": bad})
    state = loader.state_dict()
    seen = list(first)
    ranks = []
    for rank in range(2):
        config = StreamingConfig(world_size=2, rank=rank, batch_size=3, epochs=3)
        resumed = StreamingShardLoader(dataset_of({"a": 40}), config)
        resumed.load_state_dict(state)
        ranks.append(resumed)
        for batch in resumed:
            seen += batch["index"][batch["__valid__"]].tolist()
    assert sorted(seen) == sorted(3 * [index for index in range(40) if index not in bad])
    assert [entry.step for entry in ranks[0].when("a", bad[0], epochs=3)] == [None, None, None]


def test_what_was_delivered_cannot_be_skipped_any_more() -> None:
    loader, _ = lives()
    with pytest.raises(StreamError, match="delivered"):
        loader.skip(steps=[2])


def test_skips_do_not_change_the_past() -> None:
    loader, batches = lives()
    loader.skip(samples={"a": batches[0]["index"].tolist()})
    for step, batch in enumerate(batches):
        assert torch.equal(loader.batch_at(step)["index"], batch["index"])
