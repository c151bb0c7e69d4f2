"""A stream in a loop that saves its own checkpoints: torchtitan's, a plain one with torch's DCP, Accelerate's, Ray's.

``TrainingStream`` is a loader, the metrics and the run's record as one stateful object (a DCP ``Stateful``): a loop
that saves and restores that state resumes exactly, at any number of processes.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.errors import ConfigError, StateError
from holdfast.integrations.restart import Restart
from holdfast.integrations.trainer_record import TrainerRecord, recording_of
from holdfast.integrations.trainer_state import TRAINER_STATE, TrainerState, collect_state
from holdfast.run.alerts import Alert
from holdfast.run.rollback import RollbackOptions
from holdfast.stream import StreamingShardLoader

__all__ = ["STATE_KEY", "TrainingStream"]

STATE_KEY = "holdfast"


class TrainingStream:
    """Batches to train on, with all of their state that a checkpoint must hold.

    Args:
        loader: one rank's batches; rank and world size are the job's own if left to ``torch.distributed``.
        folder: record the run there; needs ``model`` and ``optimizer``.
        model: the model that is trained.
        optimizer: the optimizer whose gradients are measured.
        scheduler: the scheduler of the learning rate.
        metrics: a ``MetricsAggregator``, whose state is saved in the checkpoints.
        config: a description of the run; written to the log.
        on_finding: what to do about findings, as for ``Run``; anything but ``"log"`` needs ``folder``.
        alerts: where alerts go.
        rollback: how to roll back.
        restore: loads one of the loop's checkpoints, including this stream's state. With it, a rollback happens inside
            the loop; without it, ``step`` raises ``Restart``, which ends the process with exit code 75.

    Example:
        >>> stream = TrainingStream(loader, folder="runs/exp7", model=model, optimizer=optimizer)  # doctest: +SKIP
        >>> dcp.load({"model": model, "stream": stream}, checkpoint_id=newest)                     # doctest: +SKIP
        >>> for batch in stream:                                                                   # doctest: +SKIP
        ...     loss = train_step(batch)
        ...     stream.step(loss)
    """

    def __init__(
        self,
        loader: StreamingShardLoader,
        *,
        folder: str | Path | None = None,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: Any = None,
        metrics: Any = None,
        config: Mapping[str, Any] | None = None,
        on_finding: str | Mapping[str, str] = "log",
        alerts: Sequence[Alert] = (),
        rollback: RollbackOptions | None = None,
        restore: Callable[[Path], object] | None = None,
    ) -> None:
        self.loader = loader
        self.metrics = metrics
        self.step_number = 0
        """The number of steps done; a rollback lowers it."""
        self.record: TrainerRecord | None = None
        """The run's record, from the first batch on."""
        self._recording = recording_of(folder, on_finding=on_finding, alerts=alerts, rollback=rollback)
        if self._recording is not None and (model is None or optimizer is None):
            raise ConfigError("a recorded run needs the model and the optimizer", hint="pass model= and optimizer=")
        self._parts: dict[str, Any] = {"model": model, "optimizer": _plain(optimizer), "scheduler": scheduler}
        self._config = dict(config or {})
        self._restore = restore
        self._restored = TrainerState()
        self._taken = 0

    def __len__(self) -> int:
        """Return the number of batches, if there is an end."""
        return len(self.loader)

    def __bool__(self) -> bool:
        """Return whether there are batches, even if there is no end."""
        return bool(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches from the stream's position."""
        self._begin()
        is_over = False
        while not is_over:
            for batch in self.loader:
                self._taken += 1
                yield batch
            is_over = self.record is None or not self._go_back(self.record.finish())

    def _begin(self) -> None:
        if self._recording is not None and self.record is None:
            self.record = TrainerRecord(
                self._recording,
                loader=self.loader,
                step=self.step_number,
                config=self._config,
                monitors=self._restored.monitors,
                **self._parts,
            )
            atexit.register(self.close)  # a program that does not close it still records its last step

    def step(self, loss: Any = None, *, grad_norm: Any = None, **metrics: Any) -> None:
        """Report an optimizer step on the batches taken since the last one.

        Args:
            loss: its loss; a tensor is read after the next step. The mean over the ranks that have one is recorded.
            grad_norm: the norm of its gradient before clipping, if the program has it; otherwise it is measured as the
                optimizer sees it.
            **metrics: any other numbers.

        Raises:
            Restart: the run was rolled back, and ``restore`` was not given.
            RunStoppedError: a finding stops the run.
        """
        self.step_number += 1
        batches, self._taken = self._taken, 0
        if self.record is None:
            return
        loss = loss.detach() if isinstance(loss, torch.Tensor) else loss
        self._go_back(self.record.step(loss, batches=batches, grad_norm=grad_norm, **metrics))

    def _go_back(self, checkpoint: Path | None) -> bool:
        """Go back to a checkpoint, or leave the program, if all ranks have agreed on it; return whether they have."""
        if checkpoint is None:
            return False
        if self._restore is None or self.record is None:
            self.close()
            raise Restart(checkpoint)
        self._restore(checkpoint)
        self.record.restored(self.step_number, self._restored.monitors)
        return True

    def saved(self, path: str | Path) -> None:
        """Report that the loop has saved a checkpoint; all ranks call it."""
        if self.record is not None:
            self.record.checkpoint(path, metrics=self.metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as one JSON text; all ranks call it, as DCP does."""
        state = collect_state(step=self.step_number, loader=self.loader, metrics=self.metrics, record=self.record)
        return {STATE_KEY: json.dumps(state)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state, at any number of processes.

        Raises:
            StateError: it is not the state of a ``TrainingStream``.
        """
        try:
            saved = TRAINER_STATE.from_json(json.loads(state_dict[STATE_KEY]))
        except (KeyError, TypeError, ValueError) as error:
            raise StateError("the checkpoint holds no stream state", hint="save this stream with the model") from error
        if saved.stream is None:
            raise StateError("the checkpoint holds no stream state", hint="save this stream with the model")
        self.loader.load_state_dict(saved.stream)
        if self.metrics is not None and saved.metrics is not None:
            self.metrics.load_state_dict(saved.metrics)
        self.step_number, self._restored, self._taken = saved.step, saved, 0

    def close(self) -> None:
        """Close the run's log and release the folder; closing twice is harmless."""
        record, self.record = self.record, None
        atexit.unregister(self.close)
        if record is not None:
            record.close()

    def __enter__(self) -> TrainingStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        back_to = self.record.finish() if self.record is not None and kind is None else None
        self.close()
        if back_to is not None:  # the loop is over: starting the program again continues from there
            raise Restart(back_to)


def _plain(optimizer: Any) -> Any:
    """Return torch's optimizer, without any wrapper around it."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer
