"""A training loop that reads ahead says what it was trained on, and only that counts."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StreamError
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader


def make_loader(**options: Any) -> StreamingShardLoader:
    dataset = StreamDataset(ArraySource({"index": np.arange(37)}), name="a", seed=5)
    return StreamingShardLoader(dataset, StreamingConfig(batch_size=4, **options))


def batches(loader: StreamingShardLoader, count: int) -> list[list[int]]:
    return [batch["index"].tolist() for batch in islice(iter(loader), count)]


@given(
    st.lists(st.sampled_from(["take", "acknowledge", "save and load", "take back"]), max_size=40),
    st.sampled_from([{}, {"epochs": 2, "last_batch": "drop", "world_size": 3, "rank": 2}, {"per_epoch": True}]),
)
def test_every_batch_is_trained_on_once_and_in_order_whatever_was_in_hand(
    actions: list[str], options: dict[str, Any]
) -> None:
    loader = make_loader(**options)
    loader.require_acknowledgement()
    in_hand: list[list[int]] = []
    trained: list[list[int]] = []
    iterator = iter(loader)
    for action in actions:
        if action == "take":
            found = next(iterator, None)
            if found is None and not loader.is_empty():
                iterator = iter(loader)  # the next epoch, with batches of the last one still in hand
                found = next(iterator)
            in_hand += [found["index"].tolist()] if found is not None else []
        elif action == "acknowledge" and in_hand:
            trained.append(in_hand.pop(0))
            loader.acknowledge()
        elif action == "save and load":
            state = loader.state_dict()
            loader = make_loader(**options)
            loader.require_acknowledgement()
            loader.load_state_dict(state)
            iterator, in_hand = iter(loader), []
        elif action == "take back":
            loader.take_back()
            iterator, in_hand = iter(loader), []
        assert loader.unacknowledged == len(in_hand)
    reference = make_loader(**options)
    expected: list[list[int]] = []
    while len(expected) < len(trained):
        expected += batches(reference, len(trained) - len(expected))
    assert trained == expected


def test_a_skip_keeps_what_is_in_hand() -> None:
    loader = make_loader()
    loader.require_acknowledgement()
    iterator = iter(loader)
    next(iterator)
    loader.skip(samples={"a": [3]})
    assert loader.unacknowledged == 1
    loader.acknowledge()
    assert loader.state_dict()["step"] == 1


def test_acknowledging_more_than_was_handed_over_is_refused() -> None:
    loader = make_loader()
    with pytest.raises(StreamError, match="there is nothing to acknowledge"):
        loader.acknowledge()
    loader.require_acknowledgement()
    with pytest.raises(StreamError, match="more batches were acknowledged than were handed over"):
        loader.acknowledge()


def test_without_it_a_batch_counts_when_it_is_handed_over() -> None:
    loader = make_loader()
    batches(loader, 3)
    assert (loader.state_dict()["step"], loader.unacknowledged) == (3, 0)
    loader.take_back()
    assert loader.step == 3
