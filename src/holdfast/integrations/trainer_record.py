"""A run log written from inside a trainer: every step, every finding, every checkpoint; the trainer does the saving.

The log is that of ``holdfast.run``: ``holdfast report``, ``serve``, ``debug`` and ``runs`` read it. Numbers are taken
off the device one step late, so that no step waits for them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.debug.online import OnlineDebugger
from holdfast.run.buckets import Origin, Stopwatch
from holdfast.run.environment import describe_environment
from holdfast.run.gauge import Gauge
from holdfast.run.history import History
from holdfast.run.identity import Identity
from holdfast.run.layout import RunFolder
from holdfast.run.lock import FolderLock
from holdfast.run.monitor import Monitor
from holdfast.run.recorder import Recorder
from holdfast.run.step_record import StepRecord

__all__ = ["TrainerRecord"]

STALL_SECONDS = 300.0
STATS_EVERY = 100


class TrainerRecord:
    """One rank's record of one call of a trainer.

    Args:
        folder: where the log is written; a folder of another model or other data is refused.
        model: what is trained.
        optimizer: whose gradients are measured as they are used.
        loader: where the batches come from.
        rank: this process.
        world_size: how many there are.
        step: the optimizer steps made before, by the trainer's own count.
        config: the trainer's options.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Any,
        rank: int,
        world_size: int,
        step: int,
        config: Mapping[str, Any],
    ) -> None:
        self._folder = RunFolder(Path(folder))
        self._lock = FolderLock(self._folder.lock) if rank == 0 else None
        try:
            self._recorder, self._stopwatch = self._opened(model, loader, rank, world_size, step, config)
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise
        self._gauge = Gauge(model, [optimizer], grad_norm=True, stats_every=STATS_EVERY)
        self._gauge.wants_layers = lambda: self._gauge.is_due(self._step)
        self._monitor = Monitor(OnlineDebugger(), rank=rank)
        self._step = step
        self._batch = loader.step
        self._waiting: StepRecord | None = None
        self.findings: list[dict[str, Any]] = []
        """What the monitor has found so far."""

    def _opened(
        self, model: nn.Module, loader: Any, rank: int, world_size: int, step: int, config: Mapping[str, Any]
    ) -> tuple[Recorder, Stopwatch]:
        folder, current = self._folder, Identity.new(model, loader)
        known = Identity.read(folder)
        if known is not None:
            known.refuse_others(current, folder)
        elif rank == 0:
            current.write(folder)
        history = History.read(folder, rank=rank)
        self._reached = history.reached
        origin = Origin.of_process()
        down = 0.0
        if history.origin is not None:
            ended = history.origin.monotonic + history.elapsed
            same_boot = origin.boot == history.origin.boot
            origin = Origin.of_process(not_before=ended if same_boot else float("-inf"))
            down = origin.seconds_since(history.origin, history.elapsed)
        header: dict[str, Any] = {
            "run": (known or current).run,
            "world_size": world_size,
            "time": origin.time,
            "monotonic": origin.monotonic,
            "boot": origin.boot,
            "pid": os.getpid(),
        }
        if rank == 0:
            header |= {"config": dict(config), "environment": describe_environment()}
        recorder = Recorder(folder, rank=rank, attempt=history.attempts + 1, header=header, head=history.head)
        stopwatch = Stopwatch(origin.monotonic, stall_after=STALL_SECONDS)
        stopwatch.lap("startup")
        spent, at = stopwatch.take()
        recorder.write({"event": "start", "step": step, "batch": loader.step, "down_time": down, **spent, "at": at})
        return recorder, stopwatch

    def lap(self, bucket: str) -> None:
        """Count the time since the last lap in a bucket: ``data``, ``step``, ``evaluation`` or ``save``."""
        self._stopwatch.lap(bucket)

    def step(self, loss: Any, *, batches: int, **metrics: Any) -> None:
        """Say that an optimizer step was made.

        Args:
            loss: its loss; a tensor is read when the next step has been made.
            batches: how many batches it took.
            **metrics: any other numbers.
        """
        self._stopwatch.lap("step")
        record = StepRecord(self._step, (self._batch, self._batch + batches), loss, None, metrics)
        record.rate, record.sharded = self._gauge.rate, self._gauge.sharded
        record.grad_norms, record.weight_norms, record.layers = self._gauge.take()
        self._write_waiting()
        self._waiting = record
        self._step += 1
        self._batch += batches

    def event(self, kind: str, **fields: Any) -> None:
        """Write an event after everything that came before it."""
        self._write_waiting()
        spent, at = self._stopwatch.take()
        self._recorder.write({"event": kind, "step": self._step, **fields, **spent, "at": at})

    def checkpoint(self, path: str, **fields: Any) -> None:
        """Note a checkpoint that the trainer saved, and make the log as durable as that."""
        self._stopwatch.lap("save")
        self.event("checkpoint", path=path, **fields)
        self._recorder.sync()

    def close(self) -> None:
        """Write what is left and let the folder go; closing twice is harmless."""
        if self._lock is not None or self._waiting is not None:
            self.event("end")
        self._gauge.close()
        self._recorder.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _write_waiting(self) -> None:
        record, self._waiting = self._waiting, None
        if record is None:
            return
        fields = record.fields()
        spent, at = self._stopwatch.take()
        if record.step < self._reached:
            fields["redone"] = True
        self._reached = max(self._reached, record.step + 1)
        self._recorder.write({**fields, **spent, "at": at})
        for finding in self._monitor.update(fields):
            self.findings.append(finding)
            self._recorder.write({"event": "finding", "step": record.step, **finding, "at": at})
