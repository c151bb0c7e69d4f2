"""A run that is killed and started again, again and again: run by test_run_kill.

One launcher imports torch once and then forks a process per rank and life. Each notes, with one unbuffered write,
every step whose successor's batch it was given: from then on the step is acknowledged and must never be missing from
the rank's log. Half of the kills come at any moment of a life; the others come while some rank restores, saves or
compacts, which are short. The launcher prints one line of JSON: what became of the lives, and the hash of the
parameters at the end. ``run_job.py FOLDER SEED KILLS WORLD_SIZE``.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import holdfast.run.attempt
import holdfast.run.compact
from holdfast.run import Run, RunLog, RunOptions
from holdfast.run.parameters import hash_parameters
from holdfast.run.run_log import is_step
from holdfast.run.saving import Saving
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

STEPS = 36
OPTIONS = RunOptions(save_every=5, keep=2, stats_every=5, compact_bytes=0, stall_after=60.0)
ACTIVITIES = ("restoring", "compacting", "saving", "training")
SHORT = ACTIVITIES[:3]
MAX_ACTIVITY_SECONDS = 0.05
POLL_SECONDS = 2e-4


class Board:
    """What every rank of a life is doing, in memory that the launcher reads after their death."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._shared = mmap.mmap(-1, world * len(ACTIVITIES))

    def clear(self) -> None:
        """Begin another life."""
        self._shared[:] = bytes(len(self._shared))

    def note(self, rank: int, activity: str, is_on: bool = True) -> None:
        """Say that a rank has begun something, or ended it."""
        self._shared[rank * len(ACTIVITIES) + ACTIVITIES.index(activity)] = is_on

    def shows(self, activity: str) -> bool:
        """Return whether any rank is doing this."""
        return any(self._shared[ACTIVITIES.index(activity) :: len(ACTIVITIES)])

    def watch(self, rank: int, owner: Any, begins: str, activity: str, ends: Sequence[str]) -> None:
        """Note when functions of this process begin and end an activity."""

        def noted(name: str) -> Callable[..., Any]:
            original = getattr(owner, name)

            def call(*arguments: Any, **options: Any) -> Any:
                if name == begins:
                    self.note(rank, activity)
                try:
                    return original(*arguments, **options)
                finally:
                    if name in ends:
                        self.note(rank, activity, False)

            return call

        for name in {begins, *ends}:
            setattr(owner, name, noted(name))

    def watch_all(self, rank: int) -> None:
        """Note what a run does in this process."""
        self.watch(rank, holdfast.run.attempt, "_restore", "restoring", ["_restore"])
        self.watch(rank, holdfast.run.compact, "compact", "compacting", ["compact"])
        self.watch(rank, Saving, "save", "saving", ["_note", "_note_failure"])  # a save ends in the background


def replicated(net: nn.Module) -> nn.Module:
    # Without this option DDP lays its buckets out again after the first step of every start, which changes the order in
    # which three ranks' gradients are summed, and with it the last bit.
    return DistributedDataParallel(net, find_unused_parameters=True)


def whole_hash(net: nn.Module) -> str:
    """Return the hash of the parameters, of all ranks' shards where they are sharded; all ranks call it."""
    own = hash_parameters(net)
    parts: list[Any] = [own.part]
    if dist.is_initialized():
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, own.part)
    return f"{(own.whole + sum(parts)) & (1 << 64) - 1:016x}"


def train(
    folder: Path,
    notes: Path,
    *,
    steps: int = STEPS,
    sharded: bool = False,
    on_batch: Callable[[], None] = lambda: None,
) -> str:
    """One life of one rank: continue, train to the end, return the hash of the parameters."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    values = np.random.default_rng(0).normal(size=(256, 6)).astype(np.float32)
    source = ArraySource({"x": values, "y": values.sum(1, keepdims=True)})
    loader = StreamingShardLoader(StreamDataset(source, name="numbers", seed=5), StreamingConfig(batch_size=4))
    net = nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.2), nn.Tanh(), nn.Linear(12, 1))
    model: nn.Module = net
    if sharded:
        fully_shard(net)
    elif dist.is_initialized():
        model = replicated(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 9, gamma=0.7)
    run = Run(
        folder, model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, steps=steps, options=OPTIONS
    )
    descriptor = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for batch in run:
        on_batch()
        if run.step_number:
            os.write(descriptor, f"{run.step_number - 1}\n".encode())
        scale = 1.0 + 0.01 * random.random() + 0.01 * float(np.random.random())  # every generator takes part
        loss = scale * nn.functional.mse_loss(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        scheduler.step()
        run.step(loss=loss)
    run.close()
    loader.close()
    return whole_hash(net)


def live(folder: Path, name: str, life: int, board: Board, world: int) -> list[int]:
    """Fork one life of every rank; returns their processes."""
    pids = []
    board.clear()
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                board.watch_all(rank)
                if world > 1:
                    store = dist.FileStore(str(folder / f"store-{name}-{life}"), world)  # type: ignore[attr-defined]
                    wait = timedelta(seconds=60)
                    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=wait)
                notes = folder / f"notes-{name}-{rank}"
                told = train(folder / name, notes, on_batch=lambda: board.note(rank, "training"))  # noqa: B023
                (folder / f"hash-{name}-{rank}").write_text(told)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    return pids


def wait_for(moment: float, activity: str | None, board: Board, pids: Sequence[int], plan: random.Random) -> None:
    """Wait until this long after now; then, where one is named, for an activity and some random moment of it."""
    time.sleep(moment)
    if activity is not None:
        while not board.shows(activity) and not any(map(has_ended, pids)):
            time.sleep(POLL_SECONDS)
        time.sleep(MAX_ACTIVITY_SECONDS * plan.random() ** 3)


def has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill(pids: Sequence[int], plan: random.Random) -> bool:
    """Kill a life now, all ranks at once or one before the others; returns whether any had not ended by itself."""
    first = plan.choice(pids)
    together = plan.random() < 0.5
    os.kill(first, signal.SIGKILL)
    if not together and len(pids) > 1:  # what lost a rank fails, or is ended by its launcher
        time.sleep(plan.uniform(0.0, 0.3))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    killed = -signal.SIGKILL in codes
    assert killed or not any(codes), "a life failed by itself"
    return killed


def main() -> None:
    """Kill lives until one reaches the end and enough were killed, then tell."""
    folder, (seed, kills, world) = Path(sys.argv[1]), map(int, sys.argv[2:])
    plan = random.Random(seed)
    torch.set_num_threads(1)
    for _ in range(2):  # whatever is imported late, compaction's parts too, is imported once, before the forks
        train(folder / "warm-up", folder / "notes-warm-up")
    board = Board(world)
    began = time.monotonic()
    assert not any(os.waitpid(pid, 0)[1] for pid in live(folder, "undisturbed", 0, board, world))
    whole = time.monotonic() - began
    outcomes: dict[str, int] = dict.fromkeys(("starting", *ACTIVITIES), 0)
    runs: list[dict[str, Any]] = []
    killed = number = life = 0
    while killed < kills or not runs:
        number += 1
        root = folder / f"run-{number}"
        while True:
            life += 1
            pids = live(folder, root.name, life, board, world)
            activity = plan.choice([None, None, None, *SHORT])
            latest = 1.1 if activity is None else 0.5 if activity == "saving" else 0.0  # others come first
            wait_for(plan.uniform(0.0, latest * whole), activity, board, pids, plan)
            if not kill(pids, plan):
                whole *= 0.9  # a busy machine takes longer at one time than at another: most lives are to be killed
                break
            whole *= 1.05
            killed += 1
            seen = next((name for name in ACTIVITIES if board.shows(name)), "starting")
            outcomes[seen] += 1
        log = RunLog(root)
        for rank in range(world):
            acknowledged = {int(line) for line in (folder / f"notes-{root.name}-{rank}").read_text().split()}
            recorded = {record["step"] for record in log.records(rank) if is_step(record)}
            runs.append(
                {
                    "hash": (folder / f"hash-{root.name}-{rank}").read_text(),
                    "missing": sorted(acknowledged - recorded),
                    "steps": [record["step"] for record in log.steps(rank)],
                    "faults": [str(fault) for fault in log.verify()],
                    "attempts": len(log.attempts),
                    "redone": log.goodput(rank).seconds["redone"],
                }
            )
    expected = (folder / "hash-undisturbed-0").read_text()
    print(json.dumps({"expected": expected, "killed": killed, "moments": outcomes, "runs": runs}))


if __name__ == "__main__":
    main()
