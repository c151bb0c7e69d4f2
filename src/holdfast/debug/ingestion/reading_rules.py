"""What reading decides: where a run ends and another begins, what ends a job, and which lines of a text are rows.

Reachable as ``reading.restarts``, ``reading.ending`` and ``reading.text`` in a set of thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EndingRule", "RestartRule", "TextRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRule:
    """When a counter that goes back begins another run."""

    near_start_share: float = 0.02
    """The share of a stretch within which a counter is back at its start: runs log their first step or their tenth."""
    level_rows: int = 5
    """Rows whose median is a loss level: one row is a batch's luck."""
    minimum_fall_noises: float = 4.0
    """A loss has visibly moved when it moved by this many times the median distance of neighbouring rows …"""
    minimum_fall_share: float = 0.05
    """… and by this share of its first level."""
    alike_share: float = 0.25
    """Stretches whose lengths differ by less than this share may be passes over the same data."""
    minimum_rows_per_run: float = 2.0
    """Where the runs found are shorter than this on average, the counter does not count what it seems to."""
    minimum_rounds: int = 8
    """Stretches of one length from which they may be rounds of one run …"""
    goes_on_share: float = 0.8
    """… where this share of them begins nearer to the end of the one before than to the beginning of the first."""
    settings_again: int = 3
    """Settings that must be printed again before it counts as the start of another run."""
    clock_jump_seconds: float = 3600.0
    """A pause between two rows that no evaluation or checkpoint explains."""
    opening_characters: int = 8
    """Letters from which the first line of a text, printed again, may say that its program was started again."""
    alike_launches: float = 0.5
    """The share of the stretches between such lines that may be equally long: those of an epoch are, runs seldom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingRule:
    """When an error that a text quotes was the end of its job."""

    unplaced_rows: int = 3
    """Rows without a step after an error, or lines of bare numbers, that say together that training goes on."""
    lines_after: int = 60
    """Lines after the last sign of a crash in a text without training, a long traceback's own ones included …"""
    share_after: float = 0.1
    """… or this share of the text: a program that prints more than that went on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRule:
    """Which lines of free text are rows."""

    covered: float = 0.5
    """The share of a line without a counter that must be named numbers: prose has a number here and there."""
    covered_beside_counter: float = 0.12
    """The share of a line with a counter: little is enough, but a paragraph is not a row."""
    covered_lost: float = 0.25
    """The same where a number is lost: "WARNING: Loss is NaN, skipping batch" is worth reading."""
    sure_share: float = 0.5
    """What of that share is enough where a number is lost ("nan" is half as long as "0.5217") or the counter has its
    total, as on a progress bar, which is long whatever it tells."""
