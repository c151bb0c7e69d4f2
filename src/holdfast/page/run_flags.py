"""The findings of a run as flags: what the monitor recorded, with what blame and proof have found."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from holdfast.debug.reporting.words import clean
from holdfast.page.from_report import MIN_SHOWN_CONFIDENCE
from holdfast.page.model import Cause, Chart, Flag, Line, Suspect
from holdfast.run.investigations import Investigation

__all__ = ["recorded_flag", "with_investigations"]

MAX_DISTANCE = 16
"""Maximum number of steps between a finding's onset and an investigated step for them to belong together."""
MAX_SUSPECTS = 20
PROGRAM = "train.py:build"
"""Placeholder for the user's program in commands to copy."""


def recorded_flag(record: Mapping[str, Any]) -> Flag:
    """Return a finding that the run's monitor recorded."""
    steps = {name: _finite(record.get(name)) for name in ("onset", "certain_step", "last_step")}
    return Flag(
        title=clean(record.get("title") or record.get("failure") or "finding"),
        severity=str(record.get("severity", "info")),
        onset=steps["onset"],
        certain=steps["certain_step"],
        last=steps["last_step"],
        signal=clean(record.get("signal") or ""),
        confidence=_finite(record.get("confidence")) or 0.0,
        evidence=tuple(clean(text) for text in record.get("evidence") or ()),
        causes=tuple(_causes(record.get("causes") or ())),
        advice=clean(record.get("advice") or ""),
    )


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _causes(records: Any) -> Iterator[Cause]:
    for cause in records:
        confidence = _finite(cause.get("confidence")) or 0.0
        if confidence >= MIN_SHOWN_CONFIDENCE:
            yield Cause(
                clean(str(cause.get("cause", "")).replace("_", " ")),
                confidence,
                clean(cause.get("remediation") or ""),
                tuple(clean(text) for text in cause.get("evidence_for") or ()),
                tuple(clean(text) for text in cause.get("evidence_against") or ()),
            )


def with_investigations(flag: Flag, found: Sequence[Investigation], run: str) -> Flag:
    """Return the flag with suspects, the curves of the proof and the command to run next."""
    if flag.onset is None:
        return flag
    near = [each for each in found if abs(each.step - flag.onset) <= MAX_DISTANCE]
    near.sort(key=lambda each: abs(each.step - (flag.onset or 0)))
    blame = next((each for each in near if each.kind == "blame"), None)
    proof = next((each for each in near if each.kind == "proof"), None)
    listed = _suspects(proof.result.get("suspects") if proof else None)
    listed = listed or _suspects(blame.result.get("ranked") if blame else None)
    if proof is None:
        command = f"holdfast prove {shlex.quote(run)} --step {flag.onset:.0f} --program {PROGRAM}"
        return replace(flag, suspects=listed, command=command)
    verdict, reason = clean(proof.result.get("verdict", "")), clean(proof.result.get("reason", ""))
    return replace(
        flag,
        suspects=listed,
        proof=_curves(proof.result),
        proof_verdict=f"{verdict}: {reason}" if reason else verdict,
        command=clean(proof.result.get("cure") or _again(run, proof)),
    )


def _again(run: str, proof: Investigation) -> str:
    first, stop = proof.result.get("window") or (proof.step, proof.step + 1)
    return f"holdfast replay {shlex.quote(run)} --steps {first}:{stop} --program {PROGRAM}"


def _suspects(records: Any) -> tuple[Suspect, ...]:
    return tuple(
        Suspect(
            clean(record.get("source", "")),
            int(record.get("index", 0)),
            float(np.nan_to_num(record.get("score") or 0.0)),
            clean(" · ".join(f"{name}: {text}" for name, text in (record.get("preview") or {}).items())),
        )
        for record in (records or ())[:MAX_SUSPECTS]
    )


def _curves(result: Mapping[str, Any]) -> Chart | None:
    """Return the actual losses, those without the suspects, and those without as many random samples."""
    steps = np.array(result.get("steps") or (), dtype=np.float64)
    named = [("as it was", result.get("as_it_was")), ("without the suspects", result.get("without_suspects"))]
    draws = result.get("without_random") or ()
    named += [(f"without random samples, draw {number}", draw) for number, draw in enumerate(draws, start=1)]
    lines = [
        Line(name, steps[: len(values)], np.array(values, dtype=np.float64), faded=name.startswith("without random"))
        for name, values in named
        if values
    ]
    return Chart("Loss of the repeated steps", tuple(lines)) if lines and len(steps) else None
