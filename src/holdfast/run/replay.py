"""Replay: recorded steps re-run, and compared with the recorded bits of loss and gradient norm.

If replays of the same steps agree with each other, the machine computes the same bits every time, and any difference
from the record is real. If they do not, a difference is compared with how far replays differ from each other: the
measured null. The report says which of the two was used.
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
"""A difference counts if it is more than this many times the largest difference between replays: a few replays show
only part of the effect of rounding, and faults that matter exceed it by orders of magnitude."""
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
    """The result of a replay.

    Attributes:
        steps: every requested step, from the first to the last.
        began_at: the step of the checkpoint it began from; the steps in between are compared too.
        bitwise: whether replays agree bit for bit, so that bits were compared; otherwise the tolerance was used.
        tolerance: the largest difference attributed to rounding; 0 if bits were compared.
        differs_at: the first step that differs from the record, on any rank; None if none does.
        rate_differs_at: the first step with another learning rate: the program is not the one that made the run.
        steps_made: how many steps were made.
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
    """Re-run steps from a rehearsal's checkpoint and compare them with the record.

    Args:
        rehearsal: begun at or before the first step.
        steps: the requested steps.
        null_replays: how many further replays measure how far replays differ from each other, if the first differs
            from the record.
    """
    if steps.step != 1 or not steps:
        raise ConfigError("the steps to replay must be consecutive", steps=[steps.start, steps.stop, steps.step])
    recorded = recorded_steps(rehearsal, range(rehearsal.step, steps.stop))
    made = rehearsal.run_to(steps.stop)
    nulls: list[list[Record]] = []
    differs = not all(_bits_equal(*pair) for pair in zip(recorded, made, strict=True))
    if any(rehearsal.ranks.each(lambda: differs)):  # all ranks make steps together, or none does
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
    """Return the records of these steps.

    Raises:
        RunError: one of them was never done.
    """
    found: list[Record] = []
    for step in steps:
        record = rehearsal.recorded(step)
        if record is None:
            raise RunError("the run has not made this step", step=step, hint="see its progress with `holdfast runs`")
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
        # A step that a gradient scaler skipped has none.
        rate_equal="lr" not in recorded or "lr" not in made or recorded["lr"] == made["lr"],
        difference=_difference(recorded, made),
    )


def _bits_equal(one: Record, other: Record) -> bool:
    # A log may lack gradient norms: only what both have can be compared.
    names = [f"{name}_bits" for name in COMPARED if f"{name}_bits" in one and f"{name}_bits" in other]
    return all(one[name] == other[name] for name in names)


def _difference(one: Record, other: Record) -> float:
    """Return the largest relative difference; infinite if only one of the two is finite."""
    largest = 0.0
    for name in COMPARED:
        a, b = one.get(name), other.get(name)
        if a is None or b is None or a == b or (a != a and b != b):
            continue
        if not (math.isfinite(a) and math.isfinite(b)):
            return math.inf
        largest = max(largest, abs(a - b) / max(abs(a), abs(b)))
    return largest
