"""How the ranks decide together: every rank says what it wishes, one small all-reduce later all do the same.

With several ranks the wishes of a step are read when the next step is done, so nobody waits for anybody; alone they
are read at once.
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
    """What one rank wishes after a step.

    Attributes:
        signal: the preemption signal it received, 0 for none.
        ends: the time is up.
        saves: a checkpoint is due by the clock.
        action: the most its own findings ask for.
        seconds: the step's time up to where it may have waited for other ranks.
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
        action: the highest any rank's findings ask for.
        seconds: every rank's own time of the step.
    """

    signal: int
    ends: bool
    saves: bool
    action: Action
    seconds: tuple[float, ...]


class Agreement:
    """Exchanges wishes between the ranks.

    Args:
        ranks: the processes of the run.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._under_way: Exchange | None = None

    def reach(self, wish: Wish) -> Agreed | None:
        """Give this step's wish; returns what was agreed on the step before (alone: on this one)."""
        row = (float(wish.signal), float(wish.ends), float(wish.saves), float(wish.action), wish.seconds)
        if self._ranks.world == 1:
            return _agreed([row])
        before, self._under_way = self._under_way, self._ranks.exchange(row)
        return None if before is None else _agreed(before.rows())

    def drain(self) -> Agreed | None:
        """Return what is agreed on the last step, once nothing more follows."""
        last, self._under_way = self._under_way, None
        return None if last is None else _agreed(last.rows())

    def gather(self, own: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return what every rank has to say, in the order of the ranks."""
        return [entry for entries in self._ranks.each(own) for entry in entries]


def _agreed(rows: Any) -> Agreed:
    return Agreed(
        signal=int(max(row[0] for row in rows)),
        ends=bool(rows[0][1]),
        saves=bool(rows[0][2]),
        action=Action(int(max(row[3] for row in rows))),
        seconds=tuple(row[4] for row in rows),
    )
