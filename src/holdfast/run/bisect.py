"""Bisect: the first step, and the first component in it, at which two runs diverge.

Within a step, components are compared in the order in which they are computed: the parameters at the start of the step,
the samples it received, their content, the loss, the learning rate, and the gradient of each layer (the last layer
first, as in the backward pass). Numbers are compared by their exact bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.run.run_log import Record, RunLog
from holdfast.run.stretches import Stretch, read_stretches, rebuild

if TYPE_CHECKING:
    from holdfast.order import Schedule

__all__ = ["Parting", "bisect"]

PARAMETERS = "parameters"
WEIGHTS = "weights"
ORDER = "data order"
CONTENT = "batch content"
LOSS = "loss"
GRADIENT = "gradient"
RATE = "learning rate"
_WEIGHT_NORM, _GRAD_NORM = "weight_norm/", "grad_norm/"
WINDOW_STEPS = 1024
"""Steps whose samples are computed at once."""


@dataclass(frozen=True, slots=True)
class Parting:
    """The point at which two runs diverge.

    Attributes:
        step: the first step in which they differ; None if they agree as far as both go.
        component: what differs first in it: ``parameters``, ``weights``, ``data order``, ``batch content``, ``loss``,
            ``learning rate`` or ``gradient``; None if nothing does.
        layer: the layer whose weights or gradient differ, if known.
        rank: the rank whose record differs.
        one: the first run's value.
        other: the second run's value.
        differing: everything that differs in that step, in the same order.
        compared: how many steps both runs have.
        unchanged_since: the number of steps after which the parameters were last known to be equal.
        notes: what could not be compared, and why.
    """

    step: int | None
    component: str | None = None
    layer: str | None = None
    rank: int = 0
    one: Any = None
    other: Any = None
    differing: tuple[str, ...] = ()
    compared: int = 0
    unchanged_since: int | None = None
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Difference:
    """One component that differs in a step."""

    component: str
    one: Any
    other: Any
    layer: str | None = None

    @property
    def name(self) -> str:
        return self.component if self.layer is None else f"{self.component} of {self.layer}"


def bisect(one: RunLog, other: RunLog, *, loaders: tuple[Any, Any] | None = None) -> Parting:
    """Find the first step, and the first component in it, at which two runs diverge.

    Args:
        one: the log of the first run.
        other: the log of the second.
        loaders: both runs' loaders, created again, to compare the content of batches, which is not in the log.
    """
    notes: list[str] = []
    hashes = [_hashes(log) for log in (one, other)]
    best: tuple[int, int, list[_Difference]] | None = None
    compared = 0
    for rank in sorted({*one.ranks} & {*other.ranks}) or [0]:
        records = [{record["step"]: record for record in log.steps(rank)} for log in (one, other)]
        common = sorted(records[0].keys() & records[1].keys())
        compared = max(compared, len(common))
        for step in common if best is None else [step for step in common if step < best[0]]:
            differences = list(_differences(records[0][step], records[1][step], hashes[0], hashes[1]))
            if differences:
                best = (step, rank, differences)
                break
    best = _after_the_last(best, compared, hashes)
    best = _earlier_order(one, other, best, compared, notes)
    since = max((s for s in hashes[0] if hashes[0][s] == hashes[1].get(s) and (not best or s <= best[0])), default=None)
    if best is None:
        return Parting(None, compared=compared, unchanged_since=since, notes=tuple(notes))
    step, rank, differences = best
    if differences[0].component == LOSS:
        content = _content(loaders, one, other, step, rank, notes)
        differences = [*content, *differences]
    first = differences[0]
    return Parting(
        step,
        first.component,
        first.layer,
        rank,
        first.one,
        first.other,
        tuple(difference.name for difference in differences),
        compared,
        since,
        tuple(notes),
    )


def _hashes(log: RunLog) -> dict[int, str]:
    """Return the hash of the parameters by number of steps done; where a step was saved again, the last one."""
    return {e["step"]: e["parameter_hash"] for e in log.events("checkpoint") if "parameter_hash" in e}


def _differences(
    one: Record, other: Record, hashes: dict[int, str], other_hashes: dict[int, str]
) -> Iterator[_Difference]:
    """Yield what differs in one step, in the order in which it is computed."""
    step = one["step"]
    if step in hashes and step in other_hashes and hashes[step] != other_hashes[step]:
        yield _Difference(PARAMETERS, hashes[step], other_hashes[step])
    shared = [name for name in one if name in other]
    for name in shared:
        if name.startswith(_WEIGHT_NORM) and not _same(one[name], other[name]):
            yield _Difference(WEIGHTS, one[name], other[name], name.removeprefix(_WEIGHT_NORM))
    if one.get("batches") != other.get("batches"):
        yield _Difference(ORDER, one.get("batches"), other.get("batches"))
    if one.get("loss_bits") != other.get("loss_bits"):
        yield _Difference(LOSS, one.get("loss"), other.get("loss"))
    # Before the gradients: with several optimizers, the second one's depend on the rate of the first.
    if one.get("lr") != other.get("lr"):
        yield _Difference(RATE, one.get("lr"), other.get("lr"))
    layers = [name for name in shared if name.startswith(_GRAD_NORM) and not _same(one[name], other[name])]
    for name in reversed(layers):
        yield _Difference(GRADIENT, one[name], other[name], name.removeprefix(_GRAD_NORM))
    if not layers and one.get("grad_norm_bits") != other.get("grad_norm_bits"):
        yield _Difference(GRADIENT, one.get("grad_norm"), other.get("grad_norm"))


def _same(one: float, other: float) -> bool:
    return one == other or (one != one and other != other)


def _after_the_last(
    best: tuple[int, int, list[_Difference]] | None, compared: int, hashes: Sequence[dict[int, str]]
) -> tuple[int, int, list[_Difference]] | None:
    """Compare the parameters after the last common step, which no step's comparison covers."""
    one, other = (each.get(compared) for each in hashes)
    if best is None and one is not None and other is not None and one != other:
        return compared, 0, [_Difference(PARAMETERS, one, other)]
    return best


# --- the samples and their content ---------------------------------------------------------------------------------


def _earlier_order(
    one: RunLog,
    other: RunLog,
    best: tuple[int, int, list[_Difference]] | None,
    compared: int,
    notes: list[str],
) -> tuple[int, int, list[_Difference]] | None:
    """Look for a step with different samples, no later than the first step that differs in another way."""
    from holdfast.errors import HoldfastError

    try:
        schedules = [[(s, rebuild(s.state)) for s in read_stretches(log)] for log in (one, other)]
    except HoldfastError as error:
        notes.append(f"the samples of the steps were not compared: {error.message}")
        return best
    if len(schedules[0]) == len(schedules[1]) == 1 and _same_plan(schedules[0][0][1], schedules[1][0][1]):
        return best
    stop = compared if best is None else best[0] + 1
    for first, last in pairwise([*range(0, stop, WINDOW_STEPS), stop]):
        samples = [_samples(each, first, last) for each in schedules]
        for step in range(first, last):
            theirs = [each[step] for each in samples if step in each]
            if len(theirs) < len(samples) or theirs[0] == theirs[1]:
                continue
            slot = next((n for n, (a, b) in enumerate(zip(*theirs, strict=False)) if a != b), min(map(len, theirs)))
            values = [each[slot] if slot < len(each) else None for each in theirs]
            found = _Difference(ORDER, values[0], values[1])
            if best is None or step < best[0]:
                return step, 0, [found]
            begun = [d for d in best[2] if d.component in (PARAMETERS, WEIGHTS)]
            rest = [d for d in best[2] if d.component not in (PARAMETERS, WEIGHTS, ORDER)]
            return step, best[1], [*begun, found, *rest]
    return best


def _same_plan(one: Schedule, other: Schedule) -> bool:
    return one.to_json() == other.to_json() and one.planned_order.fingerprint() == other.planned_order.fingerprint()


def _samples(
    stretches: Sequence[tuple[Stretch, Schedule]], first: int, stop: int
) -> dict[int, list[tuple[str, int, int, bool]]]:
    """Return step → every (source, index, rank, masked) it received, for the steps that count."""
    found: dict[int, list[tuple[str, int, int, bool]]] = {}
    for stretch, schedule in stretches:
        order = schedule.order
        names = [spec.name for spec in order.sources]
        rows = np.flatnonzero((stretch.steps >= first) & (stretch.steps < stop) & stretch.counted(stretch.steps))
        for row in rows.tolist():
            own: list[tuple[str, int, int, bool]] = []
            for batch in range(int(stretch.first_batches[row]), int(stretch.stop_batches[row])):
                for rank in range(schedule.segment_at(batch).world_size):
                    positions = schedule.positions(batch, rank)
                    located = order.locate(positions)
                    masked = schedule.masked(batch, positions, located)
                    flags = [False] * len(positions) if masked is None else masked.tolist()
                    columns = zip(located.source.tolist(), located.index.tolist(), flags, strict=True)
                    own += [(names[source], index, rank, flag) for source, index, flag in columns]
            found[int(stretch.steps[row])] = own
    return found


def _content(
    loaders: tuple[Any, Any] | None, one: RunLog, other: RunLog, step: int, rank: int, notes: list[str]
) -> list[_Difference]:
    """Compare the content of a step's batches if both runs' data is available; otherwise their fingerprints."""
    if loaders is None:
        found = [next((e["state"].get("sources") for e in log.events("stream")), None) for log in (one, other)]
        if found[0] != found[1]:
            return [_Difference(CONTENT, *found)]
        notes.append("the content of the batches was not compared: pass both programs to compare it")
        return []
    batches = next((r.get("batches", (0, 0)) for r in one.steps(rank) if r["step"] == step), (0, 0))
    for batch in range(*batches):
        contents = [loader.batch_at(batch, rank) for loader in loaders]
        columns = sorted({name for content in contents for name in content})
        for name in columns:
            values = [content.get(name) for content in contents]
            row = _first_row(*values)
            if row is not None:
                where = f"batch {batch}, {name}, row {row}"
                return [
                    _Difference(CONTENT, f"{where}: {_short(values[0], row)}", f"{where}: {_short(values[1], row)}")
                ]
    return []


def _first_row(one: Any, other: Any) -> int | None:
    """Return the first row in which two columns differ, by their bytes."""
    arrays = [np.asarray(value) if value is not None else None for value in (one, other)]
    if arrays[0] is None or arrays[1] is None or arrays[0].shape != arrays[1].shape:
        return 0
    if arrays[0].dtype == object:
        return next((n for n, (a, b) in enumerate(zip(one, other, strict=True)) if str(a) != str(b)), None)
    return next((n for n, (a, b) in enumerate(zip(*arrays, strict=True)) if a.tobytes() != b.tobytes()), None)


def _short(value: Any, row: int) -> str:
    return "nothing" if value is None else repr(np.asarray(value)[row].tolist())[:120]
