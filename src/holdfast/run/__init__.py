"""The run: a training loop that is recorded, saved, resumed by itself, watched and, where asked, rolled back.

A run lives in one folder. Every step is a record in its log; a checkpoint holds everything the run continues from;
starting the same program again continues from the newest good one. Reading a run's log needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.run.buckets import Goodput as Goodput
    from holdfast.run.options import RunOptions as RunOptions
    from holdfast.run.run import Run as Run
    from holdfast.run.run_log import RunLog as RunLog

_HOME = {
    "Goodput": "holdfast.run.buckets",
    "Run": "holdfast.run.run",
    "RunLog": "holdfast.run.run_log",
    "RunOptions": "holdfast.run.options",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast.run' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
