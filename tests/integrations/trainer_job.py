"""A tiny training job under a real trainer, to be killed and started again; started by ``jobs.py``.

Every batch the model is trained on is written down at once with the optimizer step it belongs to. After ``--die-after``
batches the process kills itself with SIGKILL, in the middle of a step. With ``--data usual`` the same job reads its
data the way the trainer's own documentation says, for ``bench/trainers.py`` to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import holdfast as hfast

warnings.simplefilter("ignore")  # the trainers' own deprecations are not ours to fail on
GLOBAL_BATCH, SAVE_EVERY = 8, 3


class Numbers(torch.utils.data.Dataset[dict[str, int]]):
    """What the usual loaders read: sample i holds the number i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, int]:
        if index >= self.length:
            raise IndexError(index)
        return {"index": index}


class Job:
    """What the trainers share: the model, the loader and the record of what was trained on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = Path(options.folder)
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.record = os.open(self.folder / f"seen-{options.life}-{self.rank}.jsonl", os.O_WRONLY | os.O_CREAT)
        self.seen = 0
        self.model = torch.nn.Linear(1, 1)

    def loader(self) -> hfast.StreamingShardLoader:
        numbers = np.arange(self.options.samples)
        dataset = hfast.StreamDataset(hfast.ArraySource({"index": numbers}), name="numbers", seed=3)
        options = self.options
        return hfast.StreamingShardLoader(
            dataset,
            hfast.StreamingConfig(
                batch_size=GLOBAL_BATCH // self.world, per_epoch=options.epochs, num_workers=options.workers
            ),
        )

    def loss(self, index: torch.Tensor, step: int) -> torch.Tensor:
        """Write the batch down, die if it is time, and return a loss."""
        os.write(self.record, (json.dumps([step, index.tolist()]) + "\n").encode())
        self.seen += 1
        if self.options.die_after and self.seen >= self.options.die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        loss: torch.Tensor = ((self.model(index.float()[:, None] / self.options.samples) - 1) ** 2).mean()
        return loss


def train_transformers(job: Job) -> None:
    """Train under the Hugging Face Trainer, saving every few steps."""
    import transformers

    from holdfast.integrations.transformers import attach

    class Trainer(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
            return job.loss(inputs["index"], self.state.global_step)

    arguments = transformers.TrainingArguments(
        output_dir=str(job.folder / "checkpoints"),
        max_steps=job.options.steps,
        gradient_accumulation_steps=job.options.accumulate,
        ignore_data_skip=job.options.ignore_data_skip,
        per_device_train_batch_size=GLOBAL_BATCH // job.world,
        dataloader_num_workers=job.options.workers,
        save_steps=SAVE_EVERY,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    usual = Numbers(job.options.samples) if job.options.data == "usual" else None
    trainer = Trainer(model=job.model, args=arguments, train_dataset=usual)
    if usual is None:
        attach(trainer, job.loader())
    whole = [path for path in (job.folder / "checkpoints").glob("*") if (path / "trainer_state.json").exists()]
    newest = max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
    trainer.train(resume_from_checkpoint=str(newest) if newest else None)


def train_lightning(job: Job) -> None:
    """Train under Lightning, saving every few steps."""
    import lightning.pytorch as lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from holdfast.integrations.lightning import HoldfastCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = job.model

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return job.loss(batch["index"], self.trainer.global_step)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def train_dataloader(self) -> Any:
            if job.options.data == "usual":
                from torchdata.stateful_dataloader import StatefulDataLoader

                torch.manual_seed(3)
                size, workers = GLOBAL_BATCH // job.world, job.options.workers
                return StatefulDataLoader(
                    Numbers(job.options.samples), batch_size=size, shuffle=True, num_workers=workers
                )
            return job.loader()

    usual = job.options.data == "usual"
    checkpoints = job.folder / "checkpoints"
    saving = ModelCheckpoint(checkpoints, every_n_train_steps=SAVE_EVERY, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=job.world,
        strategy="ddp" if job.world > 1 else "auto",
        max_steps=job.options.steps,
        accumulate_grad_batches=job.options.accumulate,
        callbacks=[saving] if usual else [HoldfastCallback(), saving],
        use_distributed_sampler=usual,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    newest = max(checkpoints.glob("*.ckpt"), key=lambda path: int(path.stem.rpartition("=")[2]), default=None)
    trainer.fit(Module(), ckpt_path=newest, weights_only=False)


def train_accelerate(job: Job) -> None:
    """Train in an Accelerate loop, saving every few steps."""
    from accelerate import Accelerator, DataLoaderConfiguration

    from holdfast.integrations.accelerate import prepare

    torch.manual_seed(3)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    _, optimizer = accelerator.prepare(job.model, torch.optim.SGD(job.model.parameters(), lr=0.01))
    usual = job.options.data == "usual"
    if usual:
        options = {"batch_size": GLOBAL_BATCH // job.world, "shuffle": True, "num_workers": job.options.workers}
        batches = accelerator.prepare(torch.utils.data.DataLoader(Numbers(job.options.samples), **options))
    else:
        batches = prepare(accelerator, job.loader())
    checkpoints = job.folder / "checkpoints"
    newest = max(
        (path for path in checkpoints.glob("step-*") if (path / "whole").exists()),
        key=lambda path: int(path.name[5:]),
        default=None,
    )
    step = 0
    if newest:
        accelerator.load_state(str(newest))
        step = int(newest.name[5:])
    while step < job.options.steps:
        rest = batches
        if usual:  # as the documentation of Accelerate says
            batches.set_epoch(step // len(batches))
            if newest and step % len(batches):
                rest = accelerator.skip_first_batches(batches, step % len(batches))
            newest = None
        for batch in rest:
            accelerator.backward(job.loss(batch["index"], step))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % SAVE_EVERY == 0:
                accelerator.save_state(str(checkpoints / f"step-{step}"))
                accelerator.wait_for_everyone()
                (checkpoints / f"step-{step}" / "whole").touch()
            if step == job.options.steps:
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer")
    parser.add_argument("folder")
    parser.add_argument("--life", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--die-after", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--data", choices=("holdfast", "usual"), default="holdfast")
    parser.add_argument("--samples", type=int, default=52)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", action="store_true")
    parser.add_argument("--ignore-data-skip", action="store_true")
    job = Job(parser.parse_args())
    {"transformers": train_transformers, "lightning": train_lightning, "accelerate": train_accelerate}[
        job.options.trainer
    ](job)
