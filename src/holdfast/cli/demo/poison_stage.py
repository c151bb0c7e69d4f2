"""A run that is killed, resumes at another size, reads poisoned data, rolls back, skips it, and ends with a lower loss.

Run by the demo in separate processes: ``python -m holdfast.cli.demo.poison_stage RUN DATA STEPS POLICY RANK WORLD
STORE``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.cli.demo import Row

__all__ = ["main", "run"]

STEPS, POISON, KILLED_AFTER = 140, range(80, 92), 45
GLOBAL_BATCH = 12
MAX_WAIT_SECONDS = 600.0


def run(folder: Path, say: Callable[[str], None]) -> list[Row]:
    """Start with two ranks, kill them, continue with three; then run the same data without a policy."""
    from holdfast.run import RunLog

    data = folder / "poisoned"
    _write_data(data)
    place = folder / "run"
    say(f"a run with 2 ranks; killed with SIGKILL once {KILLED_AFTER} steps are recorded")
    _start(place, data, world=2, policy="rollback", kill_after=KILLED_AFTER)
    before = len(RunLog(place).steps())
    say(f"killed at step {before}; the same program, started again with 3 ranks")
    _start(place, data, world=3, policy="rollback")
    log = RunLog(place)
    resumed = log.events("start")[-1]
    say(f"it continued at step {resumed['step']} from {resumed['checkpoint']}; log verified: {not log.verify()}")
    rollbacks = log.events("rollback")
    for event in rollbacks:
        finding = event["finding"]
        say(f"found {finding['title'].lower()} from step {finding['onset']} at step {finding['found_at']};")
        say(f"  all ranks back to step {event['to']}, batches {event['skipped'][0]} to {event['skipped'][1]} left out")
    alone = folder / "alone"
    _start(alone, data, world=3, policy="log")
    cured, left = (_last(RunLog(each)) for each in (place, alone))
    say(f"loss over the last 20 steps: {cured:.3f}; for the same run without the cure: {left:.3f}")
    goodput = log.goodput()
    spent = ", ".join(f"{bucket} {seconds:.1f} s" for bucket, seconds in goodput.seconds.items() if seconds >= 0.05)
    say(f"where its {goodput.total:.1f} s went: {spent}")
    whole = [record["step"] for record in log.steps()] == list(range(STEPS)) and not log.verify()
    return [
        Row("a killed run continues by itself, at another size", f"2 → 3 ranks, at step {resumed['step']}", whole),
        Row("poisoned data: found, rolled back, skipped", f"{len(rollbacks)} rollback(s)", len(rollbacks) >= 1),
        Row("a lower final loss than without the cure", f"{cured:.3f} against {left:.3f}", cured < left),
    ]


def _last(log: Any) -> float:
    losses = [record["loss"] for record in log.steps()][-20:]
    return float(sum(losses) / len(losses))


def _write_data(data: Path) -> None:
    """Write inputs and labels; the labels of all samples of some steps are far off."""
    import numpy as np

    data.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(0).normal(size=(4096, 8)).astype(np.float32)
    labels = np.tanh(values.sum(1, keepdims=True)).astype(np.float32)
    loader = _loader(values, labels, world=1, rank=0)
    for step in POISON:
        labels[[sample.index for sample in loader.samples_in(step)]] = -30.0
    loader.close()
    np.savez(data / "data.npz", values=values, labels=labels)


def _loader(values: Any, labels: Any, *, world: int, rank: int) -> Any:
    from holdfast.sources import ArraySource
    from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

    dataset = StreamDataset(ArraySource({"x": values, "y": labels}), name="numbers", seed=3)
    config = StreamingConfig(world_size=world, rank=rank, batch_size=GLOBAL_BATCH // world)
    return StreamingShardLoader(dataset, config)


def _start(place: Path, data: Path, *, world: int, policy: str, kill_after: int | None = None) -> None:
    """Run the program with this many ranks to its end, or kill every rank once enough steps are recorded."""
    store = place.with_name(f".{place.name}-store-{time.monotonic_ns()}")
    command = [sys.executable, "-m", "holdfast.cli.demo.poison_stage"]
    arguments = [str(place), str(data), str(STEPS), policy]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([*command, *arguments, str(rank), str(world), str(store)], env=environment)
        for rank in range(world)
    ]
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    try:
        while kill_after is not None and _recorded(place) < kill_after and time.monotonic() < deadline:
            time.sleep(0.02)
        if kill_after is not None:
            for process in ranks:
                process.send_signal(signal.SIGKILL)
        for process in ranks:
            process.wait(timeout=max(1.0, deadline - time.monotonic()))
    finally:
        for process in ranks:
            process.kill()


def _recorded(place: Path) -> int:
    lines = [line for path in (place / "log").glob("*.rank-00000.*.jsonl") for line in path.read_bytes().splitlines()]
    steps = [json.loads(line).get("step", 0) for line in lines if line.startswith(b'{"step"') and line.endswith(b"}")]
    return 1 + max(steps, default=-1)


def main() -> None:
    """Run one rank of the program."""
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from holdfast.run import RollbackOptions, Run, RunOptions

    place, data, steps, policy, rank, world, store = sys.argv[1:]
    torch.set_num_threads(1)
    file_store = dist.FileStore(store, int(world))  # type: ignore[attr-defined]
    dist.init_process_group(
        "gloo", store=file_store, rank=int(rank), world_size=int(world), timeout=timedelta(seconds=60)
    )
    torch.manual_seed(1)
    arrays = np.load(Path(data) / "data.npz")
    loader = _loader(arrays["values"], arrays["labels"], world=int(world), rank=int(rank))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    with Run(
        place,
        model=model,
        optimizer=optimizer,
        loader=loader,
        steps=int(steps),
        on_finding=policy,
        rollback=RollbackOptions(after=8),
        options=RunOptions(save_every=20, keep=10, stats_every=None),
    ) as training:
        for batch in training:
            loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            training.step(loss=loss)
            time.sleep(0.002)  # makes a step long enough to be killed in
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
