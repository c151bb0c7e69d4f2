"""The monitor: the debugger's detectors on the live series, and a comparison of the ranks."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors import DistributedDesyncDetector, StragglerDetector
from holdfast.debug.online import OnlineDebugger
from holdfast.debug.types import Detection, DetectionContext, Severity, Signal
from holdfast.run.findings import describe, key_of
from holdfast.run.glance import Glance

__all__ = ["Monitor", "RankComparison"]


MAX_LOOK_SHARE = 1e-3
"""The share of a step's time that the detectors may take on average …"""
MIN_LOOK_SECONDS = 3e-6
"""… except for steps so short that they would hardly ever be examined."""
CONFIRM_STEPS = 4
"""A rising gradient norm must still be high this many steps later: in a healthy run it falls (``run_healthy``)."""
BUDGET_EVERY = 32
"""Steps after which the detectors' time is budgeted again."""
MAX_WAITING = 4
"""Steps that may wait to be examined together while nothing stands out: code that runs after a step finds the
processor's caches cold, and takes ten times as long as when it is run repeatedly (``bench/run.py``)."""


class Monitor:
    """The monitor of one rank's own series. Its state is part of the checkpoint.

    Args:
        debugger: the detectors.
        rank: the rank whose series these are.
    """

    def __init__(self, debugger: OnlineDebugger, *, rank: int = 0) -> None:
        self._debugger = debugger
        self._glance = Glance()
        self._reported: dict[tuple[str, str | None, int | None], int] = {}
        self._unconfirmed: dict[tuple[str, str | None, int | None], int] = {}
        self._most = debugger.options.budget_seconds
        self._timed, self._timed_steps = 0.0, 0
        self._last_step = 0
        self._waiting: list[tuple[int, Mapping[str, float], Mapping[str, float], bool]] = []
        self._room = 0
        self._loss_bound = self._norm_bound = -math.inf
        self.rank = rank

    @property
    def detectors(self) -> tuple[BaseDetector, ...]:
        """The detectors that examine the series."""
        return self._debugger.detectors

    def take(
        self, step: int, numbers: Mapping[str, float], times: Mapping[str, float], redone: bool = False
    ) -> Sequence[dict[str, Any]]:
        """Take one step's numbers and times, now or a few steps later; return new findings.

        A step waits only while all its numbers are finite and neither its loss nor its gradient norm is far enough out
        to be examined.
        """
        waiting = self._waiting
        waiting.append((step, numbers, times, redone))
        if len(waiting) < self._room and numbers.get("loss", 0.0) <= self._loss_bound:
            total = sum(numbers.values())
            if total - total == 0.0 and numbers.get("grad_norm", 0.0) <= self._norm_bound:
                return ()
        return self.flush()

    def flush(self) -> list[dict[str, Any]]:
        """Take the waiting steps; return new findings."""
        waiting, self._waiting = self._waiting, []
        found = [{**finding, "found_at": waiting[-1][0]} for step in waiting for finding in self.update(*step)]
        watched = self._debugger.norm_bounds
        # Close to an alarm every step counts, and ``take`` does not look for norms of other names.
        is_quiet = not self._glance.is_awake and not self._unconfirmed and watched.keys() <= {"grad_norm"}
        self._room = MAX_WAITING if is_quiet else 0
        self._loss_bound, self._norm_bound = self._glance.bound, watched.get("grad_norm", math.inf)
        return found

    def update(
        self, step: int, numbers: Mapping[str, float], times: Mapping[str, float], redone: bool = False
    ) -> list[dict[str, Any]]:
        """Take one step's numbers and times; return new findings.

        The times of redone steps are not used: a restart warms up again.
        """
        values = {**numbers}
        if "data_time" in times:
            values["data_time"] = times["data_time"]
        if not redone and "step_time" in times:
            values["step_time"] = taken = times["step_time"]
            self._timed += taken
            self._timed_steps += 1
            if self._timed_steps == BUDGET_EVERY:
                self._measure_out()
        self._last_step = step
        found = self._debugger.update(step, values)
        if "loss" in numbers and self._glance.wants_look(numbers["loss"]):
            return self._look(step)
        if found or (self._unconfirmed and step - max(self._unconfirmed.values()) >= CONFIRM_STEPS):
            return self._look(step)
        return []

    def _measure_out(self) -> None:
        """Set the detectors' time budget to their share of the steps' time, and at most to what the debugger allows."""
        share = MAX_LOOK_SHARE * self._timed / self._timed_steps
        budget = min(self._most, max(MIN_LOOK_SECONDS, share))
        self._debugger.options = replace(self._debugger.options, budget_seconds=budget)
        self._timed, self._timed_steps = 0.0, 0

    def last_look(self) -> list[dict[str, Any]]:
        """Look again after the last step; return new findings."""
        found = self.flush()
        self._unconfirmed = dict.fromkeys(self._unconfirmed, self._last_step - CONFIRM_STEPS)
        return found + self._look(self._last_step)

    def _look(self, step: int) -> list[dict[str, Any]]:
        """Run the detectors and explain what they find; return what was not reported yet."""
        began = time.thread_time()
        held = self._debugger.findings()
        self._glance.paid(time.thread_time() - began)
        fresh = []
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        for finding in held:
            described = describe(finding.detection, rank=self.rank, step=step, causes=finding.causes)
            key = key_of(described)
            if described["onset"] <= self._reported.get(key, -1):
                continue
            first = unconfirmed.get(key, step)
            if _may_pass(finding.detection) and step - first < CONFIRM_STEPS:
                self._unconfirmed[key] = first
                continue
            self._reported[key] = step
            fresh.append(described)
        return fresh

    def state_dict(self) -> dict[str, Any]:
        """Return what was seen so far; no step may be waiting."""
        reported = [[*key, step] for key, step in self._reported.items()]
        return {"debugger": self._debugger.state_dict(), "reported": reported}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what was seen up to a checkpoint."""
        self._debugger.load_state_dict(state["debugger"])
        self._reported = {(failure, layer, rank): step for failure, layer, rank, step in state["reported"]}
        self._glance = Glance()
        self._waiting, self._room = [], 0


def _may_pass(detection: Detection) -> bool:
    """Return whether a finding is based only on a rising gradient norm, so far."""
    return detection.severity is Severity.WARNING and (detection.signal or "").startswith("grad_norm")


# A rank that is later than the others by less than this delays nobody, however large the ratio.
MIN_LATE_SECONDS = 1e-3


class RankComparison:
    """Rank 0's comparison of all ranks: which are slow, and whose parameters differ.

    Args:
        world: the number of ranks.
        window: the number of steps that are compared.
        least: steps before the first comparison; on a busy machine fewer would not be enough.
        every: steps between comparisons.
    """

    def __init__(self, world: int, *, window: int = 96, least: int = 48, every: int = 16) -> None:
        self._least = least
        self._world = world
        self._every = every
        self._times: deque[tuple[int, tuple[float, ...]]] = deque(maxlen=window)
        self._seen: set[tuple[str, int | None]] = set()
        self._straggler = StragglerDetector()
        self._desync = DistributedDesyncDetector()

    def add_times(self, step: int, seconds: tuple[float, ...]) -> list[dict[str, Any]]:
        """Take every rank's own time for a step; return stragglers that were not named before."""
        if self._world < 2:
            return []
        self._times.append((step, seconds))
        if len(self._times) < self._least or step % self._every:
            return []
        steps = np.array([at for at, _ in self._times], dtype=np.float64)
        signals = [
            Signal(
                "step_time",
                steps,
                np.array([row[rank] for _, row in self._times]),
                replica=rank,
                metadata={"kind": "step_time"},
            )
            for rank in range(self._world)
        ]
        slow = self._straggler.detect(signals, DetectionContext(live=True)).detections
        usual = float(np.median([signal.values for signal in signals]))
        late = {rank: float(np.median(signal.values)) - usual for rank, signal in enumerate(signals)}
        return self._new([found for found in slow if late[found.replica or 0] >= MIN_LATE_SECONDS], step)

    def add_hashes(self, step: int, hashes: Sequence[int]) -> list[dict[str, Any]]:
        """Take every rank's hash of the parameters that all should share; return a finding if they differ."""
        if len(set(hashes)) < 2:
            return []
        signals = [
            Signal(
                "param_hash",
                np.array([0.0, float(step)]),
                np.array([0.0, 1.0 + sorted(set(hashes)).index(value)]),
                layer="parameters",
                replica=rank,
                metadata={"kind": "param_hash"},
            )
            for rank, value in enumerate(hashes)
        ]
        return self._new(self._desync.detect(signals, DetectionContext(live=True)).detections, step)

    def _new(self, detections: Sequence[Detection], step: int) -> list[dict[str, Any]]:
        fresh = []
        for detection in detections:
            key = (detection.failure.name, detection.replica)
            if key not in self._seen:
                self._seen.add(key)
                fresh.append(describe(detection, rank=0, step=step))
        return fresh
