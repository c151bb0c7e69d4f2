"""Blame, proof, replay and audit on small runs with a known culprit: who is named, what is said, at what cost.

Every case is a real run of a small language model over two sources, made, recorded and investigated like any other. A
poisoned step is step 30; the checkpoint before it is that of step 20. ``--quick`` makes 2 seeds of each case, the whole
bench 20. With ``--store FILE`` it can be made in turns.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from blame_lab import AT, BATCH, CHECKPOINT, FAULTS, KINDS, OPTIONS, STEPS, Lab, classifier
from common import arguments, publish
from holdfast.run import RollbackOptions, Run, RunOptions
from holdfast.run.audit import audit
from holdfast.run.proof import Culprit
from holdfast.run.replay import compare, recorded_steps
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

SPIKE = 130
FIRST_SEED = 1000
"""Thresholds were chosen on runs with seeds below this; those measured here are others."""


def build(folder: Path) -> Run:
    """Return the run of the example in docs/blame.md, not started: two samples of step 30 are 100 times too large."""
    return Lab(7, poison="extreme sample", count=2).run(folder)


class Cells:
    """Cells of the bench: each is measured once, and kept in a file if there is one, so that the bench has turns.

    Args:
        store: the file; None keeps nothing.
        seconds: how long this turn may take.
    """

    def __init__(self, store: str | None, seconds: float) -> None:
        self._path = Path(store) if store else None
        self._until = time.monotonic() + seconds
        self._kept: dict[str, Any] = {}
        self.missing = 0
        if self._path is not None and self._path.exists():
            self._kept = dict(map(json.loads, self._path.read_text().splitlines()))

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return what was measured under this name; None where the turn's time is up."""
        if name not in self._kept:
            if time.monotonic() > self._until:
                self.missing += 1
                return None
            self._kept[name] = measure()
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(json.dumps([name, self._kept[name]]) + "\n")
        return self._kept[name]


Figures = dict[str, float]


def mean(cells: list[Any], name: str) -> float:
    """Return the mean of one number of the cells that were measured."""
    values = [cell[name] for cell in cells if cell is not None]
    return float(np.mean(values)) if values else float("nan")


def name_poison(seed: int, kind: str, count: int) -> dict[str, float]:
    """Blame one poisoned run."""
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(seed, poison=kind, count=count)
        found = lab.train(Path(folder) / "run").blame(AT)
    top = [suspect.name for suspect in found.ranked[:count]]
    guilty, blamed = set(lab.guilty), {suspect.name for suspect in found.blamed}
    return {
        "precision": len(set(top) & guilty) / count,
        "sources": {name for name, _ in top} == {name for name, _ in guilty},
        "exact": blamed == guilty,
        "somebody": bool(blamed),
        "innocent": bool(blamed - guilty),
    }


def naming(seeds: range, cells: Cells, figures: Figures) -> None:
    """Precision at k by kind and rate, and how often exactly the poisoned samples were blamed."""
    for kind in KINDS:
        for count in (1, 4):
            made = [
                cells.get(f"naming/{kind}/{count}/{seed}", partial(name_poison, seed, kind, count)) for seed in seeds
            ]
            name = f"{kind}, {count} of {BATCH}"
            figures[f"{name}: precision at k"] = mean(made, "precision")
            figures[f"{name}: sources right"] = mean(made, "sources")
            figures[f"{name}: somebody blamed"] = mean(made, "somebody")
            figures[f"{name}: exactly these blamed"] = mean(made, "exact")
            figures[f"{name}: an innocent blamed"] = mean(made, "innocent")


EXPECTED = {
    "data": Culprit.SAMPLES,
    "learning rate x30": Culprit.MODEL,
    "healthy hard batch": Culprit.NOTHING,
}


def judge(seed: int, fault: str) -> dict[str, float]:
    """Prove one run with a fault."""
    with tempfile.TemporaryDirectory() as folder:
        kind = "extreme sample" if fault == "data" else None
        lab = Lab(seed, poison=kind, count=1 + seed % 4 if kind else 0, fault=fault)
        run = lab.train(Path(folder) / "run")
        is_flip = fault.endswith("bit")
        found = run.prove(AT + (is_flip or fault.startswith("learning")))
        seen = is_flip and run.replay(range(AT, STEPS)).differs_at is not None
    right = found.verdict is (Culprit.MACHINE if is_flip else EXPECTED[fault])
    return {
        "right": right or (is_flip and not seen),
        "matters": seen,
        "said_data": found.verdict is Culprit.SAMPLES,
        "cost": (found.steps_made + found.samples_measured / BATCH) / (found.steps[-1] + 1 - CHECKPOINT),
    }


def verdicts(seeds: range, cells: Cells, figures: Figures) -> None:
    """How often the verdict is right, by fault, and how often data is said of a fault that is not data."""
    every: list[Any] = []
    others: list[Any] = []
    for fault in FAULTS:
        made = [cells.get(f"verdict/{fault}/{seed}", partial(judge, seed, fault)) for seed in seeds]
        figures[f"verdict right: {fault}"] = mean(made, "right")
        if fault.endswith("bit"):
            figures[f"changed a recorded bit: {fault}"] = mean(made, "matters")
        every += made
        others += made if fault != "data" else []
    figures["verdict right: all"] = mean(every, "right")
    figures["data said of a fault that is not data"] = mean(others, "said_data")
    costs = [cell["cost"] for cell in every if cell is not None]
    figures["cost of a proof, in k (median)"] = float(np.median(costs)) if costs else float("nan")
    figures["cost of a proof, in k (most)"] = max(costs, default=float("nan"))


def flip_bits(seed: int, flips: int) -> dict[str, float]:
    """Replay one clean run many times, with one bit flipped in each: seen, too small to matter, and far from it.

    A replay differs from its record in the same way whichever of the two the bit was flipped in.
    """
    found = {"flips": 0, "differs": 0, "exceeds": 0, "exceeds_seen": 0}
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(seed)
        run = lab.train(Path(folder) / "run")
        with run.rehearsing(AT) as rehearsal:
            recorded = recorded_steps(rehearsal, range(rehearsal.step, AT + 4))
            for _ in range(flips):
                lab.fault, lab.armed = lab.chance.choice(("gradient bit", "weight bit", "moment bit")), True
                rehearsal.rewind()
                compared = compare(recorded, rehearsal.run_to(AT + 4))
                exceeds = max(step.difference for step in compared.steps) > ROUNDING
                found["flips"] += 1
                found["differs"] += compared.differs_at is not None
                found["exceeds"] += exceeds
                found["exceeds_seen"] += exceeds and compared.differs_at is not None
    return found


ROUNDING = 1e-6
"""A relative difference of loss or gradient norm beyond this is more than rounding of 32-bit numbers."""


def flips(seeds: range, cells: Cells, figures: Figures) -> None:
    """Single flipped bits: how many a replay sees, and how many are too small to change anything recorded."""
    made = [cells.get(f"flips/{seed}", partial(flip_bits, seed, 50)) for seed in seeds]
    total = sum(cell["flips"] for cell in made if cell is not None)
    exceeding = sum(cell["exceeds"] for cell in made if cell is not None)
    figures["flipped bits"] = total
    if total:
        seen = sum(cell["exceeds_seen"] for cell in made if cell is not None)
        figures["flipped bits beyond rounding: called machine"] = seen / exceeding if exceeding else float("nan")
        figures["flipped bits that change a recorded bit"] = (
            sum(cell["differs"] for cell in made if cell is not None) / total
        )
        figures["flipped bits too small to exceed rounding"] = 1 - exceeding / total


def look_at_healthy(seed: int) -> dict[str, float]:
    """Blame windows of a clean run, and replay it."""
    with tempfile.TemporaryDirectory() as folder:
        run = Lab(seed).train(Path(folder) / "run")
        steps = range(22, 35, 3)
        return {
            "windows": len(steps),
            "blamed": sum(not run.blame(step).nobody for step in steps),
            "replays": 10,
            "differs": sum(
                run.replay(range(begin, begin + 6)).differs_at is not None for begin in range(CHECKPOINT, 30)
            ),
        }


def healthy(seeds: range, cells: Cells, figures: Figures) -> None:
    """Windows of clean runs: how often somebody is blamed, and how often a replay is not as recorded."""
    made = [cells.get(f"healthy/{seed}", partial(look_at_healthy, seed)) for seed in seeds]
    done = [cell for cell in made if cell is not None]
    figures["healthy windows"] = sum(cell["windows"] for cell in done)
    figures["healthy windows: somebody blamed"] = sum(cell["blamed"] for cell in done)
    figures["clean replays"] = sum(cell["replays"] for cell in done)
    figures["clean replays not as recorded"] = sum(cell["differs"] for cell in done)


def look_at_classifier(seed: int) -> dict[str, float]:
    """Blame windows of a healthy classifier that has learnt: the losses of its hard samples lie far out."""
    with tempfile.TemporaryDirectory() as folder:
        run = classifier(seed, Path(folder) / "run", steps=160)
        steps = range(122, 155, 8)
        return {"windows": len(steps), "blamed": sum(not run.blame(step).nobody for step in steps)}


def healthy_classifiers(seeds: range, cells: Cells, figures: Figures) -> None:
    """Windows of classifiers without a fault: how often somebody is blamed."""
    made = [cells.get(f"classifier/{seed}", partial(look_at_classifier, seed)) for seed in seeds]
    done = [cell for cell in made if cell is not None]
    figures["healthy windows of a classifier"] = sum(cell["windows"] for cell in done)
    figures["healthy windows of a classifier: somebody blamed"] = sum(cell["blamed"] for cell in done)


HARD_PER_SEED = 5


def look_at_hard(seed: int) -> dict[str, float]:
    """Blame a batch in which every sample is clean and hard."""
    with tempfile.TemporaryDirectory() as folder:
        run = Lab(seed, fault="healthy hard batch").train(Path(folder) / "run")
        return {"blamed": not run.blame(AT).nobody}


def hard(seeds: range, cells: Cells, figures: Figures) -> None:
    """Hard but clean batches: how often somebody is blamed."""
    more = range(seeds.start, seeds.start + HARD_PER_SEED * len(seeds))
    done = [cell for seed in more if (cell := cells.get(f"hard/{seed}", partial(look_at_hard, seed))) is not None]
    figures["hard but clean batches"] = len(done)
    figures["hard but clean batches: somebody blamed"] = sum(cell["blamed"] for cell in done)


POLICIES: dict[str, RollbackOptions | None] = {
    "left alone": None,
    "window skip": RollbackOptions(cure="window", before=10, after=200),
    "proven samples": RollbackOptions(cure="prove"),
}
"""The window is what PaLM's authors skipped, scaled down: from ten steps before the spike, 200 batches."""
CURED_STEPS = 200


def cure(seed: int, policy: str) -> dict[str, float]:
    """Train a run with one extreme sample in 4,096 under a policy; returns its loss on held-out data."""
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(seed, poison="extreme sample", count=4, at=SPIKE, samples=4096)
        options = POLICIES[policy]
        with lab.run(
            Path(folder) / "run",
            options=RunOptions(save_every=50, keep=10, handle_signals=False),
            monitor=options is not None,
            on_finding="log" if options is None else "rollback",
            rollback=options,
        ) as run:
            run.train(steps=CURED_STEPS)
        log = run.log
        decisions = log.events("rollback")
        skipped = sum(end - first for first, end in (d["skipped"] for d in decisions if d["skipped"]))
        named = sum(
            len(indices)
            for d in decisions
            for kind in ("mask_samples", "skip_samples")
            for indices in d["cure"].get(kind, {}).values()
        )
        return {
            "loss": lab.held_out(),
            "redone": sum(bool(record.get("redone")) for record in log.records()),
            "dropped": skipped * BATCH + named,
            "rollbacks": len(decisions),
        }


def cures(seeds: range, cells: Cells, figures: Figures) -> None:
    """Held-out loss, steps redone and samples dropped, under three policies on the same runs."""
    for policy in POLICIES:
        made = [cells.get(f"cure/{policy}/{seed}", partial(cure, seed, policy)) for seed in seeds]
        figures[f"cure, {policy}: held-out loss"] = mean(made, "loss")
        figures[f"cure, {policy}: steps redone"] = mean(made, "redone")
        figures[f"cure, {policy}: samples dropped"] = mean(made, "dropped")
        figures[f"cure, {policy}: rollbacks"] = mean(made, "rollbacks")


def audit_million() -> float:
    """Return the seconds that a million questions take."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = StreamDataset(ArraySource({"id": np.arange(1_000_000)}), name="numbers", seed=3)
        loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=50_000))
        model = nn.Linear(1, 1)
        run = Run(Path(folder) / "audit", model=model, loader=loader, steps=23, options=OPTIONS, monitor=False)
        for _ in run:
            run.step(loss=0.0)
        run.close()
        began = time.perf_counter()
        audit(Path(folder) / "audit", {"numbers": range(1_000_000)})
        return time.perf_counter() - began


def main() -> None:
    """Run the bench."""
    options = arguments(__doc__ or "", stores=True)
    torch.set_num_threads(1)
    seeds = range(FIRST_SEED, FIRST_SEED + (2 if options.quick else 20))
    figures: Figures = {}
    cells = Cells(options.store, options.seconds)
    parts: list[Callable[[range, Cells, Figures], None]] = [
        naming,
        healthy,
        healthy_classifiers,
        hard,
        verdicts,
        cures,
        flips,
    ]
    for part in parts:
        part(seeds, cells, figures)
    seconds = cells.get("audit", audit_million)
    if seconds is not None:
        figures["audit of a million samples, s"] = seconds
    about = {"seeds": len(seeds), "torch": torch.__version__, "cells not measured": cells.missing}
    publish(figures, about, as_json=options.json)


if __name__ == "__main__":
    main()
