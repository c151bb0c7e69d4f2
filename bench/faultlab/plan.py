"""Which runs the lab trains: every cause at varied strength on the families it can strike, each with a healthy twin."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

__all__ = ["CAUSES", "REPORTING", "TUNING", "RunSpec", "make_plan"]

# The two halves share neither a model family nor data.
TUNING = {"mlp": ("cancer", "diabetes"), "gru": ("text-a",)}
REPORTING = {"cnn": ("digits",), "lstm": ("text-b",), "transformer": ("text-b",)}
# Later draws tune on one more table, so that the rules meet more than two classes.
MORE_TUNING = {"mlp": ("blobs", "cancer", "diabetes"), "gru": ("text-a",)}

TABLES, TEXT = ("mlp", "cnn"), ("gru", "lstm", "transformer")
EVERY = TABLES + TEXT

# cause -> (families it can strike, strengths tried)
CAUSES: dict[str, tuple[tuple[str, ...], tuple[float, ...]]] = {
    "learning_rate_too_high": (EVERY, (100.0, 300.0, 1000.0, 3000.0)),
    "learning_rate_too_low": (EVERY, (3e-5, 1e-4, 3e-4)),
    "no_warmup": (EVERY, (25.0, 40.0, 60.0, 100.0)),
    "missing_zero_grad": (EVERY, (1.0, 2.0, 4.0)),
    "frozen_parameters": (EVERY, (1.0, 2.0)),
    "dead_activations": (("mlp", "cnn", "transformer"), (30.0, 100.0)),
    "bad_initialisation": (EVERY, (0.0, 6.0, 15.0, 40.0)),
    "unnormalised_inputs": (TABLES, (30.0, 100.0, 300.0)),
    "exploding_recurrent_path": (("gru", "lstm"), (1.8, 2.0, 2.5, 3.0)),
    "low_precision_overflow": (EVERY, (1.0, 2.0)),
    "clipping_zero": (EVERY, (0.0,)),
    "bad_data_window": (EVERY, (0.03, 0.05, 0.08)),
    "label_noise": (EVERY, (0.85, 0.95, 1.0)),
    "unshuffled_batches": (EVERY, (1.0,)),
    "train_serve_skew": (EVERY, (1.5, 3.0, 6.0)),
    "overfitting": (EVERY, (24.0, 48.0, 96.0)),
    "data_starvation": (EVERY, (1.5, 3.0, 6.0)),
    "rank_desync": (EVERY, (1.0, 2.0)),
    "slow_rank": (EVERY, (2.0, 3.0, 5.0)),
    "hung_rank": (EVERY, (1.0, 2.0)),
}

# These often do nothing at all; more are tried so that enough of them bite.
OFTEN_HARMLESS = frozenset(
    ("learning_rate_too_high", "no_warmup", "bad_initialisation", "unnormalised_inputs", "unshuffled_batches")
)
DISTRIBUTED = frozenset(("rank_desync", "slow_rank", "hung_rank"))
# Faults nobody could tell apart from a total loss alone get a log with a series per layer.
NEEDS_LAYERS = frozenset(
    (
        "dead_activations",
        "frozen_parameters",
        "clipping_zero",
        "bad_initialisation",
        "unnormalised_inputs",
        "exploding_recurrent_path",
    )
)
LAYERED_FORMATS = ("jsonl", "csv", "columns")
PLAIN_FORMATS = ("huggingface", "lightning", "megatron", "jsonl", "columns")

_RATES = {
    ("mlp", "adamw"): (1e-3, 3e-3),
    ("mlp", "sgd"): (0.01, 0.04),
    ("cnn", "adamw"): (1e-3, 3e-3),
    ("cnn", "sgd"): (0.01, 0.04),
    ("gru", "adamw"): (3e-3, 8e-3),
    ("lstm", "adamw"): (3e-3, 8e-3),
    ("transformer", "adamw"): (1e-3, 3e-3),
}


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run, wholly determined: the same spec gives the same losses."""

    identifier: str
    half: str
    family: str
    data: str
    cause: str | None
    strength: float
    seed: int
    steps: int
    batch: int
    width: int
    depth: int
    norm: bool
    dropout: float
    optimizer: str
    rate: float
    schedule: str
    precision: str
    clip: float | None
    log_format: str
    layers: bool
    log_interval: int
    twin_of: str | None = None

    @property
    def logs_accuracy(self) -> bool:
        """Whether the run logs the accuracy of its training batches, as about half of all people do."""
        return self.seed % 2 == 0

    @property
    def twin(self) -> RunSpec:
        """The same run without its fault; it keeps the setting the fault needs (a high rate with its warm-up, say)."""
        return replace(self, identifier=f"{self.identifier}-twin", cause=None, twin_of=self.cause)


def make_plan(*, per_cause: int = 5, draw: int = 0) -> list[RunSpec]:
    """Every faulty run of the lab; with their twins there are twice as many.

    Args:
        per_cause: how many runs a cause gets in each half, at least.
        draw: 0 for the runs the published figures are about; any other number for others of the same kind.
    """
    plan: list[RunSpec] = []
    generator = random.Random(20240611 + 7919 * draw)
    for cause, (families, strengths) in CAUSES.items():
        for half, table in (("tune", MORE_TUNING if draw else TUNING), ("report", REPORTING)):
            available = [family for family in table if family in families]
            extra = per_cause // 2 if cause in OFTEN_HARMLESS else 0
            for number in range(per_cause + extra + (1 if half == "report" else 0)):
                family = available[number % len(available)]
                data = table[family][number // len(available) % len(table[family])]
                strength = strengths[number % len(strengths)]
                plan.append(_draw(generator, cause, half, family, data, strength, number))
    return plan


def _draw(
    generator: random.Random, cause: str, half: str, family: str, data: str, strength: float, number: int
) -> RunSpec:
    optimizer = generator.choice(("adamw", "adamw", "sgd")) if family in TABLES else "adamw"
    if cause in ("clipping_zero", "no_warmup"):
        optimizer = "adamw"
    low, high = _RATES[family, optimizer]
    layers = cause in NEEDS_LAYERS or cause in DISTRIBUTED or generator.random() < 0.5
    schedule = generator.choice(("constant", "cosine", "warmup_cosine", "step", "cyclic"))
    if cause == "no_warmup":
        schedule = "warmup_cosine"
    elif cause == "learning_rate_too_high":
        schedule = generator.choice(("constant", "cosine", "warmup_cosine"))
    elif family == "transformer" and schedule != "cyclic":
        schedule = "warmup_cosine"
    elif family == "transformer":
        schedule = "constant"
    precision = generator.choice(("fp32", "fp32", "bf16", "fp16"))
    if cause == "low_precision_overflow":
        precision = "fp16"
    elif cause in ("missing_zero_grad", "exploding_recurrent_path", "bad_initialisation") and precision == "fp16":
        precision = "bf16"  # a loss scale would hide the accumulation, and overflow is a fault of its own
    steps = generator.choice((120, 160, 200, 240))
    if cause == "overfitting":
        steps = 360
    log_format = generator.choice(LAYERED_FORMATS if layers else PLAIN_FORMATS)
    if log_format == "megatron" and cause in ("train_serve_skew", "data_starvation"):
        log_format = "jsonl"  # Megatron's lines have no field for what these faults show in
    return RunSpec(
        identifier=f"{half}-{cause}-{number}",
        half=half,
        family=family,
        data=data,
        cause=cause,
        strength=strength,
        seed=generator.randrange(1 << 30),
        steps=steps,
        batch=generator.choice((16, 32)),
        width=generator.choice((32, 48)),
        depth=generator.choice((2, 3)),
        norm=generator.random() < 0.5,
        dropout=generator.choice((0.0, 0.1)),
        optimizer=optimizer,
        rate=low * (high / low) ** generator.random(),
        schedule=schedule,
        precision=precision,
        clip=None
        if cause in ("exploding_recurrent_path", "missing_zero_grad", "no_warmup", "learning_rate_too_high")
        else generator.choice((None, 1.0, 1.0)),
        log_format=log_format,
        layers=layers,
        log_interval=generator.choice((1, 1, 2, 5)),
    )
