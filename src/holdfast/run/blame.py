"""Blame: which samples of a step stand out from the usual level of their own source, and caused what happened.

Every sample of the window is measured on its own, at the state before the window: its loss and its gradient norm, both
from one step of the program. Samples of earlier steps are the control group; for each of the two measures they show how
far out healthy samples are: gradient norms scatter far more than losses. Samples far beyond that are candidates. The
steps are then re-run without them: a set is blamed only if the excess is gone without it, and is made as small as that
allows. A few bad samples may not lift the loss of a whole batch out of its range; samples whose own loss is far beyond
that of every earlier sample are blamed if the loss is lower without them. If no sample stands out, none is blamed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from holdfast.errors import ConfigError
from holdfast.run.preview import preview
from holdfast.run.run_log import Record
from holdfast.run.trials import Measured, Sample, Trials
from holdfast.run.usual import Usual

__all__ = ["Blame", "BlameOptions", "SourceLevel", "Suspect", "blame", "rank_samples"]


MAX_STEPS = 256
"""Re-running more steps one by one gains nothing: samples show their harm within a few steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameOptions:
    """Options for finding suspects.

    Args:
        before: steps before the suspect one that also belong to the window: a loss may jump one step after its cause.
        horizon: steps after the window that are watched for harm.
        reference: steps before the window whose samples define what is usual.
        min_score: a candidate's loss, or its gradient norm, is at least this many spreads above the level of its
            source …
        above_reference: … and this many times as far out as the farthest sample of the reference, in the same measure.
        far_score: a sample whose own loss is this many spreads above the level of its source …
        far_above_reference: … and this many times as far out as the farthest loss of the reference, is blamed even if
            the loss of its batch stays within its range. ``bench/blame.py``: poison is 2 to 9 times as far out. Its
            logarithm must also exceed the reference, ``above_reference`` times as far: the losses of a model that has
            learnt have long tails, in which a hard sample is twenty spreads out.
        far_share: … and its loss must be at least this share of the loss the run began with: a sample on which the
            model does nearly as well as it should is not worth leaving out, however small the losses of the others are.
        min_excess: there is something to explain if the mean loss of the watched steps is this many spreads (of such a
            mean) above the level of the steps before.
        history: recorded steps that define the usual loss of the run; few, as it falls while the run learns.
        min_share: the blamed samples explain at least this share of the excess.
        max_trials: how many times the steps may be re-run to find a smaller set.
        max_listed: how many samples are listed, blamed or not.
    """

    before: int = 1
    horizon: int = 3
    reference: int = 4
    min_score: float = 6.0
    above_reference: float = 1.5
    far_score: float = 10.0
    far_above_reference: float = 2.0
    far_share: float = 0.5
    min_excess: float = 4.0
    history: int = 16
    min_share: float = 0.5
    max_trials: int = 12
    max_listed: int = 20

    def __post_init__(self) -> None:
        if min(self.before, self.horizon, self.max_trials, self.max_listed) < 0 or self.reference < 1:
            raise ConfigError("before, horizon, max_trials and max_listed must not be negative, reference at least 1")
        if max(self.before, self.horizon, self.reference) > MAX_STEPS:
            raise ConfigError(
                f"before, horizon and reference must be at most {MAX_STEPS} steps",
                before=self.before,
                horizon=self.horizon,
                reference=self.reference,
                hint="pass the step at which the loss jumped, and watch only the steps around it",
            )


@dataclass(frozen=True, slots=True)
class Suspect:
    """A sample of the window, measured on its own.

    ``score`` is how many spreads its loss (or its gradient norm, where that is further beyond the reference) is above
    the usual level of its source.
    """

    source: str
    index: int
    step: int
    row: int
    loss: float
    usual_loss: float
    grad_norm: float | None
    score: float
    stands_out: bool
    preview: dict[str, str]

    @property
    def name(self) -> tuple[str, int]:
        """The source and the index."""
        return self.source, self.index


@dataclass(frozen=True, slots=True)
class SourceLevel:
    """A source in the window: its number of samples, their mean loss, and the usual level."""

    samples: int
    mean_loss: float
    usual_loss: float
    spread: float
    standing_out: int


@dataclass(frozen=True, slots=True)
class Blame:
    """The samples that stand out in a window of steps.

    Attributes:
        window: the first step and one past the last.
        blamed: samples without which the excess is gone, or far-out ones without which the loss is lower; empty if no
            sample stands out, or leaving them out does not help.
        ranked: the samples that are furthest beyond the reference, blamed or not.
        sources: every source of the window.
        excess: how far the mean loss of the watched steps is above the usual level, in spreads.
        explained: the share of the excess that is gone without the blamed samples; None if there was no excess, or no
            sample to leave out.
        heeds_masks: whether masking was enough; otherwise rows were removed.
        steps_made: steps that were re-run.
        samples_measured: samples that were measured one by one.
    """

    window: tuple[int, int]
    blamed: tuple[Suspect, ...]
    ranked: tuple[Suspect, ...]
    sources: dict[str, SourceLevel]
    excess: float
    explained: float | None
    heeds_masks: bool
    steps_made: int
    samples_measured: int

    @property
    def nobody(self) -> bool:
        """Whether no sample stands out."""
        return not self.blamed

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return {**asdict(self), "nobody": self.nobody}


class Excess:
    """How far watched steps are above the usual level of the run.

    Args:
        history: losses of the steps before, which define what is usual.
    """

    def __init__(self, history: Sequence[float]) -> None:
        self.usual = Usual.of(history)

    def of(self, records: Sequence[Record]) -> float:
        """Return the mean loss above the level."""
        losses = [self.usual.capped(float(record["loss"])) for record in records]
        return sum(losses) / len(losses) - self.usual.level

    def in_spreads(self, records: Sequence[Record]) -> float:
        """Return the same in spreads of a mean of this many steps."""
        return float(self.of(records) / (self.usual.spread / len(records) ** 0.5))


class Ranked(NamedTuple):
    """A sample of the window among the others.

    Attributes:
        measured: the sample on its own.
        reach: how many times as far out it is as the farthest sample of the reference, by loss or by gradient norm.
        score: how many spreads it is above the level of its source, in the measure in which it reaches further.
        stands_out: whether it is a candidate.
        far_out: whether its own loss is far beyond all others.
    """

    measured: Measured
    reach: float
    score: float
    stands_out: bool
    far_out: bool

    @property
    def sample(self) -> Sample:
        """Which sample it is."""
        return self.measured.sample


def rank_samples(
    trials: Trials, window: range, options: BlameOptions
) -> tuple[list[Ranked], dict[str, SourceLevel], dict[str, Usual]]:
    """Measure the window's samples against the reference; return them by reach, and the usual level of each source."""
    first = max(0, window.start - min(options.reference, len(trials.steps)))  # keeps its cost in proportion
    suspects = trials.measure(trials.samples_of(window))
    reference = trials.measure(trials.samples_of(range(first, window.start)))
    if not reference:
        reference = suspects
    by_loss = _levels(reference, lambda each: each.loss)
    by_norm = _levels(reference, lambda each: each.grad_norm)
    has_logarithms = all(each.loss > 0 for each in reference)
    by_logarithm = _levels(reference, _logarithm)

    def scores(each: Measured) -> tuple[float, float]:
        own = by_loss.get(each.sample.source, by_loss[""]).score(each.loss)
        if each.grad_norm is None:
            return own, 0.0
        return own, by_norm.get(each.sample.source, by_norm[""]).score(each.grad_norm)

    def score_of_logarithm(each: Measured) -> float:
        return by_logarithm.get(each.sample.source, by_logarithm[""]).score(_logarithm(each))

    has_reference = reference is not suspects
    reach_of_logarithms = max(MIN_REACH, *map(score_of_logarithm, reference))
    # How far out healthy samples are, by loss and by gradient norm.
    reaches = [max(column) for column in zip(*map(scores, reference), strict=True)] if has_reference else [0.0, 0.0]

    def entry(each: Measured) -> Ranked:
        own = scores(each)
        reach, score = max(
            (score / max(MIN_REACH, farthest), score) for score, farthest in zip(own, reaches, strict=True)
        )
        stands_out = any(
            score >= max(options.min_score, options.above_reference * farthest)
            for score, farthest in zip(own, reaches, strict=True)
        )
        far_out = (
            has_reference
            and has_logarithms
            and own[0] >= max(options.far_score, options.far_above_reference * reaches[0])
            and score_of_logarithm(each) >= options.above_reference * reach_of_logarithms
        )
        return Ranked(each, reach, score, stands_out, far_out)

    ranked = sorted(map(entry, suspects), key=lambda entry: -entry.reach)
    sources = {}
    for name in sorted({entry.sample.source for entry in ranked}):
        own_samples = [entry for entry in ranked if entry.sample.source == name]
        usual = by_loss.get(name, by_loss[""])
        sources[name] = SourceLevel(
            len(own_samples),
            sum(usual.capped(entry.measured.loss) for entry in own_samples) / len(own_samples),
            usual.level,
            usual.spread,
            sum(entry.stands_out for entry in own_samples),
        )
    return ranked, sources, by_loss


FIRST_STEPS = 8
"""Number of recorded steps that define the loss the run began with."""
MIN_REACH = 3.0
"""Healthy samples are assumed to reach at least this many spreads above their level, however few were measured."""
MIN_REFERENCE_SAMPLES = 6
"""A source with fewer samples in the reference is compared with all sources together."""


def _logarithm(each: Measured) -> float:
    return math.log(each.loss) if each.loss > 0 else each.loss


def _levels(measured: Sequence[Measured], value: Any) -> dict[str, Usual]:
    """Return source → usual level; the key ``""`` is for all sources together."""
    found = {"": Usual.of([value(each) for each in measured if value(each) is not None])}
    for name in {each.sample.source for each in measured}:
        own = [value(each) for each in measured if each.sample.source == name and value(each) is not None]
        if len(own) >= MIN_REFERENCE_SAMPLES:
            found[name] = Usual.of(own)
    return found


def blame(trials: Trials, window: range, history: Sequence[float], options: BlameOptions) -> Blame:
    """Find the samples behind an excess.

    Args:
        trials: over the window and the steps after it that are watched.
        window: the suspect steps.
        history: losses of the steps before.
        options: how to find suspects.
    """
    excess = Excess(history)
    as_it_was = trials.make()
    ranked, sources, levels = rank_samples(trials, window, options)
    total = excess.of(as_it_was)
    candidates = [entry.sample for entry in ranked if entry.stands_out]
    least = options.far_share * _first_loss(trials)
    far_out = [entry.sample for entry in ranked if entry.far_out and not entry.measured.loss < least]
    blamed: list[Sample] = []
    explained: float | None = None
    search = _Search(trials, as_it_was, excess, options)
    if candidates and excess.in_spreads(as_it_was) >= options.min_excess:
        blamed, explained = search.smallest(candidates)
    elif far_out and search.is_lower_without(far_out):
        blamed = far_out
    suspects = [_suspect(trials, entry, levels) for entry in ranked]
    names = {sample.name for sample in blamed}
    return Blame(
        window=(window.start, window.stop),
        blamed=tuple(suspect for suspect in suspects if suspect.name in names),
        ranked=tuple(suspects[: options.max_listed]),
        sources=sources,
        excess=excess.in_spreads(as_it_was) if total > 0 else 0.0,
        explained=explained,
        heeds_masks=not trials.removes_rows,
        steps_made=trials.steps_made,
        samples_measured=trials.samples_measured,
    )


def _first_loss(trials: Trials) -> float:
    """Return the usual loss of the run's first steps, when the model knew nothing."""
    records = filter(None, map(trials.rehearsal.recorded, range(FIRST_STEPS)))
    return Usual.of([float(record["loss"]) for record in records if "loss" in record]).level


def _suspect(trials: Trials, entry: Ranked, levels: dict[str, Usual]) -> Suspect:
    each, sample = entry.measured, entry.sample
    usual = levels.get(sample.source, levels[""])
    batch = trials.rehearsal.components.loader.batch_at(sample.batch)
    return Suspect(
        sample.source,
        sample.index,
        sample.step,
        sample.row,
        each.loss,
        usual.level,
        each.grad_norm,
        entry.score,
        entry.stands_out,
        preview(batch, sample.row),
    )


class _Search:
    """Delta debugging: the smallest set of candidates without which the excess is gone."""

    def __init__(self, trials: Trials, as_it_was: Sequence[Record], excess: Excess, options: BlameOptions) -> None:
        self._trials = trials
        self._first = {record["step"]: record for record in as_it_was}
        self._excess = excess
        self._total = excess.of(as_it_was)
        self._left = options.max_trials
        self._min_share = options.min_share

    def smallest(self, candidates: Sequence[Sample]) -> tuple[list[Sample], float | None]:
        """Return the set, and the share of the excess it explains; an empty set if even all explain too little."""
        best = self._share(candidates)
        if best < self._min_share and not self._trials.removes_rows:
            # A masked NaN still reaches the gradient, as 0 x NaN: remove its row instead.
            self._trials.removes_rows = True
            best = self._share(candidates)
        if best < self._min_share:
            return [], best
        enough = KEPT_SHARE * best
        low, high = 1, len(candidates)  # farthest out first: the shortest prefix that is enough
        while low < high and self._left > 0:
            middle = (low + high) // 2
            low, high = (low, middle) if self._share(candidates[:middle]) >= enough else (middle + 1, high)
        chosen = list(candidates[:high])
        size = len(chosen) // 2
        while size >= 1 and self._left > 0:  # then drop what is not needed, larger parts first
            start = 0
            while start < len(chosen) and len(chosen) > size and self._left > 0:
                rest = chosen[:start] + chosen[start + size :]
                chosen, start = (rest, start) if self._share(rest) >= enough else (chosen, start + size)
            size //= 2
        return chosen, best

    def is_lower_without(self, samples: Sequence[Sample]) -> bool:
        """Return whether the steps that hold these samples have a lower loss without them."""
        steps = {sample.step for sample in samples}
        made = {record["step"]: record for record in self._made_without(samples)}
        capped = self._excess.usual.capped
        return all(capped(made[step]["loss"]) < capped(self._first[step]["loss"]) for step in steps)

    def _share(self, samples: Sequence[Sample]) -> float:
        return float((self._total - self._excess.of(self._made_without(samples))) / self._total)

    def _made_without(self, samples: Sequence[Sample]) -> list[Record]:
        self._left -= 1
        first = self._first.get(min(sample.step for sample in samples))
        return self._trials.make([sample.name for sample in samples], unlike=first)


KEPT_SHARE = 0.9
"""A smaller set is good enough if it explains this share of what all candidates together explain."""
