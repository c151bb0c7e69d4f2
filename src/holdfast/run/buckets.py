"""Where the time goes: every second of a run's wall clock falls into exactly one bucket.

A stopwatch is lapped at every change of activity, and each lap goes into one bucket, so the laps of an attempt sum to
its duration by construction. Every record of the log carries the laps since the previous record; the time between two
attempts is *down*.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

__all__ = ["BUCKETS", "OWN_TIME", "TIME_FIELDS", "Goodput", "Origin", "Stopwatch", "goodput_of"]

TIME_FIELDS: Mapping[str, str] = {
    "startup": "startup_time",
    "data": "data_time",
    "step": "step_time",
    "evaluation": "evaluation_time",
    "save": "save_time",
    "restore": "restore_time",
    "stalled": "stalled_time",
    "paused": "paused_time",
    "down": "down_time",
}
"""Bucket → the field of a record that holds its seconds since the previous record."""

OWN_TIME = "own_time"
"""The field of a step's record with the time the rank was busy before it waited for others; not a bucket."""

STALLING = frozenset(("data", "step"))
"""Buckets in which a lap that takes too long counts as a stall."""

BUCKETS = ("startup", "data", "step", "evaluation", "save", "restore", "redone", "stalled", "paused", "down")
"""Every bucket. ``redone`` is the time of steps that had already been done before a restart or rollback."""

# A process older than this did other things before the run (a notebook); its earlier life is not the run's start-up.
MAX_STARTUP_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Origin:
    """The moment an attempt began, on every available clock.

    Attributes:
        time: seconds since 1970, for people and across reboots.
        monotonic: this boot's monotonic clock, which cannot be set back.
        boot: the id of that boot.
    """

    time: float
    monotonic: float
    boot: str

    @classmethod
    def of_process(cls, not_before: float = float("-inf")) -> Origin:
        """Return when this process began, or ``not_before`` (monotonic) if that is later."""
        now, wall = time.monotonic(), time.time()
        age = min(_process_age(), now - not_before)
        age = 0.0 if age > MAX_STARTUP_SECONDS else max(0.0, age)
        return cls(wall - age, now - age, _boot_id())

    def seconds_since(self, earlier: Origin, elapsed: float) -> float:
        """Return the time between the end of an earlier attempt, ``elapsed`` after its origin, and this origin.

        Within one boot the monotonic clock is used; the wall clock is used only across boots, and never if it was set
        back.
        """
        if self.boot == earlier.boot:
            return max(0.0, self.monotonic - (earlier.monotonic + elapsed))
        return max(0.0, self.time - (earlier.time + elapsed))


def _process_age() -> float:
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[19])  # field 22 of the line: when the process started, in ticks since boot
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Stopwatch:
    """A stopwatch that divides an attempt's time into laps.

    Args:
        began: when the attempt began, on the monotonic clock.
        stall_after: a lap of ``data`` or ``step`` longer than this counts as *stalled*, except for the usual time.

    Attributes:
        mark: when the last lap ended, on the monotonic clock.
    """

    __slots__ = ("_began", "_data", "_spent", "_stall_after", "_step", "_usual", "mark")

    def __init__(self, began: float, *, stall_after: float) -> None:
        self._began = self.mark = began
        self._stall_after = stall_after
        self._data = self._step = 0.0  # the two buckets that every step uses
        self._spent: dict[str, float] = {}  # all others, by their field
        self._usual: dict[str, float] = {}  # the times at the last ``take`` without a stall

    def lap(self, bucket: str) -> None:
        """Count the time since the last lap in this bucket."""
        now = monotonic()
        seconds = now - self.mark
        self.mark = now
        if seconds > self._stall_after and bucket in STALLING:
            seconds = self._cut_stall(seconds, TIME_FIELDS[bucket])
        if bucket == "step":
            self._step += seconds
        elif bucket == "data":
            self._data += seconds
        else:
            self._add(TIME_FIELDS[bucket], seconds)

    def _cut_stall(self, seconds: float, name: str) -> float:
        """Count the time of a lap beyond the usual as stalled; return the usual time."""
        usual = min(seconds, self._usual.get(name, 0.0))
        self._add("stalled_time", seconds - usual)
        return usual

    def _add(self, name: str, seconds: float) -> None:
        self._spent[name] = self._spent.get(name, 0.0) + seconds

    def take(self) -> tuple[dict[str, float], float]:
        """Return the laps since the last call by their field, and the attempt's age at the last lap."""
        spent = {"data_time": self._data, "step_time": self._step}
        if self._spent or not self._data or not self._step:
            spent = {name: seconds for name, seconds in spent.items() if seconds} | self._spent
            self._spent = {}
        self._data = self._step = 0.0
        if "stalled_time" not in spent:
            self._usual = spent
        return spent, self.mark - self._began

    @property
    def elapsed(self) -> float:
        """Seconds since the attempt began."""
        return time.monotonic() - self._began


@dataclass(frozen=True, slots=True)
class Goodput:
    """Where a run's time went.

    Attributes:
        seconds: by bucket; see ``BUCKETS``.
        attempts: how often the run was started.
    """

    seconds: Mapping[str, float]
    attempts: int

    @property
    def total(self) -> float:
        """The wall clock from the first start to the last record."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """The share of the wall clock spent on steps that were kept, including the wait for their data."""
        useful = self.seconds["step"] + self.seconds["data"]
        return useful / self.total if self.total else 0.0


def goodput_of(records: Iterable[Mapping[str, Any]]) -> Goodput:
    """Add up one rank's records."""
    seconds = dict.fromkeys(BUCKETS, 0.0)
    attempts = 0
    for record in records:
        if record.get("holdfast") is not None:
            attempts += record.get("part") == 0
            continue
        redone = bool(record.get("redone"))
        for bucket, name in TIME_FIELDS.items():
            spent = record.get(name)
            if spent is not None:
                seconds["redone" if redone and bucket in ("data", "step") else bucket] += spent
    return Goodput(seconds, attempts)
