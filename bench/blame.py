"""Blame, proof, replay and audit on small runs with a known culprit: who is named, what is said, at what cost.

Every case is a real run of a small language model over two sources, made, recorded and investigated like any other. A
poisoned step is step 30; the checkpoint before it is that of step 20. ``--quick`` makes 2 seeds of each case, the whole
bench 20.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from common import arguments, publish
from holdfast.run import Run, RunOptions
from holdfast.run.audit import audit
from holdfast.run.proof import Culprit
from holdfast.sources import ArraySource
from holdfast.stream import InterleavedDataset, StreamDataset, StreamingConfig, StreamingShardLoader

VOCABULARY, LENGTH, SAMPLES, BATCH = 24, 12, 512, 16
AT, STEPS, CHECKPOINT = 30, 36, 20
OPTIONS = RunOptions(save_every=CHECKPOINT, keep=10, handle_signals=False)
KINDS = ("random tokens", "repeated text", "shuffled order", "wrong language", "extreme sample", "low-loss repeats")
FAULTS = ("data", "learning rate x30", "gradient bit", "weight bit", "moment bit", "healthy hard batch")


def continuations(language: int) -> Any:
    """Return the commoner and the rarer token after each."""
    return np.random.default_rng(language).permuted(np.tile(np.arange(VOCABULARY), (2, 1)), axis=1)


def text(chance: np.random.Generator, count: int, language: int) -> Any:
    """Sequences of a language: each token is followed by one of two others, one of them four times as often."""
    follow = continuations(language)
    rows = np.empty((count, LENGTH), dtype=np.int64)
    rows[:, 0] = chance.integers(VOCABULARY, size=count)
    for column in range(1, LENGTH):
        rows[:, column] = follow[(chance.random(count) < 0.2).astype(int), rows[:, column - 1]]
    return rows


class Lab:
    """One training program with its data."""

    def __init__(self, seed: int, *, poison: str | None = None, count: int = 0, fault: str | None = None) -> None:
        chance = np.random.default_rng(seed)
        self.chance = random.Random(seed)
        self.columns = {
            name: {"tokens": text(chance, SAMPLES, language), "gain": np.ones(SAMPLES, dtype=np.float32)}
            for language, name in enumerate(("wiki", "chat"))
        }
        self.guilty: list[tuple[str, int]] = []
        refs = self._make_loader(seed).samples_in(AT)
        if poison is not None:
            for ref in self.chance.sample(refs, count):
                self._poison(ref.source, ref.index, poison, chance)
                self.guilty.append((ref.source, ref.index))
        if fault == "healthy hard batch":  # every second token is the rarer of the two: clean, and hard
            follow = {
                n: np.random.default_rng(n).permuted(np.tile(np.arange(VOCABULARY), (2, 1)), axis=1) for n in (0, 1)
            }
            for ref in refs:
                row = self.columns[ref.source]["tokens"][ref.index]
                for column in range(1, LENGTH):
                    row[column] = follow[0 if ref.source == "wiki" else 1][column % 2, row[column - 1]]
        self.loader = self._make_loader(seed)
        torch.manual_seed(seed)
        self.embedding, self.head = nn.Embedding(VOCABULARY, 12), nn.Linear(12, VOCABULARY)
        self.model = nn.ModuleDict({"embedding": self.embedding, "head": self.head})
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.03)
        self.fault, self.armed = fault, True
        self.made = 0

    def _make_loader(self, seed: int) -> StreamingShardLoader:
        leaves = [StreamDataset(ArraySource(columns), name=name, seed=seed) for name, columns in self.columns.items()]
        mixture = InterleavedDataset(leaves, weights={"wiki": 0.6, "chat": 0.4}, seed=seed, name="mix")
        return StreamingShardLoader(mixture, StreamingConfig(batch_size=BATCH))

    def _poison(self, source: str, index: int, kind: str, chance: np.random.Generator) -> None:
        tokens = self.columns[source]["tokens"]
        if kind == "random tokens":
            tokens[index] = chance.integers(VOCABULARY, size=LENGTH)
        elif kind == "repeated text":
            tokens[index] = tokens[index, 0]
        elif kind == "shuffled order":
            tokens[index] = chance.permutation(tokens[index])
        elif kind == "wrong language":
            tokens[index] = text(chance, 1, 99)[0]
        elif kind == "extreme sample":
            self.columns[source]["gain"][index] = 100.0
        else:  # the commonest continuation throughout: its loss is low
            follow = continuations(0 if source == "wiki" else 1)
            for column in range(1, LENGTH):
                tokens[index, column] = follow[0, tokens[index, column - 1]]

    def step(self, batch: Any) -> torch.Tensor:
        """Make a training step, with the fault where there is one."""
        state = self.optimizer.state.get(self.head.weight, {})
        number = int(state.get("step", 0))
        if self.fault == "learning rate x30":
            for group in self.optimizer.param_groups:
                group["lr"] = 0.03 * (30.0 if number >= AT - 1 else 1.0)
        strikes = self.armed and number == AT
        if strikes and self.fault == "weight bit":
            flip(self.head.weight, self.chance)
        if strikes and self.fault == "moment bit":
            flip(state["exp_avg"], self.chance)
        tokens = batch["tokens"]
        logits = self.head(self.embedding(tokens[:, :-1]) * batch["gain"][:, None, None])
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)
        valid = batch.get("__valid__", torch.ones(len(losses), dtype=torch.bool))
        loss = losses[valid].sum() / valid.sum().clamp(min=1)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        if strikes and self.fault == "gradient bit" and self.head.weight.grad is not None:
            flip(self.head.weight.grad, self.chance)
        self.optimizer.step()
        self.made += 1
        return loss

    def run(self, folder: Path) -> Run:
        """Return the run, not started."""
        return Run(
            folder,
            model=self.model,
            optimizer=self.optimizer,
            loader=self.loader,
            train_step=self.step,
            options=OPTIONS,
            monitor=False,
        )

    def train(self, folder: Path) -> Run:
        """Train and record a run; faults of the machine strike now and never again."""
        with self.run(folder) as run:
            run.train(steps=STEPS)
        self.armed = False
        return run


def build(folder: Path) -> Run:
    """Return the run of the example in docs/blame.md, not started: two samples of step 30 are 100 times too large."""
    return Lab(7, poison="extreme sample", count=2).run(folder)


def flip(tensor: torch.Tensor, chance: random.Random) -> None:
    """Flip one of the 32 bits of one number."""
    flat = tensor.detach().view(-1).view(torch.int32)
    place, bit = chance.randrange(flat.numel()), chance.randrange(32)
    bits = (int(flat[place]) ^ (1 << bit)) & 0xFFFFFFFF
    flat[place] = bits - (1 << 32) if bits >= 1 << 31 else bits


def naming(seeds: range, folder: Path, figures: dict[str, float]) -> None:
    """Precision at k by kind and rate, and how often exactly the poisoned samples were blamed."""
    for kind in KINDS:
        for count in (1, 4):
            right = sources = blamed = wrongly = 0
            for seed in seeds:
                lab = Lab(seed, poison=kind, count=count)
                found = lab.train(folder / "run").blame(AT)
                top = [suspect.name for suspect in found.ranked[:count]]
                right += len(set(top) & set(lab.guilty))
                sources += {name for name, _ in top} == {name for name, _ in lab.guilty}
                blamed += {suspect.name for suspect in found.blamed} == set(lab.guilty)
                wrongly += bool({suspect.name for suspect in found.blamed} - set(lab.guilty))
                shutil.rmtree(folder / "run")
            name = f"{kind}, {count} of {BATCH}"
            figures[f"{name}: precision at k"] = right / (count * len(seeds))
            figures[f"{name}: sources right"] = sources / len(seeds)
            figures[f"{name}: exactly these blamed"] = blamed / len(seeds)
            figures[f"{name}: an innocent blamed"] = wrongly / len(seeds)


def verdicts(seeds: range, folder: Path, figures: dict[str, float]) -> None:
    """How often the verdict is right, by fault, and how often data is said of a fault that is not data."""
    expected = {
        "data": {Culprit.SAMPLES},
        "learning rate x30": {Culprit.MODEL},
        "healthy hard batch": {Culprit.NOTHING},
    }
    not_data = said_data = 0
    costs = []
    for fault in FAULTS:
        right = matters = 0
        for seed in seeds:
            kind = "extreme sample" if fault == "data" else None
            lab = Lab(seed, poison=kind, count=1 + seed % 4 if kind else 0, fault=fault)
            run = lab.train(folder / "run")
            lab.made = 0
            found = run.prove(AT + (fault.endswith("bit") or fault.startswith("learning")))
            costs.append((found.steps_made + found.samples_measured / BATCH) / (found.steps[-1] + 1 - CHECKPOINT))
            if fault.endswith("bit"):
                seen = run.replay(range(AT, STEPS)).differs_at is not None
                matters += seen
                right += not seen or found.verdict is Culprit.MACHINE
            else:
                matters += 1
                right += found.verdict in expected[fault]
            not_data += fault != "data"
            said_data += fault != "data" and found.verdict is Culprit.SAMPLES
            shutil.rmtree(folder / "run")
        figures[f"verdict right: {fault}"] = right / len(seeds)
        if fault.endswith("bit"):
            figures[f"changed a recorded bit: {fault}"] = matters / len(seeds)
    figures["data said of a fault that is not data"] = said_data / not_data
    figures["cost of a proof, in k (median)"] = float(np.median(costs))
    figures["cost of a proof, in k (most)"] = max(costs)


def healthy(seeds: range, folder: Path, figures: dict[str, float]) -> None:
    """Windows of clean runs: how often somebody is blamed, and how often a replay is not as recorded."""
    blamed = differs = windows = 0
    for seed in seeds:
        run = Lab(seed).train(folder / "run")
        for step in range(22, 35, 3):
            windows += 1
            blamed += not run.blame(step).nobody
        differs += run.replay(range(CHECKPOINT, STEPS)).differs_at is not None
        shutil.rmtree(folder / "run")
    figures["healthy windows"] = windows
    figures["healthy windows: somebody blamed"] = blamed / windows
    figures["clean replays not as recorded"] = differs / len(seeds)


def auditing(folder: Path, figures: dict[str, float]) -> None:
    """A million samples asked for at once."""
    dataset = StreamDataset(ArraySource({"id": np.arange(1_000_000)}), name="numbers", seed=3)
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=50_000))
    model = nn.Linear(1, 1)
    run = Run(folder / "audit", model=model, loader=loader, steps=23, options=OPTIONS, monitor=False)
    for _ in run:
        run.step(loss=0.0)
    run.close()
    began = time.perf_counter()
    audit(folder / "audit", {"numbers": range(1_000_000)})
    figures["audit of a million samples, s"] = time.perf_counter() - began


def main() -> None:
    """Run the bench."""
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    seeds = range(2) if options.quick else range(20)
    figures: dict[str, float] = {}
    parts: list[Callable[[range, Path, dict[str, float]], None]] = [naming, verdicts, healthy]
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            part(seeds, Path(folder), figures)
        auditing(Path(folder), figures)
    publish(figures, {"seeds": len(seeds), "torch": torch.__version__}, as_json=options.json)


if __name__ == "__main__":
    main()
