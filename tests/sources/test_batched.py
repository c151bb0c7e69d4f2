"""BatchSource: batches of like length within a budget, each a pure function of the source."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.support import plain, ragged
from tests.sources.test_packed import documents, drawn_lengths

from holdfast import StreamDataset, StreamingConfig, StreamingShardLoader
from holdfast.errors import ConfigError
from holdfast.sources import ArraySource, BatchSource, Ragged, padded_batch
from holdfast.testing import check_source


@given(drawn_lengths, st.integers(1, 120), st.integers(1, 20), st.integers(0, 3))
def test_every_sample_is_in_one_batch_of_each_epoch_and_batches_keep_to_the_budget(
    lengths: list[int], budget: int, window: int, epoch: int
) -> None:
    source = BatchSource(documents(lengths), batch_tokens=budget, window=window, max_samples=7)
    found = source.read_at(np.arange(len(source)), np.full(len(source), epoch))
    assert sorted(ragged(found, "__index__").values.tolist()) == list(range(len(lengths)))
    room = 0
    for row, (count, width) in enumerate(plain(found, "__shape__").tolist()):
        samples = ragged(found, "__index__")[row].tolist()
        sizes = ragged(found, "tokens.lengths")[row].tolist()
        assert sizes == [lengths[sample] for sample in samples]
        assert (count, width) == (len(samples), max(sizes))
        assert count * width <= budget or count == 1
        assert count <= 7
        assert [piece.document for piece in source.pieces(row, epoch)] == samples
        assert all(source.samples_of(sample, epoch) == [row] for sample in samples)
        room += count * width
    assert source.padding_share == pytest.approx(1 - sum(lengths) / max(room, 1)) or epoch


def test_it_keeps_the_contract_of_a_source() -> None:
    lengths = np.random.default_rng(1).integers(0, 90, 300).tolist()
    check_source(BatchSource(documents(lengths), batch_tokens=400, window=64))


def test_batches_never_mix_buckets() -> None:
    ratios = np.random.default_rng(2).choice([0.5, 1.0, 2.0], 90)
    rows = documents([4] * 90).read(np.arange(90))["tokens"]
    source = ArraySource({"tokens": rows, "ratio": ratios})
    batched = BatchSource(
        source, batch_tokens=40, window=30, bucket=lambda values: (values * 2).astype(int), bucket_column="ratio"
    )
    found = ragged(batched.read(np.arange(len(batched))), "ratio")
    assert all(len(set(row.tolist())) == 1 for row in found)
    with pytest.raises(ConfigError, match="bucket"):
        BatchSource(source, batch_tokens=40, bucket_column="ratio")


def test_every_rank_gets_the_same_number_of_steps_and_every_token_once() -> None:
    lengths = np.random.default_rng(3).integers(1, 90, 200).tolist()
    source = BatchSource(documents(lengths), batch_tokens=300, window=50)
    counted: Counter[int] = Counter()
    steps = []
    for rank in range(3):
        dataset = StreamDataset(source, name="docs", shuffle="window", seed=1, transform=padded_batch)
        loader = StreamingShardLoader(dataset, StreamingConfig(world_size=3, rank=rank, batch_size=None, epochs=1))
        batches = list(loader)
        steps.append(len(batches))
        for batch in batches:
            if bool(batch.get("__valid__", True)):
                assert batch["tokens"].ndim == 2
                counted.update(token for token in batch["tokens"].ravel().tolist() if token)
    assert len(set(steps)) == 1
    assert counted == Counter(1_000 * n + t + 1 for n, length in enumerate(lengths) for t in range(length))


def test_another_bucket_function_is_another_source(tmp_path: Path) -> None:
    def batches(divisor: int) -> BatchSource:
        rows = [list(range(length)) for length in (3, 2, 4, 1, 5, 2, 7, 3)]
        source = ArraySource({"tokens": Ragged.from_rows(rows)})
        return BatchSource(source, batch_tokens=14, bucket=lambda lengths: lengths // divisor, index_dir=tmp_path)

    assert batches(2).fingerprint() == batches(2).fingerprint() != batches(3).fingerprint()
    counted = [len(batches(2)), len(batches(7))]
    assert counted == [len(batches(2)), len(batches(7))]
    assert len(list(tmp_path.iterdir())) == 3  # one per function
