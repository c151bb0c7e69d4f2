"""Small real runs of the failures the fault lab does not train: each is broken by one setting, and has a healthy twin.

A run is a list of rows as a training loop would log them; the same call gives the same rows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["crashing_run", "divergence_run", "infinite_run", "policy_run", "vanishing_run"]

Rows = list[dict[str, Any]]


def infinite_run(*, faulty: bool, steps: int = 112) -> Rows:
    """Fit a line by gradient descent; the faulty run's warm-up never ends, until its squares leave float32."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 8, generator=generator)
    targets = inputs.sum(dim=1) + 0.5 * torch.randn(256, generator=generator)
    weights = torch.zeros(8, requires_grad=True)
    rows: Rows = []
    for step in range(steps):
        rate = 0.02 * (step + 1 if faulty else min(step + 1, 5))
        loss = ((inputs @ weights - targets) ** 2).mean()
        (gradient,) = torch.autograd.grad(loss, weights)
        rows.append({"step": step, "loss": float(loss.detach()), "lr": rate, "grad_norm": _norm(gradient)})
        with torch.no_grad():
            weights -= rate * gradient
    return rows


def vanishing_run(*, faulty: bool, steps: int = 200, depth: int = 12) -> Rows:
    """Train a deep network of sigmoids, whose gradients shrink at every layer; the twin has residual blocks of ReLU."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(1024, 16, generator=generator)
    targets = (inputs[:, 0] > inputs[:, 1]).long()
    first, last = nn.Linear(16, 32), nn.Linear(32, 2)
    blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
    modules = nn.ModuleDict({"first": first, "blocks": blocks, "last": last})
    optimizer = torch.optim.SGD(modules.parameters(), lr=0.1)
    rows: Rows = []
    for step in range(steps):
        chosen = torch.randint(0, len(inputs), (64,), generator=generator)
        hidden = first(inputs[chosen])
        for block in blocks:
            hidden = torch.sigmoid(block(hidden)) if faulty else hidden + 0.3 * torch.relu(block(hidden))
        loss = nn.functional.cross_entropy(last(hidden), targets[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norms = {name: _norm(parameter.grad) for name, parameter in modules.named_parameters() if parameter.ndim > 1}
        total = float(np.sqrt(sum(norm**2 for norm in norms.values())))
        optimizer.step()
        layers = {f"grad_norm/{name.removesuffix('.weight')}": norm for name, norm in norms.items()}
        rows.append({"step": step, "loss": float(loss.detach()), "lr": 0.1, "grad_norm": total, **layers})
    return rows


def divergence_run(*, faulty: bool, steps: int = 300) -> Rows:
    """Train a small classifier whose learning rate was meant to be annealed, and is raised instead."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(2048, 16, generator=generator)
    targets = (inputs[:, :4].sum(dim=1) + inputs[:, 4] * inputs[:, 5] > 0).long()
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rows: Rows = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate = 0.1 * 100 ** ((step / steps) if faulty else -step / steps)
        chosen = torch.randint(0, len(inputs), (64,), generator=generator)
        loss = nn.functional.cross_entropy(model(inputs[chosen]), targets[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        total = float(np.sqrt(sum(_norm(parameter.grad) ** 2 for parameter in model.parameters())))
        optimizer.step()
        rows.append({"step": step, "loss": float(loss.detach()), "lr": rate, "grad_norm": total})
    return rows


def policy_run(*, faulty: bool, steps: int = 300, arms: int = 8) -> Rows:
    """Learn a bandit with contexts by REINFORCE and Adam; the faulty run's rate grows a thousandfold on the way."""
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(3)
    best = torch.randn(6, arms, generator=generator)
    policy = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, arms))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    rows: Rows = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate = 0.01 * 1000 ** (step / steps if faulty else 0)
        context = torch.randn(64, 6, generator=generator)
        values = context @ best
        answers = torch.distributions.Categorical(logits=policy(context))
        action = torch.multinomial(answers.probs.detach(), 1, generator=generator)
        reward = (values.gather(1, action) / values.amax(1, keepdim=True).clamp(min=0.5)).squeeze(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        loss = -(answers.log_prob(action.squeeze(1)) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        entropy = float(answers.entropy().mean().detach())
        rows.append({"step": step, "episode_reward_mean": float(reward.mean()), "entropy": entropy, "lr": rate})
    return rows


CRASHING = """
import numpy as np

generator = np.random.default_rng(0)
weights = np.zeros(8)
for step in range(400):
    features = generator.normal(size=(32, 8 if step < 230 else 9))  # somebody added a column
    targets = features.sum(axis=1)
    error = features @ weights - targets
    weights -= 0.02 * features.T @ error / len(error)
    if step % 10 == 0:
        print(f"step {step} loss {float(np.mean(error**2)):.6f}", flush=True)
"""


def crashing_run(*, faulty: bool) -> str:
    """Return what a training program prints until an exception ends it; the twin's data keeps its columns."""
    program = CRASHING if faulty else CRASHING.replace("8 if step < 230 else 9", "8")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(program)
        command = [sys.executable, "train.py"]
        done = subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    return done.stdout.replace(f"{folder}/", "")


def _norm(gradient: torch.Tensor | None) -> float:
    return 0.0 if gradient is None else float(gradient.double().norm())
