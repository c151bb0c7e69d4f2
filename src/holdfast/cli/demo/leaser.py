"""A worker of the demo's last stage: leases chunks of the corpus, counts their bytes, commits the counts.

The worker that will be killed reports when it is in the middle of a chunk, and waits there to be killed. Run by the
demo as ``python -m holdfast.cli.demo.leaser FOLDER PORT RANK WORLD``.
"""

from __future__ import annotations

import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, though not in its __all__

from holdfast.cli.demo.corpus import build_mixture
from holdfast.coordinate import LeasedChunk, LeasedReader, StreamCoordinator

__all__ = ["DOOMED", "HOLDING", "TTL", "main", "open_reader"]

DOOMED = 0
"""The rank of the worker that will be killed."""
HOLDING = "demo/holding"
"""The key that is set once it holds work that can be taken over."""
CHUNKS_BEFORE = 10
"""The number of chunks it commits before that."""
PATIENCE = timedelta(seconds=120)
TTL = 1.0
BATCH = 16
CHUNK = 160
POSITIONS = range(16_000)


def open_reader(folder: Path, port: int, rank: int, world: int) -> tuple[StreamCoordinator, LeasedReader]:
    """Join the job over the store at the port."""
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30))
    coordinator = StreamCoordinator(store, world, heartbeat=TTL / 4, ttl=TTL)
    coordinator.register_worker(rank)
    reader = coordinator.lease(
        build_mixture(folder), rank=rank, batch_size=BATCH, chunk_size=CHUNK, positions=POSITIONS
    )
    return coordinator, reader


def main() -> None:
    """Work until every position is committed, by any worker."""
    folder, port, rank, world = sys.argv[1:]
    coordinator, reader = open_reader(Path(folder), int(port), int(rank), int(world))

    store = TCPStore("127.0.0.1", int(port), is_master=False, timeout=PATIENCE)
    committed = 0

    def count(chunk: LeasedChunk) -> str:
        nonlocal committed
        if int(rank) == DOOMED and committed == CHUNKS_BEFORE:
            store.set(HOLDING, "yes")
            threading.Event().wait()
        committed += 1
        time.sleep(0.02)  # some work, so that it takes a while
        letters = sum(int((batch["tokens"] == ord("e")).sum()) for batch in chunk)
        return f"{rank}:{letters}:{len(chunk.positions)}"

    with coordinator:
        if int(rank) != DOOMED:
            store.wait([HOLDING])  # otherwise all could be done before a slow starter has begun
        reader.process(count)
        print(reader.chunks_taken_over, flush=True)
        reader.close()


if __name__ == "__main__":
    main()
