"""How long it takes to go on: from `load_state_dict` to the first batch, half way through N samples.

Each side stands 50 batches before the middle, reads up to it, and notes the state and the batch that follows. Then a
fresh loader is given that state, the time to its first batch is taken, and the batch compared. Samples are computed,
not stored, so that N may be a billion. A peer that has to hold a permutation of N numbers is not asked for too much.
"""

from __future__ import annotations

import gc
import json
import statistics
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from common import arguments, publish
from holdfast.sources import Source
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

BATCH = 64
AHEAD = 50


class Virtual(Source):
    """N samples that are computed: sample i holds the number i."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def read(self, indices: np.ndarray[Any, Any]) -> dict[str, Any]:
        """Compute the samples."""
        return {"index": indices.copy()}


class VirtualItems(torch.utils.data.Dataset[Any]):
    """The same for torch's loaders, a batch at a time."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return index

    def __getitems__(self, indices: list[int]) -> Any:
        return torch.tensor(indices)


def same(batch: Any) -> Any:
    return batch


class Case(ABC):
    """One side: makes a loader, gives and takes states, and reads a batch as a list of sample numbers."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.middle = length // BATCH // 2
        self.running: Any = None  # kept until the clock has stopped: taking a loader apart is not resuming

    @abstractmethod
    def state(self) -> tuple[Any, list[int]]:
        """The state half way, and the batch that comes next in the run that was not interrupted."""

    @abstractmethod
    def resume(self, state: Any) -> Callable[[], list[int]]:
        """Make a fresh loader; the function returned loads the state and gives the first batch."""


class Holdfast(Case):
    """This library."""

    def loader(self) -> StreamingShardLoader:
        """A fresh loader."""
        dataset = StreamDataset(Virtual(self.length), name="virtual", seed=1)
        return StreamingShardLoader(dataset, StreamingConfig(batch_size=BATCH))

    def state(self) -> tuple[Any, list[int]]:
        """Jump to 50 batches before the middle and read on from there."""
        loader = self.loader()
        step = self.middle - AHEAD
        epoch, position = step * BATCH // self.length, step * BATCH
        loader.load_state_dict({**loader.state_dict(), "step": step, "position": position, "epoch": epoch})
        batches = iter(loader)
        for _ in range(AHEAD):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        return state, next(batches)["index"].tolist()

    def resume(self, state: Any) -> Callable[[], list[int]]:
        """Resume."""
        loader = self.loader()

        def first() -> list[int]:
            loader.load_state_dict(state)
            self.running = iter(loader)
            found: list[int] = next(self.running)["index"].tolist()
            return found

        return first


class Torchdata(Case):
    """torchdata's StatefulDataLoader over a map-style dataset, shuffled."""

    def loader(self) -> Any:
        """A fresh loader."""
        from torchdata.stateful_dataloader import StatefulDataLoader

        torch.manual_seed(1)
        return StatefulDataLoader(VirtualItems(self.length), batch_size=BATCH, shuffle=True, collate_fn=same)

    def state(self) -> tuple[Any, list[int]]:
        """It has no way to jump: read from the start."""
        loader = self.loader()
        batches = iter(loader)
        for _ in range(self.middle):
            next(batches)
        return loader.state_dict(), next(batches).tolist()

    def resume(self, state: Any) -> Callable[[], list[int]]:
        """Resume."""
        loader = self.loader()

        def first() -> list[int]:
            loader.load_state_dict(state)
            self.running = iter(loader)
            found: list[int] = next(self.running).tolist()
            return found

        return first


class Grain(Case):
    """grain's lazy pipeline."""

    def iterator(self) -> Any:
        """A fresh iterator."""
        import grain.python as grain

        return iter(grain.MapDataset.range(self.length).shuffle(seed=1).batch(BATCH).to_iter_dataset())

    def state(self) -> tuple[Any, list[int]]:
        """Jump to 50 batches before the middle and read on from there."""
        iterator = self.iterator()
        next(iterator)
        early = iterator.get_state()
        iterator.set_state({**early, "next_index": self.middle - AHEAD})
        for _ in range(AHEAD):
            next(iterator)
        return iterator.get_state(), [int(value) for value in next(iterator)]

    def resume(self, state: Any) -> Callable[[], list[int]]:
        """Resume."""
        iterator = self.iterator()

        def first() -> list[int]:
            iterator.set_state(state)
            self.running = iterator
            return [int(value) for value in next(iterator)]

        return first


def settle(threads: int) -> None:
    """Wait, a second at most, until no more threads run than before."""
    deadline = time.monotonic() + 1.0
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.005)


def state_sizes() -> dict[str, float]:
    """Bytes of a state as JSON, by the number of ranks."""
    sizes = {}
    for ranks in (1, 1_000, 100_000):
        dataset = StreamDataset(Virtual(10**9), name="virtual", seed=1)
        loader = StreamingShardLoader(dataset, StreamingConfig(world_size=ranks, rank=0, batch_size=8))
        sizes[f"state at {ranks:,} ranks, bytes"] = float(len(json.dumps(loader.state_dict())))
    return sizes


def main() -> None:
    options = arguments(__doc__ or "")
    warnings.simplefilter("ignore")
    rounds = 5 if options.quick else 15
    figures: dict[str, float] = {}
    about: dict[str, Any] = {"batch": BATCH, "wrong batches": 0}
    sides: list[tuple[str, type[Case], int]] = [
        ("holdfast", Holdfast, 10**9),
        ("grain", Grain, 10**9),
        ("torchdata", Torchdata, 10**5 if options.quick else 10**7),
    ]
    for length in (10**5, 10**7, 10**9):
        size = f"N=1e{len(str(length)) - 1}"
        ready: dict[str, tuple[Case, Any, list[int]]] = {}
        for name, kind, most in sides:
            if length > most:
                about[f"{name} at {size}"] = "not run: it holds and walks a permutation of N numbers"
                continue
            try:
                case = kind(length)
                ready[name] = (case, *case.state())
            except Exception as error:
                if kind is Holdfast:
                    raise  # only what keeps a peer from running is a row
                about[f"{name} at {size}"] = f"not measured: {type(error).__name__}: {str(error)[:90]}"
        taken: dict[str, list[float]] = {name: [] for name in ready}
        for _ in range(rounds):
            for name, (case, state, expected) in ready.items():
                if taken[name] and taken[name][0] > 2.0:
                    continue  # once is enough of seconds
                threads = threading.active_count()
                first: Any = case.resume(state)
                start = time.perf_counter()
                found = first()
                taken[name].append(time.perf_counter() - start)
                # What one side reads ahead in its threads must not run beside the next one's turn.
                first = case.running = None
                gc.collect()
                settle(threads)
                if found != expected:
                    about["wrong batches"] += 1
                    about[f"{name} at {size}"] = "resumed with a WRONG batch"
        for name, times in taken.items():
            figures[f"{name}: first batch at half of {size}, ms"] = 1e3 * statistics.median(times)
    publish(figures | state_sizes(), about, as_json=options.json)


if __name__ == "__main__":
    main()
