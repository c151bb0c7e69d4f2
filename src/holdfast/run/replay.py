"""Replay: recorded steps run again, and compared with the recorded bits of loss and gradient norm.

Where replays of the same steps agree with each other, the machine computes the same bits every time, and any difference
from the record is real. Where they do not, a difference is compared with how far replays differ from each other:
the measured null. The report says which of the two was used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from holdfast.errors import ConfigError, RunError
from holdfast.run.rehearsal import Rehearsal
from holdfast.run.run_log import Record

__all__ = ["Replay", "StepComparison", "compare", "replay"]

NULL_FACTOR = 10.0
"""A difference counts where it exceeds the largest difference between replays this many times: a few replays see only
part of how far rounding can carry, and faults that matter exceed it by orders of magnitude."""
COMPARED = ("loss", "grad_norm")


@dataclass(frozen=True, slots=True)
class StepComparison:
    """One step: as recorded, and as re-run."""

    step: int
    loss_recorded: float | None
    loss: float | None
    grad_norm_recorded: float | None
    grad_norm: float | None
    bits_equal: bool
    rate_equal: bool
    difference: float
    """The largest relative difference of loss and gradient norm."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of a replay.

    Attributes:
        steps: every step from the first to the last that was asked for.
        began_at: the step of the checkpoint it began from; the steps between are compared too.
        bitwise: whether replays agree bit for bit, so that bits were compared; else the tolerance was.
        tolerance: the largest difference that is put down to rounding; 0 where bits were compared.
        differs_at: the first step that is not as recorded, on any rank; None if all are.
        rate_differs_at: the first step with another learning rate: the program is not the one that ran.
        steps_made: how many steps it cost.
    """

    steps: tuple[StepComparison, ...]
    began_at: int
    bitwise: bool
    tolerance: float
    differs_at: int | None
    rate_differs_at: int | None
    steps_made: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return asdict(self)


def replay(rehearsal: Rehearsal, steps: range, *, null_replays: int = 2) -> Replay:
    """Make steps again from a rehearsal's checkpoint and compare them with the record.

    Args:
        rehearsal: begun at or before the first step.
        steps: which steps are asked for.
        null_replays: how many further replays measure how far replays differ from each other, where the first is not
            as recorded.
    """
    if steps.step != 1 or not steps:
        raise ConfigError("the steps to replay must be consecutive", steps=[steps.start, steps.stop, steps.step])
    recorded = recorded_steps(rehearsal, range(rehearsal.step, steps.stop))
    made = rehearsal.run_to(steps.stop)
    nulls: list[list[Record]] = []
    differs = not all(_bits_equal(*pair) for pair in zip(recorded, made, strict=True))
    if any(rehearsal.ranks.each(lambda: differs)):  # steps are made by all ranks together, or by none
        for _ in range(null_replays):
            rehearsal.rewind()
            nulls.append(rehearsal.run_to(steps.stop))
    found = compare(recorded, made, nulls)
    others = rehearsal.ranks.each(lambda: (found.bitwise, found.tolerance, found.differs_at))
    return replace(
        found,
        bitwise=all(bitwise for bitwise, _, _ in others),
        tolerance=max(tolerance for _, tolerance, _ in others),
        differs_at=min((step for _, _, step in others if step is not None), default=None),
    )


def recorded_steps(rehearsal: Rehearsal, steps: range) -> list[Record]:
    """Return what the log says of these steps.

    Raises:
        RunError: one of them was never made.
    """
    found: list[Record] = []
    for step in steps:
        record = rehearsal.recorded(step)
        if record is None:
            raise RunError("the run has not made this step", step=step, hint="`holdfast runs` says how far it is")
        found.append(record)
    return found


def compare(recorded: Sequence[Record], made: Sequence[Record], nulls: Sequence[Sequence[Record]] = ()) -> Replay:
    """Compare re-run steps with the record; further replays of them measure the null."""
    bitwise = all(_bits_equal(*pair) for null in nulls for pair in zip(made, null, strict=True))
    spread = max((_difference(*pair) for null in nulls for pair in zip(made, null, strict=True)), default=0.0)
    tolerance = 0.0 if bitwise else NULL_FACTOR * spread
    steps = tuple(_comparison(*pair) for pair in zip(recorded, made, strict=True))
    differs = (s.step for s in steps if (not s.bits_equal if bitwise else s.difference > tolerance))
    return Replay(
        steps=steps,
        began_at=made[0]["step"],
        bitwise=bitwise,
        tolerance=tolerance,
        differs_at=next(differs, None),
        rate_differs_at=next((s.step for s in steps if not s.rate_equal), None),
        steps_made=len(made) * (1 + len(nulls)),
    )


def _comparison(recorded: Record, made: Record) -> StepComparison:
    return StepComparison(
        step=made["step"],
        loss_recorded=recorded.get("loss"),
        loss=made.get("loss"),
        grad_norm_recorded=recorded.get("grad_norm"),
        grad_norm=made.get("grad_norm"),
        bits_equal=_bits_equal(recorded, made),
        # A step that a gradient scaler left out has none.
        rate_equal="lr" not in recorded or "lr" not in made or recorded["lr"] == made["lr"],
        difference=_difference(recorded, made),
    )


def _bits_equal(one: Record, other: Record) -> bool:
    # A log may have been made without gradient norms: only what both hold can be compared.
    names = [f"{name}_bits" for name in COMPARED if f"{name}_bits" in one and f"{name}_bits" in other]
    return all(one[name] == other[name] for name in names)


def _difference(one: Record, other: Record) -> float:
    """Return the largest relative difference; infinite where only one of the two is a finite number."""
    largest = 0.0
    for name in COMPARED:
        a, b = one.get(name), other.get(name)
        if a is None or b is None or a == b or (a != a and b != b):
            continue
        if not (math.isfinite(a) and math.isfinite(b)):
            return math.inf
        largest = max(largest, abs(a - b) / max(abs(a), abs(b)))
    return largest
