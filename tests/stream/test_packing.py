"""What a worker sends comes out of the other process as it went in, in few tensors however many there are."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.stream.jobs import numbers

from holdfast.errors import StreamError
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader
from holdfast.stream.batch import Batch, Made
from holdfast.stream.packing import SMALL_BYTES, pack, unpack
from holdfast.stream.reading import Reading

DTYPES = [torch.int64, torch.int32, torch.float32, torch.bfloat16, torch.bool, torch.complex64]

tensors = st.builds(
    lambda shape, dtype, seed: torch.from_numpy(np.random.default_rng(seed).integers(0, 2, shape)).to(dtype),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 9),
)
values = st.one_of(tensors, st.lists(tensors, max_size=5), st.text(max_size=3), st.tuples(tensors, st.integers()))


def reading_of(batches: list[dict[str, Any]]) -> Reading:
    return Reading([Batch(number, number, number + 1, Made(batch)) for number, batch in enumerate(batches)])


def sent(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Go the way from worker to parent, pickled in between."""
    packed = pickle.loads(ForkingPickler.dumps(pack(reading_of(batches))))  # noqa: S301
    return [batch.make() for batch in unpack(packed).batches]


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, (list, tuple)):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        assert_same(list(found.values()), list(expected.values()))
    else:
        assert found == expected


@given(st.lists(st.dictionaries(st.sampled_from("abc"), values), max_size=4))
def test_any_batches_arrive_as_they_were_sent(batches: list[dict[str, Any]]) -> None:
    assert_same(sent(batches), batches)


def test_samples_of_one_dtype_travel_in_one_tensor() -> None:
    batches = [{"ids": [torch.arange(n) for n in range(64)], "label": torch.zeros(64)} for _ in range(8)]
    assert [len(tensor) for tensor in pack(reading_of(batches)).tensors] == [8 * 64, 8 * 63 * 64 // 2]


def test_large_tensors_and_those_with_a_history_travel_as_they_are() -> None:
    large, learned = torch.zeros(SMALL_BYTES + 1, dtype=torch.uint8), torch.ones(2, requires_grad=True)
    packed = pack(reading_of([{"a": large, "b": learned, "c": torch.ones(2).to_sparse()}]))
    assert packed.tensors[0] is large
    assert packed.tensors[1] is learned
    assert packed.tensors[2].is_sparse


def test_one_tensor_in_two_places_arrives_as_one() -> None:
    shared = torch.arange(3)
    (found,) = sent([{"a": shared, "b": [shared]}])
    assert found["a"] is found["b"][0]


def test_what_arrives_can_be_written_to_without_touching_its_neighbours() -> None:
    (found,) = sent([{"rows": [torch.zeros(3), torch.zeros(3)]}])
    found["rows"][0].add_(1)
    assert found["rows"][1].tolist() == [0, 0, 0]


def test_what_cannot_be_sent_is_refused_with_a_hint_instead_of_hanging() -> None:
    dataset = StreamDataset(numbers(8), name="a", transform=lambda sample: {"made": lambda: sample})
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=4, epochs=1, num_workers=1))
    with pytest.raises(StreamError, match="num_workers=0"):
        list(loader)
