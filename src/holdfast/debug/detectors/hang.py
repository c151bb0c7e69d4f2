"""Ranks that stopped entering collectives, read from the flight recorder.

In every process group the ranks count their collectives. When a job hangs, most ranks wait in a collective that another
rank has not entered. A rank that lags in a group and waits for no other rank is the cause; one that lags because it is
itself stuck behind another group's collective is a victim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.evidence import CERTAIN, FAIR
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Evidence, Failure, Severity, Signal

__all__ = ["HangDetector"]


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far one rank got in one group."""

    enqueued: int
    completed: int

    @property
    def waits(self) -> bool:
        return self.enqueued > self.completed


@dataclass(slots=True)
class _Group:
    """One process group: its members, and how far each of them got."""

    description: str
    ranks: tuple[int, ...]
    progress: dict[int, _Progress]

    @property
    def front(self) -> int:
        return max(progress.enqueued for progress in self.progress.values())

    def laggards(self) -> frozenset[int]:
        """Return the ranks that have not entered the collective in which others already wait."""
        waiting = any(progress.waits and progress.enqueued == self.front for progress in self.progress.values())
        if not waiting:
            return frozenset()
        return frozenset(rank for rank, progress in self.progress.items() if progress.enqueued < self.front)

    def waiters(self) -> frozenset[int]:
        return frozenset(
            r for r, progress in self.progress.items() if progress.waits and progress.enqueued == self.front
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HangDetector(BaseDetector):
    """Detects the ranks that the others wait for."""

    failure: ClassVar[Failure] = Failure.HANG
    minimum_ranks: int = 2
    """Minimum number of ranks whose dumps of a group are needed for a comparison."""
    most_evidence: int = 4
    """Maximum number of groups named per rank."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "hang"

    def get_required_signals(self) -> frozenset[str]:
        """Return collectives by rank and group."""
        return frozenset(("collective",))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Compare the ranks of each group, then separate causes from victims."""
        groups = {n: g for n, g in _groups(context.events).items() if len(g.progress) >= self.minimum_ranks}
        behind = {name: group.laggards() for name, group in groups.items()}
        lagging = frozenset[int]().union(*behind.values()) if behind else frozenset()
        dumped = frozenset(rank for group in groups.values() for rank in group.progress)
        waiting = any(group.waiters() for group in groups.values())
        absent = (
            frozenset(rank for group in groups.values() for rank in group.ranks) - dumped if waiting else frozenset()
        )
        if not lagging and not absent:
            return DetectionResult(self.name)
        victims = frozenset(
            rank
            for name, group in groups.items()
            if behind[name]
            for rank in group.waiters() - behind[name]
            if rank in lagging
        )
        causes = (lagging - victims) | absent
        certain = bool(causes)
        found = [
            self._told(rank, groups, behind, absent=rank in absent, certain=certain)
            for rank in sorted(causes or lagging)
        ]
        return DetectionResult(self.name, tuple(found))

    def _told(
        self,
        rank: int,
        groups: Mapping[str, _Group],
        behind: Mapping[str, frozenset[int]],
        *,
        absent: bool,
        certain: bool,
    ) -> Detection:
        evidence: list[Evidence] = []
        for name, group in groups.items():
            if rank in behind[name]:
                own, waiting = group.progress[rank].enqueued, len(group.waiters())
                claim = (
                    f"rank {rank} never entered collective {own + 1} in which {waiting} ranks wait "
                    f"({group.description})"
                )
                numbers = {"entered": float(own), "front": float(group.front)}
                evidence.append(Evidence(f"collective/{name.split(':')[0]}", claim, numbers))
        if absent:
            evidence.append(Evidence("collective", f"rank {rank} left no dump while others wait", {}))
        return Detection(
            failure=self.failure,
            severity=Severity.CRITICAL,
            confidence=CERTAIN if certain and not absent else FAIR,
            first_step=None,
            last_step=None,
            evidence=tuple(evidence[: self.most_evidence]),
            replica=rank,
            signal="collective",
        )


def _groups(events: Sequence[Mapping[str, Any]]) -> dict[str, _Group]:
    """Collect progress by group, without point-to-point operations, which pipeline stages count differently."""
    pairwise = {e["group"] for e in events if e.get("type") == "collective" and e.get("point_to_point")}
    groups: dict[str, _Group] = {}
    for event in events:
        if event.get("type") != "collective_status" or event["group"] in pairwise:
            continue
        enqueued, completed = event.get("last_enqueued"), event.get("last_completed")
        if not isinstance(enqueued, int) or not isinstance(completed, int) or enqueued < 0:
            continue
        # Only groups in which a rank is waiting matter; if two ranks use one name for different groups, it is two
        # groups.
        ranks = tuple(event.get("group_ranks") or ())
        group = groups.setdefault(
            f"{event['group']}:{ranks}", _Group(str(event.get("group_description", "")), ranks, {})
        )
        group.progress[int(event["replica"])] = _Progress(enqueued, completed)
    return groups
