"""Where samples run out: pad, short and drop, and batches of which samples failed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from tests.stream.jobs import dataset_of, delivered, numbers

from holdfast.errors import EmptyBatchError, EmptyPartitionError
from holdfast.order import Contiguous, HashBased, Partition, RoundRobin
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader


def ranks(length: int, world: int, batch: int, **options: Any) -> list[StreamingShardLoader]:
    return [
        StreamingShardLoader(
            dataset_of({"a": length}), StreamingConfig(world_size=world, rank=rank, batch_size=batch, **options)
        )
        for rank in range(world)
    ]


@given(
    st.integers(6, 40),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from([RoundRobin(), Contiguous(), HashBased(8)]),
)
def test_padding_lets_every_rank_make_the_same_full_steps_and_loses_no_sample(
    length: int, world: int, batch: int, epochs: int, partition: Partition
) -> None:
    try:
        loaders = ranks(length, world, batch, epochs=epochs, last_batch="pad", partition_strategy=partition)
    except EmptyPartitionError:  # a hash partition may leave a rank without a sample, which is refused at once
        reject()
    runs = [list(loader) for loader in loaders]
    assert len({len(run) for run in runs}) == 1
    assert {len(run) for run in runs} == {len(loader) for loader in loaders}
    assert all(len(batch_["index"]) == len(batch_["__valid__"]) == batch for run in runs for batch_ in run)
    seen = sorted(sample for run in runs for batch_ in run for sample in delivered(batch_))
    assert seen == sorted((0, index) for index in range(length) for _ in range(epochs))
    assert [loader.num_samples for loader in loaders] == [sum(len(delivered(b)) for b in run) for run in runs]


@given(st.integers(6, 40), st.integers(1, 4), st.integers(1, 6), st.sampled_from([RoundRobin(), Contiguous()]))
def test_short_batches_hold_what_is_left_and_none_is_empty(
    length: int, world: int, batch: int, partition: Partition
) -> None:
    loaders = ranks(length, world, batch, epochs=1, last_batch="short", partition_strategy=partition)
    runs = [list(loader) for loader in loaders]
    assert all("__valid__" not in b and 1 <= len(b["index"]) <= batch for run in runs for b in run)
    assert sorted(s for run in runs for b in run for s in delivered(b)) == [(0, i) for i in range(length)]
    assert len({loader.step for loader in loaders}) == 1


@given(st.integers(6, 40), st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.sampled_from([True, False]))
def test_dropping_leaves_only_full_batches_at_the_same_steps_on_every_rank(
    length: int, world: int, batch: int, epochs: int, aligned: bool
) -> None:
    partition = Contiguous() if aligned else RoundRobin()
    loaders = ranks(length, world, batch, epochs=epochs, last_batch="drop", partition_strategy=partition)
    runs = [list(loader) for loader in loaders]
    assert {len(run) for run in runs} == {len(loaders[0])}
    assert all(len(b["index"]) == batch for run in runs for b in run)
    assert [loader.num_samples for loader in loaders] == [batch * len(run) for run in runs]
    full = length // (world * batch) * epochs if aligned else length * epochs // (world * batch)
    assert len(runs[0]) == full


def test_padding_is_the_default_for_several_ranks_and_short_for_one() -> None:
    assert ranks(5, 2, 2)[0].config.last_batch == "pad"
    assert ranks(5, 1, 2)[0].config.last_batch == "short"


def is_odd(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["index"] % 2 == 0:
        raise ValueError("even")
    return sample


@pytest.mark.parametrize("workers", [0, 1])
def test_a_failing_sample_is_left_out_counted_and_recorded_and_moves_nothing(workers: int) -> None:
    dataset = StreamDataset(numbers(24), name="a", transform=is_odd)
    config = StreamingConfig(batch_size=6, epochs=1, on_error="skip", num_workers=workers)
    loader = StreamingShardLoader(dataset, config)
    plain = StreamingShardLoader(StreamDataset(numbers(24), name="a"), StreamingConfig(batch_size=6, epochs=1))
    for got, whole in zip(loader, plain, strict=True):
        assert got["index"].tolist() == [index for index in whole["index"].tolist() if index % 2]
    assert loader.get_stats().samples_failed == 12
    assert sorted(loader.samples_failed) == [("a", index) for index in range(0, 24, 2)]
    assert sorted(loader.state_dict()["samples_failed"]) == [["a", index] for index in range(0, 24, 2)]


def test_of_very_many_failing_samples_the_state_keeps_the_first_and_the_statistics_count_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.stream.loader.MAX_FAILURES", 5)
    dataset = StreamDataset(numbers(24), name="a", transform=is_odd)
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=6, epochs=1, on_error="skip"))
    list(loader)
    assert loader.get_stats().samples_failed == 12
    first = [index for step in range(4) for index in [ref.index for ref in loader.samples_in(step)] if index % 2 == 0][
        :5
    ]
    assert loader.samples_failed == [("a", index) for index in first]


def test_a_batch_of_which_nothing_is_left_raises() -> None:
    dataset = StreamDataset(numbers(8), name="a", transform=is_odd, shuffle="none")
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=1, epochs=1, on_error="skip"))
    with pytest.raises(EmptyBatchError):
        list(loader)
