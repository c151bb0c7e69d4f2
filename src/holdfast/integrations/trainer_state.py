"""What holdfast adds to a trainer's own checkpoint: the stream, the metrics and every rank's monitor.

It is plain JSON, the same from every rank, and loads at any number of processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import StateError, StateVersionError
from holdfast.versioned import Count, Format

__all__ = ["TRAINER_STATE", "TrainerState", "collect_state"]


@dataclass(frozen=True, slots=True)
class TrainerState:
    """The state of a run inside a trainer.

    Attributes:
        step: optimizer steps done; 0 if the trainer itself counts them.
        stream: the stream's position; None if the trainer itself saves the loader's state.
        metrics: the figures of all ranks so far; None without an aggregator.
        monitors: the state of each rank's monitor; empty if nothing is recorded.
    """

    step: Count = 0
    stream: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    monitors: list[dict[str, Any]] = field(default_factory=list)


TRAINER_STATE = Format("trainer state", TrainerState, version=1, error=StateError, version_error=StateVersionError)


def collect_state(*, step: int = 0, loader: Any = None, metrics: Any = None, record: Any = None) -> dict[str, Any]:
    """Return the state to put into the trainer's checkpoint. With metrics or a record all ranks must call it.

    Args:
        step: optimizer steps done, if the trainer does not count them.
        loader: the loader whose position is saved.
        metrics: the ``MetricsAggregator`` of the run.
        record: the ``TrainerRecord``, whose monitors' states are gathered.
    """
    return TRAINER_STATE.to_json(
        TrainerState(
            step=step,
            stream=None if loader is None else loader.state_dict(),
            metrics=None if metrics is None else metrics.run_state_dict(),
            monitors=[] if record is None else record.monitor_states(),
        )
    )
