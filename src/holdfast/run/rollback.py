"""Rollback: go back to the last good checkpoint before the onset, and continue around the suspects.

A rollback is two records. ``rollback`` says what was decided and is on disk before anything is changed; ``rolled_back``
says that it is done. A crash in between, or before the next checkpoint, loses nothing: the next attempt finds the
decision in the log and carries it out again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.arguments import check_fields
from holdfast.errors import ConfigError, RollbackError, UnusableCheckpointError
from holdfast.run.attempt import Attempt, restore_checkpoint
from holdfast.run.cure import Cure, abandoned_name, cures_for
from holdfast.run.run_log import Record
from holdfast.run.snapshot import Components

__all__ = ["RollbackOptions", "roll_back"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackOptions:
    """How a run rolls back when its policy says ``"rollback"``.

    Args:
        cure: ``"window"`` leaves out the batches from the onset to where it was found; ``"mask"`` keeps them in place
            with every sample marked invalid; ``"prove"`` leaves out the samples that a proof finds guilty,
            and nothing else (the run needs ``train_step``); ``"none"`` repeats the same steps; a function receives
            the finding and the suspect batches, and returns a ``Cure``.
        before: this many steps before the onset are suspect too.
        after: this many batches after the one at which it was found are suspect too. Each further rollback to the
            same checkpoint doubles the suspect window.
        rate_scale: multiply the learning rate by this after a rollback.
        max_rollbacks: maximum number of rollbacks over all attempts; then the run stops.
    """

    cure: Literal["window", "mask", "prove", "none"] | Callable[[Mapping[str, Any], tuple[int, int]], Cure] = "window"
    before: int = 0
    after: int = 0
    rate_scale: float | None = None
    max_rollbacks: int = 3

    def __post_init__(self) -> None:
        if self.cure not in ("window", "mask", "prove", "none") and not callable(self.cure):
            raise ConfigError("unknown cure", cure=self.cure, hint='"window", "mask", "prove", "none", or a function')
        check_fields(self, may_be_zero=("before", "after", "max_rollbacks"))

    def cure_for(self, finding: Mapping[str, Any], suspects: tuple[int, int]) -> Cure:
        """Return the cure for the suspect batches."""
        if callable(self.cure):
            return self.cure(finding, suspects)
        return Cure(
            skip_batches=suspects if self.cure == "window" else None,
            mask_batches=suspects if self.cure == "mask" else None,
            rate_scale=self.rate_scale,
        )


def roll_back(
    attempt: Attempt,
    components: Components,
    options: RollbackOptions,
    finding: Mapping[str, Any],
    suspects: tuple[int, int],
) -> Record:
    """Restore the last good checkpoint before the onset and apply the cure; all ranks call it.

    Raises:
        RollbackError: there is no such checkpoint, or the run has rolled back too many times.
    """
    events = attempt.history.events
    made = sum(event["event"] == "rollback" for event in events)
    if made >= options.max_rollbacks:
        raise RollbackError(
            "the run has reached its maximum number of rollbacks",
            rollbacks=made,
            finding=finding["failure"],
            step=attempt.step,
            hint="examine its findings with `holdfast debug`, or raise max_rollbacks",
        )
    onset = max(0, min(int(finding["onset"]) - options.before, attempt.step))
    try:
        found = attempt.checkpoints.newest(not_after=onset)
    except UnusableCheckpointError:
        found = None
    if found is None:
        raise RollbackError(
            "there is no good checkpoint from before the onset",
            onset=onset,
            finding=finding["failure"],
            hint="keep more checkpoints, or save more often",
        )
    before = len(cures_for(events, found.step))
    first, stop = suspects
    suspects = (first, stop + options.after + (stop + options.after - first) * (2**before - 1))
    cure = attempt.ranks.first(lambda: options.cure_for(finding, suspects))
    decision: Record = {
        "number": made + 1,
        "step": attempt.step,
        "to": found.step,
        "checkpoint": found.path.name,
        "finding": dict(finding),
        "suspects": list(suspects),
        "skipped": list(cure.skip_batches or cure.mask_batches or ()),
        "cure": cure.to_json(),
    }
    attempt.event("rollback", **decision)
    attempt.recorder.sync()
    attempt.stopwatch.lap("restore")
    abandoned = attempt.checkpoints.abandon(after=found.step, name=abandoned_name(decision))
    notes = restore_checkpoint(attempt, components, found)
    for each in cures_for(events, found.step):
        each.apply(components, attempt.discard)
    attempt.stopwatch.lap("restore")
    attempt.event("rolled_back", step=attempt.step, batch=attempt.batch, abandoned=abandoned, notes=list(notes))
    attempt.recorder.sync()
    return decision
