"""Calibrated confidences: raw scores go through a table fitted on labelled runs.

The table maps a raw confidence to how often such a claim was right. It is piecewise linear and never decreases.
``holdfast calibrate`` fits one from your own labelled runs; the shipped tables come from the tuning half of the fault
lab, once with its complete logs and once with only the loss.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import ConfigError
from holdfast.versioned import Format

__all__ = ["Calibration", "expected_calibration_error", "fit_table"]

Table = tuple[tuple[float, float], ...]
IDENTITY: Table = ((0.0, 0.0), (1.0, 1.0))
# About a hundred labelled runs cannot support a higher confidence than this, however clear a case looks.
MAX_CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True)
class Calibration:
    """Tables for findings (does the failure exist?), for causes by the rules, and for causes by the ranker.

    At the same raw share, a cause is right less often if the log contains little besides the loss. There are therefore
    two tables for causes ranked by the rules: ``causes`` for logs with every witness and ``unwitnessed`` for logs with
    none. In between, the two are interpolated. A calibration without the second table uses the first for every log.
    """

    findings: Table = IDENTITY
    causes: Table = IDENTITY
    learned: Table = IDENTITY
    unwitnessed: Table | None = None

    def finding(self, raw: float) -> float:
        """Return the calibrated confidence of a finding, given a detector's raw confidence."""
        return _look_up(self.findings, raw)

    def cause(self, raw: float, *, method: str = "rules", known: float = 1.0) -> float:
        """Return the calibrated confidence of a cause, given its raw share.

        Args:
            raw: the share given by the rules or the learned ranker.
            method: which of the two.
            known: the fraction of the witnesses that were logged, from 0 to 1.
        """
        if method == "learned":
            return _look_up(self.learned, raw)
        bare = self.causes if self.unwitnessed is None else self.unwitnessed
        return known * _look_up(self.causes, raw) + (1.0 - known) * _look_up(bare, raw)

    def as_json(self) -> dict[str, Any]:
        """Return the tables in the form in which they are stored."""
        return STORED.to_json(_Stored(self.findings, self.causes, self.learned, self.unwitnessed))

    @classmethod
    def load(cls, path: Path | None = None) -> Calibration:
        """Read the table that ships with holdfast, or one made by ``holdfast calibrate``.

        Raises:
            ConfigError: the file is not a calibration table.
        """
        try:
            if path is None:
                text = resources.files(__package__).joinpath("calibration.json").read_text("utf-8")
            else:
                text = path.read_text(encoding="utf-8")
            return cls.from_json(json.loads(text))
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"not a calibration table: {error}", file=str(path), hint="make one with `holdfast calibrate`"
            ) from error

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Calibration:
        """Build the tables from the output of ``as_json``.

        Raises:
            ConfigError: the tables are missing or invalid, or were written by a newer release.
        """
        stored = STORED.from_json(body)
        return cls(stored.findings, stored.causes, stored.learned, stored.unwitnessed)

    def raw_finding(self, confidence: float) -> float:
        """Return the raw confidence behind a finding's calibrated one.

        Where several raw confidences give it, or come equally close, their median is returned.
        """
        return _look_back(self.findings, confidence)

    def raw_cause(self, confidence: float, *, method: str = "rules") -> float:
        """Return the raw share behind a cause's calibrated confidence."""
        return _look_back(self.learned if method == "learned" else self.causes, confidence)


@dataclass(frozen=True, slots=True)
class _Stored:
    """The stored form of the tables."""

    findings: Table
    causes: Table
    learned: Table
    unwitnessed: Table | None = None

    def __post_init__(self) -> None:
        for table in (self.findings, self.causes, self.learned, self.unwitnessed or IDENTITY):
            if len(table) < 2 or any(not 0 <= share <= 1 for _, share in table):
                raise ValueError("a table needs at least two points with shares between 0 and 1")
            if any(b[0] <= a[0] or b[1] < a[1] for a, b in itertools.pairwise(table)):
                raise ValueError("the points of a table must increase")


STORED = Format("calibration table", _Stored, error=ConfigError, version_error=ConfigError)


def _look_up(table: Table, raw: float) -> float:
    share = float(np.interp(raw, [point[0] for point in table], [point[1] for point in table]))
    return min(share, MAX_CONFIDENCE)


def _look_back(table: Table, share: float) -> float:
    raw = np.linspace(0.0, 1.0, 1001)
    gaps = np.abs(np.array([_look_up(table, value) for value in raw.tolist()]) - share)
    return float(raw[gaps <= gaps.min() + 1e-9].mean())


def fit_table(raw: Sequence[float], right: Sequence[bool], *, points: int = 8, prior: float = 2.0) -> Table:
    """Fit an increasing table from bins of equal count, each pulled towards its raw value by a few pseudo-samples.

    >>> fit_table([0.9] * 100, [True] * 80 + [False] * 20)[-1][1] < 0.9
    True
    """
    order = np.argsort(np.asarray(raw, dtype=np.float64), kind="stable")
    scores, hits = np.asarray(raw, dtype=np.float64)[order], np.asarray(right, dtype=np.float64)[order]
    knots: list[tuple[float, float]] = []
    for part in np.array_split(np.arange(len(scores)), max(1, min(points, len(scores) // 8))):
        if len(part):
            center = float(scores[part].mean())
            knots.append((center, (float(hits[part].sum()) + prior * center) / (len(part) + prior)))
    # Pool neighbouring bins that decrease, so that a higher raw score never means a lower confidence.
    merged: list[list[float]] = []
    for center, share in knots:
        merged.append([center, share, 1.0])
        while len(merged) > 1 and (merged[-2][1] > merged[-1][1] or merged[-1][0] - merged[-2][0] < 1e-6):
            (c1, s1, n1), (c2, s2, n2) = merged[-2], merged[-1]
            merged[-2:] = [[(c1 * n1 + c2 * n2) / (n1 + n2), (s1 * n1 + s2 * n2) / (n1 + n2), n1 + n2]]
    inner = [(round(c, 6), round(s, 6)) for c, s, _ in merged]
    # No claim was less sure than the lowest bin: below it, the confidence falls to zero.
    low = (0.0, 0.0) if inner and inner[0][0] > 0 else None
    high = (1.0, inner[-1][1]) if inner and inner[-1][0] < 1 else None
    table = tuple(point for point in (low, *inner, high) if point is not None)
    return table if len(table) >= 2 else ((0.0, 0.0), (1.0, 1.0))


def expected_calibration_error(confidences: Sequence[float], right: Sequence[bool], *, bins: int = 10) -> float:
    """Return the mean gap between confidence and accuracy over equal-width bins, weighted by the count in each."""
    scores, hits = np.asarray(confidences, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if len(scores) == 0:
        return 0.0
    where = np.minimum((scores * bins).astype(np.int64), bins - 1)
    gaps = [
        abs(scores[where == b].mean() - hits[where == b].mean()) * np.sum(where == b)
        for b in range(bins)
        if np.any(where == b)
    ]
    return float(sum(gaps) / len(scores))
