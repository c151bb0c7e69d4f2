"""What a run costs and how fast it heals: overhead, detection, rollback, and peers' spike rules on the same series.

Overhead is measured with and without a run, alternating: the host's share on steps that do nothing, in CPU seconds of
the training thread, as the least of many short rounds (other work on the machine only adds), and on steps of 20 ms, by
the wall clock, as the median difference between blocks of steps that were made one after the other, with its 95%
interval: for steps that compute all the time and steps that mostly wait, of programs that pass their gradient
norm and of programs that do not. The first steps of a block are left out: the program before it emptied the caches. The
``floor`` beside the latter is a bare hook that measures the same norm with the fastest of torch's kernels (it was
compared with dot products, and with a thread of its own, which takes longer than the norm), and does nothing else. The
rules of Lightning's ``SpikeDetection`` (a loss above three times its running mean), OLMo-core's skip-step (mean plus
six standard deviations of 128) and LLM Foundry's ``KillLossSpike`` (four of a window above twice its mean) are applied
as documented to the very losses the run recorded.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from common import alternate, arguments, publish
from holdfast.run import RollbackOptions, Run, RunLog, RunOptions
from holdfast.run.gauge import Gauge
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

PARTS = ("overhead", "healing")
STEP_SECONDS = 0.020
WARM_UP = 1  # rounds
BLOCK_WARM_UP, BLOCK = 2, 4  # steps of one program before it is timed, and while it is
TrainStep = Callable[[], tuple[torch.Tensor, torch.Tensor | None]]
BAD, WIDTH = 200, 12
STEPS = 320


class Counted:
    """Batches that cost nothing."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.next += 1
            yield self.next

    def state_dict(self) -> dict[str, int]:
        """Return the number of the last batch."""
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a number."""
        self.next = state["next"]


def host_microseconds(rounds: int, steps: int, **more: Any) -> tuple[float, float]:
    """Return the CPU time a run adds to a step that does nothing: the least, and the mean with the detectors' looks."""
    model, loss = nn.Linear(2, 2), torch.tensor(1.0)
    options = RunOptions(save_every=10**9, stats_every=None, grad_norm=False, hash_parameters=False)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run", model=model, loader=Counted(), options=options, **more)
        batches = iter(run)

        def with_run() -> None:
            for _ in range(steps):
                next(batches)
                run.step(loss=loss)

        plain = iter(Counted())

        def without() -> None:
            for _ in range(steps):
                next(plain)
                loss.item()

        with_run()
        taken: dict[str, list[float]] = {"with": [], "without": []}
        for _ in range(rounds):
            for name, side in (("with", with_run), ("without", without)):
                began = time.thread_time()
                side()
                taken[name].append(1e6 * (time.thread_time() - began) / steps)
        run.close()
    least = min(taken["with"]) - min(taken["without"])
    return least, statistics.fmean(taken["with"]) - statistics.fmean(taken["without"])


@dataclass(frozen=True)
class Ratio:
    """How much longer steps take inside a run.

    Attributes:
        median: of the differences between the median steps of one round, the layers' statistics included.
        mean: of all steps; the slow moments of the machine fall on one side or the other.
        low: the lower end of the median's 95% interval, over rounds drawn again.
        high: its upper end.
    """

    median: float
    mean: float
    low: float
    high: float


def step_ratios(rounds: int, sides: tuple[str, ...], *, waiting: bool, clips: bool) -> dict[str, Ratio]:
    """Return how much longer a step of about 20 ms takes inside a run with everything on, by the wall clock.

    Two programs per side, alike but for their place in memory, make a block of steps each in every round, in an order
    drawn for it. What slows the machine for longer than a round is in both sides of its difference.

    Args:
        rounds: their number; each program makes one block of steps per round.
        sides: what is compared with a plain program: ``run``, and ``floor``, which only measures its gradient's norm.
        waiting: most of the step is spent in an empty loop, after which the processor's caches hold neither the
            interpreter nor torch, and any call takes many times as long; else all of it is forward and backward pass.
        clips: the program clips its gradient, inside a run and outside, and passes the norm to the run; else the run
            measures it, which takes one more pass over all gradients.
    """
    size, rows, rest, clock = 256, 64, 0.0, time.perf_counter
    data = torch.randn(rows, size)

    def program() -> tuple[nn.Module, torch.optim.Optimizer, TrainStep]:
        model = nn.Sequential(*[nn.Linear(size, size) for _ in range(6)])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def train_step() -> tuple[torch.Tensor, torch.Tensor | None]:
            loss: torch.Tensor = model(data).square().mean()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0) if clips else None
            optimizer.step()
            began = clock()
            while clock() - began < rest:  # the same on both sides: what the run's hooks take is not hidden in it
                pass
            return loss, norm

        return model, optimizer, train_step

    kinds = ("plain", *sides)
    programs = [program() for _ in 2 * kinds]
    plain_step = programs[0][-1]
    if waiting:
        rest = STEP_SECONDS - alternate({"compute": plain_step}, 25)["compute"]
    else:
        while alternate({"compute": plain_step}, 9)["compute"] < STEP_SECONDS:
            rows += 32
            data = torch.randn(rows, size)

    taken: list[list[list[float]]] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        steps: list[Callable[[], None]] = []
        for number, (kind, (model, optimizer, train_step)) in enumerate(zip(2 * kinds, programs, strict=True)):
            if kind == "floor":
                optimizer.register_step_pre_hook(_measure_norm)
            if kind != "run":
                steps.append(functools.partial(_plain_step, train_step))
                continue
            run = Run(
                Path(folder) / str(number),
                model=model,
                optimizer=optimizer,
                loader=Counted(),
                options=RunOptions(save_every=10**9),
            )
            stack.callback(run.close)
            steps.append(functools.partial(_recorded_step, run, iter(run), train_step))
        order, drawn = list(range(len(steps))), random.Random(0)
        for _ in range(WARM_UP + rounds):
            drawn.shuffle(order)
            times: list[list[float]] = [[] for _ in steps]
            for number in order:
                for _ in range(BLOCK_WARM_UP + BLOCK):
                    began = clock()
                    steps[number]()
                    times[number].append(clock() - began)
            taken.append([block[BLOCK_WARM_UP:] for block in times])
    blocks = {kind: np.array(taken)[WARM_UP:, number :: len(kinds)] for number, kind in enumerate(kinds)}
    typical = {kind: np.median(block, axis=2).mean(axis=1) for kind, block in blocks.items()}
    resampled = np.random.default_rng(0).integers(rounds, size=(2000, rounds))
    usual = np.median(blocks["plain"])
    ratios = {}
    for kind in sides:
        added = typical[kind] - typical["plain"]
        low, high = np.percentile(np.median(added[resampled], axis=1), [2.5, 97.5])
        mean = blocks[kind].mean() - blocks["plain"].mean()
        ratios[kind] = Ratio(*(float(1 + more / usual) for more in (np.median(added), mean, low, high)))
    return ratios


def _measure_norm(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Measure the norm of every gradient, and nothing else: no run that knows them can take less."""
    norms = torch._foreach_norm([owner.grad for group in optimizer.param_groups for owner in group["params"]])
    math.hypot(*[norm.item() for norm in norms])


def _recorded_step(run: Run, batches: Iterator[Any], train_step: TrainStep) -> None:
    next(batches)
    loss, norm = train_step()
    run.step(loss=loss, grad_norm=norm)


def _plain_step(train_step: TrainStep) -> None:
    train_step()[0].item()


def overhead(rounds: int) -> dict[str, float]:
    """Return what a run adds to a step."""
    alone, _ = host_microseconds(8 * rounds, 100, monitor=False)
    watched, with_looks = host_microseconds(20 * rounds, 100)
    figures = {
        "host_microseconds_per_step": alone,
        "host_microseconds_per_step_watched": watched,
        "host_microseconds_per_step_with_looks": with_looks,
        "norm_microseconds_per_tensor": norm_microseconds(rounds, 100, 4) / 100,
        "norm_microseconds_per_megabyte": norm_microseconds(rounds, 16, 1 << 20) / 64,
    }
    for name, waiting in (("computing", False), ("waiting", True)):
        for clips in (True, False):
            sides = ("run",) if clips else ("run", "floor")
            ratios = step_ratios(9 * rounds, sides, waiting=waiting, clips=clips)
            for side, ratio in ratios.items():
                kind = f"ratio_of_20_ms_{name}_{'told' if clips else 'measured'}_norm"
                kind += "_floor" if side == "floor" else ""
                figures |= {kind: ratio.median, f"{kind}_low": ratio.low, f"{kind}_high": ratio.high}
                figures[f"{kind}_mean"] = ratio.mean
    return figures


def norm_microseconds(rounds: int, tensors: int, size: int) -> float:
    """Return what measuring the norms of this many gradients of this many numbers takes."""
    model = nn.ParameterList([nn.Parameter(torch.randn(size)) for _ in range(tensors)])
    for parameter in model.parameters():
        parameter.grad = torch.randn(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    gauge = Gauge(model, [optimizer], grad_norm=True, stats_every=None)
    taken = alternate({"norms": lambda: gauge.measure_unclipped(optimizer)}, 20 * rounds, clock=time.thread_time)
    gauge.close()
    return 1e6 * taken["norms"]


def job(seed: int, poisoned: bool) -> tuple[Any, ...]:
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(8192, 8)).astype(np.float32)
    labels = np.tanh(values.sum(1, keepdims=True)).astype(np.float32)

    def loader() -> StreamingShardLoader:
        dataset = StreamDataset(ArraySource({"x": values, "y": labels}), name="numbers", seed=seed)
        return StreamingShardLoader(dataset, StreamingConfig(batch_size=16))

    if poisoned:
        probe = loader()
        strength = float(generator.choice([4.0, 8.0, 30.0]))
        for step in range(BAD, BAD + WIDTH):
            labels[[sample.index for sample in probe.samples_in(step)]] = -strength
        probe.close()
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3), loader()


def trained(folder: Path, seed: int, *, poisoned: bool, policy: str) -> RunLog:
    model, optimizer, loader = job(seed, poisoned)
    with Run(
        folder,
        model=model,
        optimizer=optimizer,
        loader=loader,
        steps=STEPS,
        on_finding=policy,
        rollback=RollbackOptions(after=8, max_rollbacks=4),
        options=RunOptions(save_every=50, keep=10, save_in_background=False),
    ) as run:
        for batch in run:
            loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            run.step(loss=loss)
    loader.close()
    return RunLog(folder)


def lightning_rule(losses: list[float]) -> list[int]:
    """Flag a loss that is above its running mean (window 10) by more than twice that mean."""
    window: deque[float] = deque(maxlen=10)
    found = []
    for step, loss in enumerate(losses):
        if window and (not np.isfinite(loss) or loss - statistics.fmean(window) > abs(2.0 * statistics.fmean(window))):
            found.append(step)
        else:
            window.append(loss)
    return found


def skip_step_rule(losses: list[float]) -> list[int]:
    """Flag a loss above mean plus six standard deviations of the last 128, once half of them are there."""
    window: deque[float] = deque(maxlen=128)
    found = []
    for step, loss in enumerate(losses):
        if len(window) >= 64 and not loss <= statistics.fmean(window) + 6 * statistics.stdev(window):
            found.append(step)
        window.append(loss)
    return found


def kill_rule(losses: list[float]) -> list[int]:
    """Flag the fourth loss in a row above twice the mean of the 100 before."""
    window: deque[float] = deque(maxlen=100)
    found, high = [], 0
    for step, loss in enumerate(losses):
        if len(window) == 100:
            high = high + 1 if not loss <= 2 * statistics.fmean(window) else 0
            if high >= 4:
                found.append(step)
        window.append(loss)
    return found


RULES: dict[str, Callable[[list[float]], list[int]]] = {
    "lightning_spike_detection": lightning_rule,
    "olmo_skip_step": skip_step_rule,
    "kill_loss_spike": kill_rule,
}


def compare(seeds: range, folder: Path) -> dict[str, float]:
    """Train poisoned and healthy runs without a policy; count who found what."""
    flags: dict[str, dict[str, list[list[int]]]] = {name: {"bad": [], "good": []} for name in (*RULES, "holdfast")}
    for seed in seeds:
        for kind in ("bad", "good"):
            log = trained(folder / f"{kind}-{seed}", seed, poisoned=kind == "bad", policy="log")
            losses = [record["loss"] for record in log.steps()]
            own = [event["found_at"] for event in log.events("finding") if event["severity"] != "info"]
            flags["holdfast"][kind].append(own)
            for name, rule in RULES.items():
                flags[name][kind].append(rule(losses))
    figures: dict[str, float] = {}
    for name, found in flags.items():
        hits = [[step for step in steps if BAD <= step <= BAD + 60] for steps in found["bad"]]
        early = [any(step < BAD for step in steps) for steps in found["bad"]]
        figures[f"{name}_found"] = sum(bool(steps) for steps in hits)
        figures[f"{name}_missed"] = sum(not steps for steps in hits)
        figures[f"{name}_false"] = sum(map(bool, found["good"])) + sum(early)
        latencies = [min(steps) - BAD for steps in hits if steps]
        figures[f"{name}_latency_steps"] = statistics.median(latencies) if latencies else float("nan")
    return figures


def heal(seeds: range, folder: Path) -> dict[str, float]:
    """Roll poisoned runs back; measure from the first bad step to running again."""
    detect, restore, redo, redone, dropped, gain = [], [], [], [], [], []
    for seed in seeds:
        log = trained(folder / f"cured-{seed}", seed, poisoned=True, policy="rollback")
        alone = RunLog(folder / f"bad-{seed}")
        events = log.events("rollback")
        records = list(log.records())
        place = next(n for n, record in enumerate(records) if record.get("step") == BAD and "loss" in record)
        decided = next((record for record in records[place:] if record.get("event") == "rollback"), None)
        if decided is None:
            continue
        detect.append(decided["at"] - (records[place]["at"] - records[place]["step_time"]))
        restore.append(sum(event.get("restore_time", 0.0) for event in log.events("rolled_back")))
        redo.append(log.goodput().seconds["redone"])
        redone.append(sum(bool(record.get("redone")) for record in records))
        dropped.append(16 * sum(event["skipped"][1] - event["skipped"][0] for event in events))
        ends = [statistics.fmean(record["loss"] for record in each.steps()[-20:]) for each in (log, alone)]
        gain.append(ends[0] / ends[1])
    if not detect:
        return {"rolled_back": 0}
    return {
        "rolled_back": len(detect),
        "seconds_to_detect": statistics.median(detect),
        "seconds_to_restore": statistics.median(restore),
        "seconds_to_redo": statistics.median(redo),
        "steps_redone": statistics.median(redone),
        "samples_dropped": statistics.median(dropped),
        "final_loss_over_left_alone": statistics.median(gain),
    }


def main() -> None:
    options = arguments(__doc__ or "", parts=PARTS)
    torch.set_num_threads(1)
    rounds, seeds = (5, range(3)) if options.quick else (9, range(20))
    figures: dict[str, float] = {}
    if "overhead" in options.parts:
        figures |= overhead(rounds)
    if "healing" in options.parts:
        with tempfile.TemporaryDirectory() as folder:
            figures |= compare(seeds, Path(folder))
            figures |= heal(seeds, Path(folder))
    about = {"runs": f"{len(seeds)} poisoned and {len(seeds)} healthy", "rules": "as documented, on the same losses"}
    publish(figures, about, as_json=options.json)


if __name__ == "__main__":
    main()
