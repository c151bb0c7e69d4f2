"""A small language model over two sources, poisoned or faulty where asked: the training program of ``blame.py``."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from holdfast.run import Run, RunOptions
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


def classifier(seed: int, folder: Path, *, steps: int) -> Run:
    """Train a small convolutional classifier with batch norm on clean images, some of them hard; no fault anywhere."""
    torch.manual_seed(seed)
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, 4, 6000)
    images = chance.normal(size=(4, 1, 8, 8))[labels] + 1.5 * chance.normal(size=(6000, 1, 8, 8))
    source = ArraySource({"image": images.astype(np.float32), "label": labels})
    loader = StreamingShardLoader(StreamDataset(source, name="images", seed=seed), StreamingConfig(batch_size=BATCH))
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 4),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)

    def train_step(batch: Any) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        return loss

    run = Run(
        folder,
        model=model,
        optimizer=optimizer,
        loader=loader,
        train_step=train_step,
        options=OPTIONS,
        monitor=False,
    )
    with run:
        run.train(steps=steps)
    return run


class Lab:
    """One training program with its data."""

    def __init__(
        self,
        seed: int,
        *,
        poison: str | None = None,
        count: int = 0,
        fault: str | None = None,
        at: int = AT,
        samples: int = SAMPLES,
    ) -> None:
        chance = np.random.default_rng(seed)
        self.chance_of_data = np.random.default_rng(seed + 1000)
        self.chance = random.Random(seed)
        self.columns = {
            name: {"tokens": text(chance, samples, language), "gain": np.ones(samples, dtype=np.float32)}
            for language, name in enumerate(("wiki", "chat"))
        }
        self.guilty: list[tuple[str, int]] = []
        refs = self._make_loader(seed).samples_in(at)
        if poison is not None:
            for ref in self.chance.sample(refs, count):
                self._poison(ref.source, ref.index, poison, chance)
                self.guilty.append((ref.source, ref.index))
        if fault == "healthy hard batch":  # every second token is the rarer of the two: clean, and hard
            for ref in refs:
                row, follow = self.columns[ref.source]["tokens"][ref.index], continuations(ref.source != "wiki")
                for column in range(1, LENGTH):
                    row[column] = follow[column % 2, row[column - 1]]
        self.loader = self._make_loader(seed)
        torch.manual_seed(seed)
        self.embedding, self.head = nn.Embedding(VOCABULARY, 12), nn.Linear(12, VOCABULARY)
        self.model = nn.ModuleDict({"embedding": self.embedding, "head": self.head})
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.03)
        self.fault, self.armed = fault, True

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
        losses = self.losses(batch["tokens"], batch["gain"])
        valid = batch.get("__valid__", torch.ones(len(losses), dtype=torch.bool))
        loss = losses[valid].sum() / valid.sum().clamp(min=1)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        if strikes and self.fault == "gradient bit" and self.head.weight.grad is not None:
            flip(self.head.weight.grad, self.chance)
        self.optimizer.step()
        return loss

    def losses(self, tokens: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        """Return the loss of every sample."""
        logits = self.head(self.embedding(tokens[:, :-1]) * gain[:, None, None])
        return nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)

    def held_out(self) -> float:
        """Return the loss on samples that no run has seen."""
        rows = np.concatenate([text(self.chance_of_data, 512, language) for language in (0, 1)])
        with torch.no_grad():
            return float(self.losses(torch.from_numpy(rows), torch.ones(len(rows))).mean())

    def run(self, folder: Path, *, monitor: bool = False, options: RunOptions = OPTIONS, **more: Any) -> Run:
        """Return the run, not started."""
        return Run(
            folder,
            model=self.model,
            optimizer=self.optimizer,
            loader=self.loader,
            train_step=self.step,
            options=options,
            monitor=monitor,
            **more,
        )

    def train(self, folder: Path) -> Run:
        """Train and record a run; faults of the machine strike now and never again."""
        with self.run(folder) as run:
            run.train(steps=STEPS)
        self.armed = False
        return run


def flip(tensor: torch.Tensor, chance: random.Random) -> None:
    """Flip one of the 32 bits of one number."""
    flat = tensor.detach().view(-1).view(torch.int32)
    place, bit = chance.randrange(flat.numel()), chance.randrange(32)
    bits = (int(flat[place]) ^ (1 << bit)) & 0xFFFFFFFF
    flat[place] = bits - (1 << 32) if bits >= 1 << 31 else bits
