"""What is said of a whole run: a verdict is only as good as what the log holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.debug.types import Finding, Severity, Signal, Verdict

__all__ = ["LOSS_LIKE", "judge"]

LOSS_LIKE = frozenset(("loss", "eval_loss", "perplexity", "metric", "reward"))
_FEWEST_POINTS = 3


def judge(findings: Sequence[Finding], signals: Sequence[Signal]) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict, and why it is no better than it is."""
    if any(finding.detection.severity is not Severity.INFO for finding in findings):
        return Verdict.UNHEALTHY, ()
    like = [signal for signal in signals if signal.kind in LOSS_LIKE]
    if not like:
        kinds = {signal.kind for signal in signals}
        if "param_hash" in kinds:
            return Verdict.UNKNOWN, ("cannot tell: no loss found; the parameter hashes show nothing wrong",)
        if "collective" in kinds:
            return Verdict.UNKNOWN, ("cannot tell: no loss found; the collectives show nothing wrong",)
        return Verdict.UNKNOWN, ("cannot tell: no loss found",)
    losses = [signal for signal in like if signal.kind == "loss"] or like
    empty = [signal for signal in losses if "not_collected" in signal.metadata]
    if len(empty) == len(losses):
        reason = empty[0].metadata["not_collected"]
        return Verdict.UNKNOWN, (f"cannot tell: {empty[0].name!r} was not collected ({reason})",)
    usable = [signal for signal in like if "not_collected" not in signal.metadata]
    points = max((int(np.isfinite(signal.values).sum()) for signal in usable), default=0)
    if points < _FEWEST_POINTS:
        return Verdict.UNKNOWN, (f"cannot tell: the longest loss has {points} points",)
    return Verdict.HEALTHY, ()
