"""How fast batches come: holdfast beside its peers and beside the bare NumPy gather.

Three workloads: tokens in memory (100,000 × 512 int32, shuffled, batches of 64), JSON lines tokenised in two worker
processes, and rows of different lengths from Parquet. Sides take turns; each turn reads for a fixed time, and the rate
published is the median turn's. The table says of every peer whether it resumes in mid-epoch with exactly the batches
that were left, and what memory each side of the Parquet workload holds for its data.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from common import arguments, publish
from holdfast.sources import ArraySource, JsonlSource, ParquetSource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader
from stream_peers import BATCH, Peer, parquet_peers, repeated, samples_of, text_peers, token_peers

Begin = Callable[[], Iterable[Any]]
ROW_GROUPS = 50


def rates(sides: dict[str, Begin], *, rounds: int, seconds: float, settle: int = 0) -> dict[str, float]:
    """The median samples per second of each side. Each keeps its place from turn to turn, so start-up is not measured.

    With worker processes, ``settle`` batches are taken before the clock starts: those read ahead during the others'
    turns, while the others' workers fill up what they read ahead.
    """
    streams: dict[str, Iterator[Any]] = {name: repeated(begin) for name, begin in sides.items()}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for stream in streams.values():
        next(stream)
    for _ in range(rounds):
        for name, stream in streams.items():
            for _ in range(settle):
                next(stream)
            count, start = 0, time.perf_counter()
            while (taken := time.perf_counter() - start) < seconds:
                for _ in range(16):
                    count += samples_of(next(stream))
            found[name].append(count / taken)
    for stream in streams.values():
        stream.close()  # type: ignore[attr-defined]
    return {name: statistics.median(values) for name, values in found.items()}


def build(peers: list[Peer], about: dict[str, Any], workload: str) -> dict[str, Begin]:
    """Begin every peer that can be begun; the others become a line that says why not."""
    begun: dict[str, Begin] = {}
    for peer in peers:
        try:
            begun[peer.name] = peer.build()
            samples_of(next(iter(begun[peer.name]())))
        except Exception as error:  # noqa: PERF203  # whatever keeps a peer from running is its row
            begun.pop(peer.name, None)
            about[f"{workload} {peer.name}"] = f"not measured: {type(error).__name__}: {str(error)[:90]}"
    return begun


def report(
    workload: str, found: dict[str, float], peers: list[Peer], figures: dict[str, float], about: dict[str, Any]
) -> None:
    """Put a workload's rates and its ratios to the fastest peers into the figures."""
    for name, rate in found.items():
        figures[f"{workload}: {name}, samples/s"] = rate
    ours = found["holdfast"]
    measured = [peer for peer in peers if peer.name in found]
    for peer in measured:
        figures[f"{workload}: holdfast / {peer.name}"] = ours / found[peer.name]
    for peer in peers:
        if f"{workload} {peer.name}" not in about:
            about[f"{workload} {peer.name}"] = "resumes exactly" if peer.resumes_exactly else "does not resume exactly"
    for kind, chosen in (("peer that resumes exactly", [p for p in measured if p.resumes_exactly]), ("peer", measured)):
        if chosen:
            fastest = max(chosen, key=lambda peer: found[peer.name])
            figures[f"{workload}: holdfast / fastest {kind}"] = ours / found[fastest.name]
            about[f"{workload} fastest {kind}"] = fastest.name


def tokens_workload(folder: Path, quick: bool, figures: dict[str, float], about: dict[str, Any]) -> None:
    """Tokens in memory: what the loader itself costs."""
    count = 20_000 if quick else 100_000
    tokens = np.random.default_rng(0).integers(0, 50_000, (count, 512), dtype=np.int32)
    peers = token_peers(tokens, folder)

    def gather() -> Iterator[Any]:
        order = np.random.default_rng(1).permutation(count)
        for start in range(0, count, BATCH):
            yield tokens[order[start : start + BATCH]]

    def holdfast(threads: int) -> Begin:
        config = StreamingConfig(batch_size=BATCH, prefetch_buffer_size=4096, prefetch_threads=threads)
        dataset = StreamDataset(ArraySource({"tokens": tokens}), name="tokens")
        return lambda: StreamingShardLoader(dataset, config)

    sides = {"raw NumPy gather": gather, "holdfast": holdfast(1), "holdfast, 2 threads": holdfast(2)}
    sides |= build(peers, about, "tokens")
    found = rates(sides, rounds=5, seconds=0.2 if quick else 0.6)
    report("tokens", found, peers, figures, about)
    for name in ("holdfast", "holdfast, 2 threads"):
        figures[f"tokens: {name} / raw gather"] = found[name] / found["raw NumPy gather"]


def train_tokenizer(folder: Path, lines: int) -> tuple[Path, Any]:
    """A byte-pair tokenizer trained on Python's own sources, and JSON lines of the same text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    texts: list[str] = []
    for source in sorted(Path(os.__file__).parent.glob("*.py")):
        text = source.read_text(errors="ignore")
        texts += [text[start : start + 800] for start in range(0, len(text), 800)]
    texts = (texts * (lines // len(texts) + 1))[:lines]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(texts[:2_000], trainers.BpeTrainer(vocab_size=4_000, show_progress=False))
    path = folder / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path, tokenizer


class Tokenize:
    """The transform: one sample's text to token ids."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Tokenise."""
        return {"ids": np.array(self.tokenizer.encode(sample["text"]).ids)}


def text_workload(folder: Path, quick: bool, figures: dict[str, float], about: dict[str, Any]) -> None:
    """A Python transform that costs more than the reading: what the worker processes cost."""
    path, tokenizer = train_tokenizer(folder, 4_000 if quick else 20_000)
    peers = text_peers(path, tokenizer, folder)
    source = JsonlSource(str(path))
    dataset = StreamDataset(source, name="text", transform=Tokenize(tokenizer))
    config = StreamingConfig(batch_size=BATCH, num_workers=2)
    sides: dict[str, Begin] = {"holdfast": lambda: StreamingShardLoader(dataset, config)}
    sides |= build(peers, about, "text")
    # More than either side reads ahead: five chunks of 512 samples.
    found = rates(sides, rounds=5, seconds=0.5 if quick else 1.5, settle=5 * 512 // BATCH)
    report("text", found, peers, figures, about)


def parquet_workload(folder: Path, quick: bool, figures: dict[str, float], about: dict[str, Any]) -> None:
    """Rows of different lengths, read row group by row group."""
    import pyarrow
    import pyarrow.parquet

    count = 20_000 if quick else 100_000
    random = np.random.default_rng(0)
    offsets = np.concatenate(([0], np.cumsum(random.integers(16, 512, count)))).astype(np.int32)
    values = random.integers(0, 50_000, int(offsets[-1]), dtype=np.int32)
    path = folder / "rows.parquet"
    table = pyarrow.table({"ids": pyarrow.ListArray.from_arrays(offsets, values)})
    pyarrow.parquet.write_table(table, path, row_group_size=count // ROW_GROUPS)
    peers = parquet_peers(path, folder)
    config = StreamingConfig(batch_size=BATCH, prefetch_buffer_size=4096)

    def holdfast(source: ParquetSource) -> Begin:
        dataset = StreamDataset(source, name="rows", shuffle="window")
        return lambda: StreamingShardLoader(dataset, config)

    # A window is eight row groups; room for two windows, so that no group is decoded twice where two of them meet.
    whole, little = ParquetSource(str(path)), ParquetSource(str(path), cache_bytes=17 * values.nbytes // ROW_GROUPS)
    sides = {"holdfast": holdfast(whole), "holdfast, 16 row groups in memory": holdfast(little)}
    sides |= build(peers, about, "parquet")
    report("parquet", rates(sides, rounds=5, seconds=0.2 if quick else 0.6), peers, figures, about)
    for name, source in (("holdfast", whole), ("holdfast, 16 row groups in memory", little)):
        figures[f"parquet: {name}, MB of decoded rows held"] = source.decoded_bytes / 1e6
    figures["parquet: torchdata, all rows in memory, MB of decoded rows held"] = values.nbytes / 1e6


def main() -> None:
    options = arguments(__doc__ or "")
    warnings.simplefilter("ignore")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    figures: dict[str, float] = {}
    about: dict[str, Any] = {"batch": BATCH}
    with tempfile.TemporaryDirectory() as name:
        for workload in (tokens_workload, text_workload, parquet_workload):
            workload(Path(name), options.quick, figures, about)
    publish(figures, about, as_json=options.json)


if __name__ == "__main__":
    main()
