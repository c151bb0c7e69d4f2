"""The stream state: the little that must be remembered to go on exactly, as plain JSON.

It holds the order's description (names, lengths, seeds, weights, digests; no data), the list of segments, the skips and
the step. Its size does not depend on the number of samples or ranks. It is the same on every rank but for the rank
itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.errors import HoldfastError, StateError, StateVersionError
from holdfast.order import Order, Partition, Schedule

__all__ = ["STATE_VERSION", "CheckpointState"]

STATE_VERSION = 1

_KINDS: dict[str, type | tuple[type, ...]] = {
    "step": int,
    "epoch": int,
    "position": int,
    "shuffle_seed": int,
    "rank": int,
    "world_size": int,
    "timestamp": (int, float),
    "order": dict,
    "fingerprint": str,
    "segments": list,
    "skips": list,
    "epochs": (int, type(None)),
    "sources": dict,
    "samples_failed": list,
}
_COUNTS = frozenset(("step", "epoch", "position", "rank", "world_size"))
_DEFAULTS: dict[str, Any] = {"sources": {}, "samples_failed": []}
_DAMAGED = "it was changed after it was saved; take an earlier one"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """Where a stream stands.

    Attributes:
        step: batches delivered so far; the next is this one.
        epoch: the stream's epoch at that point.
        position: positions of the stream that lie behind.
        shuffle_seed: the stream's seed.
        rank: who saved it.
        world_size: the number of data-parallel ranks then.
        timestamp: when, in seconds since 1970 (for people; nothing is computed from it).
        order: the order's JSON form.
        fingerprint: of the order.
        segments: every stretch of the run with its topology, so that past steps stay addressable.
        skips: what was left out, in the order it was decided.
        epochs: how many epochs the stream has; None for no end.
        sources: a fingerprint of each source's data.
        samples_failed: (source, index) of samples left out because they failed.
        version: of this format.
    """

    step: int
    epoch: int
    position: int
    shuffle_seed: int
    rank: int
    world_size: int
    timestamp: float
    order: dict[str, Any]
    fingerprint: str
    segments: list[list[Any]]
    skips: list[dict[str, Any]]
    epochs: int | None = None
    sources: dict[str, str] = field(default_factory=dict)
    samples_failed: list[list[Any]] = field(default_factory=list)
    version: int = STATE_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CheckpointState:
        """Read what ``to_json`` wrote; a newer version or a foreign value is refused."""
        version = value.get("version") if isinstance(value, Mapping) else None
        if not isinstance(version, int):
            raise StateError("this is not a stream state", found=type(value).__name__)
        if version > STATE_VERSION:
            raise StateVersionError(
                "the state was made by a newer holdfast", version=version, known=STATE_VERSION, hint="upgrade holdfast"
            )
        known = set(cls.__dataclass_fields__)
        missing = sorted(known - set(value) - {"epochs", "sources", "samples_failed", "version"})
        if missing:
            raise StateError("the stream state lacks some fields", missing=missing)
        for name, allowed in _KINDS.items():
            entry: Any = value.get(name, _DEFAULTS.get(name))
            sound = isinstance(entry, allowed) and not isinstance(entry, bool)
            if not sound or (name in _COUNTS and value[name] < 0):
                raise StateError(
                    "a field of the stream state makes no sense", field=name, found=f"{entry!r}"[:80], hint=_DAMAGED
                )
        return cls(**{name: entry for name, entry in value.items() if name in known})

    def rebuild(self, partition: Partition | None = None) -> Schedule:
        """Return the schedule this state describes, from the state alone (and labels or keys where it needs them)."""
        try:
            order = Order.from_json(self.order, partition=partition)
            return Schedule.from_json(order, {"segments": self.segments, "skips": self.skips, "epochs": self.epochs})
        except HoldfastError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"the stream state is damaged: {error!r}", hint=_DAMAGED) from error
