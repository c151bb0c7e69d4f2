"""The Hugging Face Trainer on a stream: kill it at any moment and start the same command again.

python hf_trainer.py --folder runs/trainer
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import transformers

import holdfast as hfast
from holdfast.integrations.transformers import attach, newest_checkpoint


class Model(torch.nn.Module):
    """A linear regression with the interface the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of a batch."""
        return {"loss": ((self.linear(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()}


class Printed(transformers.TrainerCallback):
    """Prints every step."""

    def on_step_end(self, args: object, state: transformers.TrainerState, control: object, **_: object) -> None:
        """Print the step."""
        print(f"step {state.global_step}", flush=True)


def main() -> None:
    """Train until the last step, from the newest checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    x = np.random.default_rng(0).normal(size=(4_096, 16)).astype(np.float32)
    dataset = hfast.StreamDataset(hfast.ArraySource({"x": x}), name="numbers", seed=7)
    loader = hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=32))
    torch.manual_seed(0)
    arguments = transformers.TrainingArguments(
        output_dir=str(options.folder / "checkpoints"),
        max_steps=options.steps,
        save_steps=5,
        learning_rate=1e-2,
        report_to=[],
        remove_unused_columns=False,
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model=Model(), args=arguments, callbacks=[Printed()])
    attach(trainer, loader, folder=options.folder / "record")
    trainer.train(resume_from_checkpoint=newest_checkpoint(options.folder / "checkpoints"))
    trainer.save_model(str(options.folder / "model"))


if __name__ == "__main__":
    main()
