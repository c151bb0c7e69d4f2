"""Lightning on a stream: kill it at any moment and start the same command again.

python lightning_trainer.py --folder runs/lightning
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import holdfast as hfast
from holdfast.integrations.lightning import HoldfastCallback


class Module(lightning.LightningModule):
    """A linear regression."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 1)

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        x = batch["x"]
        print(f"step {self.global_step}", flush=True)
        return ((self.linear(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    """Train until the last step, from the newest checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    x = np.random.default_rng(0).normal(size=(4_096, 16)).astype(np.float32)
    dataset = hfast.StreamDataset(hfast.ArraySource({"x": x}), name="numbers", seed=7)
    loader = hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=32))
    lightning.seed_everything(0, verbose=False)
    saved = ModelCheckpoint(options.folder / "checkpoints", save_last=True, every_n_train_steps=5)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        callbacks=[saved, HoldfastCallback(folder=options.folder / "record")],
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = options.folder / "checkpoints" / "last.ckpt"
    module = Module()
    trainer.fit(module, loader, ckpt_path=last if last.exists() else None, weights_only=False)
    torch.save(module.state_dict(), options.folder / "model.pt")


if __name__ == "__main__":
    main()
