"""The faults, as the changes they make to a model, its data or its settings before training starts."""

from __future__ import annotations

from typing import Any

import torch
from bench.faultlab.data import Task
from bench.faultlab.plan import RunSpec
from torch import nn

__all__ = ["damage_model", "order_samples", "prepare_data", "serve_inputs"]


def damage_model(spec: RunSpec, model: nn.Module) -> None:
    """Apply the fault to a freshly built model, in place."""
    with torch.no_grad():
        if spec.cause == "frozen_parameters":
            _freeze(model, keep_norms=spec.strength == 1.0)
        elif spec.cause == "dead_activations":
            hidden: Any = model.hidden[0]  # type: ignore[index]
            layer = hidden.linear1 if hasattr(hidden, "linear1") else hidden[0]
            layer.bias.fill_(-spec.strength)
            if not hasattr(hidden, "linear1") and len(hidden) > 1 and hasattr(hidden[1], "running_mean"):
                hidden[1].weight.zero_()
                hidden[1].bias.fill_(-spec.strength)
        elif spec.cause == "bad_initialisation":
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(spec.strength)
        elif spec.cause == "exploding_recurrent_path":
            for name, parameter in model.named_parameters():
                if "weight_hh" in name:
                    nn.init.orthogonal_(parameter)
                    parameter.mul_(spec.strength)


def _freeze(model: nn.Module, *, keep_norms: bool) -> None:
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)
    kept = [p for m in model.modules() if isinstance(m, norms) for p in m.parameters()] if keep_norms else []
    if not kept:
        # Only one small bias is left to learn: the optimizer was given the wrong parameter group.
        kept = [next(p for p in model.parameters() if p.ndim == 1)]
    keep = {id(parameter) for parameter in kept}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in keep)


def prepare_data(spec: RunSpec, task: Task, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """The training inputs and targets the run sees."""
    inputs, targets = task.inputs, task.targets
    if spec.cause == "overfitting":
        return inputs[: int(spec.strength)], targets[: int(spec.strength)]
    if spec.cause == "unnormalised_inputs":
        # Raw units: every feature on its own scale, and none centred.
        shape = (1, *inputs.shape[1:]) if spec.family == "mlp" else (1, 1, 1, 1)
        scales = (
            torch.exp(torch.randn(shape, generator=generator) * (1.5 if spec.family == "mlp" else 0.1)) * spec.strength
        )
        return inputs * scales + scales * 3, targets
    if spec.cause == "label_noise":
        targets = targets.clone()
        wrong = torch.rand(targets.shape, generator=generator) < spec.strength
        if task.classes:
            noise = torch.randint(0, task.classes, targets.shape, generator=generator)
        else:
            noise = targets[torch.randperm(len(targets), generator=generator)]
        return inputs, torch.where(wrong, noise.to(targets.dtype), targets)
    return inputs, targets


def order_samples(spec: RunSpec, task: Task, count: int, generator: torch.Generator) -> torch.Tensor:
    """One epoch's order of the training samples."""
    if spec.cause == "unshuffled_batches":
        return torch.argsort(task.groups[:count].float(), stable=True)
    return torch.randperm(count, generator=generator)


def serve_inputs(spec: RunSpec, task: Task) -> torch.Tensor:
    """The evaluation inputs as the serving path prepares them: the same, unless it forgot a step."""
    if spec.cause != "train_serve_skew":
        return task.eval_inputs
    if task.is_text:
        # The serving tokenizer folds everything to upper case.
        codes = task.eval_inputs
        lower = (codes >= 65) & (codes <= 90)
        return torch.where(lower, codes - 32, codes)
    return task.eval_inputs * spec.strength + spec.strength
