"""The schedule: which positions each rank reads at each step, over every resize the run went through.

The model: a run is a list of ``Segment``s, stretches of steps with one world size, one global batch size and one set of
shares and skips. The list is the only state; the positions of any step, past or future, are computed from it.
Partitions whose steps cross the ends of epochs are walked by ``Continuous``, the others by ``Aligned``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast.errors import ConfigError, OrderError
from holdfast.order.aligned import Aligned
from holdfast.order.continuous import Continuous
from holdfast.order.masks import Mask, check_masks, masked
from holdfast.order.numbers import MAX_STEP, Int64, Position, Positions, whole_number
from holdfast.order.order import Located, Order
from holdfast.order.partition import check_shares
from holdfast.order.segment import Segment
from holdfast.order.skips import Kept, Skips
from holdfast.order.walk import Assigned, Walk
from holdfast.order.weights import Weights, check_weights, integer_weights

__all__ = ["Assigned", "Schedule", "Segment"]


class Schedule:
    """The positions of every step and rank.

    Args:
        order: what is at each position.
        segments: the stretches of the run, the first at step 0.
        skips: records of what was left out, in chronological order; each segment says how many apply.
        epochs: the number of epochs of the stream; None for no end (or the order's own).
        reweightings: weights that were changed during the run, each from a position on.
        masks: samples that keep their place but are marked as invalid, each from a step on.
    """

    def __init__(
        self,
        order: Order,
        segments: Sequence[Segment],
        *,
        skips: Sequence[Skips] = (),
        epochs: int | None = None,
        reweightings: Sequence[tuple[int, Weights]] = (),
        masks: Sequence[Mask] = (),
    ) -> None:
        self.planned_order = order
        """The order as it was before any weights were changed."""
        self.reweightings = tuple((Position(int(position)), dict(weights)) for position, weights in reweightings)
        for position, weights in self.reweightings:
            order = order.reweighted(position, weights)
        self.order = order
        self.segments = tuple(segments)
        self.skips = tuple(skips)
        self.masks = tuple(masks)
        check_masks(self.masks, order)
        self.epochs = self._ends(epochs)
        if epochs is not None and epochs < 1:
            raise ConfigError("epochs must be at least 1", epochs=epochs)
        if not self.segments or self.segments[0].start_step != 0:
            raise OrderError("the first segment of a schedule must begin at step 0")
        steps = [segment.start_step for segment in self.segments]
        changes = [position for position, _ in self.reweightings]
        if any(later <= earlier for ordered in (steps, changes) for earlier, later in pairwise(ordered)):
            raise OrderError(
                "the segments and weight changes of a schedule must be in increasing order",
                steps=steps,
                positions=changes,
            )
        for segment in self.segments:
            lanes = None if order.layout is None else order.layout.offsets
            order.partition.check(order.epoch_length(0), segment.world_size, lanes)
            if not 0 <= segment.skips <= len(self.skips):
                raise OrderError("a segment refers to skips that do not exist", skips=segment.skips)
        self._steps = steps
        self._changes = sorted({*steps, *(mask.from_step for mask in self.masks)})
        walk = Continuous if order.partition.continuous else Aligned
        self._walk: Walk = walk(order, self.segments, self._kept_sets(), self.epochs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.planned_order, self.segments, self.skips, self.epochs, self.reweightings, self.masks)

    @classmethod
    def start(
        cls,
        order: Order,
        *,
        world_size: int,
        global_batch_size: int,
        shares: Sequence[float] | None = None,
        epochs: int | None = None,
    ) -> Schedule:
        """Begin a run."""
        begun = order.partition.shares if shares is None else shares
        chosen = None if begun is None else check_shares(begun, world_size)
        return cls(order, [Segment(0, world_size, global_batch_size, chosen)], epochs=epochs)

    def _kept_sets(self) -> list[Kept]:
        sets: list[Kept] = []
        total = Skips()
        for number in range(len(self.skips) + 1):
            if number:
                total = total.plus(self.skips[number - 1])
            sets.append(Kept(self.order, total))
        return sets

    def segment_at(self, step: int) -> Segment:
        """Return the segment that holds the step."""
        if type(step) is not int:
            step = whole_number(step, "a step")
        if not 0 <= step <= MAX_STEP:
            raise OrderError("there is no such step: it is negative or too large", step=step)
        return self.segments[bisect_right(self._steps, step) - 1]

    def positions(self, step: int, rank: int) -> Positions:
        """Return the positions the rank reads at the step; fewer than its batch size at the end of an epoch."""
        return self.positions_in(step, step + 1, rank)[0]

    def positions_in(self, first: int, stop: int, rank: int) -> tuple[Positions, Int64]:
        """Return the positions the rank reads at steps first … stop-1, all of one segment.

        Returns:
            The positions end to end, and ``stop - first + 1`` offsets: step i's are ``positions[offsets[i-first] :
            offsets[i-first+1]]``. Much cheaper than one call per step.
        """
        segment = self.segment_at(first)
        if not 0 <= rank < segment.world_size:
            raise ConfigError("rank must be between 0 and world_size-1", rank=rank, world_size=segment.world_size)
        if stop > first + 1 and self.segment_at(stop - 1) is not segment:
            raise OrderError("a range of steps must lie in one segment", first=first, stop=stop)
        return self._walk.positions_in(first, stop, rank)

    def segment_end(self, step: int) -> int | None:
        """Return the first step after the segment that holds the step; None if it is the last."""
        index = bisect_right(self._steps, step)
        return self._steps[index] if index < len(self._steps) else None

    def next_change(self, step: int) -> int | None:
        """Return the next step after this one at which a segment or a mask begins; None if there is none."""
        index = bisect_right(self._changes, step)
        return self._changes[index] if index < len(self._changes) else None

    def masked(self, step: int, positions: Positions, located: Located) -> NDArray[np.bool_] | None:
        """Return which of a step's samples are masked; None if no mask applies."""
        return masked(self.masks, self.order, step, positions, located) if self.masks else None

    @property
    def may_run_short(self) -> bool:
        """Whether a rank may get fewer samples than its batch size at some step."""
        return self.epochs is not None or not self.order.partition.continuous

    def step_size(self, step: int) -> int:
        """Return how many samples all ranks together read at the step: fewer than the global batch at an end."""
        return self._walk.step_size(step)

    def is_full(self, step: int) -> bool:
        """Return whether every rank's batch at the step is full."""
        return self._walk.is_full(step)

    def batch_size(self, step: int, rank: int) -> int:
        """Return how many samples the rank's batch holds at the step when it is full."""
        return self.segment_at(step).sizes.of(rank)

    def assigned(self, positions: ArrayLike) -> Assigned:
        """Return step, rank and slot at which each position is read; -1 where it is skipped or past the end."""
        return self._walk.assigned(Positions(np.atleast_1d(np.asarray(positions, dtype=np.int64))))

    @property
    def total_steps(self) -> int | None:
        """The number of steps, of which the last may not be full; None for no end."""
        return self._walk.total_steps()

    def delivered_before(self, step: int) -> Position:
        """Return how far the stream is at the start of the step, in positions."""
        return self._walk.delivered_before(step)

    def resized(
        self,
        step: int,
        *,
        world_size: int | None = None,
        global_batch_size: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> Schedule:
        """Return the schedule that continues from this step with a new topology; later plans are dropped."""
        last = self.segment_at(step)
        world = last.world_size if world_size is None else world_size
        total = last.global_batch_size if global_batch_size is None else global_batch_size
        chosen = None if shares is None else tuple(shares)
        if chosen is None and world == last.world_size:
            chosen = last.shares
        return self._followed_by(
            step, replace(last, start_step=step, world_size=world, global_batch_size=total, shares=chosen)
        )

    def skipping(self, step: int, skips: Skips) -> Schedule:
        """Return the schedule that leaves these positions and samples out from this step on."""
        record = self.segment_at(step).skips
        last = self.segment_at(step)
        known = self.skips[:record]
        segment = replace(last, start_step=step, skips=record + 1)
        return self._followed_by(step, segment, skips=(*known, skips))

    def reweighted(self, step: int, weights: Weights) -> Schedule:
        """Return the schedule whose mixture has new weights from this step on.

        They apply from the step's first position. If the partition ends epochs on all ranks together, the positions of
        an epoch that has begun are already assigned, so they apply from the next epoch.
        """
        position = self._reweighted_from(step)
        table = check_weights(weights, [spec.name for spec in self.order.sources])
        present = [name for name, weight in table.items() if weight > 0]
        exact = dict(zip(present, integer_weights([table[name] for name in present]), strict=True))
        segment = replace(self.segment_at(step), start_step=step)
        return self._followed_by(step, segment, reweighting=(position, exact))

    def masking(self, step: int, samples: Skips) -> Schedule:
        """Return the schedule that marks these positions and samples as invalid from this step on."""
        return self._with(masks=[*(mask for mask in self.masks if mask.from_step <= step), Mask(step, samples)])

    def ending(self, epochs: int | None) -> Schedule:
        """Return the same schedule with another number of epochs."""
        return self if self._ends(epochs) == self.epochs else self._with(epochs=epochs)

    def _ends(self, epochs: int | None) -> int | None:
        """Return after how many epochs the stream ends: an order that has an end ends after its first epoch."""
        return 1 if epochs is None and self.order.length is not None else epochs

    def _with(self, **changes: Any) -> Schedule:
        """Return this schedule with other values for some of its arguments."""
        record = {"skips": self.skips, "epochs": self.epochs, "reweightings": self.reweightings, "masks": self.masks}
        segments = changes.pop("segments", self.segments)
        return Schedule(self.planned_order, segments, **{**record, **changes})

    def _followed_by(
        self,
        step: int,
        segment: Segment,
        *,
        skips: Sequence[Skips] | None = None,
        reweighting: tuple[int, Weights] | None = None,
    ) -> Schedule:
        kept = [old for old in self.segments if old.start_step < step]
        records = self.skips[: max(old.skips for old in (*kept, segment))] if skips is None else skips
        until = self._reweighted_from(step) if reweighting is None else reweighting[0] - 1
        known = [(position, weights) for position, weights in self.reweightings if position <= until]
        return self._with(
            segments=[*kept, segment],
            skips=records,
            reweightings=known if reweighting is None else [*known, reweighting],
            masks=[mask for mask in self.masks if mask.from_step <= step],
        )

    def _reweighted_from(self, step: int) -> Position:
        """Return the position from which weights changed at this step apply."""
        position, order = self.delivered_before(step), self.order
        if order.partition.continuous or position == order.epoch_start(order.epoch_of(position)):
            return position
        return order.epoch_start(order.epoch_of(position) + 1)

    def to_json(self) -> dict[str, Any]:
        """Return segments, skips, epochs, changed weights and masks as plain JSON."""
        return {
            "segments": [segment.to_json() for segment in self.segments],
            "skips": [skips.to_json() for skips in self.skips],
            "epochs": self.epochs,
            "reweightings": [(position, dict(weights)) for position, weights in self.reweightings],
            "masks": [mask.to_json() for mask in self.masks],
        }

    @classmethod
    def from_json(cls, order: Order, value: Mapping[str, Any]) -> Schedule:
        """Read what ``to_json`` wrote."""
        return cls(
            order,
            [Segment.from_json(segment) for segment in value["segments"]],
            skips=[Skips.from_json(skips) for skips in value["skips"]],
            epochs=value["epochs"],
            reweightings=[(position, weights) for position, weights in value.get("reweightings", ())],
            masks=[Mask.from_json(mask) for mask in value.get("masks", ())],
        )


def _rebuild(
    order: Order,
    segments: Sequence[Segment],
    skips: Sequence[Skips],
    epochs: int | None,
    reweightings: Sequence[tuple[int, Weights]],
    masks: Sequence[Mask],
) -> Schedule:
    return Schedule(order, segments, skips=skips, epochs=epochs, reweightings=reweightings, masks=masks)
