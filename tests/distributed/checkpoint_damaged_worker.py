"""One rank of a job whose checkpoint has a damaged shard that only one of the ranks reads."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from holdfast.checkpoint import ParallelFileSystemReader


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    place = folder / "checkpoint"
    state = {"w": distribute_tensor(torch.ones(100, 3000), mesh, [Shard(0)])}
    save(state, storage_writer=FileSystemWriter(place, sync_files=False))
    if dist.get_rank() == 0:
        path = place / "__1_0.distcp"  # what the second rank saved, and will load
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    dist.barrier()
    found = {}
    try:
        load(state, storage_reader=ParallelFileSystemReader(place, num_workers=2))
    except CheckpointException as wrapped:
        found = {
            rank: [type(error).__name__, getattr(error, "tensor", None), getattr(error, "file", None)]
            for rank, (error, _) in wrapped.failures.items()
        }
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")]
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps({"failures": found, "threads": left}))
    dist.barrier()
    sys.stdout.flush()
    # All is done and written. torch's gloo threads now and then abort a process while it takes itself apart.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
