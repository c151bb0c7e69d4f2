"""The options of a run."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.arguments import check_fields
from holdfast.errors import ConfigError

__all__ = ["RunOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a run records, saves and monitors.

    Args:
        save_every: steps between checkpoints; None saves by time only.
        save_minutes: minutes between checkpoints; None saves by steps only.
        keep: how many checkpoints to keep.
        save_in_background: let training continue while a checkpoint is written.
        time_limit: seconds this attempt may take, from the start of its process; a checkpoint is saved before.
        stats_every: steps between the norms of every layer's gradient and weights; None records none.
        grad_norm: record the norm of the gradient at every step where the program does not pass it.
        hash_parameters: record a hash of the parameters at every checkpoint, and compare it between ranks.
        metrics_every: steps between the aggregator's figures in the log; None records them at checkpoints only. On
            several ranks this is a collective call.
        stall_after: seconds without progress after which a rank counts as stalled and its stacks are written.
        stall_timeout: seconds without progress after which the process ends, so that the launcher restarts it; None
            waits indefinitely.
        handle_signals: on SIGTERM or SIGUSR1 save a checkpoint, then end as the signal would have.
        compact_bytes: sealed log files of at least this size are compacted to Parquet.
        max_failed_saves: how many saves in a row may fail before the run ends.
    """

    save_every: int | None = 1000
    save_minutes: float | None = None
    keep: int = 3
    save_in_background: bool = True
    time_limit: float | None = None
    stats_every: int | None = 100
    grad_norm: bool = True
    hash_parameters: bool = True
    metrics_every: int | None = None
    stall_after: float = 300.0
    stall_timeout: float | None = None
    handle_signals: bool = True
    compact_bytes: int = 1 << 20
    max_failed_saves: int = 3

    def __post_init__(self) -> None:
        check_fields(self, may_be_zero=("compact_bytes",))
        if self.stall_timeout is not None and self.stall_timeout < self.stall_after:
            raise ConfigError(
                "the process would end before a stall is noticed",
                stall_timeout=self.stall_timeout,
                stall_after=self.stall_after,
                hint="set stall_timeout to at least stall_after",
            )
