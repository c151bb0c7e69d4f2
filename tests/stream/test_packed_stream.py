"""Packed documents in a stream: which documents a step read, when a document is read, and no token lost by a resize."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from holdfast import StreamDataset, StreamingConfig, StreamingShardLoader
from holdfast.errors import OrderError
from holdfast.sources import ArraySource, ConcatSource, PackedSource, Ragged, Source

LENGTHS = np.random.default_rng(4).integers(1, 90, 200).tolist()


def documents() -> ArraySource:
    rows = [np.arange(1, length + 1) + 1_000 * number for number, length in enumerate(LENGTHS)]
    return ArraySource({"tokens": Ragged.from_rows(rows, dtype=np.int64)})


def packed() -> PackedSource:
    return PackedSource(documents(), length=64, window=50)


def loader(
    source: Source, *, world_size: int = 1, rank: int = 0, batch_size: int = 4, **more: Any
) -> StreamingShardLoader:
    dataset = StreamDataset(source, name="docs", shuffle="window", seed=3)
    return StreamingShardLoader(
        dataset, StreamingConfig(world_size=world_size, rank=rank, batch_size=batch_size, epochs=3, **more)
    )


@pytest.mark.parametrize("source", [packed(), ConcatSource(documents(), length=64)], ids=["packed", "cut"])
def test_a_step_says_which_stretches_of_which_documents_it_read(source: Source) -> None:
    stream = loader(source)
    for step, batch in enumerate(stream):
        refs = sorted(stream.samples_in(step), key=lambda ref: ref.slot)
        assert len(refs) == len(batch["tokens"])
        for ref, row in zip(refs, batch["tokens"].tolist(), strict=True):
            expected = [1_000 * p.document + t + 1 for p in ref.pieces for t in range(p.start, p.stop)]
            assert [token for token in row if token] == expected


@pytest.mark.parametrize("source", [packed(), ConcatSource(documents(), length=64)], ids=["packed", "cut"])
def test_a_document_says_when_it_was_and_will_be_read(source: Source) -> None:
    stream = loader(source)
    seen: dict[int, set[tuple[int, int | None]]] = {number: set() for number in range(len(LENGTHS))}
    for step in range(len(stream)):
        for ref in stream.samples_in(step):
            for piece in ref.pieces:
                seen[piece.document].add((ref.epoch, step))
    for document in range(0, len(LENGTHS), 7):
        found = stream.when("docs", document=document, epochs=3)
        assert {(one.epoch, one.step) for one in found} == seen[document]
    with pytest.raises(OrderError, match="either a sample or a document"):
        stream.when("docs")


def test_a_source_that_is_not_made_of_documents_has_none() -> None:
    dataset = StreamDataset(ArraySource({"x": np.arange(50)}), name="docs")
    stream = StreamingShardLoader(dataset, StreamingConfig(batch_size=4))
    assert stream.samples_in(0)[0].pieces == ()
    with pytest.raises(OrderError, match="not made of documents"):
        stream.when("docs", document=3)


def tokens_of(batch: Any) -> list[int]:
    rows = batch["tokens"][batch["__valid__"]] if "__valid__" in batch else batch["tokens"]
    return [token for token in rows.ravel().tolist() if token]


def resized_run(generator: np.random.Generator) -> Counter[int]:
    """Stop and resume at other world sizes until the end, and count every token that was received."""
    counted: Counter[int] = Counter()
    state: dict[str, Any] | None = None
    while True:
        world_size, batch_size = int(generator.integers(1, 5)), int(generator.integers(1, 6))
        steps = int(generator.integers(1, 12))
        streams = [
            loader(packed(), world_size=world_size, rank=rank, batch_size=batch_size) for rank in range(world_size)
        ]
        states, ended = [], False
        for stream in streams:
            if state is not None:
                stream.load_state_dict(state)
            batches = iter(stream)
            taken = 0
            for batch in batches:
                counted.update(tokens_of(batch))
                taken += 1
                if taken == steps:
                    break
            ended = taken < steps
            states.append(stream.state_dict())
            stream.close()
        if ended:
            return counted
        state = states[0]


EXPECTED = Counter({1_000 * n + t + 1: 3 for n, length in enumerate(LENGTHS) for t in range(length)})


def check_resizes(times: int) -> None:
    generator = np.random.default_rng(11)
    for number in range(times):
        assert resized_run(generator) == EXPECTED, f"run {number} lost or repeated tokens"


def test_no_token_is_lost_or_repeated_by_resizes() -> None:
    check_resizes(2)


@pytest.mark.soak
def test_no_token_is_lost_or_repeated_by_a_thousand_resizes() -> None:
    check_resizes(60)  # about seventeen stops and resizes each
