"""A plain training loop that continues by itself: kill it at any moment and start the same command again.

python plain_loop.py --folder runs/plain
torchrun --nproc-per-node 2 plain_loop.py --folder runs/plain     (continues at another size)
"""

from __future__ import annotations

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist

import holdfast as hfast


def main() -> None:
    """Train until the last step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    world = dist.get_world_size() if dist.is_initialized() else 1
    x = np.random.default_rng(0).normal(size=(4_096, 16)).astype(np.float32)
    dataset = hfast.StreamDataset(hfast.ArraySource({"x": x}), name="numbers", seed=7)
    loader = hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=32 // world))
    model: torch.nn.Module = torch.nn.Linear(16, 1)
    if world > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run = hfast.Run(
        options.folder,
        model=model,
        optimizer=optimizer,
        loader=loader,
        steps=options.steps,
        options=hfast.RunOptions(save_every=5),
    )
    for batch in run:
        loss = ((model(batch["x"]) - batch["x"].sum(dim=1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step(loss=loss)
        print(f"step {run.step_number} loss {loss.item():.6f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
