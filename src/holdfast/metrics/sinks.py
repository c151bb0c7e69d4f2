"""Sinks that write figures: one small interface and four implementations, each of which needs only its own package.

A sink takes the result of ``get_metrics_for_logging``. All ranks must make that call; then one of them, usually rank 0,
writes.
"""

from __future__ import annotations

import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, final

from typing_extensions import Self

from holdfast.arguments import check_path
from holdfast.errors import ConfigError
from holdfast.metrics.handlers import Scalar
from holdfast.optional import require


class MetricSink(ABC):
    """Writes figures somewhere; a context manager that closes itself."""

    @abstractmethod
    def write(self, figures: Mapping[str, Scalar], *, step: int) -> None:
        """Write the figures of a step."""

    @abstractmethod
    def close(self) -> None:
        """Flush buffered figures, and release files and connections."""

    @final
    def __enter__(self) -> Self:
        return self

    @final
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@final
class JsonlSink(MetricSink):
    """One JSON object per line: ``{"step": 100, "train_wiki/tokens_seen": 81920, …}``.

    An existing file is continued; a last line that a crash cut short is removed first. Every line is flushed to the
    operating system when written. A figure that is not finite becomes null, because JSON cannot express it.

    Args:
        path: the file; missing folders are created.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_path("path", path)
        self._path = Path(path)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _drop_torn_line(self._path)
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"the file cannot be written: {error.strerror}", file=str(path)) from error

    def write(self, figures: Mapping[str, Scalar], *, step: int) -> None:
        """Append a line."""
        line = {"step": step, **{name: _json_value(value) for name, value in figures.items()}}
        self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@final
class TensorBoardSink(MetricSink):
    """TensorBoard scalars; needs the extra ``tensorboard``.

    Args:
        folder: the log folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        require("tensorboard", extra="tensorboard", needed_by="TensorBoardSink")
        self._writer = import_module("torch.utils.tensorboard").SummaryWriter(str(folder))

    def write(self, figures: Mapping[str, Scalar], *, step: int) -> None:
        """Add one scalar per figure."""
        for name, value in figures.items():
            self._writer.add_scalar(name, _as_float(value), step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class WandbRun(Protocol):
    """The part of a Weights & Biases run that the sink uses."""

    def log(self, data: dict[str, Any], *, step: int) -> Any:
        """Log figures at a step."""

    def finish(self) -> Any:
        """End the run."""


@final
class WandbSink(MetricSink):
    """Weights & Biases; needs the extra ``wandb``.

    Args:
        run: a run you started, which you must finish; or None to start one.
        **options: arguments of ``wandb.init`` for a run started here.
    """

    def __init__(self, run: WandbRun | None = None, **options: Any) -> None:
        self._owned = run is None
        self._run: WandbRun = (
            run if run is not None else require("wandb", extra="wandb", needed_by="WandbSink").init(**options)
        )

    def write(self, figures: Mapping[str, Scalar], *, step: int) -> None:
        """Log all figures in one call, so that they share a step."""
        self._run.log({name: _as_float(value) for name, value in figures.items()}, step=step)

    def close(self) -> None:
        """Finish the run if this sink started it."""
        if self._owned:
            self._run.finish()


class MlflowClient(Protocol):
    """The part of an MLflow module or client that the sink uses."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> Any:
        """Log figures at a step."""


@final
class MlflowSink(MetricSink):
    """MLflow's active run; needs the extra ``mlflow``.

    Characters that MLflow does not allow in names (a category may contain any) become ``_``.

    Args:
        client: an object with ``log_metrics(metrics, step=…)``; None for the ``mlflow`` module itself.
    """

    def __init__(self, client: MlflowClient | None = None) -> None:
        self._client: MlflowClient = (
            client if client is not None else require("mlflow", extra="mlflow", needed_by="MlflowSink")
        )

    def write(self, figures: Mapping[str, Scalar], *, step: int) -> None:
        """Log all figures in one call."""
        allowed = {re.sub(r"[^\w\-. /:]", "_", name): _as_float(value) for name, value in figures.items()}
        self._client.log_metrics(allowed, step=step)

    def close(self) -> None:
        """Do nothing: the run belongs to the code that started it."""


def _as_float(value: Scalar) -> float:
    try:
        return float(value)
    except OverflowError:  # an exact integer sum beyond the range of a float
        return math.inf if value > 0 else -math.inf


def _json_value(value: Scalar) -> Scalar | None:
    return value if isinstance(value, int) or math.isfinite(value) else None


def _drop_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        keep = end
        while keep:  # backwards in pieces: the file may be long, but a torn line is not
            start = max(0, keep - 65536)
            file.seek(start)
            newline = file.read(keep - start).rfind(b"\n")
            if newline >= 0:
                keep = start + newline + 1
                break
            keep = start
        if keep != end:
            file.truncate(keep)
