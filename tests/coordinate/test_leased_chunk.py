"""The name of a chunk's output, which no other attempt, generation or job has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from holdfast.coordinate import StreamCoordinator
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset


def lease(coordinator: StreamCoordinator, folder: Path) -> Any:
    dataset = StreamDataset(ArraySource({"value": np.arange(4)}), name="data", seed=3)
    return coordinator.lease(dataset, batch_size=2, chunk_size=4, backoff=0.0, folder=folder)


def test_every_attempt_has_a_name_with_its_chunk_job_generation_and_number(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        with StreamCoordinator(dist.HashStore(), 1) as coordinator:  # type: ignore[attr-defined]
            coordinator.register_worker(0)
            reader = lease(coordinator, tmp_path)
            chunks = iter(reader)
            for _ in range(2):
                chunk = next(chunks)
                names.append(chunk.name)
                assert len(chunk) == 2
                chunk.fail("once more")
            chunks.close()
            job = reader.job.job
    # Giving a chunk back takes a token too, so that the next attempt's is higher.
    ends = ["g1-t1", "g1-t3", "g2-t1", "g2-t3"]
    assert names == [f"part-00000000-{job}-{end}" for end in ends]
