"""Investigations of a run: replay, blame and proof, each from the newest good checkpoint before the suspect steps."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import RunError
from holdfast.run.blame import Blame, BlameOptions, blame
from holdfast.run.cure import Cure
from holdfast.run.investigations import keep_investigation
from holdfast.run.proof import Culprit, Proof, ProofOptions, prove
from holdfast.run.replay import Replay, replay
from holdfast.run.trials import Trials

if TYPE_CHECKING:
    from holdfast.run.run import Run

__all__ = ["blame_step", "prove_step", "proven_cure", "replay_steps"]

MIN_HISTORY = 8
"""Minimum number of recorded steps before the window; fewer do not show what is usual."""
MAX_WINDOW = 8
"""The longest window in which a rollback searches for samples."""


class _Scene(NamedTuple):
    """The material of an investigation."""

    trials: Trials
    window: range
    history: list[float]


OnStep = Callable[[], None] | None
"""Called after every step that is re-run."""


def replay_steps(run: Run, steps: range, *, null_replays: int = 2, on_step: OnStep = None) -> Replay:
    """Re-run recorded steps of a run and compare them with the record."""
    with run.rehearsing(steps.start, on_step=on_step) as rehearsal:
        return replay(rehearsal, steps, null_replays=null_replays)


def blame_step(run: Run, step: int, options: BlameOptions | None = None, *, on_step: OnStep = None) -> Blame:
    """Find the samples behind a step's excess."""
    options = options or BlameOptions()
    with _scene(run, step, options, on_step) as scene:
        found = blame(scene.trials, scene.window, scene.history, options)
    keep_investigation(run.folder.root, "blame", step, found.to_json())
    return found


def prove_step(
    run: Run,
    step: int,
    *,
    samples: Mapping[str, Sequence[int]] | None = None,
    options: ProofOptions | None = None,
    looking: BlameOptions | None = None,
    on_step: OnStep = None,
) -> Proof:
    """Determine the cause of a step's excess."""
    looking = looking or BlameOptions()
    environment = run.log.header().get("environment") or {}
    with _scene(run, step, looking, on_step) as scene:
        found = prove(
            scene.trials,
            scene.window,
            scene.history,
            options=options or ProofOptions(),
            looking=looking,
            suspects=samples,
            host=environment.get("host"),
        )
        began = scene.trials.rehearsal.checkpoint.step
    if found.verdict is Culprit.MACHINE and found.differs_at == began and not _comes_out(run, before=began):
        reason = (
            f"step {began}, the first after a checkpoint, does not match the record, nor does the first after an "
            "earlier checkpoint: the program, its data or its batches are not those of the run"
        )
        found = replace(found, verdict=Culprit.UNKNOWN, reason=reason)
    keep_investigation(run.folder.root, "proof", step, found.to_json())
    return found


def _comes_out(run: Run, *, before: int) -> bool:
    """Return whether the first step after an earlier checkpoint has the recorded bits.

    If so, the program is the one that made the run.
    """
    try:
        with run.rehearsing(before - 1) as rehearsal:
            return replay(rehearsal, range(rehearsal.step, rehearsal.step + 1)).differs_at is None
    except RunError:  # there is none
        return False


@contextmanager
def _scene(run: Run, step: int, options: BlameOptions, on_step: OnStep) -> Iterator[_Scene]:
    recorded = {record["step"]: record for record in run.log.steps()}
    if step not in recorded:
        raise RunError("the run has not made this step", step=step, steps=len(recorded))
    window = range(max(0, step - options.before), step + 1)
    stop = window.stop + options.horizon  # also steps that the run has not done yet: harm may show only there
    total = getattr(getattr(run.components.loader, "schedule", None), "total_steps", None)
    if total is not None:
        stop = max(window.stop, min(stop, step + 1 + (total - recorded[step]["batches"][1]) // run.accumulate))
    earlier = [recorded[n] for n in range(max(0, window.start - options.history), window.start) if n in recorded]
    history = [float(record["loss"]) for record in earlier if "loss" in record]
    if len(history) < MIN_HISTORY:
        raise RunError("there are too few steps before this one to know what is usual", step=step, found=len(history))
    with run.rehearsing(window.start, on_step=on_step) as rehearsal:
        yield _Scene(Trials(rehearsal, range(window.start, stop)), window, history)


def proven_cure(run: Run) -> Callable[[Mapping[str, Any], tuple[int, int]], Cure]:
    """Return the cure of ``RollbackOptions(cure="prove")``: leave out the samples proven guilty, and nothing else.

    It holds only a weak reference to the run: dropping the run closes it.
    """
    held = weakref.ref(run)

    def cure(finding: Mapping[str, Any], suspects: tuple[int, int]) -> Cure:
        run = held()
        assert run is not None, "a run that rolls back is in use"
        onset = int(finding["onset"])
        last = min(run.step_number - 1, onset + MAX_WINDOW - 1)
        looking = replace(BlameOptions(), before=last - onset + 1)
        try:
            proof = prove_step(run, last, looking=looking)
        except Exception as error:  # from the program itself, or too little is known: the rollback continues anyway
            warnings.warn(f"nothing was proven, and nothing is skipped: {error}", RuntimeWarning, stacklevel=2)
            return Cure()
        return Cure(mask_samples=proof.samples) if proof.heeds_masks else Cure(skip_samples=proof.samples)

    return cure
