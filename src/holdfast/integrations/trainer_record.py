"""A run log written from inside a trainer: every step, every finding, every checkpoint; the trainer does the saving.

The log is that of ``holdfast.run``: ``holdfast report``, ``serve``, ``debug``, ``runs`` and ``audit`` read it. Numbers
are read from the device one step late, so that no step waits for them. Findings are handled as in a ``Run``, by all
ranks together; only the rollback itself is left to the trainer, see ``restart``.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.debug.online import OnlineDebugger
from holdfast.errors import ConfigError, RollbackError, StateError
from holdfast.integrations.restart import RESUME_FILE, abandon, reachable, write_resume_file
from holdfast.run.agreement import Agreed, Agreement, Wish
from holdfast.run.alerts import Alert
from holdfast.run.attempt import open_attempt
from holdfast.run.cure import cures_for, unfinished
from holdfast.run.gauge import Gauge
from holdfast.run.layout import RunFolder
from holdfast.run.monitor import Monitor
from holdfast.run.options import RunOptions
from holdfast.run.policy import Action, Policy
from holdfast.run.reactions import Reactions
from holdfast.run.reading_notes import ReadingNotes
from holdfast.run.rollback import RollbackOptions
from holdfast.run.run_log import Record
from holdfast.run.snapshot import Components
from holdfast.run.step_record import StepRecord
from holdfast.run.step_writer import StepWriter

__all__ = ["Recording", "TrainerRecord", "recording_of"]

MAX_REMEMBERED_STEPS = 10_000
"""Steps whose batches are remembered, to name the batches that a finding suspects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """How a run inside a trainer is recorded, and what is done about findings.

    Args:
        folder: where the log is written; a folder of a different model or different data is refused.
        on_finding: as for ``Run``: ``"log"``, ``"alert"``, ``"pause"``, ``"stop"``, ``"rollback"`` or a table.
        alerts: where alerts go.
        rollback: how to roll back; ``cure="prove"`` needs a ``Run``.
        stats_every: steps between the norms of every layer.
    """

    folder: str | Path
    on_finding: str | Mapping[str, str] = "log"
    alerts: Sequence[Alert] = ()
    rollback: RollbackOptions = field(default_factory=RollbackOptions)
    stats_every: int = 100

    def __post_init__(self) -> None:
        Policy(self.on_finding)
        if self.rollback.cure == "prove":
            raise ConfigError(
                'cure="prove" needs to re-run steps, which a trainer cannot do',
                hint='use cure="window" or "mask", or train with holdfast.Run and train_step',
            )


def recording_of(
    folder: str | Path | None,
    *,
    on_finding: str | Mapping[str, str],
    alerts: Sequence[Alert],
    rollback: RollbackOptions | None,
) -> Recording | None:
    """Return how to record; None if no folder is given.

    Raises:
        ConfigError: findings are to be acted on, but nothing is recorded.
    """
    if folder is None:
        if on_finding != "log" or alerts or rollback is not None:
            raise ConfigError("a run that is not recorded has no findings", hint="pass folder=")
        return None
    return Recording(folder=folder, on_finding=on_finding, alerts=alerts, rollback=rollback or RollbackOptions())


class TrainerRecord:
    """One rank's record of one call of a trainer. All ranks create one, and call its methods at the same steps.

    Args:
        recording: where to record, and what to do about findings.
        model: the model that is trained.
        optimizer: the optimizer whose gradients are measured as they are used.
        loader: where the batches come from; an unfinished rollback skips batches in it.
        step: the optimizer steps taken before, by the trainer's own count.
        config: the trainer's options.
        monitors: the state of every rank's monitor at the checkpoint; empty to start without any.
        scheduler: the scheduler of the learning rate, if there is one.

    Raises:
        StateError: the run was rolled back, but the trainer continues from another checkpoint.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Any,
        step: int,
        config: Mapping[str, Any],
        monitors: Sequence[Mapping[str, Any]] = (),
        scheduler: Any = None,
    ) -> None:
        self.folder = RunFolder(Path(recording.folder))
        self._rollback = recording.rollback
        parts = {} if scheduler is None else {"scheduler": scheduler}
        self._components = Components(model=model, optimizers=[optimizer], loader=loader, parts=parts)
        options = RunOptions(stats_every=recording.stats_every)
        self._attempt, down = open_attempt(self.folder, self._components, options, fresh=False, config=config)
        try:
            self._begin(step, down)
        except BaseException:
            self._attempt.close()
            raise
        self._gauge = Gauge(model, [optimizer], grad_norm=True, stats_every=recording.stats_every)
        self._gauge.wants_layers = lambda: self._gauge.is_due(self._attempt.step)
        ranks = self._attempt.ranks
        self._monitor = Monitor(OnlineDebugger(), rank=ranks.rank)
        if monitors:
            self._monitor.load_state_dict(dict(_own(monitors, ranks.rank)))
        self._reactions = Reactions(self._attempt, self.folder, Policy(recording.on_finding), recording.alerts)
        self._agreement = Agreement(ranks)
        self._waiting: StepRecord | None = None
        self._batches_of: deque[tuple[int, int]] = deque(maxlen=MAX_REMEMBERED_STEPS)
        self._writer = StepWriter(self._attempt, self._monitor)
        self._reading = ReadingNotes(self._attempt, loader)
        self._closed = False
        self.findings: list[dict[str, Any]] = []
        """What the monitor has found so far."""

    @property
    def step_number(self) -> int:
        """The number of steps done."""
        return self._attempt.step

    def monitor_states(self) -> list[dict[str, Any]]:
        """Return the state of every rank's monitor; all ranks call it."""
        self.write_waiting()
        self._note(self._monitor.flush())
        return self._attempt.ranks.each(self._monitor.state_dict)

    # --- reports from the trainer ----------------------------------------------------------------------------------

    def measure_unclipped(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure the gradients now, before the trainer clips them."""
        self._gauge.measure_unclipped(optimizer)

    def note_unclipped(self, norm: Any) -> None:
        """Note the norm of the gradient before the trainer clipped it."""
        self._gauge.note_unclipped(norm)

    def lap(self, bucket: str) -> None:
        """Count the time since the last lap in a bucket: ``data``, ``step``, ``evaluation`` or ``save``."""
        self._attempt.stopwatch.lap(bucket)

    def step(self, loss: Any, *, batches: int, grad_norm: Any = None, **metrics: Any) -> Path | None:
        """Record an optimizer step.

        Args:
            loss: its loss; a tensor is read after the next step. The mean over the ranks that have one is recorded.
            batches: how many batches it took.
            grad_norm: the norm of its gradient, if the trainer has it.
            **metrics: any other numbers.

        Returns:
            The checkpoint the trainer must go back to, if all ranks have agreed on it; None otherwise.

        Raises:
            RunStoppedError: a finding stops the run.
        """
        attempt = self._attempt
        began = attempt.stopwatch.mark
        attempt.stopwatch.lap("step")
        taken = (attempt.batch, attempt.batch + batches)
        record = StepRecord(attempt.step, taken, loss, grad_norm, metrics, self._gauge.take())
        record.times = attempt.stopwatch.take()  # taken now, because the record is written later
        if attempt.ranks.world > 1:  # after its forward pass a rank waits for the others
            record.own_time = max(0.0, self._gauge.forward_ended - began)
        self.write_waiting()
        if self._attempt.stopwatch.mark >= self._reading.due:
            self._reading.write()
        self._waiting = record
        self._batches_of.append((attempt.step, attempt.batch))
        attempt.step += 1
        attempt.batch += batches
        return self._react()

    def finish(self) -> Path | None:
        """Write the last step and act on its findings; all ranks call it after that step.

        Returns:
            The checkpoint to go back to, as in ``step``.

        Raises:
            RunStoppedError: a finding stops the run.
        """
        self.write_waiting()
        self._note(self._monitor.last_look())
        self._agreement.drain()
        agreed = self._agreement.reach(Wish(action=self._reactions.wanted)) or self._agreement.drain()
        return None if agreed is None else self._act(agreed)

    def evaluation(self, name: str, figures: Mapping[str, float]) -> None:
        """Record an evaluation's time and figures separately from the training's."""
        self.lap("evaluation")
        self._event("evaluation", name=name, figures=dict(figures))

    def checkpoint(self, path: str | Path, *, metrics: Any = None) -> None:
        """Note a checkpoint that the trainer saved, and make the log as durable as it is; all ranks call it.

        Args:
            path: where it is.
            metrics: the aggregator whose figures are recorded with it.
        """
        self._attempt.stopwatch.lap("save")
        self._event("checkpoint", path=str(path))
        if metrics is not None:
            figures = metrics.get_metrics_for_logging()
            numbers = {name: value for name, value in figures.items() if isinstance(value, (int, float))}
            self._event("metrics", figures=numbers)
        self._attempt.recorder.sync()
        if self._attempt.ranks.is_first:  # the newest checkpoint is now later than the one the run was rolled back to
            (self.folder.root / RESUME_FILE).unlink(missing_ok=True)

    def close(self) -> None:
        """Write what is left and release the folder; closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        try:
            self._write(alone=True)  # an error may have brought only this rank here
            self._note(self._monitor.flush())
            self._reading.write()
            self._attempt.event("end", step=self._attempt.step)
        finally:
            self._gauge.close()
            with contextlib.suppress(RuntimeError):  # the other ranks may be gone
                self._agreement.drain()
            self._reactions.close()
            self._attempt.close()

    # --- beginning, and going back ---------------------------------------------------------------------------------

    def _begin(self, step: int, down: float) -> None:
        attempt, loader = self._attempt, self._components.loader
        decided = unfinished(attempt.history.events)
        if decided is not None and decided["to"] != step:
            raise StateError(
                "the run was rolled back, but the trainer continues from another checkpoint",
                step=step,
                expected=decided["to"],
                hint=f"continue from {decided['checkpoint']}",
            )
        attempt.stopwatch.lap("restore")
        attempt.step, attempt.batch = step, _place(loader)
        attempt.event("start", step=step, batch=attempt.batch, checkpoint=None, notes=[], down_time=down)
        self.rolled_back(decided)

    def rolled_back(self, decided: Mapping[str, Any] | None) -> None:
        """Apply the cures decided since the checkpoint the trainer has restored; finish a rollback, if there is one."""
        attempt, events = self._attempt, self._attempt.history.events
        if decided is not None:
            attempt.ranks.first(
                lambda: abandon(reachable(events), after=decided["to"], number=decided["number"])
            )  # a checkpoint that was saved after the decision
        for cure in cures_for(events, attempt.step):
            cure.apply(self._components, attempt.discard)
        attempt.batch = _place(self._components.loader)
        if self._components.has_order and attempt.ranks.is_first:
            state = self._components.loader.state_dict()
            attempt.note("stream", step=attempt.step, batch=attempt.batch, state=state)
        if decided is not None:
            attempt.event("rolled_back", step=attempt.step, batch=attempt.batch, abandoned=[], notes=[])

    def restored(self, step: int, monitors: Sequence[Mapping[str, Any]]) -> None:
        """Report that the loop itself has gone back to a checkpoint.

        Args:
            step: how many steps were done at that point.
            monitors: the state of every rank's monitor at that point.
        """
        attempt = self._attempt
        if monitors:
            self._monitor.load_state_dict(dict(_own(monitors, attempt.ranks.rank)))
        attempt.stopwatch.lap("restore")
        self._gauge.take()
        self._batches_of.clear()
        attempt.step = step
        self.rolled_back(unfinished(attempt.history.events))

    def _react(self) -> Path | None:
        """Agree with the other ranks on how to react to the findings, and do it."""
        attempt, wanted = self._attempt, self._reactions.wanted
        if attempt.ranks.world == 1 and wanted is Action.LOG:
            return None
        agreed = self._agreement.reach(Wish(action=wanted))
        return None if agreed is None else self._act(agreed)

    def _act(self, agreed: Agreed) -> Path | None:
        if agreed.action is Action.LOG:
            return None
        finding = self._reactions.act(self._agreement.gather(self._reactions.take))
        return None if finding is None else self._decide(finding)

    def _decide(self, finding: dict[str, Any]) -> Path:
        """Record where the run goes back to, and move the abandoned checkpoints aside."""
        attempt = self._attempt
        self._agreement.drain()
        self.write_waiting()
        known = attempt.ranks.first(lambda: reachable(attempt.history.events))
        try:
            decision = self._decision(finding, known)
        except RollbackError as error:
            self._reactions.stop(finding, error.message)
            raise
        attempt.event("rollback", **decision)
        attempt.recorder.sync()

        def make_way() -> None:
            abandon(known, after=decision["to"], number=decision["number"])
            write_resume_file(self.folder.root, decision)

        attempt.ranks.first(make_way)
        self._reactions.take()
        return Path(decision["checkpoint"])

    def _decision(self, finding: Mapping[str, Any], known: Mapping[Path, int]) -> Record:
        attempt, options, events = self._attempt, self._rollback, self._attempt.history.events
        made = sum(event["event"] == "rollback" for event in events)
        if made >= options.max_rollbacks:
            raise RollbackError("the run has reached its maximum number of rollbacks", rollbacks=made)
        onset = max(0, min(int(finding["onset"]) - options.before, attempt.step))
        usable = {path: step for path, step in known.items() if step <= onset}
        if not usable:
            raise RollbackError("there is no checkpoint from before the onset", onset=onset)
        checkpoint = max(usable, key=usable.__getitem__)
        to = usable[checkpoint]
        first = next((batch for step, batch in self._batches_of if step >= onset), attempt.batch)
        stop, before = attempt.batch + options.after, len(cures_for(events, to))
        suspects = (first, stop + (stop - first) * (2**before - 1))
        cure = attempt.ranks.first(lambda: options.cure_for(finding, suspects))
        return {
            "number": made + 1,
            "step": attempt.step,
            "to": to,
            "checkpoint": str(checkpoint),
            "finding": dict(finding),
            "suspects": list(suspects),
            "skipped": list(cure.skip_batches or cure.mask_batches or ()),
            "cure": cure.to_json(),
        }

    # --- the log ---------------------------------------------------------------------------------------------------

    def _event(self, kind: str, **fields: Any) -> None:
        """Write an event after everything that came before it."""
        self.write_waiting()
        self._attempt.event(kind, step=self._attempt.step, **fields)

    def write_waiting(self) -> None:
        """Write the last step; all ranks call it."""
        self._write(alone=False)

    def _write(self, *, alone: bool) -> None:
        record, self._waiting = self._waiting, None
        if record is None:
            return
        if self._attempt.ranks.world > 1 and not alone:
            record.average_loss(self._attempt.ranks)
        self._note(self._writer.write(record))

    def _note(self, found: Sequence[dict[str, Any]]) -> None:
        self.findings += found
        self._reactions.note(found)


def _own(monitors: Sequence[Mapping[str, Any]], rank: int) -> Mapping[str, Any]:
    """Return the state a rank's monitor continues from: its own, or rank 0's if the rank is new."""
    return monitors[rank if rank < len(monitors) else 0]


def _place(loader: Any) -> int:
    """Return the step of the stream up to which the model has seen the batches."""
    checkpoint = getattr(loader, "get_checkpoint", None)
    return int(checkpoint().step) if checkpoint is not None else int(loader.step)
