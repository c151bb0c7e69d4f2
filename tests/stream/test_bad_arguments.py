"""Arguments that make no sense are refused by an error that says so; whole numbers of any library are taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.errors import ConfigError, HoldfastError, StateError, StateMismatchError, StreamError
from holdfast.order import HashBased, WindowShuffle
from holdfast.sources import ArraySource, TokenFileSource
from holdfast.stream import InterleavedDataset, StreamDataset, StreamingConfig, StreamingShardLoader


def dataset(name: str = "a", **options: Any) -> StreamDataset:
    return StreamDataset(ArraySource({"v": np.arange(28)}), name=name, **options)


def loader(**options: Any) -> StreamingShardLoader:
    return StreamingShardLoader(dataset(), StreamingConfig(batch_size=4, **options))


def acknowledging() -> StreamingShardLoader:
    made = loader()
    made.require_acknowledgement()
    next(iter(made))
    return made


REFUSED: dict[str, Callable[[], Any]] = {
    "steps that are one number": lambda: loader().skip(steps=5),  # type: ignore[arg-type]
    "masked steps that are one number": lambda: loader().mask(steps=5),  # type: ignore[arg-type]
    "steps that are text": lambda: loader().skip(steps="12"),  # type: ignore[arg-type]
    "samples without a source": lambda: loader().skip(samples=[1]),  # type: ignore[arg-type]
    "masked samples without a source": lambda: loader().mask(samples=[1]),  # type: ignore[arg-type]
    "samples that are one number": lambda: loader().skip(samples={"a": 5}),  # type: ignore[dict-item]
    "samples that are no numbers": lambda: loader().mask(samples={"a": ["x"]}),  # type: ignore[list-item]
    "samples of a source that is not there": lambda: loader().skip(samples={"b": [1]}),
    "a sample behind the last": lambda: loader().skip(samples={"a": [28]}),
    "a masked sample behind the last": lambda: loader().mask(samples={"a": [28]}),
    "a step that is text": lambda: loader().batch_at("3"),  # type: ignore[arg-type]
    "half a step": lambda: loader().batch_at(1.5),  # type: ignore[arg-type]
    "no step": lambda: loader().batch_at(None),  # type: ignore[arg-type]
    "a step before the first": lambda: loader().batch_at(-1),
    "a rank that is text": lambda: loader().batch_at(0, "0"),  # type: ignore[arg-type]
    "a rank that is not there": lambda: loader().samples_in(0, 7),
    "half a rank": lambda: loader().samples_in(0, 0.5),  # type: ignore[arg-type]
    "an index that is text": lambda: loader().when("a", "3"),  # type: ignore[arg-type]
    "an index that is not there": lambda: loader().when("a", 28),
    "a source that is not there": lambda: loader().when("b", 3),
    "a document of a source that is not there": lambda: loader().when("b", document=3, epochs=1),
    "a start method that is not there": lambda: loader(multiprocessing_context="x"),
    "a device that is not there": lambda: loader(device="zzz"),
    "a device that is a list": lambda: loader(device=[1]),
    "options as a dictionary": lambda: StreamingShardLoader(dataset(), {"batch_size": 4}),  # type: ignore[arg-type]
    "no shards": lambda: WindowShuffle((), 1),
    "shards that are text": lambda: WindowShuffle("abc"),  # type: ignore[arg-type]
    "half a shard": lambda: WindowShuffle(2.5),  # type: ignore[arg-type]
    "shards of half samples": lambda: WindowShuffle((1, 2.5)),  # type: ignore[arg-type]
    "half a group": lambda: WindowShuffle(4, 1.5),  # type: ignore[arg-type]
    "fewer samples than none ahead": lambda: loader().prefetch(-1),
    "samples ahead that are text": lambda: loader().prefetch("9"),  # type: ignore[arg-type]
    "half a batch acknowledged": lambda: acknowledging().acknowledge(0.5),  # type: ignore[arg-type]
    "a length that is text": lambda: TokenFileSource(__file__, "x"),  # type: ignore[arg-type]
    "half a token": lambda: TokenFileSource(__file__, 1.5),  # type: ignore[arg-type]
    "a dtype that is not there": lambda: TokenFileSource(__file__, 4, dtype="zzz"),
    "an out_dtype that is not there": lambda: TokenFileSource(__file__, 4, out_dtype="zzz"),
}


@pytest.mark.parametrize("wrong", REFUSED.values(), ids=REFUSED)
def test_an_argument_that_makes_no_sense_is_refused_by_an_error_of_this_package(wrong: Callable[[], Any]) -> None:
    with pytest.raises(HoldfastError):
        wrong()


def test_the_error_names_what_was_found_and_what_to_pass() -> None:
    with pytest.raises(ConfigError, match=r"mapping from source to indices.*samples=\{'wiki': \[5, 9\]\}"):
        loader().skip(samples=[1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"the steps must be a list.*5"):
        loader().skip(steps=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="zzz"):
        loader(device="zzz")


@pytest.mark.parametrize("number", [np.int64, np.uint8, torch.tensor], ids=["int64", "uint8", "torch"])
def test_whole_numbers_of_numpy_and_torch_are_whole_numbers(number: Any) -> None:
    def told(made: StreamingShardLoader) -> dict[str, Any]:
        next(iter(made))
        state = dict(made.state_dict(), timestamp=None)
        return json.loads(json.dumps(state))  # type: ignore[no-any-return]

    def mixture(seed: Any) -> InterleavedDataset:
        children = [dataset(name, seed=seed, shuffle=WindowShuffle(seed, seed)) for name in ("a", "b")]
        return InterleavedDataset(children, {"a": 1, "b": 2}, seed=seed)

    assert told(StreamingShardLoader(mixture(number(3)))) == told(StreamingShardLoader(mixture(3)))
    one, same = loader(epochs=2), loader(epochs=2)
    assert one.samples_in(number(1)) == same.samples_in(1)
    assert one.samples_in(number(1), number(0)) == same.samples_in(1, 0)
    assert one.batch_at(number(1), number(0))["v"].tolist() == same.batch_at(1, 0)["v"].tolist()
    assert one.when("a", number(3)) == same.when("a", 3)
    one.skip(steps=[number(1)], samples={"a": [number(3)]})
    same.skip(steps=[1], samples={"a": [3]})
    assert told(one) == told(same)


def test_the_next_step_can_be_skipped_and_masked_and_the_one_before_cannot() -> None:
    for change in (StreamingShardLoader.skip, StreamingShardLoader.mask):
        made = loader()
        next(iter(made))
        change(made, steps=[1])
        with pytest.raises(StreamError, match="delivered"):
            change(made, steps=[0])


def test_when_lists_no_epoch_that_there_is_not() -> None:
    for epochs in (1, 3):
        found = loader(epochs=epochs).when("a", 3, epochs=9)
        assert [seen.epoch for seen in found] == list(range(epochs))
        assert all(seen.step is not None for seen in found)
    assert [seen.epoch for seen in loader(epochs=1).when("a", 3)] == [0]
    made = loader(epochs=1)
    list(made)
    assert [seen.epoch for seen in made.when("a", 3)] == [0]


def test_when_of_a_mixture_ends_where_the_stream_does() -> None:
    children = [dataset("a"), dataset("b")]
    mixture = InterleavedDataset(children, {"a": 6, "b": 1})
    made = StreamingShardLoader(mixture, StreamingConfig(batch_size=4, epochs=1))
    read: list[tuple[str, int]] = [
        (ref.source, ref.index) for step in range(len(made)) for ref in made.samples_in(step)
    ]
    for source in ("a", "b"):
        for index in range(28):
            assert len(made.when(source, index, epochs=9)) == read.count((source, index))


@pytest.mark.parametrize(("field", "value"), [("shuffle_seed", -1), ("sources", "{}"), ("sources", '{"b": "x"}')])
def test_a_state_whose_parts_disagree_is_refused(field: str, value: Any) -> None:
    made = loader()
    with pytest.raises(StateError, match="seed or sources of the stream state"):
        made.load_state_dict({**made.state_dict(), field: value})


def test_a_state_without_fingerprints_of_its_data_is_refused() -> None:
    state = loader().state_dict()
    del state["sources"]
    with pytest.raises(StateError, match="sources"):
        loader().load_state_dict(state)


def test_a_source_that_grew_under_a_partition_by_length_is_refused_with_that_reason() -> None:
    def grown(length: int) -> StreamingShardLoader:
        data = StreamDataset(ArraySource({"v": np.arange(length)}), name="a")
        return StreamingShardLoader(data, StreamingConfig(partition_strategy=HashBased(8)))

    with pytest.raises(StateMismatchError, match="HashBased divides it by its length"):
        grown(40).load_state_dict(grown(33).state_dict(), strict=False)
