"""A small regression on a stream one batch of which is spoilt, for rollbacks inside trainers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import holdfast as hfast

SAMPLES, WIDTH, BATCH, STEPS, SAVE_EVERY, SPOILT_STEP = 2000, 8, 8, 110, 20, 83


def make_loader(*, clean: bool = False) -> hfast.StreamingShardLoader:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, WIDTH)).astype(np.float32)
    y = (x @ rng.normal(size=(WIDTH, 1))).astype(np.float32)
    columns = {"x": x, "y": y, "index": np.arange(SAMPLES)}
    config = hfast.StreamingConfig(batch_size=BATCH)
    whole = hfast.StreamingShardLoader(hfast.StreamDataset(hfast.ArraySource(columns), name="a", seed=3), config)
    if clean:
        return whole
    y[spoilt(whole)] = 300.0
    dataset = hfast.StreamDataset(hfast.ArraySource(columns), name="a", seed=3)
    return hfast.StreamingShardLoader(dataset, config)


def spoilt(loader: hfast.StreamingShardLoader) -> list[int]:
    """Return the samples whose targets are wrong."""
    return [ref.index for ref in loader.samples_in(SPOILT_STEP)]


class Model(torch.nn.Module):
    """Notes every batch it is given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(WIDTH, 1)
        self.seen: list[list[int]] = []

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor, labels: Any = None
    ) -> dict[str, torch.Tensor]:
        self.seen.append(index.tolist())
        return {"loss": ((self.linear(x) - y) ** 2).mean()}
