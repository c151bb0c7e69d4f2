"""Rehearsals: recorded steps re-run with the program's own step function, without leaving a trace in the run.

The step function has references to its own model and optimizer, so a rehearsal borrows them: everything is copied, a
checkpoint is loaded in its place, steps are made, and at the end everything is put back bit for bit, including
generators and loader. The run's files are only read. Replay, blame and proof are built on this.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from holdfast.errors import ConfigError, RunError
from holdfast.run.checkpoints import Checkpoints, Found
from holdfast.run.cure import cures_since
from holdfast.run.gauge import Gauge
from holdfast.run.generators import begin_pass, generator_states, restore_generators
from holdfast.run.layout import RunFolder
from holdfast.run.optimizer_state import collect_optimizer, parameter_names, restore_optimizer
from holdfast.run.parameters import shares_elements, write_shared
from holdfast.run.ranks import Ranks
from holdfast.run.run_log import Record, RunLog
from holdfast.run.snapshot import Components, move_loader
from holdfast.run.step_record import StepRecord

__all__ = ["Held", "Rehearsal", "rehearsing"]


class Held:
    """A copy of everything a training step can change, in memory.

    Args:
        components: what is copied.
    """

    def __init__(self, components: Components) -> None:
        self._components = components
        model = components.model
        self._tensors = {name: value.detach().clone() for name, value in _tensors_of(model).items()}
        self._gradients = [parameter.grad for parameter in model.parameters()]
        self._modes = [module.training for module in model.modules()]
        tensors, rest = collect_optimizer(components.optimizers, parameter_names(model))
        self._optimizer = {
            name: {field: value.clone() for field, value in fields.items()} for name, fields in tensors.items()
        }
        self._rest = copy.deepcopy(rest)
        stateful = {**components.parts}
        if components.metrics is not None:
            stateful["metrics"] = components.metrics
        self._states = {name: (part, copy.deepcopy(part.state_dict())) for name, part in stateful.items()}
        self._generators = generator_states()
        self._loader = copy.deepcopy(components.loader.state_dict())
        self._loader_place = self._place_of_loader()

    def _place_of_loader(self) -> tuple[Any, int]:
        """Return a value that changes when the loader moves; always a new one if the loader cannot tell."""
        loader = self._components.loader
        return (loader.schedule, loader.step) if self._components.has_order else (object(), 0)

    def put_back(self) -> None:
        """Put everything back as it was; may be called repeatedly."""
        model = self._components.model
        with torch.no_grad():
            for name, value in _tensors_of(model).items():
                if shares_elements(value):
                    write_shared(name, value, self._tensors[name])
                else:
                    value.copy_(self._tensors[name])
        for parameter, gradient in zip(model.parameters(), self._gradients, strict=True):
            parameter.grad = gradient
        for module, mode in zip(model.modules(), self._modes, strict=True):
            module.training = mode
        tensors = {
            name: {field: value.clone() for field, value in fields.items()} for name, fields in self._optimizer.items()
        }
        rest = copy.deepcopy(self._rest)
        restore_optimizer(self._components.optimizers, parameter_names(model), tensors, rest)
        for part, state in self._states.values():
            part.load_state_dict(copy.deepcopy(state))
        place = self._place_of_loader()  # rehearsed steps request their batches by number
        if place[0] is not self._loader_place[0] or place[1] != self._loader_place[1]:
            self._components.loader.load_state_dict(copy.deepcopy(self._loader))
            self._loader_place = self._place_of_loader()
        restore_generators(self._generators)


def _tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return every parameter and buffer, including those that are not saved."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


class Rehearsal:
    """Steps re-run from a checkpoint.

    Attributes:
        components: the borrowed parts; a counterfactual masks or skips samples of ``components.loader``.
        checkpoint: the checkpoint it began from.
        ranks: the processes that make the steps together.
        step: the next step.
    """

    def __init__(
        self,
        components: Components,
        log: RunLog,
        checkpoint: Found,
        ranks: Ranks,
        train_step: Callable[[Any], Any],
        accumulate: int,
        on_step: Callable[[], None] | None,
    ) -> None:
        self.components = components
        self.checkpoint = checkpoint
        self.ranks = ranks
        self._train_step = train_step
        self._accumulate = accumulate
        self._on_step = on_step
        self._cures = cures_since(log.events(), checkpoint.step)
        # The newest state of the stream gives the content of every batch, including those after a later cure.
        self._stream = next((event["state"] for event in reversed(log.events("stream"))), None)
        self._recorded = {record["step"]: record for record in log.steps(ranks.rank)}
        self._gauge = Gauge(components.model, components.optimizers, grad_norm=True, stats_every=1)
        self._begin()
        self._start = Held(components)

    def _begin(self) -> None:
        for parameter in self.components.model.parameters():
            parameter.grad = None
        restored = self.components.restore(self.checkpoint.path, self.ranks)
        self.step: int = restored.position["step"]
        self._batch: int = restored.position["batch"]
        self._discard = set(restored.position["discard"])
        if self.components.has_order and self._stream is not None:
            self.components.loader.load_state_dict(self._stream)
            move_loader(self.components.loader, self._batch)
        self._apply_cures()
        self._first = (self.step, self._batch)
        self._within_pass: bool = restored.position.get("passing", False)
        self._iterator: Iterator[Any] | None = None
        self._transform: Callable[[int, Any], Any] | None = None  # changes a batch, given its number

    def _apply_cures(self) -> None:
        """Apply the cures that the run applied from this step on."""
        for cure in self._cures.get(self.step, ()):
            if self.components.has_order and self._stream is not None:  # the newest stream state already includes them
                cure = replace(cure, skip_batches=None, mask_batches=None, skip_samples={}, mask_samples={})
            cure.apply(self.components, self._discard)

    def rewind(self) -> None:
        """Go back to the checkpoint, from memory; masks and skips made since then are dropped."""
        self._start.put_back()
        self.step, self._batch = self._first
        self._iterator = None
        self._transform = None

    def recorded(self, step: int) -> Record | None:
        """Return the run's record of a step; None if the step was never done."""
        return self._recorded.get(step)

    def take_step(self, *, layers: bool = False, batch: Any = None) -> Record:
        """Make the next step; return its record as in the log, but without its times.

        Args:
            layers: also measure every layer's gradient and weights.
            batch: use this batch alone, instead of the run's own.
        """
        if self.step > self._first[0]:
            self._apply_cures()
        known = self._recorded.get(self.step)
        batches = [batch] if batch is not None else self._next_batches(known)
        first = self._batch - len(batches)
        if known is not None and batch is None:
            first = known["batches"][0]
        self._gauge.wants_layers = lambda: layers
        self._gauge.take()
        made = self._train_step(batches[0] if self._accumulate == 1 and len(batches) == 1 else batches)
        fields = dict(made) if isinstance(made, Mapping) else {"loss": made}
        loss, norm = fields.pop("loss", None), fields.pop("grad_norm", None)
        record = StepRecord(self.step, (first, self._batch), loss, norm, fields, self._gauge.take())
        self.step += 1
        if self._on_step is not None:
            self._on_step()
        return record.fields()

    def run_to(self, step: int) -> list[Record]:
        """Make steps until this one is next; return their records."""
        if step < self.step:
            raise RunError("a rehearsal only goes forward", step=step, next_step=self.step, hint="rewind it first")
        return [self.take_step() for _ in range(step - self.step)]

    def _next_batches(self, known: Record | None) -> list[Any]:
        """Return the batches of the next step: those that were recorded, or as many as a step normally takes."""
        batches: list[Any] = []
        while self._batch < known["batches"][1] if known is not None else len(batches) < self._accumulate:
            number, self._batch = self._batch, self._batch + 1
            batch = self.components.loader.batch_at(number) if self.components.has_order else self._next_of_pass()
            if number not in self._discard:
                batches.append(batch if self._transform is None else self._transform(number, batch))
        return batches

    def _next_of_pass(self) -> Any:
        """Return the next batch of a loader that can only move forward; after the end of a pass another one begins."""
        loader = self.components.loader
        if self._iterator is None:
            self._iterator = begin_pass(loader, begun=self._within_pass)
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = iter(loader)
            try:
                return next(self._iterator)
            except StopIteration:
                raise RunError("the data has ended", step=self.step) from None

    def close(self) -> None:
        """Remove the hooks."""
        self._gauge.close()


@contextmanager
def rehearsing(
    folder: RunFolder,
    components: Components,
    train_step: Callable[[Any], Any] | None,
    *,
    step: int,
    accumulate: int = 1,
    ranks: Ranks | None = None,
    on_step: Callable[[], None] | None = None,
) -> Iterator[Rehearsal]:
    """Rehearse from the newest good checkpoint at or before a step; all ranks call it.

    ``on_step`` is called after every step that is made.

    Raises:
        ConfigError: the run has no step function.
        RunError: there is no good checkpoint from before the step.
    """
    if train_step is None:
        raise ConfigError(
            "steps can only be re-run if the step is a function", hint="pass train_step= to Run and use train()"
        )
    ranks = ranks or Ranks.joined()
    found = Checkpoints(folder, ranks).newest(not_after=step)
    if found is None:
        raise RunError(
            "there is no good checkpoint at or before this step",
            step=step,
            folder=str(folder.root),
            hint="keep more checkpoints: RunOptions(keep=…)",
        )
    held = Held(components)
    rehearsal: Rehearsal | None = None
    try:
        rehearsal = Rehearsal(components, RunLog(folder.root), found, ranks, train_step, accumulate, on_step)
        yield rehearsal
    finally:
        if rehearsal is not None:
            rehearsal.close()
        held.put_back()
