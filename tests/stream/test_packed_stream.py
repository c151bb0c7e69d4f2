"""Packed documents in a stream: what a step read, when a document is read, no token lost by resizes and kills."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from multiprocessing.connection import Connection
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
    with pytest.raises(OrderError, match="either an index or a document"):
        stream.when("docs")


def test_a_source_that_is_not_made_of_documents_has_none() -> None:
    dataset = StreamDataset(ArraySource({"x": np.arange(50)}), name="docs")
    stream = StreamingShardLoader(dataset, StreamingConfig(batch_size=4))
    assert stream.samples_in(0)[0].pieces == ()
    with pytest.raises(OrderError, match="do not consist of documents"):
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


def train(state: dict[str, Any] | None, world_size: int, rank: int, batch_size: int, out: Connection) -> None:
    """Tell what each step received, and the state after it, until killed."""
    stream = loader(packed(), world_size=world_size, rank=rank, batch_size=batch_size)
    if state is not None:
        stream.load_state_dict(state)
    for batch in stream:
        out.send_bytes(json.dumps([tokens_of(batch), stream.state_dict()]).encode())
    out.send_bytes(b"")


def told(pipe: Connection) -> list[tuple[list[int], dict[str, Any]]]:
    """Return the steps that a rank has told of as a whole; the last message of a killed process may be torn."""
    steps = []
    try:
        while message := pipe.recv_bytes():
            steps.append(json.loads(message))
    except (EOFError, OSError):
        pass
    return steps


def killed_run(generator: np.random.Generator) -> tuple[Counter[int], int]:
    """Kill all ranks of a job again and again, each time resuming after the last step that all of them had told of.

    Returns:
        How often each token was received by steps that counted, and how often the job was killed.
    """
    context = multiprocessing.get_context("fork")
    counted: Counter[int] = Counter()
    state: dict[str, Any] | None = None
    kills = 0
    while True:
        world_size, batch_size = int(generator.integers(1, 4)), int(generator.integers(1, 6))
        pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
        ranks = []
        for rank, (_, out) in enumerate(pipes):
            ranks.append(context.Process(target=train, args=(state, world_size, rank, batch_size, out)))
            ranks[-1].start()
        for _, out in pipes:
            out.close()
        first, ended, seen = pipes[0][0], False, []
        for _ in range(int(generator.integers(1, 12))):
            if not (message := first.recv_bytes()):
                ended = True
                break
            seen.append(json.loads(message))
        if not ended:
            for process in ranks:
                process.kill()  # one may have ended since
            kills += 1
        steps = [told(pipe) for pipe, _ in pipes[1:]]
        steps.insert(0, seen if ended else seen + told(first))
        for process in ranks:
            process.join()
        common = min(map(len, steps))
        for one in steps:
            for tokens, _ in one[:common]:
                counted.update(tokens)
        if ended:
            assert all(len(one) == common for one in steps)
            return counted, kills
        state = steps[0][common - 1][1] if common else state


def check_kills(times: int) -> None:
    generator, kills = np.random.default_rng(12), 0
    while kills < times:
        counted, more = killed_run(generator)
        assert counted == EXPECTED, f"lost or repeated tokens after {kills} to {kills + more} kills"
        kills += more


def test_no_token_is_lost_or_repeated_by_kills() -> None:
    check_kills(4)


@pytest.mark.soak
def test_no_token_is_lost_or_repeated_by_a_thousand_kills() -> None:
    check_kills(1_000)
