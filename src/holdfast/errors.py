"""Every exception holdfast raises, in one tree.

Each error says what happened, where (as attributes and in the text) and what to do about it::

    HoldfastError
    ├── ConfigError (ValueError)                an invalid option, found before anything runs
    │   ├── EmptyPartitionError                 a rank would get no sample
    │   ├── MixtureError                        invalid weights or names in a mixture
    │   └── PartitionError                      ranges, labels or shares that do not fit the data
    ├── OrderError (ValueError)                 a position, index or skip outside what the order covers
    │   └── EverythingSkippedError              the skips leave nothing to read
    ├── SourceError (RuntimeError)              a source could not return the requested samples
    │   ├── SourceFormatError (ValueError)      the bytes are not what the source expects
    │   ├── SourceChangedError                  the file is not the one the index was made from
    │   └── RemoteReadError (OSError)           a remote read failed after its retries
    ├── StreamError (RuntimeError)              the loader could not deliver
    │   ├── TransformError                      a user's transform raised; names source, index, position
    │   ├── EmptyBatchError                     every sample of a batch failed under on_error="skip"
    │   ├── WorkerDiedError                     a worker process died repeatedly on the same step
    │   └── StateError (ValueError)             a stream state that cannot be used here
    │       ├── StateMismatchError              made with different data, weights, seed or partition
    │       ├── StateVersionError               made by a newer holdfast
    │       └── StateFileError                  a torn, foreign or missing state file
    ├── MetricError (ValueError)                a metric that cannot be aggregated or merged
    ├── CheckpointError (RuntimeError)          a distributed checkpoint could not be restored
    │   ├── CheckpointReadError (OSError)       the disk or the file layer failed
    │   ├── CheckpointWriteError (OSError)      a checkpoint could not be saved; earlier ones are unchanged
    │   ├── CorruptRecordError                  bytes differ from the checksum stored beside them
    │   ├── CheckpointMismatchError (ValueError)  dtype, shape or layout differs from the destination
    │   ├── UnsafeCheckpointError               it would run code or read outside its folder
    │   └── UnusableCheckpointError (ValueError)  not a checkpoint, or its metadata is damaged
    ├── DebugError (ValueError)                 a log could not be diagnosed
    │   └── UnreadableLogError                  nothing in it could be read as a training log
    ├── CoordinationError (RuntimeError)        workers could not agree
    │   ├── CoordinatorLost (ConnectionError)   the store is gone
    │   ├── DeadLetterError                     a job ended without some of its chunks, which were given up
    │   ├── StaleLeaseError                     a commit under a lease that is no longer held
    │   └── SupersededError                     a newer generation of the job has begun on another store
    ├── RunError (RuntimeError)                 a training run could not be started, recorded or continued
    │   ├── RunFolderError (ValueError)         the folder holds something else, or nothing a run can continue from
    │   ├── RunMismatchError (ValueError)       the folder belongs to a different run, dataset or model
    │   ├── RunLockedError                      another process is running in this folder
    │   ├── RunLogError (ValueError)            the run log was cut, edited or cannot be read
    │   ├── RunWriteError (OSError)             the run's folder cannot be written to
    │   ├── RunStoppedError                     a finding stopped the run, as its policy asked
    │   └── RollbackError                       there is no checkpoint to roll back to, or too many were tried
    └── MissingDependencyError (ImportError)    an optional extra is not installed

Each class declares the attributes that say where it happened. Those without a default are set wherever the error is
raised; those that default to ``None`` are set if they are known. Further facts are in ``where`` and in the text. All
errors survive pickling with their attributes, so they cross process boundaries intact.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

__all__ = [
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointReadError",
    "CheckpointWriteError",
    "ConfigError",
    "CoordinationError",
    "CoordinatorLost",
    "CorruptRecordError",
    "DeadLetterError",
    "DebugError",
    "EmptyBatchError",
    "EmptyPartitionError",
    "EverythingSkippedError",
    "HoldfastError",
    "MetricError",
    "MissingDependencyError",
    "MixtureError",
    "OrderError",
    "PartitionError",
    "RemoteReadError",
    "RollbackError",
    "RunError",
    "RunFolderError",
    "RunLockedError",
    "RunLogError",
    "RunMismatchError",
    "RunStoppedError",
    "RunWriteError",
    "SourceChangedError",
    "SourceError",
    "SourceFormatError",
    "StaleLeaseError",
    "StateError",
    "StateFileError",
    "StateMismatchError",
    "StateVersionError",
    "StreamError",
    "SupersededError",
    "TransformError",
    "UnreadableLogError",
    "UnsafeCheckpointError",
    "UnusableCheckpointError",
    "WorkerDiedError",
]


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return f"a {type(value).__name__} too large to print"


class HoldfastError(Exception):
    """The base of every error holdfast raises.

    Args:
        message: what happened.
        hint: what to do about it; shown after the message.
        **where: where it happened (``source=``, ``index=``, ``rank=``, ``file=`` …). Each becomes an attribute of
            the error and is shown in the text.
    """

    message: str
    hint: str | None
    where: dict[str, Any]

    def __init__(self, message: str, *, hint: str | None = None, **where: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where
        self.__dict__.update(where)

    def __str__(self) -> str:
        text = self.message
        if self.where:
            text += " [" + ", ".join(f"{name}={_shown(value)}" for name, value in self.where.items()) + "]"
        if self.hint:
            text += f" — {self.hint}"
        return _without_secrets(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), hint=self.hint, **self.where), (self.message,)


_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
_SIGNATURE = re.compile(r"([?&][^=&\s]*(?:sig|token|key|secret|password|credential)[^=&\s]*=)[^&\s'\"]+", re.IGNORECASE)


def _without_secrets(text: str) -> str:
    """Hide credentials in URLs: error texts end up in logs that many people see."""
    if "://" not in text:
        return text
    return _SIGNATURE.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


class ConfigError(HoldfastError, ValueError):
    """An invalid option, found before anything runs."""

    source: str | None = None
    file: str | None = None
    dataset: str | None = None
    rank: int | None = None
    world_size: int | None = None


class EmptyPartitionError(ConfigError):
    """A rank would get no sample; names the rank, the world size and the number of samples."""

    rank: int
    world_size: int
    samples: int | None = None


class MixtureError(ConfigError):
    """Invalid weights or names in a mixture."""


class PartitionError(ConfigError):
    """Ranges, labels or shares that do not fit the data."""


class OrderError(HoldfastError, ValueError):
    """A position, index or skip outside what the order covers."""

    source: str | None = None
    index: int | None = None
    step: int | None = None
    sources: list[str] | None = None


class EverythingSkippedError(OrderError):
    """The skips leave nothing to read."""


class SourceError(HoldfastError, RuntimeError):
    """A source could not return the requested samples."""

    source: str | None = None
    file: str | None = None
    index: int | None = None
    length: int | None = None


class SourceFormatError(SourceError, ValueError):
    """The bytes are not what the source expects."""

    column: str | None = None
    row: int | None = None
    line: int | None = None
    byte: int | None = None


class SourceChangedError(SourceError):
    """The file is not the one the index was made from."""


class RemoteReadError(SourceError, OSError):
    """A remote read failed after its retries."""

    file: str
    attempts: int | None = None


class StreamError(HoldfastError, RuntimeError):
    """The loader could not deliver."""

    dataset: str | None = None
    rank: int | None = None
    step: int | None = None


class TransformError(StreamError):
    """A user's transform raised; names source, index and position, with the cause chained."""

    source: str | None = None
    index: int
    position: int | None = None


class EmptyBatchError(StreamError):
    """Every sample of a batch failed under ``on_error="skip"``."""

    step: int
    samples: list[tuple[str, int]]


class WorkerDiedError(StreamError):
    """A worker process died repeatedly on the same step."""

    steps: list[int]
    samples: list[Any]


class StateError(StreamError, ValueError):
    """A stream state that cannot be used here."""

    field: str | None = None


class StateMismatchError(StateError):
    """The state was made with different data, weights, seed or partition."""

    children: dict[str, str] | None = None


class StateVersionError(StateError):
    """The state was made by a newer holdfast."""


class StateFileError(StateError):
    """A torn, foreign or missing state file."""

    file: str | None = None
    folder: str | None = None


class MetricError(HoldfastError, ValueError):
    """A metric that cannot be aggregated or merged."""

    dataset: str | None = None
    metric: str | None = None


class CheckpointError(HoldfastError, RuntimeError):
    """A distributed checkpoint could not be restored."""

    tensor: str | None = None
    file: str | None = None
    offset: int | None = None
    length: int | None = None
    folder: str | None = None


class CheckpointReadError(CheckpointError, OSError):
    """The disk or the file layer failed, or the checkpoint was replaced by another while it was being read."""

    replaced: bool = False


class CheckpointWriteError(CheckpointError, OSError):
    """A checkpoint could not be saved; earlier ones are unchanged."""

    path: str


class CorruptRecordError(CheckpointError):
    """Bytes differ from the checksum stored beside them."""

    tensor: str
    file: str


class CheckpointMismatchError(CheckpointError, ValueError):
    """The stored dtype, shape or layout differs from the destination."""

    tensor: str
    stored: str | tuple[int, ...] | None = None
    destination: str | tuple[int, ...] | None = None


class UnsafeCheckpointError(CheckpointError):
    """The checkpoint would run code or read outside its folder, or contains objects that holdfast does not rebuild."""

    file: str
    names: list[str] | None = None
    reason: str | None = None


class UnusableCheckpointError(CheckpointError, ValueError):
    """Not a checkpoint, or its metadata is damaged."""


class DebugError(HoldfastError, ValueError):
    """A log could not be diagnosed."""

    file: str | None = None


class UnreadableLogError(DebugError):
    """Nothing in the input could be read as a training log."""


class CoordinationError(HoldfastError, RuntimeError):
    """Workers could not agree."""

    rank: int | None = None
    chunk: int | None = None
    folder: str | None = None


class CoordinatorLost(CoordinationError, ConnectionError):
    """The store is gone."""


class DeadLetterError(CoordinationError):
    """A job ended without some of its chunks, which were given up after their last attempt."""

    chunks: list[int]


class StaleLeaseError(CoordinationError):
    """A commit under a lease that is no longer held."""

    chunk: int
    token: int


class SupersededError(CoordinationError):
    """A newer generation of the job has begun on another store, so this one can commit nothing more."""

    folder: str
    generation: int


class RunError(HoldfastError, RuntimeError):
    """A training run could not be started, recorded or continued."""

    folder: str | None = None
    file: str | None = None
    step: int | None = None


class RunFolderError(RunError, ValueError):
    """The folder holds something else, or nothing a run can continue from."""


class RunMismatchError(RunError, ValueError):
    """The folder belongs to a different run, dataset or model; names what differs."""


class RunLockedError(RunError):
    """Another process is running in this folder; names it."""

    folder: str
    pid: int | None
    host: str | None
    since: str | None


class RunLogError(RunError, ValueError):
    """The run log was cut, edited or cannot be read."""

    line: int | None = None


class RunWriteError(RunError, OSError):
    """The run's folder cannot be written to: full, read-only or gone."""


class RunStoppedError(RunError):
    """A finding stopped the run, as its policy asked."""

    finding: str
    step: int
    rank: int | None


class RollbackError(RunError):
    """There is no checkpoint to roll back to, or too many rollbacks were tried."""


class MissingDependencyError(HoldfastError, ImportError):
    """An optional extra is not installed."""

    extra: str | None = None
    package: str | None = None
