"""A worker of a leased job, for Slurm, Kubernetes or a shell: start as many as you like, whenever you like.

    python leased_worker.py --store redis://host:6379 --folder /shared/captions

It counts the bytes of a corpus, one output per chunk. On SIGTERM or SIGUSR1 it releases its leases and exits with 75,
"try again later", which makes both schedulers start it again.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

import holdfast as hfast

TRY_AGAIN = 75


def dataset(samples: int) -> hfast.StreamDataset:
    """Return the dataset to process; every worker must build the same one."""
    tokens = np.random.default_rng(7).integers(0, 256, (samples, 64), dtype=np.int64)
    return hfast.StreamDataset(hfast.ArraySource({"tokens": tokens}), name="corpus", seed=7)


def main() -> int:
    """Work until the job has ended, or until a signal asks the worker to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True, help="redis://HOST:PORT, etcd://HOST:PORT or HOST:PORT")
    parser.add_argument("--folder", required=True, type=Path, help="folder shared by all workers")
    parser.add_argument("--workers", type=int, default=4, help="number of workers expected")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--chunk-size", type=int, default=100)
    parser.add_argument("--ttl", type=float, default=15.0)
    options = parser.parse_args()
    told_to_end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: told_to_end.set())
    store = hfast.open_store(options.store)
    with hfast.StreamCoordinator(store, options.workers, ttl=options.ttl, heartbeat=options.ttl / 3) as coordinator:
        coordinator.register_worker(coordinator.join())
        reader = coordinator.lease(
            dataset(options.samples),
            name="bytes",
            batch_size=50,
            chunk_size=options.chunk_size,
            folder=options.folder / "job",
            sink=hfast.coordinate.FolderSink(options.folder / "out", suffix=".json"),
        )
        for chunk in reader:
            counts = sum(np.bincount(batch["tokens"].numpy().ravel(), minlength=256) for batch in chunk)
            with chunk.open("w") as file:
                json.dump(np.asarray(counts).tolist(), file)
            with suppress(hfast.errors.StaleLeaseError):  # another worker has it now
                chunk.commit(str(len(chunk.positions)))
            if told_to_end.is_set() and not reader.is_finished():
                return TRY_AGAIN  # leaving the coordinator releases the leases
        print(f"{len(reader.results())} chunks committed, {len(reader.dead_letters())} dead letters", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
