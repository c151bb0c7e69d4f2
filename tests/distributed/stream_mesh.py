"""Run by test_stream_mesh under torchrun on four ranks: reads through a 2×2 mesh and prints what each rank got."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader


def main() -> None:
    """Read one epoch three ways: by the mesh, by the whole process group, and by both dimensions of the mesh."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dataset = StreamDataset(ArraySource({"index": np.arange(50)}), name="a", seed=3)

    def read(config: StreamingConfig) -> list[list[int]]:
        loader = StreamingShardLoader(dataset, config)
        return [batch["index"][batch["__valid__"]].tolist() for batch in loader]

    told: dict[str, Any] = {
        "rank": dist.get_rank(),
        "coordinate": mesh.get_coordinate(),
        "dp": read(StreamingConfig.from_device_mesh(mesh, "dp", batch_size=4, epochs=1, last_batch="pad")),
        "both": read(StreamingConfig.from_device_mesh(mesh, ("dp", "tp"), batch_size=4, epochs=1)),
        "group": read(StreamingConfig(batch_size=4, epochs=1)),
    }
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, told)
    if dist.get_rank() == 0:
        print(json.dumps(gathered))
    dist.barrier()
