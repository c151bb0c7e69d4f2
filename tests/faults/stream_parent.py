"""A process that reads with workers until it is killed; prints its workers' process ids once it has a batch."""

from __future__ import annotations

import os
import sys

import numpy as np
import psutil

from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader


def main() -> None:
    """Read for ever: ``stream_parent.py CONTEXT``."""
    source = ArraySource({"tokens": np.zeros((1000, 4096), dtype=np.int32)})
    config = StreamingConfig(batch_size=8, num_workers=2, multiprocessing_context=sys.argv[1], prefetch_buffer_size=512)
    batches = iter(StreamingShardLoader(StreamDataset(source, name="a"), config))
    kept = [next(batches) for _ in range(3)]
    children = [process.pid for process in psutil.Process(os.getpid()).children(recursive=True)]
    print(*children, flush=True)
    for batch in batches:
        kept[0] = batch


if __name__ == "__main__":
    main()
