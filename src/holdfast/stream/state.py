"""The stream state: everything needed to continue exactly, as plain JSON.

It holds the order's description (names, lengths, seeds, weights, digests; no data), the list of segments, the skips and
the step. Its size does not depend on the number of samples or ranks. It is the same on every rank except for the rank
itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from holdfast.errors import HoldfastError, StateError, StateMismatchError
from holdfast.order import Order, Partition, Schedule
from holdfast.order.order import same_json
from holdfast.versioned import AS_TEXT, MAX_COUNT, Between, Count, Format

__all__ = ["CheckpointState"]

_EXPECTED = "pass what state_dict() or load_state() returned, unchanged"
_DAMAGED = "it was changed after it was saved; use an earlier one"
# Batches that a training loop may hold unacknowledged, and so how far ahead of the step a change may lie.
MAX_OUTSTANDING = 1 << 20


AtLeastOne = Annotated[int, Between(1, 1 << 32)]
SavedSegment = tuple[Count, AtLeastOne, AtLeastOne, list[float] | None, Count]  # as Segment.to_json writes it
SavedSamples = dict[str, Any]  # as Skips.to_json writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """The position of a stream."""

    step: Count  # batches delivered so far, and so the number of the next
    epoch: Count  # the stream's epoch at that point
    position: Count  # positions of the stream already passed
    shuffle_seed: int  # the stream's seed
    rank: Count  # the rank that saved it
    world_size: AtLeastOne  # the number of data-parallel ranks at that time
    timestamp: float  # in seconds since 1970, for people; nothing is computed from it
    order: Annotated[dict[str, Any], AS_TEXT]  # the order's JSON form
    fingerprint: str  # of the order
    segments: list[SavedSegment]  # every stretch of the run with its topology, so that past steps stay addressable
    skips: Annotated[list[SavedSamples], AS_TEXT]  # what was left out, in the order it was decided
    sources: Annotated[dict[str, str], AS_TEXT]  # a fingerprint of each source's data
    epochs: Annotated[int, Between(1, MAX_COUNT)] | None = None  # how many the stream has; None for no end
    # Samples marked as invalid, each from a step on, and changed weights, each from a position on.
    masks: Annotated[list[tuple[Count, SavedSamples]], AS_TEXT] = field(default_factory=list)
    reweightings: Annotated[list[tuple[Count, dict[str, int]]], AS_TEXT] = field(default_factory=list)
    samples_failed: list[tuple[str, Count]] = field(default_factory=list)  # (source, index) of samples left out

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain JSON, always with the same keys: what grows during a run is in lists or text."""
        return STREAM_STATE.to_json(self)

    @classmethod
    def from_json(cls, value: Any) -> CheckpointState:
        """Read what ``to_json`` of this or an earlier release wrote."""
        return STREAM_STATE.from_json(value)

    def rebuild(self, partition: Partition | None = None, *, like: Order | None = None) -> Schedule:
        """Return the schedule this state describes.

        Args:
            partition: needed if it uses labels or keys, or is the user's own class.
            like: the order that continues: used as it is if it is the saved one; otherwise only its partition and
                shuffles are used, which may be the user's own classes.
        """
        try:
            if like is not None and same_json(like.to_json(), self.order):
                order = like
            else:
                known = {} if like is None else {spec.name: spec.shuffle for spec in like.sources}
                order = Order.from_json(self.order, partition=like.partition if like else partition, shuffles=known)
            schedule = self.schedule_over(order)
            if schedule.planned_order.fingerprint() != self.fingerprint:
                raise StateMismatchError("the fingerprint does not match the order in the stream state", hint=_DAMAGED)
            names = {spec.name for spec in schedule.planned_order.sources}
            if self.shuffle_seed != schedule.planned_order.seed or names != self.sources.keys():
                raise StateError("the seed or sources of the stream state do not match its order", hint=_DAMAGED)
            if schedule.delivered_before(self.step) != self.position:
                raise StateError("the step and the position of the stream state disagree", position=self.position)
            return schedule
        except HoldfastError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise StateError(f"the stream state is damaged: {error!r}", hint=_DAMAGED) from error

    def schedule_over(self, order: Order) -> Schedule:
        """Return the schedule over an order."""
        last = max([segment[0] for segment in self.segments] + [mask[0] for mask in self.masks], default=0)
        if last > self.step + MAX_OUTSTANDING:
            raise StateError("the stream state records a change long after its step", step=self.step, change=last)
        names = ("segments", "skips", "epochs", "masks", "reweightings")
        return Schedule.from_json(order, {name: getattr(self, name) for name in names})


# Version 2 keeps order, skips and sources as text: torch's DCP flattens nested dicts into keys, which would change
# during a run.
STREAM_STATE = Format("stream state", CheckpointState, version=2, upgrades={1: dict}, hint=_EXPECTED)
