"""Proof: what caused an excess, determined by re-running the steps from one state in three ways.

The rule is fixed in advance, and the documentation states the same one:

- A, the steps as they were, must have the recorded bits (or differ no more than replays do). If not, it was the
  *machine*; but if the very first step differs and that of an earlier checkpoint does too, it may be the program:
  *cannot tell*.
- If A shows no excess over the usual loss, there is *nothing to explain*.
- If the learning rate had jumped, it magnifies whichever sample pulls hardest: *model or optimizer*.
- B leaves out the suspects, C as many random samples of the same steps, in several draws. If B removes at least half of
  A's excess, and no C removes more than half of what B removes: *these samples*, at this state.
- If B keeps more than three quarters of the excess, or no sample stands out: *model or optimizer*.
- Anything else: *cannot tell*.
"""

from __future__ import annotations

import math
import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from statistics import median
from typing import Any

from holdfast.errors import OrderError
from holdfast.run.blame import BlameOptions, Excess, Suspect, _suspect, rank_samples
from holdfast.run.replay import compare, recorded_steps
from holdfast.run.run_log import Record
from holdfast.run.trials import Sample, Trials

__all__ = ["Culprit", "Proof", "ProofOptions", "prove"]


MAX_COST = 7
"""Maximum number of steps a proof makes, in multiples of those from the checkpoint to the last watched step."""


MAX_RATE_RISE = 2.0
"""A learning rate above this many times that of earlier steps has jumped; warm-up rises more slowly."""
RATE_HISTORY = 16
"""Number of steps before the window that define the usual learning rate."""
RATE_NEAR = 4
"""A jump up to this many steps before the window may have caused its excess."""


class Culprit(str, Enum):
    """The possible causes."""

    MACHINE = "machine"
    SAMPLES = "these samples"
    MODEL = "model or optimizer"
    NOTHING = "nothing to explain"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOptions:
    """The rule of a proof.

    Args:
        draws: how many times random samples are left out.
        seed: the seed of the draws.
        min_share: B is far below A if at least this share of A's excess is gone.
        max_random_share: C is like A if at most this share of what is gone in B is gone in C.
        like_share: B is like A if less than this share of A's excess is gone.
    """

    draws: int = 3
    seed: int = 0
    min_share: float = 0.5
    max_random_share: float = 0.5
    like_share: float = 0.25


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdict, and what it is based on.

    Attributes:
        verdict: the cause.
        reason: why, in words.
        window: the suspect steps.
        suspects: the samples left out in B.
        steps: the steps of the curves.
        recorded: the recorded losses; fewer if the run has not done all of these steps yet.
        as_it_was: A's losses.
        without_suspects: B's losses; empty if B was not run.
        without_random: the losses of every draw of C.
        bitwise: whether A was compared with the recorded bits; otherwise within a tolerance.
        tolerance: how far replays differ, if it was not compared by bits.
        differs_at: the first step of A, or between the checkpoint and A, that differs from the record.
        same_host: whether A was run on the host that recorded the steps.
        heeds_masks: whether masking was enough; otherwise rows were removed, and the cure is a skip.
        steps_made: steps that were re-run, including the lead-in.
        samples_measured: samples that were measured one by one.
    """

    verdict: Culprit
    reason: str
    window: tuple[int, int]
    suspects: tuple[Suspect, ...]
    steps: tuple[int, ...]
    recorded: tuple[float, ...]
    as_it_was: tuple[float, ...]
    without_suspects: tuple[float, ...]
    without_random: tuple[tuple[float, ...], ...]
    bitwise: bool
    tolerance: float
    differs_at: int | None
    same_host: bool
    heeds_masks: bool
    steps_made: int
    samples_measured: int

    @property
    def samples(self) -> dict[str, list[int]]:
        """Source → indices that were proven guilty; empty under any other verdict."""
        found: dict[str, list[int]] = {}
        if self.verdict is Culprit.SAMPLES:
            for suspect in self.suspects:
                found.setdefault(suspect.source, []).append(suspect.index)
        return {source: sorted(set(indices)) for source, indices in sorted(found.items())}

    @property
    def cure(self) -> str | None:
        """The lines of code that apply the cure to the loader of a run that was rolled back to before the window."""
        way = "mask" if self.heeds_masks else "skip"
        return f"loader.{way}(samples={self.samples!r})" if self.samples else None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return {**asdict(self), "verdict": self.verdict.value, "samples": self.samples, "cure": self.cure}


def prove(
    trials: Trials,
    window: range,
    history: Sequence[float],
    *,
    options: ProofOptions,
    looking: BlameOptions,
    suspects: Mapping[str, Sequence[int]] | None = None,
    host: str | None = None,
) -> Proof:
    """Determine the cause of an excess.

    Args:
        trials: over the window and the steps after it that are watched.
        window: the suspect steps.
        history: losses of the steps before.
        options: the rule.
        looking: how to find suspects if none are given.
        suspects: source → indices; if None, they are searched for.
        host: the host that recorded the steps.
    """
    case = _Case(trials, window, history, options, same_host=host == socket.gethostname())
    excused = case.compare_with_record()
    if excused is not None:
        return excused
    ranked, _, levels = rank_samples(trials, window, looking)
    case.samples_in_window = len(ranked)
    if suspects is None:
        chosen = [entry for entry in ranked if entry.stands_out]
    else:
        wanted = {(source, int(index)) for source, indices in suspects.items() for index in indices}
        chosen = [entry for entry in ranked if entry.sample.name in wanted]
        if wanted - {entry.sample.name for entry in chosen}:
            raise OrderError("a suspect was not in these steps", samples=sorted(wanted), steps=list(window))
    case.suspects = tuple(_suspect(trials, entry, levels) for entry in chosen)
    if case.excess.in_spreads(case.as_it_was) < looking.min_excess:
        return case.close(Culprit.NOTHING, "the loss of the watched steps is within its usual range")
    jump = case.rate_jump()
    if jump is not None:
        return case.close(Culprit.MODEL, jump)
    if not chosen:
        return case.close(Culprit.MODEL, "the steps have the recorded bits, and no sample stands out from its source")
    return case.try_without([entry.sample for entry in chosen], [entry.sample for entry in ranked])


class _Case:
    """A proof in progress."""

    def __init__(
        self, trials: Trials, window: range, history: Sequence[float], options: ProofOptions, *, same_host: bool
    ) -> None:
        self.trials, self.window, self.options, self.same_host = trials, window, options, same_host
        self.excess = Excess(history)
        began = trials.lead_in[0]["step"] if trials.lead_in else trials.steps.start
        made = range(began, trials.steps.stop)
        known = next((step for step in made if trials.rehearsal.recorded(step) is None), made.stop)
        self.recorded = recorded_steps(trials.rehearsal, range(began, known))
        self.as_it_was = trials.make()
        self.without_suspects: list[Record] = []
        self.without_random: list[list[Record]] = []
        self.suspects: tuple[Suspect, ...] = ()
        self.samples_in_window = 0
        self.bitwise, self.tolerance = True, 0.0
        self.differs_at: int | None = None

    def compare_with_record(self) -> Proof | None:
        """Compare A with the record; return the verdict if that settles it."""
        known = len(self.recorded)  # later steps were never done by the run itself
        made = [*self.trials.lead_in, *self.as_it_was][:known]
        found = compare(self.recorded, made)
        if found.rate_differs_at is not None:
            return self.close(
                Culprit.UNKNOWN,
                f"the learning rate of step {found.rate_differs_at} differs from the record: the program has changed, "
                "or something outside it changed the rate",
            )
        if found.differs_at is None:
            return None
        again = compare(self.recorded, made, [[*self.trials.lead_in, *self.trials.make()][:known]])
        self.bitwise, self.tolerance, self.differs_at = again.bitwise, again.tolerance, again.differs_at
        if again.differs_at is None:
            return None
        place = (
            "on the host that recorded it: the fault was transient"
            if self.same_host
            else "on another host: the recording host may have a persistent fault; replay there to find out"
        )
        return self.close(Culprit.MACHINE, f"step {again.differs_at} does not match the record, {place}")

    def rate_jump(self) -> str | None:
        """Describe where the learning rate left its usual range just before the excess; None if it did not."""
        recorded = self.trials.rehearsal.recorded
        rates = {
            step: record["lr"]
            for step in range(max(0, self.window.start - RATE_HISTORY), self.window.stop)
            if (record := recorded(step)) is not None and record.get("lr") is not None
        }
        usual = median(list(rates.values())[: -len(self.window)] or [math.inf])
        for step, rate in rates.items():
            if step >= self.window.start - RATE_NEAR and rate > MAX_RATE_RISE * usual > 0:
                return f"the learning rate of step {step} is {rate / usual:.3g} times the usual one"
        return None

    def try_without(self, suspects: Sequence[Sample], everyone: Sequence[Sample]) -> Proof:
        """Run B and C, and apply the rule."""
        total = self.excess.of(self.as_it_was)
        names = {sample.name for sample in suspects}
        first = min(sample.step for sample in everyone if sample.name in names)
        unlike = next(record for record in self.as_it_was if record["step"] == first)
        self.without_suspects = self.trials.make(names, unlike=unlike)
        gone = (total - self.excess.of(self.without_suspects)) / total
        if gone < self.options.min_share and not self.trials.removes_rows:
            # A masked NaN still reaches the gradient, as 0 x NaN: remove its row instead.
            self.trials.removes_rows = True
            self.without_suspects = self.trials.make(names)
            gone = (total - self.excess.of(self.without_suspects)) / total
        if gone < self.options.like_share:
            return self.close(Culprit.MODEL, f"without the suspects {min(1.0, 1 - gone):.0%} of the excess remains")
        others = sorted({sample.name for sample in everyone} - names)
        if not others:
            return self.close(Culprit.UNKNOWN, "every sample is a suspect: there are none to compare them with")
        chance = random.Random(self.options.seed)
        for _ in range(max(1, min(self.options.draws, self._trials_left()))):
            self.without_random.append(self.trials.make(chance.sample(others, min(len(names), len(others)))))
        gone_in_draws = [(total - self.excess.of(draw)) / total for draw in self.without_random]
        most = max(gone_in_draws, default=0.0)
        shares = [f"{min(1.0, max(0.0, share)):.0%}" for share in (gone, most)]
        numbers = f"{shares[0]} of the excess is gone without the suspects, at most {shares[1]} without random samples"
        if gone >= self.options.min_share and most <= self.options.max_random_share * gone:
            return self.close(Culprit.SAMPLES, numbers)
        return self.close(Culprit.UNKNOWN, numbers)

    def _trials_left(self) -> int:
        """Return how many more trials the step limit of a proof allows."""
        length = len(self.trials.steps)
        measured = -(-self.trials.samples_measured * len(self.window) // max(1, self.samples_in_window))
        allowed = MAX_COST * (len(self.trials.lead_in) + length)
        return (allowed - self.trials.steps_made - measured) // length

    def close(self, verdict: Culprit, reason: str) -> Proof:
        """Return the proof with this verdict."""
        steps = [record["step"] for record in self.as_it_was]
        recorded = {record["step"]: float(record["loss"]) for record in self.recorded}
        return Proof(
            verdict=verdict,
            reason=reason,
            window=(self.window.start, self.window.stop),
            suspects=self.suspects,
            steps=tuple(steps),
            recorded=tuple(recorded[step] for step in steps if step in recorded),
            as_it_was=_losses(self.as_it_was),
            without_suspects=_losses(self.without_suspects),
            without_random=tuple(map(_losses, self.without_random)),
            bitwise=self.bitwise,
            tolerance=self.tolerance,
            differs_at=self.differs_at,
            same_host=self.same_host,
            heeds_masks=not self.trials.removes_rows,
            steps_made=self.trials.steps_made,
            samples_measured=self.trials.samples_measured,
        )


def _losses(records: Sequence[Record]) -> tuple[float, ...]:
    return tuple(float(record["loss"]) for record in records)
