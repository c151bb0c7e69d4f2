"""Provenance: which samples a step read, and which steps read a sample. Needs a schedule, never the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from holdfast.errors import OrderError
from holdfast.order import Schedule
from holdfast.order.numbers import Index, Indices, Position, whole_number
from holdfast.sources.base import Source
from holdfast.sources.document_windows import MadeOfDocuments, Piece

__all__ = ["SampleRef", "Seen", "epochs_begun", "samples_in", "when", "when_document", "with_pieces"]


@dataclass(frozen=True, slots=True, order=True)
class SampleRef:
    """One sample of a step: where it comes from, its position in the stream, and which rank read it."""

    source: str
    epoch: int
    index: Index
    position: Position
    rank: int
    slot: int
    pieces: tuple[Piece, ...] = field(default=(), compare=False)
    """The pieces of documents it is made of, if its source is made of documents."""


class Seen(NamedTuple):
    """One reading of a sample: the epoch of its source, the step, the rank and the position.

    ``step``, ``rank`` and ``slot`` are None if the sample is skipped.
    """

    epoch: int
    step: int | None
    rank: int | None
    slot: int | None
    position: Position


def samples_in(schedule: Schedule, step: int, rank: int | None = None) -> list[SampleRef]:
    """Return the samples of a step, of all ranks or of one, in the order of ranks and slots."""
    ranks = range(schedule.segment_at(step).world_size) if rank is None else [rank]
    by_rank = [schedule.positions(step, number) for number in ranks]
    # Located all at once: with many ranks, arithmetic over one rank's few positions at a time is all overhead.
    positions = np.concatenate(by_rank)
    located = schedule.order.locate(positions)
    names = [spec.name for spec in schedule.order.sources]
    owners = ((number, slot) for number, own in zip(ranks, by_rank, strict=True) for slot in range(len(own)))
    columns = (located.source.tolist(), located.epoch.tolist(), located.index.tolist(), positions.tolist(), owners)
    return [
        SampleRef(names[source], epoch, index, position, number, slot)
        for source, epoch, index, position, (number, slot) in zip(*columns, strict=True)
    ]


def when(schedule: Schedule, source: str, index: int, *, epochs: int) -> list[Seen]:
    """Return when a sample was or will be read, for the first ``epochs`` epochs of its source."""
    if epochs < 1:
        raise OrderError("epochs must be at least 1", epochs=epochs)
    number = schedule.order.number_of(source)
    cycle = schedule.order.cycles[number]
    index = whole_number(index, "the index of a sample")
    end = None if schedule.epochs is None else schedule.order.epoch_start(schedule.epochs)
    seen: list[Seen] = []
    for epoch in range(epochs):
        if index >= cycle.epoch_length(epoch):
            continue
        position = Position(int(schedule.order.position_of(source, epoch, np.array([index]))[0]))
        if position < 0 or (end is not None and position >= end):
            break
        step, rank, slot = (int(column[0]) for column in schedule.assigned(np.array([position])))
        seen.append(Seen(epoch, step, rank, slot, position) if step >= 0 else Seen(epoch, None, None, None, position))
    if not seen:
        cycle.ordinal_of(0, Indices(np.array([index])))  # raises the error that names the index and the length
    return seen


def with_pieces(found: list[SampleRef], packed: Mapping[str, MadeOfDocuments]) -> list[SampleRef]:
    """Return the samples with the documents they are made of, if their source is among these."""
    if not packed:
        return found
    return [
        replace(one, pieces=tuple(packed[one.source].pieces(one.index, one.epoch))) if one.source in packed else one
        for one in found
    ]


def when_document(schedule: Schedule, name: str, source: Source, document: int, *, epochs: int) -> list[Seen]:
    """Return when the samples that hold a document, or pieces of it, were or will be read."""
    if not isinstance(source, MadeOfDocuments):
        raise OrderError("the samples of the source do not consist of documents", source=name)
    seen = [
        found
        for epoch in range(epochs)
        for index in source.samples_of(document, epoch)
        for found in when(schedule, name, index, epochs=epoch + 1)
        if found.epoch == epoch
    ]
    return sorted(seen, key=lambda found: found.position)


def epochs_begun(schedule: Schedule, source: str, step: int) -> int:
    """Return how many epochs of the source have begun at the start of the step."""
    order = schedule.order
    number = order.number_of(source)
    count = order.count(number, np.array([schedule.delivered_before(step)]))
    return int(order.cycles[number].split(count)[0][0]) + 1
