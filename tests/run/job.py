"""A small real training job for the tests of the run: data, model, optimizer, loader and a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from holdfast.run import Run, RunOptions
from holdfast.run.parameters import hash_parameters
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

SAMPLES = 256
QUICK = RunOptions(save_every=5, stats_every=5, handle_signals=False)


@dataclass
class Job:
    """One process of a training program, made again as a restarted program would make it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    loader: StreamingShardLoader

    def step(self, batch: Any) -> torch.Tensor:
        """Make one training step; samples that are masked take no part."""
        valid = batch.get("__valid__", torch.ones(len(batch["x"]), dtype=torch.bool))
        if valid.all():
            loss = nn.functional.mse_loss(self.model(batch["x"]), batch["y"])
        else:
            loss = (self.model(batch["x"][valid]) - batch["y"][valid]).square().sum() / max(1, int(valid.sum()))
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.scheduler.step()
        return loss

    def run(self, folder: Path, *, options: RunOptions = QUICK, **more: Any) -> Run:
        """Return a run of this job."""
        return Run(
            folder,
            **{
                "model": self.model,
                "optimizer": self.optimizer,
                "scheduler": self.scheduler,
                "loader": self.loader,
                "options": options,
                **more,
            },
        )

    @property
    def hash(self) -> int:
        """The hash of the parameters."""
        return hash_parameters(self.model).whole


def make_job(*, seed: int = 3, width: int = 12, data_seed: int = 5, batch_size: int = 4, values: Any = None) -> Job:
    """Return a job as a program would make it when it is started."""
    torch.manual_seed(seed)
    if values is None:
        values = np.random.default_rng(0).normal(size=(SAMPLES, 6)).astype(np.float32)
    source = ArraySource({"x": values, "y": values.sum(1, keepdims=True), "index": np.arange(len(values))})
    dataset = StreamDataset(source, name="numbers", seed=data_seed)
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=batch_size))
    model = nn.Sequential(nn.Linear(6, width), nn.Dropout(0.2), nn.Tanh(), nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 9, gamma=0.7)
    return Job(model, optimizer, scheduler, loader)


def train(job: Job, run: Run, *, on_batch: Callable[[Any], None] | None = None) -> None:
    """Train in a free loop until the run ends."""
    for batch in run:
        if on_batch is not None:
            on_batch(batch)
        run.step(loss=job.step(batch))


def poisoned_values(steps: range, *, scale: float = 300.0) -> Any:
    """Return the job's data with every sample of these steps (of the first pass) far out of the others' range."""
    values = np.random.default_rng(0).normal(size=(SAMPLES * 8, 6)).astype(np.float32)
    clean = make_job(values=values)
    for step in steps:
        for sample in clean.loader.samples_in(step):
            values[sample.index] *= scale
    clean.loader.close()
    return values
