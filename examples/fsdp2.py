"""A loop like torchtitan's: FSDP2, torch's own distributed checkpoints, and the loader as one more ``Stateful``.

torchrun --nproc-per-node 2 fsdp2.py --folder runs/fsdp2
torchrun --nproc-per-node 1 fsdp2.py --folder runs/fsdp2      (continues at another size)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast as hfast


class Trained:
    """Model and optimizer as one ``Stateful``."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, object]:
        """Return both states; the optimizer's moments are created if there are none yet."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, dict[str, object]]) -> None:
        """Load both states."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main() -> None:
    """Train until the last step, from the newest sound checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(4_096, 16)).astype(np.float32)
    dataset = hfast.StreamDataset(hfast.ArraySource({"x": x}), name="numbers", seed=7)
    loader = hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=32 // dist.get_world_size()))
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {"trained": Trained(model, optimizer), "loader": loader}

    folder = options.folder / "checkpoints"
    found = hfast.checkpoint.latest_verified(folder) if folder.is_dir() else None
    if found is not None:
        dcp.load(state, storage_reader=hfast.ParallelFileSystemReader(found.path))
    for batch in loader:
        loss = ((model(batch["x"]) - batch["x"].sum(dim=1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {loader.step} loss {loss.item():.6f}", flush=True)
        if loader.step % 5 == 0 or loader.step == options.steps:
            hfast.checkpoint.save(state, folder / f"step-{loader.step:08}", step=loader.step, keep=3)
        if loader.step == options.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
