"""A miniature run under an installed trainer, stopped and resumed, to test whether it resumes exactly.

``holdfast doctor --try`` runs ``python -m holdfast.integrations.trial NAME FOLDER`` for each trainer, in a separate
process: trainers change global state, print, and may end the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import holdfast as hfast

__all__ = ["TRIALS", "Trial", "try_trainer"]

SAMPLES, BATCH = 20, 4
STOP, END = 3, 8
"""The run stops after three steps and is resumed to the eighth, beyond the end of the first epoch."""
TIMEOUT = 300.0
"""Seconds for one trainer, most of which are spent importing it."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a trial.

    Attributes:
        resumes_exactly: whether the resumed run was trained on the same batches as an uninterrupted one.
        why: what happened instead; empty if it resumes exactly.
    """

    resumes_exactly: bool
    why: str = ""


class _Model(torch.nn.Module):
    """Notes every batch it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[int]] = []

    def forward(self, index: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(index.tolist())
        return {"loss": ((self.weight - index.float()) ** 2).mean()}


def _loader(columns: dict[str, Any] | None = None) -> hfast.StreamingShardLoader:
    columns = columns or {"index": np.arange(SAMPLES)}
    dataset = hfast.StreamDataset(hfast.ArraySource(columns), name="numbers", seed=1)
    return hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(rank=0, world_size=1, batch_size=BATCH))


def _arguments(folder: Path, steps: int) -> dict[str, Any]:
    """Return the options that the Hugging Face Trainer and TRL's share."""
    told = {"output_dir": str(folder), "max_steps": steps, "save_steps": STOP}
    return {**told, "report_to": [], "use_cpu": True, "disable_tqdm": True}


def _transformers(folder: Path, steps: int, model: _Model) -> None:
    import transformers

    from holdfast.integrations.transformers import attach, newest_checkpoint

    arguments = transformers.TrainingArguments(**_arguments(folder, steps), remove_unused_columns=False)
    trainer = transformers.Trainer(model=model, args=arguments)
    attach(trainer, _loader())
    trainer.train(resume_from_checkpoint=newest_checkpoint(folder))


def _trl(folder: Path, steps: int, model: _Model) -> None:
    """Train a language model with a few weights; the tokens of every sample are its number."""
    from holdfast.integrations.transformers import HoldfastCallback, newest_checkpoint

    names = ("datasets", "tokenizers", "transformers", "trl")  # these declare few types
    datasets, tokenizers, transformers, trl = map(import_module, names)

    base: Any = trl.SFTTrainer

    class Trainer(base):  # type: ignore[misc]
        def compute_loss(self, wrapped: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
            model.seen.append(inputs["input_ids"][:, 0].tolist())
            return super().compute_loss(wrapped, inputs, *arguments, **options)

    tokens = np.repeat(np.arange(SAMPLES)[:, None], 4, axis=1)
    words = tokenizers.models.WordLevel({"<eos>": 0}, unk_token="<eos>")
    trainer = Trainer(
        model=transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=SAMPLES, n_positions=8, n_embd=8, n_layer=1, n_head=1)
        ),
        args=trl.SFTConfig(**_arguments(folder, steps), bf16=False),
        train_dataset=datasets.Dataset.from_dict({"input_ids": tokens[:1].tolist()}),  # required, but not read
        processing_class=transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer(words), eos_token="<eos>", pad_token="<eos>"
        ),
    )
    columns = {"input_ids": tokens, "labels": tokens, "attention_mask": np.ones_like(tokens)}
    trainer.add_callback(HoldfastCallback(_loader(columns)))
    trainer.train(resume_from_checkpoint=newest_checkpoint(folder))


def _lightning(folder: Path, steps: int, model: _Model) -> None:
    import lightning.pytorch as lightning

    from holdfast.integrations.lightning import HoldfastCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss: torch.Tensor = self.inner(batch["index"])["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=steps,
        callbacks=[HoldfastCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    saved = folder / "last.ckpt"
    options: dict[str, Any] = {"ckpt_path": saved, "weights_only": False} if saved.exists() else {}
    trainer.fit(Module(), _loader(), **options)
    trainer.save_checkpoint(saved)


def _accelerate(folder: Path, steps: int, model: _Model) -> None:
    from accelerate import Accelerator

    from holdfast.integrations.accelerate import prepare

    accelerator = Accelerator(cpu=True)
    wrapped, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))
    batches = prepare(accelerator, _loader())
    saved = folder / "saved"
    if saved.exists():
        accelerator.load_state(str(saved))
    for batch in batches:
        accelerator.backward(wrapped(batch["index"])["loss"])
        optimizer.step()
        optimizer.zero_grad()
        batches.step()
        if batches.step_number == steps:
            break
    accelerator.save_state(str(saved))


TRIALS: dict[str, Callable[[Path, int, _Model], None]] = {
    "transformers": _transformers,
    "trl": _trl,
    "lightning": _lightning,
    "accelerate": _accelerate,
}
"""The trainers that can be tried; Ray needs a cluster."""


def _try(name: str, folder: Path) -> Trial:
    """Train uninterrupted, then stopped and resumed, and compare what the model saw."""

    def train(place: Path, steps: int) -> list[list[int]]:
        place.mkdir(exist_ok=True)
        torch.manual_seed(0)
        model = _Model()
        TRIALS[name](place, steps, model)
        return model.seen

    whole = train(folder / "whole", END)
    first, rest = train(folder / "stopped", STOP), train(folder / "stopped", END)
    if first + rest == whole:
        return Trial(True)
    return Trial(False, f"trained on {first} and, resumed, on {rest}; an uninterrupted run on {whole}")


def try_trainer(name: str) -> Trial:
    """Train a tiny model under a trainer, stop, resume, and return whether it saw the right batches.

    Args:
        name: one of ``TRIALS``.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "holdfast.integrations.trial", name, folder],
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
            found = json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            return Trial(False, f"it had not finished after {TIMEOUT:.0f} s")
        except (ValueError, IndexError):
            said = done.stderr.strip().splitlines()
            return Trial(False, said[-1] if said else f"the trial ended with exit code {done.returncode}")
    return Trial(**found)


def _main(name: str, folder: str) -> None:
    with redirect_stdout(sys.stderr):  # what trainers print is not the result
        found = _try(name, Path(folder))
    print(json.dumps({"resumes_exactly": found.resumes_exactly, "why": found.why}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
