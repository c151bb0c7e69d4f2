"""The run: a training loop that is recorded, saved, resumed automatically, monitored and, on request, rolled back.

A run lives in one folder. Every step is a record in its log; a checkpoint holds everything needed to continue the run;
starting the same program again continues from the newest good checkpoint. Reading a run's log does not need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy_names import lazy_names

if TYPE_CHECKING:
    from holdfast.run.alerts import OpenTelemetryAlert as OpenTelemetryAlert
    from holdfast.run.alerts import WebhookAlert as WebhookAlert
    from holdfast.run.buckets import Goodput as Goodput
    from holdfast.run.cure import Cure as Cure
    from holdfast.run.evaluation import Evaluation as Evaluation
    from holdfast.run.options import RunOptions as RunOptions
    from holdfast.run.rollback import RollbackOptions as RollbackOptions
    from holdfast.run.run import Run as Run
    from holdfast.run.run_log import RunLog as RunLog

_HOME = {
    "Cure": "cure",
    "Evaluation": "evaluation",
    "Goodput": "buckets",
    "OpenTelemetryAlert": "alerts",
    "RollbackOptions": "rollback",
    "Run": "run",
    "RunLog": "run_log",
    "RunOptions": "options",
    "WebhookAlert": "alerts",
}

__all__ = sorted(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
