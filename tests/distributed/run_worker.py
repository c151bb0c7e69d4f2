"""One rank of the run's fault matrix; started by torchrun. Every scenario is a run of its own in the same processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.faults.run_job import replicated, whole_hash
from torch import nn
from torch.distributed.fsdp import fully_shard

from holdfast.errors import RunStoppedError
from holdfast.run import RollbackOptions, Run, RunLog, RunOptions
from holdfast.run.parameters import hash_parameters
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

STEPS = 46
FAULT = 30
OPTIONS = RunOptions(save_every=10, keep=20, stats_every=4, stall_after=30.0, handle_signals=False)
Hook = Callable[["Job", int], None]


class Net(nn.Module):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(x))))
        output: torch.Tensor = self.third(hidden)
        return output


class Job:
    """One rank of a training program."""

    def __init__(self, *, sharded: bool = False, poisoned: tuple[int, ...] = ()) -> None:
        torch.manual_seed(11)
        self.net = Net()
        self.model: nn.Module = self.net
        if sharded:
            fully_shard(self.net)
        else:
            self.model = replicated(self.net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        values = np.random.default_rng(0).normal(size=(2048, 6)).astype(np.float32)
        labels = np.tanh(values.sum(1, keepdims=True))
        for step in poisoned:
            clean: StreamingShardLoader = Job().loader
            labels[[sample.index for sample in clean.samples_in(step)]] = 40.0
        source = ArraySource({"x": values, "y": labels})
        world = dist.get_world_size()
        config = StreamingConfig(batch_size=12 // world)
        self.loader: StreamingShardLoader = StreamingShardLoader(StreamDataset(source, name="numbers", seed=5), config)
        self.before_update: Hook = lambda job, step: None
        self.before_forward: Hook = lambda job, step: None

    def step(self, batch: Any, step: int) -> torch.Tensor:
        self.before_forward(self, step)
        loss = nn.functional.mse_loss(self.model(batch["x"]), batch["y"])
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.before_update(self, step)
        self.optimizer.step()
        return loss

    def train(self, folder: Path, *, steps: int = STEPS, options: RunOptions = OPTIONS, **more: Any) -> dict[str, Any]:
        """Train to the end; returns what this rank's log says."""
        run = Run(
            folder, model=self.model, optimizer=self.optimizer, loader=self.loader, steps=steps, options=options, **more
        )
        stopped = None
        try:
            for batch in run:
                run.step(loss=self.step(batch, run.step_number))
        except RunStoppedError as error:
            stopped = error.finding
        run.close()
        self.loader.close()
        log, rank = RunLog(folder), dist.get_rank()
        return {
            "hash": whole_hash(self.net),
            "stopped": stopped,
            "events": [event for event in log.events(rank=rank) if event["event"] != "metrics"],
            "losses": [record.get("loss") for record in log.steps(rank)],
            "norms": [record["grad_norm"] for record in log.steps(rank)],
            "layers": [record.get("grad_norm/second") for record in log.steps(rank)],
            "steps": [record["step"] for record in log.steps(rank)],
            "goodput": dict(log.goodput(rank).seconds),
            "faults": [str(fault) for fault in log.verify()],
        }


def once(step: int, rank: int, act: Callable[[Job], None]) -> Hook:
    """Return a hook that acts once, at a step, on one rank."""
    left = [True]

    def hook(job: Job, at: int) -> None:
        if at == step and dist.get_rank() == rank and left:
            left.clear()
            act(job)

    return hook


def healthy(folder: Path) -> dict[str, Any]:
    """Nothing happens; but torchrun would start the ranks again, with the store of the dead ones."""
    os.environ["TORCHELASTIC_MAX_RESTARTS"] = "1"
    with warnings.catch_warnings(record=True) as warned:
        told = Job().train(folder, on_finding="rollback")
    os.environ["TORCHELASTIC_MAX_RESTARTS"] = "0"
    return {**told, "warned": [str(each.message) for each in warned if each.category is RuntimeWarning]}


def nan(folder: Path) -> dict[str, Any]:
    """A gradient of one layer turns NaN on one rank; the machine's fault, so the same steps are made again."""

    def act(job: Job) -> None:
        assert job.net.second.weight.grad is not None
        job.net.second.weight.grad[0, 0] = float("nan")

    job = Job()
    job.before_update = once(FAULT, 1, act)
    return job.train(folder, on_finding={"nan": "rollback"}, rollback=RollbackOptions(cure="none"))


def rate(folder: Path) -> dict[str, Any]:
    def hook(job: Job, step: int) -> None:
        if step == FAULT:
            for group in job.optimizer.param_groups:
                group["lr"] *= 100

    sent: list[Any] = []
    job = Job()
    job.before_update = hook
    told = job.train(folder, steps=80, on_finding="alert", alerts=[sent.append])
    return {**told, "sent": [finding["failure"] for finding in sent]}


def poison(folder: Path) -> dict[str, Any]:
    poisoned = (FAULT, FAULT + 1, FAULT + 2)
    alone = Job(poisoned=poisoned).train(folder.with_name(f"{folder.name}-alone"))
    rules = dict.fromkeys(("spike", "explosion", "divergence"), "rollback")
    cured = Job(poisoned=poisoned).train(folder, on_finding=rules, rollback=RollbackOptions(after=4))
    return {**cured, "alone": alone["losses"]}


def desync(folder: Path) -> dict[str, Any]:
    def act(job: Job) -> None:
        with torch.no_grad():
            job.net.third.weight[0, 0] += 1e-3

    job = Job()
    job.before_update = once(25, 1, act)
    return job.train(folder, on_finding={"desync": "stop"})


def frozen(folder: Path) -> dict[str, Any]:
    """From a step on, one of three layers gets no gradient at all."""

    def hook(job: Job, step: int) -> None:
        if step >= 8:
            for parameter in job.net.second.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()

    job = Job()
    job.before_update = hook
    return job.train(folder, steps=60)


def stopped_rank(folder: Path) -> dict[str, Any]:
    """The last rank is stopped for a while, as a suspended machine would be."""

    def act(job: Job) -> None:
        subprocess.Popen(["sh", "-c", f"sleep 2.5; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)

    job = Job()
    job.before_forward = once(20, dist.get_world_size() - 1, act)
    options = RunOptions(save_every=10, stats_every=None, stall_after=0.8, handle_signals=False)
    return job.train(folder, steps=30, options=options, on_finding={"hang": "alert"})


def slow_rank(folder: Path) -> dict[str, Any]:
    def hook(job: Job, step: int) -> None:
        if dist.get_rank() == 1:
            time.sleep(0.03)

    job = Job()
    job.before_forward = hook
    return job.train(folder, steps=52)  # the first comparison of ranks is made of 48 steps


def corrupt(folder: Path) -> dict[str, Any]:
    """The latest checkpoint is damaged between two attempts."""
    Job().train(folder, steps=30)
    if dist.get_rank() == 0:
        file = max((folder / "checkpoints" / "step-00000030").glob("*.distcp"), key=lambda path: path.stat().st_size)
        content = bytearray(file.read_bytes())
        for place in range(len(content) // 4, len(content) // 2):
            content[place] ^= 1
        file.write_bytes(bytes(content))
    dist.barrier()
    return Job().train(folder)


def full_disk(folder: Path) -> dict[str, Any]:
    """The kernel refuses one rank's writes beyond a size while it saves; training continues, and so do later saves."""

    def hook(job: Job, step: int) -> None:
        if dist.get_rank() == 1 and step in (15, 25):
            limit = 20_000 if step == 15 else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    job = Job(sharded=True)
    job.before_update = hook
    return job.train(folder, steps=40, options=RunOptions(save_every=10, stats_every=None, handle_signals=False))


def sharded(folder: Path) -> dict[str, Any]:
    return Job(sharded=True).train(folder, steps=30)


def replayed(folder: Path) -> dict[str, Any]:
    """Steps made again by all ranks have the recorded bits; what differs on one rank is seen by all."""
    told: dict[str, Any] = {}
    job = Job()
    made = [0]
    with Run(
        folder,
        model=job.model,
        optimizer=job.optimizer,
        loader=job.loader,
        train_step=lambda batch: job.step(batch, FAULT),
        options=OPTIONS,
    ) as run:
        run.train(steps=16)

        def count() -> None:
            made[0] += 1

        before = hash_parameters(job.net).whole
        told["as recorded"] = run.replay(range(12, 16), on_step=count).differs_at

        told |= {"made": made[0], "differs": {}}
        for fault in (14, 15):
            calls = [0]

            def flip(job: Job, at: int, fault: int = fault, calls: list[int] = calls) -> None:
                step = 10 + calls[0] % 6
                calls[0] += 1
                if step == fault and dist.get_rank() == 1:  # no other rank's numbers show it before the step after
                    assert job.net.second.weight.grad is not None
                    job.net.second.weight.grad[0, 0] += 1e-3

            job.before_update = flip
            found = run.replay(range(12, 16))
            told["differs"][str(fault)] = (found.differs_at, found.bitwise)
        told["untouched"] = hash_parameters(job.net).whole == before
    job.loader.close()
    return {**told, "faults": [str(fault) for fault in RunLog(folder).verify()], "steps": list(range(16))}


def resized(folder: Path) -> dict[str, Any]:
    """Continue a sharded and a replicated run with one rank fewer; the last rank has no part in what follows."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for name in ("sharded", "replicated"):
        Job(sharded=name == "sharded").train(folder / name, steps=20)
    dist.barrier()
    store_path = str(folder / "store")
    dist.destroy_process_group()
    told: dict[str, Any] = {}
    if rank < world - 1:
        store = dist.FileStore(store_path, world - 1)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world - 1, timeout=timedelta(seconds=60))
        for name in ("sharded", "replicated"):
            told[name] = Job(sharded=name == "sharded").train(folder / name, steps=30)
    return told


SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "healthy": healthy,
    "nan": nan,
    "rate": rate,
    "poison": poison,
    "desync": desync,
    "frozen": frozen,
    "stopped_rank": stopped_rank,
    "slow_rank": slow_rank,
    "corrupt": corrupt,
    "full_disk": full_disk,
    "sharded": sharded,
    "replayed": replayed,
    "resized": resized,
}


def main(given: str, *names: str) -> None:
    """Run the named scenarios one after another."""
    folder = Path(given)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    for name in names:
        told = SCENARIOS[name](folder / name)
        (folder / f"{name}-{rank}.json").write_text(json.dumps(told))
        print(f"{name}: rank {rank} done", flush=True)
        if not dist.is_initialized():  # this rank was one too many
            return
        dist.barrier()
    dist.destroy_process_group()
