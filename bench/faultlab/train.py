"""One real training run with everything a log could hold, recorded step by step."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from bench.faultlab.data import load_task
from bench.faultlab.faults import damage_model, order_samples, prepare_data, serve_inputs
from bench.faultlab.models import build_model
from bench.faultlab.plan import RunSpec
from torch import nn

__all__ = ["Record", "Series", "learning_rate", "train_run"]


@dataclass(slots=True)
class Series:
    """One recorded series and what it means."""

    kind: str
    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    layer: str | None = None
    replica: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Record:
    """Everything one run recorded, and the events that are not numbers."""

    series: dict[str, Series] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, kind: str, step: float, value: float, **where: Any) -> None:
        """Append one value to a series, creating it on first use."""
        if name not in self.series:
            self.series[name] = Series(
                kind, layer=where.get("layer"), replica=where.get("replica"), extra=where.get("extra", {})
            )
        self.series[name].steps.append(float(step))
        self.series[name].values.append(float(value))


def learning_rate(spec: RunSpec, step: int) -> float:
    """The schedule's rate at a step."""
    rate = spec.rate
    if spec.cause in ("learning_rate_too_high", "learning_rate_too_low"):
        rate *= spec.strength
    if "no_warmup" in (spec.cause, spec.twin_of):
        rate *= spec.strength
    share = step / spec.steps
    warm = 0.15 if spec.schedule == "warmup_cosine" and spec.cause != "no_warmup" else 0.0
    if share < warm:
        return rate * (step + 1) / (warm * spec.steps + 1)
    if spec.schedule in ("cosine", "warmup_cosine"):
        return rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (share - warm) / (1 - warm))))
    if spec.schedule == "step":
        return rate * (1.0 if share < 0.5 else 0.3 if share < 0.8 else 0.1)
    if spec.schedule == "cyclic":
        phase = (share * 4) % 1.0
        return rate * (0.3 + 0.7 * (1 - abs(2 * phase - 1)))
    return rate


def train_run(spec: RunSpec) -> Record:
    """Train one run to its end (or until its numbers are gone) and return what it recorded."""
    torch.manual_seed(spec.seed)
    generator = torch.Generator().manual_seed(spec.seed)
    task = load_task(spec.data)
    recurrent_fault = "exploding_recurrent_path" in (spec.cause, spec.twin_of)
    model = build_model(
        spec.family,
        task,
        width=spec.width,
        depth=spec.depth,
        norm=spec.norm,
        dropout=spec.dropout,
        precision=spec.precision,
        cell="rnn" if recurrent_fault else None,
    )
    damage_model(spec, model)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if spec.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(trainable, lr=1.0, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(trainable, lr=1.0, weight_decay=0.01)
    fixed_scale = spec.cause == "low_precision_overflow" and spec.strength == 2.0
    scaler = None
    if spec.precision == "fp16":
        scale = 2.0**26 if fixed_scale else 2.0**14
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**9 if fixed_scale else 60)
    inputs, targets = prepare_data(spec, task, generator)
    observed = _Observed(model) if spec.layers else None
    record = Record()
    window = _window(spec, generator)
    order, place = order_samples(spec, task, len(inputs), generator), 0
    evaluate_every = max(spec.steps // 12, 1)
    computed = 0.0
    for step in range(spec.steps):
        started = time.perf_counter()
        if place + spec.batch > len(order):
            order, place = order_samples(spec, task, len(inputs), generator), 0
        chosen = order[place : place + spec.batch]
        place += spec.batch
        batch_inputs, batch_targets = inputs[chosen], targets[chosen]
        if spec.cause == "bad_data_window" and window[0] <= step < window[1]:
            batch_inputs, batch_targets = _corrupt(task, batch_inputs, batch_targets, generator)
        if spec.cause == "data_starvation":
            time.sleep(spec.strength * (computed or 0.002))
        loaded = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(spec, step)
        if spec.cause == "low_precision_overflow" and not fixed_scale and step >= spec.steps // 3:
            with torch.no_grad():  # activations drift upwards until half precision cannot hold them
                model.head.weight.mul_(1.25)  # type: ignore[union-attr, operator]
        model.train()
        outputs = model(batch_inputs)
        loss = _loss(outputs, batch_targets, task.classes)
        if spec.cause != "missing_zero_grad" or step == 0:
            optimizer.zero_grad(set_to_none=False)
        before = [parameter.detach().clone() for parameter in trainable] if observed else []
        (scaler.scale(loss) if scaler else loss).backward()  # type: ignore[no-untyped-call]
        if scaler and not fixed_scale:
            scaler.unscale_(optimizer)
        elif scaler:  # a static loss scale: divided out by hand, never checked
            for parameter in trainable:
                if parameter.grad is not None:
                    parameter.grad.div_(scaler.get_scale())
        clip = 0.0 if spec.cause == "clipping_zero" else spec.clip
        squared = [float(p.grad.double().square().sum()) if p.grad is not None else 0.0 for p in trainable]
        total = (
            math.sqrt(sum(squared))
            if all(math.isfinite(s) for s in squared)
            else float("inf" if not any(map(math.isnan, squared)) else "nan")
        )
        if clip is not None:
            if clip == 0.0:
                for parameter in trainable:
                    if parameter.grad is not None:
                        parameter.grad.mul_(0.0)
            else:
                nn.utils.clip_grad_norm_(trainable, clip)
        skipped = 0.0
        if scaler and not fixed_scale:
            scale_before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            skipped = float(scaler.get_scale() < scale_before)
            if skipped and spec.layers:
                record.events.append({"type": "overflow_skip", "step": step, "loss_scale": scaler.get_scale()})
        else:
            optimizer.step()
        finished = time.perf_counter()
        computed = 0.9 * computed + 0.1 * (finished - loaded) if computed else finished - loaded
        record.add("loss", "loss", step, float(loss.detach()))
        if spec.logs_accuracy and task.classes:
            hits = (outputs.detach().argmax(-1) == batch_targets).float().mean()
            record.add("accuracy", "train_metric", step, float(hits), extra={"higher_is_better": True})
        record.add("grad_norm", "grad_norm", step, total)
        record.add("lr", "lr", step, learning_rate(spec, step))
        if scaler:
            record.add("loss_scale", "loss_scale", step, scaler.get_scale())
            record.add("skipped", "skipped", step, skipped)
        if spec.layers or "data_starvation" in (spec.cause, spec.twin_of):
            record.add("step_time", "step_time", step, finished - started)
            record.add("data_time", "data_time", step, loaded - started)
        if observed and (step + 1) % spec.log_interval == 0:
            if not task.is_text:
                record.add(
                    "activation_std/input",
                    "activation",
                    step,
                    float(batch_inputs.std()),
                    layer="input",
                    extra={"statistic": "std"},
                )
            _record_layers(record, step, model, trainable, before, squared, observed)
        if step % evaluate_every == evaluate_every - 1:
            _evaluate(spec, record, step, model, task)
    return record


def _window(spec: RunSpec, generator: torch.Generator) -> tuple[int, int]:
    length = max(3, int(spec.strength * spec.steps))
    first = int(spec.steps * (0.35 + 0.4 * float(torch.rand(1, generator=generator))))
    return first, first + length


def _corrupt(
    task: Any, inputs: torch.Tensor, targets: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """A damaged shard: noise for inputs, and targets that have nothing to do with them."""
    if task.is_text:
        shape = tuple(inputs.shape)
        return torch.randint(0, task.classes, shape, generator=generator), torch.randint(
            0, task.classes, shape, generator=generator
        )
    noise = torch.randn(tuple(inputs.shape), generator=generator) * 4
    if task.classes:
        return noise, torch.randint(0, task.classes, tuple(targets.shape), generator=generator)
    return noise, torch.randn(tuple(targets.shape), generator=generator) * 5


def _loss(outputs: torch.Tensor, targets: torch.Tensor, classes: int) -> torch.Tensor:
    if classes == 0:
        return nn.functional.mse_loss(outputs[:, 0], targets)
    if outputs.ndim == 3:
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())
    return nn.functional.cross_entropy(outputs, targets)


class _Observed:
    """Counts the share of exact zeros that leave every ReLU, and how wide the outputs of every block are."""

    def __init__(self, model: nn.Module) -> None:
        self.share: dict[str, float] = {}
        self.spread: dict[str, float] = {}
        blocks = [*getattr(model, "hidden", ()), getattr(model, "recurrent", None), getattr(model, "head", None)]
        names = {module: name for name, module in model.named_modules()}
        for block in blocks:
            if block is not None:
                block.register_forward_hook(self._width(names[block]))
        for name, module in model.named_modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(self._hook(name))
            if isinstance(module, nn.TransformerEncoderLayer):
                original = module.activation
                module.activation = self._wrap(f"{name}.activation", original)
                module.activation_relu_or_gelu = 0

    def _width(self, name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            self.spread[name] = float(value.detach().float().std())

        return hook

    def _hook(self, name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            self.share[name] = float((output == 0).float().mean())

        return hook

    def _wrap(self, name: str, function: Any) -> Any:
        def activation(value: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = function(value)
            self.share[name] = float((output == 0).float().mean())
            return output

        return activation


def _record_layers(
    record: Record,
    step: int,
    model: nn.Module,
    trainable: list[nn.Parameter],
    before: list[torch.Tensor],
    squared: list[float],
    observed: _Observed,
) -> None:
    norms: dict[str, float] = {}
    updates: dict[str, float] = {}
    weights = 0.0
    index = {id(parameter): number for number, parameter in enumerate(trainable)}
    for name, parameter in model.named_parameters():
        layer = name.rsplit(".", 1)[0]
        number = index.get(id(parameter))
        norms[layer] = norms.get(layer, 0.0) + (squared[number] if number is not None else 0.0)
        change = 0.0 if number is None else float((parameter.detach() - before[number]).double().square().sum())
        updates[layer] = updates.get(layer, 0.0) + change
        weights += float(parameter.detach().double().square().sum())
        if parameter.ndim > 1:
            gain = float(parameter.detach().double().square().mean().sqrt()) * math.sqrt(parameter[0].numel())
            record.add(f"weight_gain/{name}", "weight_gain", step, gain, layer=name)
    record.add("weight_norm", "weight_norm", step, math.sqrt(weights) if math.isfinite(weights) else weights)
    total = sum(updates.values())
    record.add("update_norm", "update_norm", step, math.sqrt(total) if math.isfinite(total) else total)
    for layer, value in norms.items():
        record.add(
            f"grad_norm/{layer}", "grad_norm", step, math.sqrt(value) if math.isfinite(value) else value, layer=layer
        )
    for layer, spread in observed.spread.items():
        record.add(f"activation_std/{layer}", "activation", step, spread, layer=layer, extra={"statistic": "std"})
    for layer, share in observed.share.items():
        record.add(
            f"activation_zero_share/{layer}", "activation", step, share, layer=layer, extra={"statistic": "zero_share"}
        )


def _evaluate(spec: RunSpec, record: Record, step: int, model: nn.Module, task: Any) -> None:
    model.eval()
    serving = serve_inputs(spec, task)
    with torch.no_grad():
        outputs = model(task.eval_inputs[:256])
        targets = task.eval_targets[:256]
        record.add("eval_loss", "eval_loss", step, float(_loss(outputs, targets, task.classes)))
        if task.classes:
            accuracy = float((outputs.argmax(-1) == targets).float().mean())
            record.add("eval_accuracy", "metric", step, accuracy, extra={"higher_is_better": True})
        if "train_serve_skew" in (spec.cause, spec.twin_of):
            served = model(serving[:256])
            record.add("serve_loss", "eval_loss", step, float(_loss(served, targets, task.classes)))
            record.add("psi/inputs", "distribution", step, _psi(task.inputs, serving), extra={"statistic": "psi"})


def _psi(reference: torch.Tensor, other: torch.Tensor) -> float:
    """Population stability index over twenty bins of the training inputs."""
    left, right = reference.float().flatten().numpy(), other.float().flatten().numpy()
    edges = np.unique(np.quantile(left, np.linspace(0, 1, 21)))
    edges[0], edges[-1] = -np.inf, np.inf
    p = np.histogram(left, edges)[0] / left.size + 1e-4
    q = np.histogram(right, edges)[0] / right.size + 1e-4
    return float(((p - q) * np.log(p / q)).sum())
