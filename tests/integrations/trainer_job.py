"""A tiny training job under a real trainer, to be killed and started again; started by ``jobs.py``.

Every batch the model is trained on is written down at once with the optimizer step it belongs to. After ``die_after``
batches the process kills itself with SIGKILL, in the middle of a step. With ``data="usual"`` the same job reads its
data the way the trainer's own documentation says, for ``bench/trainers.py`` to compare.

``python trainer_job.py PLAN.json`` imports the trainers once and forks every process of every life of the plan from
there; ``python trainer_job.py --one LIFE.json`` is one process of its own, for torchrun.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import traceback
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import holdfast as hfast

warnings.simplefilter("ignore")  # the trainers' own deprecations are not ours to fail on
# With several processes on the CPU, transformers 4.57 restores the optimizer to "cpu:0", which torch does not know.
torch.serialization.register_package(0, lambda _: None, lambda storage, place: storage if place[:4] == "cpu:" else None)
GLOBAL_BATCH, SAVE_EVERY = 8, 3
SPECIAL_TOKENS = 2


@dataclass(frozen=True, kw_only=True)
class Life:
    """One start of a job.

    Attributes:
        trainer: which library trains.
        folder: where the job keeps its checkpoints and writes down what it saw.
        number: of this life, from 0.
        world: how many processes.
        die_after: batches after which it kills itself; 0 lets it live.
        steps: optimizer steps in all.
        accumulate: batches per step.
        data: ``holdfast``, or ``usual``: what the trainer's documentation says.
        samples: how many there are.
        workers: worker processes that read.
        epochs: end the iteration at every epoch.
    """

    trainer: str
    folder: str
    number: int
    world: int = 1
    die_after: int = 0
    steps: int = 14
    accumulate: int = 1
    data: str = "holdfast"
    samples: int = 52
    workers: int = 0
    epochs: bool = False


class Numbers(torch.utils.data.Dataset[dict[str, int]]):
    """What the usual loaders read: sample i holds the number i; every sample read is a byte in a file."""

    def __init__(self, length: int, reads: Path) -> None:
        self.length = length
        self.reads = reads

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, int]:
        if index >= self.length:
            raise IndexError(index)
        with self.reads.open("ab", buffering=0) as file:  # a worker process may do so
            file.write(b".")
        return {"index": index}


class Job:
    """What the trainers share: the model, the loader and the record of what was trained on."""

    def __init__(self, options: Life) -> None:
        self.options = options
        self.folder = Path(options.folder)
        self.rank, self.world = int(os.environ.get("RANK", 0)), options.world
        self.record = os.open(self.folder / f"seen-{options.number}-{self.rank}.jsonl", os.O_WRONLY | os.O_CREAT)
        self.seen = 0
        self.reads = self.folder / f"reads-{options.number}-{self.rank}"
        self.model = torch.nn.Linear(1, 1)

    def numbers(self) -> Numbers:
        """Return what the usual loaders read."""
        return Numbers(self.options.samples, self.reads)

    def loader(self, columns: dict[str, Any] | None = None) -> hfast.StreamingShardLoader:
        """Return the stream over the numbers, or over other columns."""
        columns = columns or {"index": np.arange(self.options.samples)}
        dataset = hfast.StreamDataset(hfast.ArraySource(columns), name="numbers", seed=3)
        options = self.options
        return hfast.StreamingShardLoader(
            dataset,
            hfast.StreamingConfig(
                batch_size=GLOBAL_BATCH // self.world, per_epoch=options.epochs, num_workers=options.workers
            ),
        )

    def note(self, index: torch.Tensor, step: int) -> None:
        """Write down the batch that is about to be trained on, and die if it is time."""
        if not self.seen and step and self.reads.exists():  # resumed; reading a few batches ahead is not in vain
            ahead = len(index) * (2 + 2 * self.options.workers)
            vain = max(0, self.reads.stat().st_size - ahead)
            (self.folder / f"vain-{self.options.number}-{self.rank}").write_text(str(vain))
        os.write(self.record, (json.dumps([step, index.tolist()]) + "\n").encode())
        self.seen += 1
        if self.options.die_after and self.seen >= self.options.die_after:
            os.kill(os.getpid(), signal.SIGKILL)

    def loss(self, index: torch.Tensor, step: int, model: Any = None) -> torch.Tensor:
        """Note the batch, and return a loss of the model, as the trainer has wrapped it."""
        self.note(index, step)
        loss: torch.Tensor = (((model or self.model)(index.float()[:, None] / self.options.samples) - 1) ** 2).mean()
        return loss


def _trainer_options(job: Job) -> dict[str, Any]:
    """Return what the Hugging Face Trainer, and TRL's, are told about the job."""
    return {
        "output_dir": str(job.folder / "checkpoints"),
        "max_steps": job.options.steps,
        "gradient_accumulation_steps": job.options.accumulate,
        "per_device_train_batch_size": GLOBAL_BATCH // job.world,
        "dataloader_num_workers": job.options.workers,
        "save_steps": SAVE_EVERY,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }


def train_transformers(job: Job) -> None:
    """Train under the Hugging Face Trainer, saving every few steps."""
    import transformers

    from holdfast.integrations.transformers import HoldfastCallback, newest_checkpoint

    class Trainer(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
            return job.loss(inputs["index"], self.state.global_step, model)

    arguments = transformers.TrainingArguments(**_trainer_options(job), remove_unused_columns=False)
    usual = job.numbers() if job.options.data == "usual" else None
    trainer = Trainer(model=job.model, args=arguments, train_dataset=usual)
    if usual is None:
        trainer.add_callback(HoldfastCallback(job.loader(), folder=job.folder / "run"))
    trainer.train(resume_from_checkpoint=newest_checkpoint(job.folder / "checkpoints"))


def train_trl(job: Job) -> None:
    """Train under TRL's SFTTrainer: a tiny language model whose first token says which sample it is."""
    from holdfast.integrations.transformers import HoldfastCallback, newest_checkpoint

    datasets, transformers, trl = map(importlib.import_module, ("datasets", "transformers", "trl"))

    base: Any = trl.SFTTrainer

    class Trainer(base):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
            job.note(inputs["input_ids"][:, 0] - SPECIAL_TOKENS, self.state.global_step)
            return super().compute_loss(model, inputs, *arguments, **options)

    arguments = trl.SFTConfig(**_trainer_options(job), bf16=False, gradient_checkpointing=False)
    vocabulary = SPECIAL_TOKENS + job.options.samples
    torch.manual_seed(3)
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # it would differ between numbers of processes
    config = transformers.GPT2Config(vocab_size=vocabulary, n_positions=8, n_embd=8, n_layer=1, n_head=1, **dropout)
    tokens = np.repeat(np.arange(SPECIAL_TOKENS, vocabulary)[:, None], 4, axis=1)
    usual = job.options.data == "usual"
    trainer = Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=arguments,
        # TRL requires a dataset; with holdfast's callback it is not read.
        train_dataset=datasets.Dataset.from_dict({"input_ids": (tokens if usual else tokens[:1]).tolist()}),
        processing_class=_tokenizer(),
    )
    if usual:
        trainer.data_collator = _Counting(trainer.data_collator, job.reads)
    else:
        columns = {"index": np.arange(len(tokens)), "input_ids": tokens, "labels": tokens}
        loader = job.loader(columns | {"attention_mask": np.ones_like(tokens)})
        trainer.add_callback(HoldfastCallback(loader, folder=job.folder / "run"))
    trainer.train(resume_from_checkpoint=newest_checkpoint(job.folder / "checkpoints"))


def _tokenizer() -> Any:
    """Return a tokenizer for TRL to hold; the samples are tokens already."""
    tokenizers, transformers = map(importlib.import_module, ("tokenizers", "transformers"))
    words = tokenizers.models.WordLevel({"<eos>": 0, "<unk>": 1}, unk_token="<unk>")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), eos_token="<eos>", unk_token="<unk>", pad_token="<eos>"
    )


@dataclass(frozen=True)
class _Counting:
    """A collator that writes a byte for every sample that was read for it."""

    collate: Any
    reads: Path

    def __call__(self, samples: list[Any]) -> Any:
        with self.reads.open("ab", buffering=0) as file:  # a worker process may do so
            file.write(b"." * len(samples))
        return self.collate(samples)


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
                return StatefulDataLoader(job.numbers(), batch_size=size, shuffle=True, num_workers=workers)
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
        callbacks=[saving] if usual else [HoldfastCallback(job.folder / "run"), saving],
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

    from holdfast.integrations.accelerate import newest_checkpoint, prepare

    torch.manual_seed(3)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    model, optimizer = accelerator.prepare(job.model, torch.optim.SGD(job.model.parameters(), lr=0.01))
    usual = job.options.data == "usual"
    if usual:
        options: dict[str, Any] = {
            "batch_size": GLOBAL_BATCH // job.world,
            "shuffle": True,
            "num_workers": job.options.workers,
        }
        batches = accelerator.prepare(torch.utils.data.DataLoader(job.numbers(), **options))
    else:
        batches = prepare(accelerator, job.loader(), folder=job.folder / "run", model=job.model, optimizer=optimizer)
    checkpoints = job.folder / "checkpoints"
    if usual:
        whole = [path for path in checkpoints.glob("step-*") if (path / "whole").exists()]
        newest = str(max(whole, key=lambda path: int(path.name[5:]))) if whole else None
    else:
        newest = newest_checkpoint(checkpoints)
    step = 0
    if newest:
        accelerator.load_state(newest)
        step = int(newest.rpartition("-")[2])
    while step < job.options.steps:
        rest = batches
        if usual:  # as the documentation of Accelerate says
            batches.set_epoch(step // len(batches))
            if newest and step % len(batches):
                rest = accelerator.skip_first_batches(batches, step % len(batches))
            newest = None
        for batch in rest:
            loss = job.loss(batch["index"], step, model)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if not usual:
                batches.step(loss)
            if step % SAVE_EVERY == 0:
                accelerator.save_state(str(checkpoints / f"step-{step}"))
                if usual:
                    accelerator.wait_for_everyone()
                    (checkpoints / f"step-{step}" / "whole").touch()
            if step == job.options.steps:
                break
    if not usual:
        batches.close()


def train_dcp(job: Job) -> None:
    """Train in a loop like torchtitan's: torch's own distributed checkpoints, with the stream as a ``Stateful``."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.nn.parallel import DistributedDataParallel

    from holdfast.integrations.loop import TrainingStream

    if job.world > 1:
        dist.init_process_group("gloo")
    model = DistributedDataParallel(job.model) if job.world > 1 else job.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    metrics = hfast.MetricsAggregator()
    stream = TrainingStream(job.loader(), folder=job.folder / "run", model=model, optimizer=optimizer, metrics=metrics)
    state = {"model": job.model, "stream": stream}
    checkpoints = job.folder / "checkpoints"
    whole = [int(path.parent.name) for path in checkpoints.glob("*/.metadata")]  # written last
    if whole:
        dcp.load(state, checkpoint_id=checkpoints / str(max(whole)))  # type: ignore[attr-defined]
    with stream:
        while stream.step_number < job.options.steps:
            for batch in stream:
                loss = job.loss(batch["index"], stream.step_number)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
                metrics.update([hfast.Metric("numbers", "seen", len(batch["index"]), hfast.AggregationType.SUM)])
                stream.step(loss)
                if stream.step_number % SAVE_EVERY == 0:
                    dcp.save(state, checkpoint_id=checkpoints / str(stream.step_number))  # type: ignore[attr-defined]
                    stream.saved(checkpoints / str(stream.step_number))
                if stream.step_number == job.options.steps:
                    break
        seen = metrics.get_metrics()["numbers"]["seen"]
    (job.folder / "metrics.json").write_text(json.dumps(seen))


TRAINERS = {
    "transformers": (train_transformers, ("transformers.trainer", "holdfast.integrations.transformers")),
    "trl": (train_trl, ("trl.trainer.sft_trainer", "holdfast.integrations.transformers")),
    "lightning": (train_lightning, ("holdfast.integrations.lightning",)),
    "accelerate": (train_accelerate, ("holdfast.integrations.accelerate",)),
    "dcp": (train_dcp, ("holdfast.integrations.loop", "torch.distributed.checkpoint")),
}


def start(life: Life, rank: int, port: int) -> int:
    """Fork one process of a life; returns its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        errors = os.open(Path(life.folder) / f"errors-{life.number}-{rank}", os.O_WRONLY | os.O_CREAT)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        if life.world > 1:  # as torchrun says it
            names: dict[str, Any] = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "GROUP_RANK": 0,
                "WORLD_SIZE": life.world,
                "MASTER_PORT": port,
            }
            names |= {"LOCAL_WORLD_SIZE": life.world, "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "job"}
            os.environ.update({name: str(value) for name, value in names.items()})
        # As in a program of its own. Under a fork server torch's workers would outlive a process that is killed.
        multiprocessing.set_start_method("fork", force=True)
        TRAINERS[life.trainer][0](Job(life))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def live(life: Life) -> int:
    """Live one life on its processes; returns how it ended: 0, or minus the signal that ended it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = {start(life, rank, port) for rank in range(life.world)}
    code = 0
    while processes:
        process, status = os.wait()
        if process not in processes:
            continue
        processes.discard(process)
        ended = os.waitstatus_to_exitcode(status)
        if ended and not code:
            code = ended
            for other in processes:  # as a launcher does
                os.kill(other, signal.SIGKILL)
    return code


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        own = Life(**json.loads(Path(sys.argv[2]).read_text()))
        TRAINERS[own.trainer][0](Job(own))
    else:
        plan = [Life(**entry) for entry in json.loads(Path(sys.argv[1]).read_text())]
        for name in dict.fromkeys(name for each in plan for name in TRAINERS[each.trainer][1]):
            importlib.import_module(name)
        dead: set[str] = set()
        for each in plan:
            if each.folder in dead:  # a life before this one has failed
                continue
            ended = live(each)
            if ended != (-signal.SIGKILL if each.die_after else 0):
                dead.add(each.folder)
            print(json.dumps({**asdict(each), "ended": ended}), flush=True)
