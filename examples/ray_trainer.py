"""Ray Train with holdfast's stream: kill a worker at any moment, and Ray restarts it at the next batch.

    python ray_trainer.py --folder runs/ray --workers 2

Ray decides when workers are restarted, and how many; the samples of a step do not depend on it. The first worker logs
its steps to FOLDER/train.log.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

import holdfast as hfast
from holdfast.integrations.ray_train import checkpoint, prepare

GLOBAL_BATCH = 32
SAVE_EVERY = 5


def train(config: dict[str, Any]) -> None:
    """Train in one worker, from the newest checkpoint if there is one."""
    context = ray.train.get_context()
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(4_096, 16)).astype(np.float32)
    dataset = hfast.StreamDataset(hfast.ArraySource({"x": x}), name="numbers", seed=7)
    batch_size = GLOBAL_BATCH // context.get_world_size()
    stream = prepare(hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=batch_size)))
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if (found := ray.train.get_checkpoint()) is not None:
        with found.as_directory() as folder:
            saved = torch.load(Path(folder) / "training.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    wrapped = prepare_model(model)
    first = context.get_world_rank() == 0
    with open(config["log"] if first else os.devnull, "a", buffering=1) as log:
        log.write(f"process {os.getpid()} begins after step {stream.step_number}\n")
        for batch in stream:
            loss = ((wrapped(batch["x"]) - batch["x"].sum(dim=1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            stream.step(loss)
            log.write(f"step {stream.step_number} loss {loss.item():.6f}\n")
            if stream.step_number % SAVE_EVERY == 0:
                with tempfile.TemporaryDirectory() as folder:
                    if first:
                        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                        torch.save(state, Path(folder) / "training.pt")
                    ray.train.report({"loss": loss.item()}, checkpoint=checkpoint(stream, folder))
            if stream.step_number == config["steps"]:
                return


def main() -> None:
    """Train until the last step; Ray replaces workers that die."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    TorchTrainer(
        train,
        train_loop_config={"steps": options.steps, "log": str(folder / "train.log")},
        scaling_config=ScalingConfig(num_workers=options.workers, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name="job", storage_path=str(folder), failure_config=FailureConfig(max_failures=-1)),
    ).fit()


if __name__ == "__main__":
    main()
