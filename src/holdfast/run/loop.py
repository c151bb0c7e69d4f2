"""The loop of one attempt: hands out batches, and does all work between two steps."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from holdfast.errors import RollbackError, RunError
from holdfast.run.agreement import Agreed, Agreement, Wish
from holdfast.run.attempt import Attempt
from holdfast.run.feed import Feed
from holdfast.run.gauge import Gauge
from holdfast.run.generators import begin_pass, generator_states, restore_generators
from holdfast.run.layout import RunFolder
from holdfast.run.metrics_notes import MetricsNotes
from holdfast.run.monitor import Monitor, RankComparison
from holdfast.run.options import RunOptions
from holdfast.run.ownership import Ownership
from holdfast.run.policy import Action
from holdfast.run.preemption import Preemption
from holdfast.run.reactions import Reactions
from holdfast.run.reading_notes import ReadingNotes
from holdfast.run.rollback import RollbackOptions, roll_back
from holdfast.run.saving import Saving
from holdfast.run.snapshot import Components
from holdfast.run.step_record import StepRecord
from holdfast.run.step_writer import StepWriter
from holdfast.run.watchdog import Watchdog

__all__ = ["Loop"]

# Time to reserve for saving before a time limit, in multiples of the last save's duration.
SAVE_RESERVE = 2.0
# Consecutive steps whose gradient norm the program passed before the run stops measuring it too.
TOLD_STEPS = 8
# More batches than any program accumulates for one step: it may have forgotten to call ``step``.
MANY_BATCHES = 256


class Loop:
    """The driver of one attempt.

    Args:
        attempt: the open attempt.
        components: what is trained.
        options: how it records, saves and monitors.
        folder: the run's folder.
        monitor: watches this rank's series; None for no monitor.
        reactions: acts on findings.
        rollback: how to roll back.
    """

    def __init__(
        self,
        attempt: Attempt,
        components: Components,
        options: RunOptions,
        *,
        folder: RunFolder,
        monitor: Monitor | None,
        reactions: Reactions,
        rollback: RollbackOptions,
    ) -> None:
        self.attempt = attempt
        self.ended: str | None = None
        self._ownership = Ownership(folder.root)
        self._components = components
        self._options = options
        self._monitor = monitor
        self._reactions = reactions
        self._rollback = rollback
        self._writer = StepWriter(attempt, monitor)
        self._pending: StepRecord | None = None
        self._feed = Feed(attempt, components)
        self._pass: Iterator[Any] | None = None  # the current pass; one that cannot go back is continued, not restarted
        self._in_loop = False  # batches are being handed out, or the program left the loop between two steps
        self._closed = False
        self._reading = ReadingNotes(attempt, components.loader)
        self._metrics = MetricsNotes(attempt, components.metrics, every=options.metrics_every)
        self._jumped = False
        self._told = 0  # consecutive steps for which the program passed the norm of its gradient
        self._due_at = 0  # the step at which a save, or a note of the metrics, may be due
        self._is_shared = attempt.ranks.world > 1
        # In a single process there is only something to decide if there is a wish.
        self._always_agrees = self._is_shared or options.time_limit is not None or options.save_minutes is not None
        self._agreement = Agreement(attempt.ranks)
        self._comparison = RankComparison(attempt.ranks.world)
        self._gauge = Gauge(
            components.model, components.optimizers, grad_norm=options.grad_norm, stats_every=options.stats_every
        )
        every = options.stats_every
        self._gauge.wants_layers = lambda: every is not None and attempt.step % every == 0
        self._preemption = Preemption(enabled=options.handle_signals)
        self._saving = Saving(attempt, components, options, self._compare_hashes)
        self._watchdog = Watchdog(
            folder,
            rank=attempt.ranks.rank,
            world=attempt.ranks.world,
            stall_after=options.stall_after,
            stall_timeout=options.stall_timeout,
            on_stall=self._note_stall,
            on_timeout=self._note_timeout,
        )
        if attempt.step == 0 and attempt.saved_step < 0:
            self._save("first")

    # --- handing out batches ---------------------------------------------------------------------------------------

    @property
    def step_number(self) -> int:
        """How many steps are done, including the one that the program has just reported."""
        return self.attempt.step + (self._pending is not None)

    def batches(self, steps: Callable[[], int | None], on_end: Callable[[], None]) -> Iterator[Any]:
        """Yield batches until the data ends, the steps are done, or the run ends for another reason.

        Args:
            steps: returns the total number of steps.
            on_end: called at the end, but not if the program leaves the loop.
        """
        # One function with many branches: every step goes through all of it, and with cold caches each call would cost
        # more than its own time (``bench/run.py``).
        attempt, watchdog, feed = self.attempt, self._watchdog, self._feed
        lap, now, loader = attempt.stopwatch.lap, attempt.stopwatch, self._components.loader
        has_order = feed.has_order
        self._ownership.check()
        self._come_back()
        while not self._is_over():
            if has_order or self._pass is None:
                self._pass = begin_pass(loader, begun=attempt.passing)
            batches = chain(feed.take_owed(), self._pass)
            attempt.passing = True
            self._jumped = False
            while not self._jumped and ((limit := steps()) is None or attempt.step < limit):
                watchdog.place = ("data", attempt.step)
                try:
                    batch = next(batches)
                except StopIteration:
                    lap("data")
                    attempt.passing = False
                    self._pass = None
                    break
                lap("data")
                if has_order and loader.schedule is not feed.noted_schedule:
                    feed.note_stream()
                attempt.batch += 1
                if not has_order:
                    feed.held.append(batch)
                if attempt.discard and attempt.batch - 1 in attempt.discard:
                    feed.leave_out()
                    continue
                feed.handed_out = now.mark
                watchdog.place = ("step", attempt.step)
                yield batch
                lap("step")
                if self._pending is not None:
                    self._settle()
                    if self.ended is not None:
                        break
                elif attempt.batch - feed.first_batch == MANY_BATCHES:
                    _warn(f"{MANY_BATCHES} batches were taken since the last step: is the program calling run.step()?")
            if not self._is_over() and not self._jumped and not self._settle_last():
                self._end_of_data()
                break
        self._in_loop = False
        on_end()

    def _end_of_data(self) -> None:
        """Save the final state, and become idle."""
        attempt = self.attempt
        if attempt.batch > self._feed.first_batch == 0:
            _warn("the data has ended, and run.step() was never called: nothing is recorded")
        self._in_loop = False
        self.finish()
        attempt.passing = False
        self._watchdog.place = ("idle", attempt.step)

    def _is_over(self) -> bool:
        return self.ended is not None

    def _come_back(self) -> None:
        """Enter the loop, possibly again: close the step after which the program left it, or take its batches back."""
        if self._in_loop:
            self.attempt.stopwatch.lap("step")
            if self._pending is not None:
                self._settle()
            elif not self._take_back() and not self._gauge.stepped:
                self._feed.hand_out_again()
            self.attempt.passing = False
        self._in_loop = True

    def _take_back(self) -> bool:
        """Go back to the first batch that belongs to no step; return whether everything is as the last step left it.

        It is not if an optimizer has stepped since, if a forward pass may have advanced the generators, or if the
        loader cannot go back.
        """
        gauge, feed = self._gauge, self._feed
        return not gauge.stepped and feed.take_back() and gauge.forward_ended <= feed.handed_out

    def step(self, loss: Any, grad_norm: Any, metrics: Mapping[str, Any]) -> None:
        """Take the program's report of the step it has just done."""
        attempt = self.attempt
        if not self._in_loop or self._ownership.is_foreign:
            self._ownership.check()
            raise RunError("step() called outside the loop", hint="call step() inside `for batch in run:`")
        if self._pending is not None:
            raise RunError(
                "step() called twice for one batch", step=attempt.step, hint="call step() at most once per batch"
            )
        if grad_norm is not None or self._told:
            self._told = self._told + 1 if grad_norm is not None else 0
            self._gauge.be_told(self._told >= TOLD_STEPS)
        batches = (self._feed.first_batch, attempt.batch)
        self._pending = StepRecord(attempt.step, batches, loss, grad_norm, metrics, self._gauge.take())
        if self._is_shared:
            self._pending.own_time = self._own_seconds()

    @contextlib.contextmanager
    def apart(self, bucket: str) -> Iterator[None]:
        """Run a block that is not training: in its own bucket of time, with every generator restored after it."""
        attempt = self.attempt
        self._ownership.check()
        attempt.stopwatch.lap("step")
        self._watchdog.place = (bucket, attempt.step)
        states = generator_states()
        try:
            yield
        finally:
            restore_generators(states)
            attempt.stopwatch.lap(bucket)
            self._watchdog.place = ("step", attempt.step)

    def forget_measurements(self) -> None:
        """Drop the hooks' measurements of steps that are not part of the run."""
        self._gauge.take()

    # --- between two steps -----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Close the finished step: write it, monitor it, agree with the other ranks, act."""
        if self._ownership.is_foreign:
            self._ownership.check()
        reactions, attempt = self._reactions, self.attempt
        record = self._close_step()
        if found := self._writer.take(record):
            reactions.note(found)
        if attempt.step >= self._due_at and self._monitor is not None:  # before saving, to act on findings first
            reactions.note(self._monitor.flush())
        if self._always_agrees or self._preemption.received is not None or reactions.waiting:
            agreed = self._agreement.reach(self._wish())
            if agreed is not None:
                self._act(agreed)
        if attempt.step >= self._due_at:
            self._save_and_note()
        if self._saving.under_way is not None:
            self._saving.poll()
        if attempt.stopwatch.mark >= self._reading.due:
            self._reading.write()
        attempt.stopwatch.lap("step")

    def _save_and_note(self) -> None:
        """Do what is due at this step, and determine at which step something is due next."""
        step, intervals = self.attempt.step, [every for every in (self._saving.every, self._metrics.every) if every]
        self._due_at = min((step - step % every + every for every in intervals), default=sys.maxsize)
        if self.ended is None and not self._jumped:
            if self._saving.every and step % self._saving.every == 0:
                self._save("interval")
            if self._metrics.every and step % self._metrics.every == 0:
                self._metrics.write()

    def _wish(self) -> Wish:
        limit = self._options.time_limit
        elapsed = self.attempt.stopwatch.elapsed
        return Wish(
            signal=self._preemption.received or 0,
            ends=limit is not None and elapsed + SAVE_RESERVE * self._saving.seconds >= limit,
            saves=self._saving.is_time(),
            action=self._reactions.wanted,
            seconds=self._own_seconds(),
        )

    def _close_step(self) -> StepRecord:
        record, self._pending = self._pending, None
        assert record is not None
        self._feed.close_step(record.step)
        return record

    def _settle_last(self) -> bool:
        """Look again and collect all ranks' findings on the last step; return whether the run rolls back."""
        self._write_all()
        agreed = self._agreement.drain()
        if agreed is not None:
            self._act(agreed)
        if not self._jumped:
            if self._monitor is not None:
                self._reactions.note(self._monitor.last_look())
            agreed = self._agreement.reach(Wish(action=self._reactions.wanted)) or self._agreement.drain()
            if agreed is not None and agreed.action > Action.LOG:
                self._act(agreed)
        return self._jumped

    def _write_all(self) -> None:
        """Write the remaining steps, waiting for their numbers."""
        self._reactions.note(self._writer.flush())

    def _own_seconds(self) -> float:
        """Return this rank's own time: until the end of its forward pass, because afterwards it waits for others."""
        began = self._feed.handed_out
        return max(0.0, self._gauge.forward_ended - began) if began else 0.0

    def _act(self, agreed: Agreed) -> None:
        """Carry out what all ranks have agreed on."""
        attempt = self.attempt
        if attempt.ranks.is_first:
            self._reactions.note(self._comparison.add_times(attempt.step - 1, agreed.seconds))
        if agreed.action > Action.LOG:
            self._watchdog.place = ("paused", attempt.step)
            finding = self._reactions.act(self._agreement.gather(self._reactions.take))
            if finding is not None:
                self._roll_back(finding)
                return
        if agreed.signal:
            self._save("preempted", wait=True)
            attempt.event("preempted", signal=agreed.signal, step=attempt.step)
            self.close()
            raise SystemExit(128 + agreed.signal)
        if agreed.ends:
            self._save("time limit", wait=True)
            attempt.event("time_up", step=attempt.step)
            self.ended = "time limit"
        elif agreed.saves:
            self._save("interval")

    def _save(self, reason: str, *, wait: bool = False) -> None:
        self._write_all()
        if wait:  # also for a save of this same step: if it fails, all ranks know and save again
            self._saving.wait()
        if self.attempt.step != self.attempt.saved_step and self._is_owed():
            self.attempt.event("unsaved", step=self.attempt.step, reason="batches have to be handed out again")
        elif self.attempt.step != self.attempt.saved_step:
            self._watchdog.place = ("save", self.attempt.step)
            if "scaler" not in self._components.parts and self._gauge.holds_gradients():
                _warn("accumulated gradients are not saved: call run.step() once per optimizer step")
            self._saving.save(reason, wait=wait)
            self._metrics.write()

    def _is_owed(self) -> bool:
        """Return whether the loader of any rank is ahead of what a checkpoint would record; all ranks call it."""
        return any(owed for (owed,) in self.attempt.ranks.exchange((len(self._feed.owed),)).rows())

    def _roll_back(self, finding: dict[str, Any]) -> None:
        attempt = self.attempt
        self._agreement.drain()
        self._write_all()
        self._saving.wait()
        self._watchdog.place = ("restore", attempt.step)
        suspects = self._feed.suspects(finding["onset"] - self._rollback.before)
        try:
            roll_back(attempt, self._components, self._rollback, finding, suspects)
        except RollbackError as error:
            self._reactions.stop(finding, error.message)
        self._reactions.take()
        self._gauge.take()
        self._feed.jump()
        self._pass = None
        self._jumped = True
        self._due_at = 0

    def _compare_hashes(self, step: int, hashes: list[int]) -> None:
        if self.attempt.ranks.is_first:
            self._reactions.note(self._comparison.add_hashes(step, hashes))

    def _note_stall(self, stall: dict[str, Any]) -> None:
        """Record a stall; called by the watchdog's thread."""
        attempt = self.attempt
        attempt.note("stall", **stall)
        with contextlib.suppress(OSError):
            attempt.recorder.sync()
        self._reactions.note_stall(stall)

    def _note_timeout(self) -> None:
        """Record the time of a stall that ends the process; called while the loop's own thread stands still."""
        self.attempt.stopwatch.lap("step")
        self.attempt.event("stall_timeout", step=self.attempt.step)

    # --- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Save the state at the end of a pass over the data, or of the run.

        A loop left between two steps is saved as it was after the last one, if it can be put back there. If not,
        nothing is saved: a checkpoint holds exactly what was reported with ``step``.
        """
        if self._ownership.is_foreign:
            return
        if self._pending is not None:
            self.attempt.stopwatch.lap("step")
            self._writer.keep(self._close_step())
        elif self._in_loop and not self._take_back() and self.attempt.step != self.attempt.saved_step:
            self._write_all()
            self.attempt.event("unsaved", step=self.attempt.step, reason="the loop was left between two steps")
            return
        self._save("end", wait=True)

    def close(self, *, wait: bool = True) -> None:
        """Write the remaining steps, close the log and release the folder; a no-op if closed, or in a forked process.

        Args:
            wait: wait for a save that is under way.
        """
        if self._closed or self._ownership.is_foreign:
            return
        self._closed = True
        self._pass = None
        self._in_loop = False
        self._watchdog.stop()
        self._gauge.close()
        self._preemption.close()
        attempt = self.attempt
        try:
            if self._pending is not None:
                attempt.stopwatch.lap("step")
                self._writer.keep(self._close_step())
            self._write_all()
            if wait:
                self._saving.wait()
            self._reactions.close()
            self._reading.write()
            attempt.event("end", step=attempt.step)
        finally:
            attempt.close()


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
