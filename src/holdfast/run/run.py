"""``Run``: a training loop that is recorded, saved, resumed, monitored and, on request, rolled back."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import nn

from holdfast.arguments import check_path, check_type, is_function, whole_number
from holdfast.collected import finalize_outside
from holdfast.debug.online import OnlineDebugger
from holdfast.errors import ConfigError, HoldfastError, RunError
from holdfast.run.alerts import Alert
from holdfast.run.attempt import begin, open_attempt
from holdfast.run.blame import Blame, BlameOptions
from holdfast.run.evaluation import Evaluation
from holdfast.run.generators import generator_states, restore_generators
from holdfast.run.investigate import blame_step, prove_step, proven_cure, replay_steps
from holdfast.run.layout import RunFolder
from holdfast.run.loop import Loop
from holdfast.run.monitor import Monitor
from holdfast.run.options import RunOptions
from holdfast.run.policy import Policy
from holdfast.run.proof import Proof, ProofOptions
from holdfast.run.reactions import Reactions
from holdfast.run.rehearsal import Rehearsal, rehearsing
from holdfast.run.replay import Replay
from holdfast.run.rollback import RollbackOptions
from holdfast.run.run_arguments import are_functions, as_list, checked_config, is_model, other_parts
from holdfast.run.run_log import RunLog
from holdfast.run.snapshot import Components, Stateful

__all__ = ["Run"]


class Run:
    """A training run in a folder.

    Starting the same program again continues from the newest good checkpoint. Nothing is touched until the first batch
    is requested, or ``resume`` is called. A loop that runs to its end closes the run, unless it is inside ``with``,
    which closes it at the end of the block; a run left with ``break`` is closed by ``close``, or when the program ends.

    Args:
        folder: where the run lives; everything about it is in there.
        model: what is trained, as it is trained (wrapped by DDP, FSDP, ``torch.compile`` or not).
        loader: where batches come from: a ``StreamingShardLoader``, or any iterable with a state.
        optimizer: one optimizer or several.
        scheduler: anything with a state.
        scaler: a gradient scaler.
        metrics: a ``MetricsAggregator``.
        parts: anything else with a state, by name (averaged weights, a curriculum).
        train_step: makes a step from a batch and returns its loss, or a mapping that contains ``loss``. With it the run
            can ``train`` by itself, and its steps can be replayed, blamed and proven.
        accumulate: batches per step of ``train_step``; if more than one, it receives a list of them.
        steps: the total number of steps, over all attempts; None ends with the data.
        config: anything that describes the run; written to the log.
        fresh: start over at step 0 and move the existing run aside.
        monitor: watch the series with the default detectors, with your own ``OnlineDebugger``, or not at all.
        on_finding: what to do about findings: ``"log"``, ``"alert"``, ``"pause"``, ``"stop"`` or ``"rollback"``, or a
            table by failure and severity; see ``Policy``.
        alerts: where alerts go: functions, ``WebhookAlert``, ``OpenTelemetryAlert``.
        rollback: how to roll back.
        options: how it records, saves and monitors.

    Example:
        >>> run = Run("runs/exp7", model=model, optimizer=optimizer, loader=loader)  # doctest: +SKIP
        >>> for batch in run:                                                        # doctest: +SKIP
        ...     run.step(loss=train_step(batch))
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        model: nn.Module | Mapping[str, nn.Module],
        loader: Any,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        scheduler: Any = None,
        scaler: Any = None,
        metrics: Any = None,
        parts: Mapping[str, Stateful] | None = None,
        train_step: Callable[[Any], Any] | None = None,
        accumulate: int = 1,
        steps: int | None = None,
        config: Mapping[str, Any] | None = None,
        fresh: bool = False,
        monitor: bool | OnlineDebugger = True,
        on_finding: str | Mapping[str, str] = "log",
        alerts: Sequence[Alert] = (),
        rollback: RollbackOptions | None = None,
        options: RunOptions | None = None,
    ) -> None:
        check_path("folder", folder)
        for name, value, fits, expected in (
            ("model", model, is_model, "a torch.nn.Module, or modules by name"),
            ("train_step", train_step, is_function, "a function of a batch that returns its loss"),
            ("parts", parts, (Mapping, NoneType), "a mapping of names to objects with a state"),
            ("config", config, (Mapping, NoneType), "a mapping"),
            ("monitor", monitor, (bool, OnlineDebugger), "True, False or an OnlineDebugger"),
            ("rollback", rollback, (RollbackOptions, NoneType), "a RollbackOptions"),
            ("options", options, (RunOptions, NoneType), "a RunOptions"),
            ("alerts", alerts, are_functions, "callable, each of a list: functions, WebhookAlert, OpenTelemetryAlert"),
        ):
            check_type(name, value, fits, expected)
        self.folder = RunFolder(Path(folder).absolute())  # the program may change its directory
        self.options = options or RunOptions()
        self.steps = None if steps is None else whole_number("steps", steps, least=0)
        self._train_step = train_step
        self.accumulate = whole_number("accumulate", accumulate, least=1)
        self._config = checked_config(config or {})
        self._fresh = fresh
        named: dict[str, Any] = {"scheduler": scheduler, "scaler": scaler, **other_parts(parts or {})}
        self.components = Components(
            model=nn.ModuleDict(model) if isinstance(model, Mapping) else model,
            optimizers=as_list(optimizer),
            loader=loader,
            metrics=metrics,
            parts={name: part for name, part in named.items() if part is not None},
        )
        self.components.check()
        self._monitor = _make_monitor(monitor)
        if self._monitor is not None:
            self.components.parts["monitor"] = self._monitor
        self._policy = Policy(on_finding, detectors=() if self._monitor is None else self._monitor.detectors)
        self._alerts = tuple(alerts)
        self._rollback = rollback or RollbackOptions()
        if self._rollback.cure == "prove":
            self._rollback = replace(self._rollback, cure=proven_cure(self))
        self._loop: Loop | None = None
        self._entered = False
        self._last_place: tuple[int, int] | None = None  # steps done and batches taken at the time it was closed
        self._finalizer: weakref.finalize[..., Any] | None = None
        self.ended: str | None = None
        """Why the run ended by itself: ``"time limit"`` or ``"stopped"``; None otherwise."""

    # --- where it is -----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"holdfast.Run({str(self.folder.root)!r})"

    @property
    def step_number(self) -> int:
        """The next step: how many are done; before the run has begun, the step of its newest checkpoint."""
        if self._loop is not None:
            return self._loop.step_number
        if self._last_place is not None:
            return self._last_place[0]
        return 0 if self._fresh else max(self.folder.checkpoint_steps(), default=0)

    @property
    def log(self) -> RunLog:
        """The run's log, as far as it has been written."""
        return RunLog(self.folder.root)

    def resume(self) -> int:
        """Continue from the newest good checkpoint; return the next step.

        Called automatically when the first batch is requested; calling it again does nothing. All ranks call it.
        """
        return self._open().attempt.step

    def _open(self) -> Loop:
        if self._loop is None:
            attempt = begin(self.folder, self.components, self.options, fresh=self._fresh, config=self._config)
            if self._monitor is not None:
                self._monitor.rank = attempt.ranks.rank
            self._loop = Loop(
                attempt,
                self.components,
                self.options,
                folder=self.folder,
                monitor=self._monitor,
                reactions=Reactions(attempt, self.folder, self._policy, self._alerts),
                rollback=self._rollback,
            )
            self._finalizer = finalize_outside(self, _let_go, self._loop)
        return self._loop

    # --- the loop --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Yield batches from the run's position, until the data or the steps end."""
        return self._open().batches(lambda: self.steps, self._loop_has_ended)

    def _loop_has_ended(self) -> None:
        if self._entered:
            return
        made = self.step_number
        self.close()  # nothing is left to do, and nothing else would mark the run as ended
        if self.steps is not None and made < self.steps and self.ended is None:
            warnings.warn(
                f"the data has ended after {made} of {self.steps} steps; iterate inside `with run:` for several passes",
                RuntimeWarning,
                stacklevel=3,
            )

    def step(self, loss: Any = None, *, grad_norm: Any = None, **metrics: Any) -> None:
        """Report that a step is done.

        Args:
            loss: its loss; a tensor is read only when the next step has begun.
            grad_norm: the norm of its gradient before clipping, if the program has it; otherwise it is measured as the
                optimizer sees it.
            **metrics: any other numbers.
        """
        if self._loop is None:
            raise RunError("step() called outside the loop", hint="call step() inside `for batch in run:`")
        self._loop.step(loss, grad_norm, metrics)

    def train(self, steps: int | None = None) -> None:
        """Train with ``train_step`` until the data ends, or until this many steps are done in total."""
        if self._train_step is None:
            raise ConfigError("the run has no step function", hint="pass train_step= to Run")
        if steps is not None:
            self.steps = whole_number("steps", steps, least=0)
        taken: list[Any] = []
        for batch in self:
            taken.append(batch)
            if len(taken) < self.accumulate:
                continue
            made = self._train_step(taken[0] if self.accumulate == 1 else taken)
            taken = []
            self.step(**made) if isinstance(made, Mapping) else self.step(loss=made)

    @contextlib.contextmanager
    def evaluating(self, name: str = "evaluation") -> Iterator[Evaluation]:
        """Keep an evaluation out of the training series, in its own bucket of time; generators are restored after it.

        No checkpoint is loaded for it: it evaluates what is in memory.

        Yields:
            an ``Evaluation``, whose ``record(loss=…)`` writes its figures to the log.

        Raises:
            RunError: the run has not begun.
        """
        evaluation = Evaluation(name)
        if self._loop is None:
            with self._evaluating_afterwards(evaluation):
                yield evaluation
            return
        loop = self._loop
        with loop.apart("evaluation"):
            yield evaluation
        loop.attempt.event("evaluation", name=name, step=loop.step_number, figures=evaluation.figures)

    @contextlib.contextmanager
    def _evaluating_afterwards(self, evaluation: Evaluation) -> Iterator[None]:
        """Record an evaluation of a closed run, as an attempt without steps."""
        if self._last_place is None:
            raise RunError("the run has not begun", hint="call run.resume() first: it restores the run's own weights")
        step, batch = self._last_place
        attempt, down = open_attempt(self.folder, self.components, self.options, fresh=False, config=self._config)
        try:
            attempt.event("start", step=step, batch=batch, checkpoint=None, passed_over=[], notes=[], down_time=down)
            states = generator_states()
            try:
                yield
            finally:
                restore_generators(states)
                attempt.stopwatch.lap("evaluation")
            attempt.event("evaluation", name=evaluation.name, step=step, figures=evaluation.figures)
            attempt.event("end", step=step)
        finally:
            attempt.close()

    @contextlib.contextmanager
    def rehearsing(self, step: int, *, on_step: Callable[[], None] | None = None) -> Iterator[Rehearsal]:
        """Re-run recorded steps from the newest good checkpoint at or before a step; the run stays as it is.

        Args:
            step: the latest step to begin at.
            on_step: called after every re-run step.

        Yields:
            a ``Rehearsal``, whose ``take_step()`` returns a step's record as in the log.
        """
        loop = self._loop
        with contextlib.ExitStack() as stack:
            if loop is not None:
                stack.enter_context(loop.apart("evaluation"))
                stack.callback(loop.forget_measurements)
            yield stack.enter_context(
                rehearsing(
                    self.folder,
                    self.components,
                    self._train_step,
                    step=step,
                    accumulate=self.accumulate,
                    ranks=loop.attempt.ranks if loop is not None else None,
                    on_step=on_step,
                )
            )

    # --- looking back ----------------------------------------------------------------------------------------------

    def replay(self, steps: range, *, on_step: Callable[[], None] | None = None) -> Replay:
        """Re-run recorded steps and compare them with the recorded bits; the run stays as it is.

        Args:
            steps: the steps to replay.
            on_step: called after every re-run step, as in ``blame`` and ``prove``.
        """
        return replay_steps(self, steps, on_step=on_step)

    def blame(
        self, step: int, *, options: BlameOptions | None = None, on_step: Callable[[], None] | None = None
    ) -> Blame:
        """Find the samples behind a jump of the loss at a step, if there are any; the run stays as it is."""
        return blame_step(self, step, options, on_step=on_step)

    def prove(
        self,
        step: int,
        *,
        samples: Mapping[str, Sequence[int]] | None = None,
        options: ProofOptions | None = None,
        looking: BlameOptions | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> Proof:
        """Determine what caused a jump of the loss at a step: machine, samples, or model and optimizer.

        Args:
            step: where the loss jumped.
            samples: the suspects, as source → indices; if None, they are searched for.
            options: the rule of the proof.
            looking: how to find suspects.
            on_step: called after every re-run step.
        """
        return prove_step(self, step, samples=samples, options=options, looking=looking, on_step=on_step)

    def _repr_html_(self) -> str | None:
        """Show the run's page in a notebook; only the name if nothing is recorded yet."""
        from holdfast.page.notebook import framed_run

        return framed_run(self.folder.root)

    # --- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write the remaining steps, close the log and release the folder; closing twice is harmless."""
        loop, self._loop = self._loop, None
        if loop is not None:
            self.ended = loop.ended
            try:
                loop.close()
            finally:
                self._last_place = (loop.attempt.step, loop.attempt.batch)
                if self._finalizer is not None:
                    self._finalizer.detach()

    def __enter__(self) -> Run:
        self._entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._entered = False
        if kind is None and self._loop is not None:
            self._loop.finish()
        self.close()


def _make_monitor(monitor: bool | OnlineDebugger) -> Monitor | None:
    if monitor is False:
        return None
    return Monitor(OnlineDebugger() if monitor is True else monitor)


def _let_go(loop: Loop) -> None:
    """Close the loop of a run that is no longer referenced, or whose program ends.

    This does not wait for a save under way, which would wait for the other ranks: it is left to end by itself.
    """
    try:
        loop.close(wait=loop.attempt.ranks.world == 1)
    except (HoldfastError, OSError) as error:  # nobody can catch it here
        warnings.warn(f"the run was not closed properly: {error}", RuntimeWarning, stacklevel=1)
