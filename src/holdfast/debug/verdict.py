"""What is said of a whole run: a verdict is only as good as what the log holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.debug.types import Finding, Reason, ReasonCode, Severity, Signal, Verdict

__all__ = ["LOSS_LIKE", "judge"]

LOSS_LIKE = frozenset(("loss", "eval_loss", "perplexity", "metric", "reward"))
_FEWEST_POINTS = 3


def judge(findings: Sequence[Finding], signals: Sequence[Signal]) -> tuple[Verdict, Reason | None]:
    """Return the verdict, and the reason where nothing can be told."""
    if any(finding.detection.severity is not Severity.INFO for finding in findings):
        return Verdict.UNHEALTHY, None
    like = [signal for signal in signals if signal.kind in LOSS_LIKE]
    if not like:
        kinds = {signal.kind for signal in signals}
        if "param_hash" in kinds:
            return _unknown(ReasonCode.NO_LOSS, "no loss found; the parameter hashes show nothing wrong")
        if "collective" in kinds:
            return _unknown(ReasonCode.NO_LOSS, "no loss found; the collectives show nothing wrong")
        return _unknown(ReasonCode.NO_LOSS, "no loss found")
    losses = [signal for signal in like if signal.kind == "loss"] or like
    empty = [signal for signal in losses if "not_collected" in signal.metadata]
    if len(empty) == len(losses):
        why = empty[0].metadata["not_collected"]
        return _unknown(ReasonCode.NOT_COLLECTED, f"{empty[0].name!r} was not collected ({why})")
    usable = [signal for signal in like if "not_collected" not in signal.metadata]
    points = max((int(np.isfinite(signal.values).sum()) for signal in usable), default=0)
    if points < _FEWEST_POINTS:
        return _unknown(ReasonCode.TOO_FEW_POINTS, f"the longest loss has {points} points")
    return Verdict.HEALTHY, None


def _unknown(code: ReasonCode, text: str) -> tuple[Verdict, Reason]:
    return Verdict.UNKNOWN, Reason(code, text)
