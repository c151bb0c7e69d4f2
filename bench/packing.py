"""How much of a pack is padding, how fast documents are packed, and how soon a resumed run has its first batch.

Distributions of document lengths, log-normal, cut at 30,000 tokens, each drawn with a fixed seed: *web* (median 400,
sigma 1.1, mean about 700: pages of filtered web crawls), *conversations* (median 900, sigma 0.6, mean about 1,080:
multi-turn chats for fine-tuning), *code* (median 500, sigma 1.4, mean about 1,300: source files). Beside them *turns*
(median 120, sigma 0.9: single instructions), where a window of 4,096 documents makes few packs and the last of each is
on average half empty, so that no packer of windows can stay below 0.3% at 8,192 tokens. Each is packed into 2,048,
4,096 and 8,192 tokens; documents longer than a pack are cut the same way for all.

Peers, in the same run: next-fit (a bin at a time, as most streaming packers do), grain's ``FirstFitPackIterDataset``
with 64 bins, and TRL's ``pack_dataset(strategy="bfd")``. Rates are documents per second of CPU from arrays in memory to
packed tokens; holdfast's is of reading all packs: tokens, positions, documents and bounds.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import alternate, arguments, publish
from holdfast import StreamDataset, StreamingConfig, StreamingShardLoader
from holdfast.sources import ArraySource, Columns, PackedSource, Ragged, Source, check_indices
from holdfast.sources.window_packs import pack_window

WINDOW = 4_096
CAPACITIES = (2_048, 4_096, 8_192)
GRAIN_BINS = 64
BILLION = 10**9
MAX_LENGTH = 30_000
KINDS = {"web": (400, 1.1, 1), "conversations": (900, 0.6, 2), "code": (500, 1.4, 3), "turns": (120, 0.9, 4)}

Int64 = NDArray[np.int64]


def lengths_of(kind: str, count: int) -> Int64:
    median, sigma, seed = KINDS[kind]
    drawn = np.random.default_rng(seed).lognormal(np.log(median), sigma, count)
    return np.clip(drawn, 1, MAX_LENGTH).astype(np.int64)


def pieces_of(lengths: Int64, capacity: int) -> Int64:
    """The lengths of documents once those longer than a pack are cut."""
    whole = -(-lengths // capacity)
    number = np.arange(int(whole.sum())) - np.repeat(np.cumsum(whole) - whole, whole)
    pieces: Int64 = np.minimum(np.repeat(lengths, whole) - number * capacity, capacity)
    return pieces


def padding(lengths: Int64, packs: int, capacity: int) -> float:
    return 1 - float(lengths.sum()) / (packs * capacity)


def holdfast_windows(lengths: Int64, capacity: int) -> int:
    return sum(len(pack_window(lengths[at : at + WINDOW], capacity)) for at in range(0, len(lengths), WINDOW))


def next_fit_packs(lengths: Int64, capacity: int) -> int:
    packs, room = 0, 0
    for size in pieces_of(lengths, capacity).tolist():
        if size > room:
            packs, room = packs + 1, capacity
        room -= size
    return packs


def cut_rows(documents: Ragged, capacity: int) -> list[NDArray[Any]]:
    return [row[at : at + capacity] for row in documents for at in range(0, len(row), capacity)]


def grain_packs(rows: list[NDArray[Any]], capacity: int) -> int:
    import grain
    from grain.experimental import FirstFitPackIterDataset

    packed = FirstFitPackIterDataset(
        grain.MapDataset.source([{"tokens": row} for row in rows]).to_iter_dataset(),
        length_struct={"tokens": capacity},
        num_packing_bins=GRAIN_BINS,
        shuffle_bins=False,
    )
    return sum(1 for _ in packed)


def trl_packs(rows: list[NDArray[Any]], capacity: int) -> int:
    import datasets
    from trl import pack_dataset

    made = datasets.Dataset.from_dict({"input_ids": rows})
    return len(pack_dataset(made, capacity, strategy="bfd", map_kwargs={"batch_size": WINDOW}))


def holdfast_packs(documents: Ragged, capacity: int) -> int:
    source = PackedSource(ArraySource({"tokens": documents}), length=capacity, window=WINDOW)
    for at in range(0, len(source), 256):
        source.read(np.arange(at, min(at + 256, len(source))))
    return len(source)


def documents_of(lengths: Int64) -> Ragged:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Ragged(np.arange(int(offsets[-1]), dtype=np.int32), offsets)


def _computed_length(number: Int64) -> Int64:
    """Lengths that repeat from window to window, so that the packs of a billion need not be counted first."""
    lengths: Int64 = 20 + (number % WINDOW * 2_654_435_761 % 4_294_967_296) % 1_500
    return lengths


class Endless(Source):
    """A billion documents, computed: token t of document d is (d + t) modulo 50,000."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def row_lengths(self, start: int, stop: int) -> Int64:
        """Return lengths from 20 to 1,519 tokens."""
        return _computed_length(np.arange(start, stop, dtype=np.int64))

    def read(self, indices: Int64) -> Columns:
        """Compute documents."""
        rows = check_indices(indices, self._count, source="endless")
        lengths = _computed_length(rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        token = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], lengths)
        return {"tokens": Ragged((np.repeat(rows, lengths) + token) % 50_000, offsets)}


def resumed(count: int, *, shuffle: str, batch_size: int, rounds: int) -> tuple[float, float]:
    """Milliseconds from a state to a batch in the middle of ``count`` documents, and MiB this process has taken."""
    source = PackedSource(Endless(count), length=4_096, window=WINDOW)
    windows = count // WINDOW
    # What one pass over the lengths would count: every window has as many packs as the first.
    per_window = len(pack_window(Endless(count).row_lengths(0, WINDOW), 4_096))
    numbers = np.array([[per_window], [int(Endless(count).row_lengths(0, WINDOW).sum())]]).repeat(windows, axis=1)
    source._windows.count = lambda *_, **__: numbers  # type: ignore[method-assign]
    dataset = StreamDataset(source, name="documents", shuffle=shuffle, seed=5)
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=batch_size))
    state = loader.state_dict()
    taken = []
    for number in range(rounds):
        there = {**state}
        fresh = StreamingShardLoader(dataset, StreamingConfig(batch_size=batch_size))
        source.close()
        start = time.perf_counter()
        fresh.load_state_dict(there)
        fresh.batch_at(len(source) // batch_size // 2 + number * 1_000)
        taken.append((time.perf_counter() - start) * 1e3)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return float(np.median(taken)), memory


def padding_of(kind: str, capacity: int, count: int, missing: dict[str, Any]) -> dict[str, float]:
    """Percent of padding by packer; a peer that is not installed is added to what is missing."""
    lengths = lengths_of(kind, count)
    rows = cut_rows(documents_of(lengths), capacity)
    packers: dict[str, Callable[[], int]] = {
        "holdfast": lambda: holdfast_windows(lengths, capacity),
        "next-fit": lambda: next_fit_packs(lengths, capacity),
        "grain": lambda: grain_packs(rows, capacity),
        "trl bfd": lambda: trl_packs(rows, capacity),
    }
    found = {}
    for name, pack in packers.items():
        try:
            found[f"padding percent, {kind}, {capacity} tokens, {name}"] = 100 * padding(lengths, pack(), capacity)
        except ImportError as error:  # noqa: PERF203  # a row that says so
            missing[name] = f"not installed: {error}"
    return found


def rates(count: int, rounds: int, about: dict[str, Any]) -> dict[str, float]:
    """Documents per second of CPU by packer, and holdfast's rate over the others'."""
    few = lengths_of("web", count)
    documents, cut = documents_of(few), cut_rows(documents_of(few), 4_096)
    sides: dict[str, Callable[[], object]] = {"holdfast": lambda: holdfast_packs(documents, 4_096)}
    for name, library, pack in (("grain", "grain", grain_packs), ("trl bfd", "trl", trl_packs)):
        if find_spec(library) is None:
            about[name] = "not installed"
        else:
            sides[name] = lambda pack=pack: pack(cut, 4_096)
    taken = alternate(sides, rounds=rounds, clock=time.process_time)
    figures = {f"documents/s, {name}": len(few) / seconds for name, seconds in taken.items()}
    others = [name for name in taken if name != "holdfast"]
    return figures | {f"documents/s, holdfast over {name}": taken[name] / taken["holdfast"] for name in others}


def resumes() -> dict[str, float]:
    """Milliseconds to the first batch after a resume at 10^6 and 10^9 documents, and how much more memory that took."""
    figures: dict[str, float] = {}
    memory = []
    for count, name in ((256 * WINDOW, "10^6"), (-(-BILLION // WINDOW) * WINDOW, "10^9")):
        for shuffle, batch_size in (("full", 1), ("full", 8), ("window", 8)):
            taken, most = resumed(count, shuffle=shuffle, batch_size=batch_size, rounds=5)
            where = f"{shuffle} shuffle, {batch_size} packs, {name} documents"
            figures[f"first batch after a resume, ms, {where}"] = taken
        memory.append(most)
    figures["memory more at 10^9 than at 10^6 documents, MiB"] = memory[1] - memory[0]
    return figures


def main() -> None:
    options = arguments(__doc__ or "", parts=("resumes", "rates", "padding"))
    # Four windows: with sixteen, the peers take more than ten minutes.
    count = WINDOW if options.quick else 4 * WINDOW
    figures: dict[str, float] = {}
    about: dict[str, Any] = {"documents": count, "window": WINDOW, "grain bins": GRAIN_BINS}
    if "resumes" in options.parts:  # first, as memory is counted at its highest
        figures |= resumes()
    if "rates" in options.parts:
        figures |= rates(count // 2, 1 if options.quick else 5, about)
    if "padding" in options.parts:
        for kind in ("web",) if options.quick else KINDS:
            for capacity in CAPACITIES[1:2] if options.quick else CAPACITIES:
                figures |= padding_of(kind, capacity, count, about)
    publish(figures, about, as_json=options.json)


if __name__ == "__main__":
    main()
