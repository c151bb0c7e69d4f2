"""The edges of the stream, each once seen to break: empty steps, DCP, padded steps, epochs, weights, masks, workers."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.stream.jobs import VirtualSource, dataset_of, numbers
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

import holdfast
from holdfast.errors import (
    ConfigError,
    MixtureError,
    OrderError,
    SourceError,
    StateError,
    StateMismatchError,
    StreamError,
    TransformError,
)
from holdfast.order import Contiguous, HashBased, RangeBased, RoundRobin, Stratified
from holdfast.sources import ArraySource, Ragged
from holdfast.stream import InterleavedDataset, StreamDataset, StreamingConfig, StreamingShardLoader
from holdfast.stream.read_batches import read_batches


def loader_of(dataset: Any, **options: Any) -> StreamingShardLoader:
    return StreamingShardLoader(dataset, StreamingConfig(**{"batch_size": 4, "rank": 0, "world_size": 1, **options}))


def take(loader: StreamingShardLoader, count: int) -> list[dict[str, Any]]:
    iterator = iter(loader)
    found = [next(iterator) for _ in range(count)]
    iterator.close()  # type: ignore[attr-defined]
    return found


def pair(weights: dict[str, float] | None = None) -> InterleavedDataset:
    children = [StreamDataset(numbers(40, number), name=name, seed=3) for number, name in enumerate("ab")]
    return InterleavedDataset(children, weights or {"a": 1, "b": 1}, seed=5)


# --- one function ----------------------------------------------------------------------------------------------------


def functions_behind_batch_at(loader: StreamingShardLoader, step: int) -> set[tuple[str, str]]:
    package = str(Path(holdfast.__file__).parent)
    seen: set[tuple[str, str]] = set()

    def profile(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package) and not code.co_name.startswith("<"):
            seen.add((code.co_filename, code.co_name))

    gc.disable()  # what the collector calls, whenever it runs, makes no batch
    sys.setprofile(profile)
    try:
        loader.batch_at(step)
    finally:
        sys.setprofile(None)
        gc.enable()
    return seen


def test_a_batch_is_made_by_fewer_than_fifty_functions_a_mixture_with_transforms_included() -> None:
    plain = functions_behind_batch_at(loader_of(StreamDataset(numbers(1000), name="a")), 3)
    assert len(plain) < 45
    mixture = InterleavedDataset(
        [StreamDataset(numbers(1000, i), name=name, transform=dict) for i, name in enumerate("ab")], {"a": 1, "b": 2}
    )
    assert len(functions_behind_batch_at(loader_of(mixture), 3)) < 50


def test_a_loader_and_a_dataset_show_their_public_names() -> None:
    shown = "holdfast.StreamingShardLoader(holdfast.InterleavedDataset('mixture'), step=0, rank=0, world_size=1, "
    assert repr(loader_of(pair())) == shown + "batch_size=4)"


# --- steps with nothing for a rank -----------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["short", "drop", "pad"])
@pytest.mark.parametrize("rank", range(3))
def test_a_mixture_may_have_steps_that_hold_nothing_for_a_rank(last: str, rank: int) -> None:
    dataset = dataset_of({"a": 5, "b": 2})
    loader = loader_of(dataset, batch_size=1, world_size=3, rank=rank, epochs=1, last_batch=last)
    seen = [batch["index"].tolist() for batch in loader]
    assert len(seen) == {"short": 3 if rank == 0 else 2, "drop": 2, "pad": 3}[last]
    contiguous = loader_of(
        dataset, batch_size=2, world_size=3, rank=rank, epochs=1, last_batch=last, partition_strategy=Contiguous()
    )
    assert all(len(batch["index"]) for batch in contiguous)


# --- the loader as a Stateful ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_restores_a_loader_whatever_happened_to_it(tmp_path: Path) -> None:
    loader = loader_of(pair())
    keys = loader.state_dict().keys()
    take(loader, 3)
    loader.skip(samples={"a": [1, 2]})
    loader.mask(samples={"b": [7]})
    take(loader, 1)
    loader.reweight({"a": 1, "b": 3})
    assert loader.state_dict().keys() == keys
    dcp_save({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)
    again = loader_of(pair())
    dcp_load({"loader": again}, checkpoint_id=tmp_path, no_dist=True)
    assert again.step == 4
    for found, expected in zip(take(again, 30), take(loader, 30), strict=True):
        assert {name: value.tolist() for name, value in found.items()} == {n: v.tolist() for n, v in expected.items()}


# --- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["step", "epoch", "position", "rank", "world_size", "epochs"])
def test_a_number_beyond_reach_in_a_state_is_refused_and_its_field_named(field: str) -> None:
    loader = loader_of(dataset_of({"a": 40}))
    with pytest.raises(StateError, match=f"{field} must be from") as caught:
        loader.load_state_dict({**loader.state_dict(), field: 10**30})
    assert caught.value.field == field


def test_batch_at_gives_a_whole_batch_of_an_earlier_segment_to_a_loader_of_single_samples() -> None:
    batched = loader_of(dataset_of({"a": 40}))
    whole = take(batched, 2)
    single = loader_of(dataset_of({"a": 40}), batch_size=None)
    single.load_state_dict(batched.state_dict())
    assert single.batch_at(1)["index"].tolist() == whole[1]["index"].tolist()
    assert single.batch_at(2)["index"].tolist() == take(single, 1)[0]["index"].tolist()


# --- weighting gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [RoundRobin(), Contiguous(), RoundRobin(align_epochs=True)])
def test_weighted_by_its_share_the_mean_over_ranks_is_that_of_the_global_batch_at_every_step(partition: Any) -> None:
    dataset = StreamDataset(numbers(22), name="a", seed=1)
    ranks = [
        loader_of(dataset, world_size=3, rank=rank, batch_size=3, epochs=2, partition_strategy=partition)
        for rank in range(3)
    ]
    for rank in ranks:
        rank.mask(samples={"a": [4, 9]})
    for batches in zip(*ranks, strict=True):
        real = [batch["index"][batch["__valid__"]].double() for batch in batches]
        means = [values.mean() if len(values) else torch.zeros(()) for values in real]
        weighted = sum(mean * loader.share * 3 for mean, loader in zip(means, ranks, strict=True)) / 3
        assert weighted == pytest.approx(torch.cat(real).mean())


@pytest.mark.parametrize("masked", [False, True])
def test_a_rank_that_joins_later_had_no_share_of_the_steps_before_and_knows_its_length(masked: bool) -> None:
    dataset = StreamDataset(numbers(22), name="a", seed=1)
    options: dict[str, Any] = {"batch_size": 4, "epochs": 2, "last_batch": "short", "partition_strategy": Contiguous()}
    alone = loader_of(dataset, **options)
    if masked:
        alone.mask(samples={"a": [4]})
    for _ in take(alone, 7):  # past the first epoch's last batch, which is short
        pass
    joined = loader_of(dataset, world_size=2, rank=1, **options)
    joined.load_state_dict(alone.state_dict())
    assert joined.share == 0.0
    before = len(joined)
    assert before == 5 + 1 + len(list(joined))  # full steps of before count: ranks must agree on how many there are
    assert 0.0 < joined.share < 1.0


def test_the_length_counts_full_steps_after_a_resize_that_follows_steps_that_were_not() -> None:
    dataset = StreamDataset(numbers(10), name="a", seed=1)
    options: dict[str, Any] = {"epochs": 1, "last_batch": "short", "partition_strategy": RangeBased(((0, 2), (2, 10)))}
    uneven = loader_of(dataset, world_size=2, rank=1, batch_size=1, **options)
    take(uneven, 4)  # rank 0 had a batch at two of these steps
    alone = loader_of(dataset, batch_size=1, **options)
    alone.load_state_dict(uneven.state_dict())
    assert len(alone) == 2 + len(list(alone)) == 6


def test_batches_that_are_taken_back_come_as_they_were_and_a_mask_holds_from_its_own_step_on() -> None:
    loader = loader_of(StreamDataset(numbers(40), name="a", seed=1), batch_size=4)
    loader.require_acknowledgement()
    first = [batch["index"].tolist() for batch in take(loader, 3)]
    masked = [ref.index for step in (1, 4) for ref in loader.samples_in(step)]
    loader.mask(samples={"a": masked})
    loader.take_back()
    again = take(loader, 6)
    assert [batch["index"].tolist() for batch in again[:3]] == first
    assert [bool(batch["__valid__"].all()) if "__valid__" in batch else True for batch in again] == [True] * 4 + [
        False,
        True,
    ]


def test_a_batch_that_was_filled_for_several_ranks_is_so_again_for_one() -> None:
    options: dict[str, Any] = {
        "batch_size": 2,
        "epochs": 2,
        "partition_strategy": Contiguous(),
    }  # last_batch is left open
    two = loader_of(StreamDataset(numbers(5), name="a", seed=1), world_size=2, rank=0, **options)
    last = take(two, 2)[1]
    one = loader_of(StreamDataset(numbers(5), name="a", seed=1), **options)
    one.load_state_dict(two.state_dict())
    again = one.batch_at(1, 0)
    assert again["index"].tolist() == last["index"].tolist()
    assert again["__valid__"].tolist() == last["__valid__"].tolist() == [False, False]


# --- transforms and errors -------------------------------------------------------------------------------------------


def draw(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "drawn": int(rng.integers(1 << 40))}


def test_a_samples_own_generator_depends_on_its_epoch() -> None:
    loader = loader_of(StreamDataset(numbers(6), name="a", seed=1, transform=draw), batch_size=6)
    first, second, again = (
        dict(zip(b["index"].tolist(), b["drawn"].tolist(), strict=True)) for b in (*take(loader, 2), loader.batch_at(0))
    )
    assert first == again
    assert all(first[index] != second[index] for index in range(6))


def test_a_failing_sample_of_a_padded_batch_leaves_the_marks_with_their_samples() -> None:
    def fails(sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["index"]) == bad:
            raise ValueError
        return sample

    dataset = StreamDataset(numbers(11), name="a", seed=1, transform=fails)
    options: dict[str, Any] = {"batch_size": 3, "world_size": 2, "rank": 1, "epochs": 1, "on_error": "skip"}
    loader = loader_of(dataset, **options)
    first, bad = (ref.index for ref in loader.samples_in(1, 1))  # two samples, and the first again
    batch = take(loader, 2)[1]
    assert (batch["index"].tolist(), batch["__valid__"].tolist()) == ([first, first], [True, False])
    assert loader.samples_failed == [("a", bad)]


class FailsTogether(VirtualSource):
    """Reads up to four samples at a time."""

    def read(self, indices: Any) -> Any:
        if len(indices) > 4:
            raise OSError("too many at once")
        return super().read(indices)


def test_steps_that_can_only_be_read_one_by_one_raise_a_typed_error_at_the_first_of_them() -> None:
    loader = loader_of(StreamDataset(FailsTogether(64), name="a"), batch_size=4)
    iterator = iter(loader)
    next(iterator)  # the first range is a single step
    with pytest.raises(SourceError, match="though each can be read alone"):
        next(iterator)
    assert loader.step == 1


# --- epochs ----------------------------------------------------------------------------------------------------------


def test_aligned_epochs_have_as_many_batches_each_and_no_batch_of_two_epochs() -> None:
    options: dict[str, Any] = {"per_epoch": True, "batch_size": 4, "world_size": 2, "last_batch": "short"}
    running = loader_of(dataset_of({"a": 50}), **options)
    assert [len(list(running)) for _ in range(3)] == [7, 6, 6]
    aligned = loader_of(dataset_of({"a": 50}), partition_strategy=RoundRobin(align_epochs=True), **options)
    for epoch in range(3):
        first = aligned.step
        assert len(aligned) == len(list(aligned)) == 7
        assert {ref.epoch for step in range(first, aligned.step) for ref in aligned.samples_in(step)} == {epoch}


def test_after_an_epochs_last_batch_the_state_is_that_of_the_next_epochs_start() -> None:
    def fresh() -> StreamingShardLoader:
        options: dict[str, Any] = {"per_epoch": True, "partition_strategy": RoundRobin(align_epochs=True)}
        return loader_of(dataset_of({"a": 30}), **options)

    loader = fresh()
    first = [batch["index"].tolist() for batch in loader]
    state = loader.state_dict()
    assert (state["epoch"], state["step"], state["position"]) == (1, 8, 30)
    resumed = fresh()
    resumed.load_state_dict(state)
    second = [batch["index"].tolist() for batch in resumed]
    assert len(first) == len(second) == 8
    assert second == [batch["index"].tolist() for batch in loader]


def test_an_aligned_partition_is_part_of_the_state() -> None:
    state = loader_of(dataset_of({"a": 30}), partition_strategy=RoundRobin(align_epochs=True)).state_dict()
    with pytest.raises(StateError, match="partition"):
        loader_of(dataset_of({"a": 30})).load_state_dict(state)
    loader_of(dataset_of({"a": 30}), partition_strategy=RoundRobin(align_epochs=True)).load_state_dict(state)


# --- weights changed while a run goes on -----------------------------------------------------------------------------


def test_weights_changed_in_mid_run_hold_from_then_on_and_past_steps_stay() -> None:
    loader = loader_of(pair())
    take(loader, 10)
    before = [loader.samples_in(step) for step in range(10)]
    assert loader.reweight({"a": 1, "b": 3}) == 40
    assert [loader.samples_in(step) for step in range(10)] == before
    sources = [ref.source for step in range(10, 110) for ref in loader.samples_in(step)]
    assert abs(sources.count("b") - 300) <= 1
    again = loader_of(pair())  # the dataset as it was made; the change is in the state
    again.load_state_dict(loader.state_dict())
    assert [again.samples_in(step) for step in range(40)] == [loader.samples_in(step) for step in range(40)]
    with pytest.raises(ConfigError, match="only a mixture"):
        loader_of(dataset_of({"a": 9})).reweight({"a": 1})


# --- masks -----------------------------------------------------------------------------------------------------------


def labelled(**options: Any) -> StreamDataset:
    labels = np.arange(40, dtype=np.uint16)
    ragged = Ragged.from_rows([np.arange(i % 3 + 1) for i in range(40)])
    columns = {"index": np.arange(40), "label": labels, "labels": ragged, "text": np.array(["x"] * 40, dtype=object)}
    return StreamDataset(ArraySource(columns), name="a", seed=2, **options)


def transformed(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "label": int(sample["label"])}


@pytest.mark.parametrize("options", [{}, {"transform": transformed}], ids=["columns", "samples"])
def test_a_mask_leaves_every_batch_in_its_place_and_marks_the_samples(options: dict[str, Any]) -> None:
    plain, masked = loader_of(labelled(**options)), loader_of(labelled(**options))
    masked.mask(samples={"a": [3, 30]})
    for before, after in zip(take(plain, 20), take(masked, 20), strict=True):
        assert after["index"].tolist() == before["index"].tolist()
        hit = [index in (3, 30) for index in before["index"].tolist()]
        assert after["__valid__"].tolist() == [not each for each in hit]
        assert after["label"].tolist() == [
            -100 if each else int(label) for each, label in zip(hit, before["label"].tolist(), strict=True)
        ]
        for each, old, new in zip(hit, before["labels"], after["labels"], strict=True):
            assert new.tolist() == ([-100] * len(old) if each else old.tolist())


def test_masked_steps_are_masked_where_they_are_and_resumed_so() -> None:
    loader = loader_of(labelled())
    take(loader, 2)
    loader.mask(steps=range(4, 6))
    again = loader_of(labelled())
    again.load_state_dict(loader.state_dict())
    valid = [batch["__valid__"].tolist() for batch in take(again, 6)]
    assert valid == [[True] * 4, [True] * 4, [False] * 4, [False] * 4, [True] * 4, [True] * 4]
    assert "__valid__" not in again.batch_at(1)  # a past step stays what it was
    with pytest.raises(StreamError, match="already delivered"):
        again.mask(steps=[0])


# --- worker processes ------------------------------------------------------------------------------------------------


def test_a_lambda_cannot_be_sent_to_a_spawned_worker_and_the_error_says_what_can() -> None:
    dataset = StreamDataset(numbers(20), name="a", transform=lambda sample: sample)
    loader = loader_of(dataset, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(ConfigError, match="top of a module") as caught:
        next(iter(loader))
    assert caught.value.where["multiprocessing_context"] == "spawn"


def test_any_range_of_steps_reads_as_its_steps_one_by_one_across_every_change() -> None:
    loader = loader_of(StreamDataset(numbers(60), name="a", seed=2))
    take(loader, 2)
    loader.mask(samples={"a": list(range(0, 60, 3))})
    take(loader, 2)
    loader.skip(samples={"a": [1, 4, 7]})
    take(loader, 3)

    def told(batch: dict[str, Any]) -> tuple[list[int], list[bool] | None]:
        return batch["index"].tolist(), batch["__valid__"].tolist() if "__valid__" in batch else None

    single = [told(loader.batch_at(step)) for step in range(7)]
    assert [valid is None for _, valid in single] == [True] * 2 + [False] * 5
    for first in range(7):
        for stop in range(first + 1, 8):
            batches = read_batches(loader.dataset, loader.schedule, range(first, stop), 0)
            assert [told(batch.make()) for batch in batches] == single[first:stop]


def test_the_one_sample_that_a_column_transform_fails_on_is_named() -> None:
    def fails(columns: dict[str, Any]) -> dict[str, Any]:
        if 7 in columns["index"]:
            raise ValueError("no sevens")
        return columns

    loader = loader_of(StreamDataset(numbers(8), name="a", column_transform=fails), batch_size=8)
    with pytest.raises(TransformError, match="no sevens") as caught:
        loader.batch_at(0)
    assert (caught.value.source, caught.value.index) == ("a", 7)


# Found from outside: what was accepted, cut or counted without a word.


@pytest.mark.parametrize("partition", [HashBased(16), Stratified(np.arange(50) % 3, 3), RoundRobin(), Contiguous()])
@pytest.mark.parametrize("last", ["short", "pad", "drop"])
@pytest.mark.parametrize("per_epoch", [False, True])
def test_the_length_of_a_loader_is_the_number_of_batches_that_come(partition: Any, last: Any, per_epoch: bool) -> None:
    dataset = StreamDataset(ArraySource({"v": np.arange(50)}), name="a", seed=1)
    for world in (1, 3, 7):
        for rank in (0, world - 1):
            config = StreamingConfig(
                batch_size=6,
                epochs=2,
                world_size=world,
                rank=rank,
                last_batch=last,
                per_epoch=per_epoch,
                partition_strategy=partition,
            )
            loader = StreamingShardLoader(dataset, config)
            expected = len(loader)
            assert len(list(loader)) == expected


@pytest.mark.parametrize(
    "weights", [{"x": 1}, [(0, {"x": 1}), (9, {"x": 2})]], ids=["a table", "a schedule that never names it"]
)
def test_a_child_that_no_weight_names_is_refused(weights: Any) -> None:
    children = [StreamDataset(ArraySource({"v": np.arange(9)}), name=name) for name in ("x", "y")]
    with pytest.raises(MixtureError, match="has no weight") as caught:
        InterleavedDataset(children, weights)
    assert caught.value.source == "y"
    mixture = InterleavedDataset(children, {"x": 1, "y": 0})
    with pytest.raises(MixtureError, match="has no weight"):
        StreamingShardLoader(mixture).reweight({"x": 1})


@pytest.mark.parametrize("wrong", [1.5, float("nan"), "4", True, None])
def test_a_number_that_is_not_whole_is_refused_and_never_cut(wrong: Any) -> None:
    dataset = StreamDataset(ArraySource({"v": np.arange(9)}), name="a")
    loader = StreamingShardLoader(dataset)
    for use in (
        lambda: loader.skip(samples={"a": [wrong]}),
        lambda: loader.skip(steps=[wrong]),
        lambda: loader.mask(samples={"a": [wrong]}),
        lambda: loader.samples_in(wrong),
        lambda: loader.batch_at(wrong),
        lambda: StreamDataset(ArraySource({"v": np.arange(9)}), name="a", seed=wrong),
        lambda: StreamingConfig(num_workers=wrong),
        lambda: StreamingConfig(prefetch_threads=wrong),
    ):
        with pytest.raises(ConfigError, match="whole number"):
            use()
    for name in ("batch_size", "epochs"):
        if wrong is not None:
            with pytest.raises(ConfigError, match="whole number"):
                StreamingConfig(**{name: wrong})


def test_a_partition_is_an_object_and_a_step_within_reach() -> None:
    for wrong in ("rr", RoundRobin):
        with pytest.raises(ConfigError, match="must be a Partition"):
            StreamingConfig(partition_strategy=wrong)  # type: ignore[arg-type]
    loader = StreamingShardLoader(StreamDataset(ArraySource({"v": np.arange(9)}), name="a"))
    with pytest.raises(OrderError, match="too large"):
        loader.samples_in(10**20)


@pytest.mark.parametrize("world", [1, 2])
def test_a_column_called_valid_is_refused(world: int) -> None:
    data = ArraySource({"v": np.arange(4), "__valid__": np.arange(4)})
    config = StreamingConfig(world_size=world, rank=0, epochs=1, batch_size=2)
    with pytest.raises(SourceError, match="__valid__"):
        next(iter(StreamingShardLoader(StreamDataset(data, name="a"), config)))


def test_a_fingerprint_of_another_order_is_refused() -> None:
    loader = StreamingShardLoader(StreamDataset(ArraySource({"v": np.arange(9)}), name="a"))
    with pytest.raises(StateMismatchError, match="fingerprint"):
        loader.load_state_dict({**loader.state_dict(), "fingerprint": "x"})


def test_a_seed_of_numpy_is_a_whole_number() -> None:
    def state(seed: Any) -> dict[str, Any]:
        loader = StreamingShardLoader(StreamDataset(ArraySource({"v": np.arange(9)}), name="a", seed=seed))
        next(iter(loader))
        return dict(loader.state_dict(), timestamp=None)

    assert state(np.int64(3)) == state(3)
