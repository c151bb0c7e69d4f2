"""How the ranks decide together: every rank contributes its wish to one small all-reduce, and all act on the result.

With several ranks the wishes of a step are read after the next step, so no rank waits for another; a single process
reads them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.run.policy import Action
from holdfast.run.ranks import Exchange, Ranks

__all__ = ["Agreed", "Agreement", "Wish"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What one rank asks for after a step.

    Attributes:
        signal: the preemption signal it received, 0 for none.
        ends: its time is up.
        saves: a checkpoint is due by the clock.
        action: the strongest action that its own findings ask for.
        seconds: the step's time up to the point where it may have waited for other ranks.
    """

    signal: int = 0
    ends: bool = False
    saves: bool = False
    action: Action = Action.LOG
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks do.

    Attributes:
        signal: a preemption signal any rank received, 0 for none.
        ends: rank 0's time is up.
        saves: rank 0's clock asks for a checkpoint.
        action: the strongest action that any rank's findings ask for.
        seconds: every rank's own time for the step.
    """

    signal: int
    ends: bool
    saves: bool
    action: Action
    seconds: tuple[float, ...]


class Agreement:
    """The exchange of wishes between the ranks.

    Args:
        ranks: the processes of the run.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._under_way: Exchange | None = None

    def reach(self, wish: Wish) -> Agreed | None:
        """Submit this step's wish; return the agreement for the previous step (for this one in a single process)."""
        row = (float(wish.signal), float(wish.ends), float(wish.saves), float(wish.action), wish.seconds)
        if self._ranks.world == 1:
            return _agreed([row])
        before, self._under_way = self._under_way, self._ranks.exchange(row)
        return None if before is None else _agreed(before.rows())

    def drain(self) -> Agreed | None:
        """Return the agreement for the last step, when no more steps follow."""
        last, self._under_way = self._under_way, None
        return None if last is None else _agreed(last.rows())

    def gather(self, own: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the records of all ranks, in rank order."""
        return [entry for entries in self._ranks.each(own) for entry in entries]


def _agreed(rows: Any) -> Agreed:
    return Agreed(
        signal=int(max(row[0] for row in rows)),
        ends=bool(rows[0][1]),
        saves=bool(rows[0][2]),
        action=Action(int(max(row[3] for row in rows))),
        seconds=tuple(row[4] for row in rows),
    )
