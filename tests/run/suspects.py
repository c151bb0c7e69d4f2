"""Runs with a known culprit, for the tests of replay, blame and proof."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.run.job import SAMPLES, Job, make_job
from torch import nn

from holdfast.run import Run, RunOptions
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

AT = 24
STEPS = 32
OPTIONS = RunOptions(save_every=20, keep=10, handle_signals=False)


def values_with(poisoned: int, *, scale: float = 60.0) -> tuple[Any, list[int]]:
    """Return data in which some samples of step ``AT`` are far out of range, and which they are."""
    values = np.random.default_rng(0).normal(size=(SAMPLES, 6)).astype(np.float32)
    chosen = [sample.index for sample in make_job(values=values, batch_size=8).loader.samples_in(AT)[:poisoned]]
    values[chosen] *= scale
    return values, sorted(chosen)


def masked_step(job: Job, *, robust: bool = False) -> Callable[[Any], torch.Tensor]:
    """Return a step function that heeds ``__valid__``; with a robust loss healthy samples lie close together."""

    def step(batch: Any) -> torch.Tensor:
        errors: torch.Tensor = (job.model(batch["x"]) - batch["y"]).square().mean(1)
        if robust:
            errors = (1 + errors).sqrt()
        valid = batch.get("__valid__", torch.ones(len(errors), dtype=torch.bool))
        loss: torch.Tensor = errors[valid].sum() / valid.sum().clamp(min=1)
        job.optimizer.zero_grad()
        torch.autograd.backward(loss)
        job.optimizer.step()
        return loss

    return step


def trained(
    folder: Path,
    *,
    poisoned: int = 0,
    heeds_masks: bool = True,
    fault: Callable[[Job], None] | None = None,
    rate_scale: float | None = None,
    steps: int = STEPS,
    scale: float = 60.0,
    robust: bool = False,
    at: int = AT,
) -> tuple[Job, Run, list[int]]:
    """Train a run; a fault strikes once, just before step ``at`` is made for the first time."""
    values, chosen = values_with(poisoned, scale=scale)
    job = make_job(values=values, batch_size=8)
    job.model.get_submodule("1").p = 0.0  # type: ignore[assignment]
    plain = masked_step(job, robust=robust) if heeds_masks else _plain_step(job)
    recording = {"on": True}

    def step(batch: Any) -> Any:
        number = int(job.optimizer.state_dict()["state"].get(0, {}).get("step", 0))
        if rate_scale is not None:  # part of the program, so it happens again in a replay
            for group in job.optimizer.param_groups:
                group["lr"] = 1e-2 * (rate_scale if number >= AT - 1 else 1.0)
        if fault is not None and recording["on"] and number == at:
            fault(job)
        return plain(batch)

    run = job.run(folder, train_step=step, options=OPTIONS, monitor=False)
    with run:
        run.train(steps=steps)
    recording["on"] = False
    return job, run, chosen


def classifier(folder: Path) -> Run:
    """Return a run of a small classifier over clean samples, some of them hard: no fault anywhere."""
    torch.manual_seed(31)
    generator = np.random.default_rng(32)
    labels = generator.integers(0, 4, 6000)
    centres = generator.normal(size=(4, 64))
    values = (centres[labels] + 1.5 * generator.normal(size=(6000, 64))).astype(np.float32)
    source = ArraySource({"x": values, "label": labels})
    loader = StreamingShardLoader(StreamDataset(source, name="images", seed=38), StreamingConfig(batch_size=16))
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)

    def step(batch: Any) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(batch["x"]), batch["label"])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        return loss

    return Run(
        folder,
        model=model,
        optimizer=optimizer,
        loader=loader,
        train_step=step,
        options=RunOptions(save_every=20, keep=20, handle_signals=False),
        monitor=False,
    )


def _plain_step(job: Job) -> Callable[[Any], torch.Tensor]:
    def step(batch: Any) -> torch.Tensor:
        loss = nn.functional.mse_loss(job.model(batch["x"]), batch["y"])
        job.optimizer.zero_grad()
        torch.autograd.backward(loss)
        job.optimizer.step()
        return loss

    return step


def flip_bit(tensor: torch.Tensor, place: int, bit: int) -> None:
    """Flip one bit of a 32-bit number."""
    flat = tensor.detach().view(-1).view(torch.int32)
    flat[place] = int(flat[place]) ^ (1 << bit)
