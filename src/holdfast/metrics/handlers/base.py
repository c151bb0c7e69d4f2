"""The interface of a metric handler: six small methods over a mergeable state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from numpy.typing import NDArray

State = TypeVar("State")

#: A reported figure.
Scalar: TypeAlias = int | float


class MetricHandler(ABC, Generic[State]):
    """Aggregates one kind of metric.

    States are values: ``update`` and ``merge`` return a new one. However the values are split over ranks and restarts,
    the merged state should be the state of all values together, so that a resumed run reports the same figures.
    """

    #: True: ``update`` gets finite numbers only, as float64 or int64 arrays or as object arrays of Python integers, and
    #: the aggregator counts NaN and infinities separately. False: ``update`` gets the values unchanged.
    numeric: ClassVar[bool] = True
    #: The minimum batch for ``update``: numbers wait in their arrays until there are this many, or a figure is
    #: requested. Small batches stay in the processor's cache; a handler that sorts or searches prefers larger ones.
    min_update_values: ClassVar[int] = 1 << 13

    @abstractmethod
    def init(self) -> State:
        """Return the empty state."""

    @abstractmethod
    def update(self, state: State, values: NDArray[Any]) -> State:
        """Return the state with an array of values added."""

    @abstractmethod
    def merge(self, states: Sequence[State]) -> State:
        """Return the state of all the states' values together; at least one state is given."""

    @abstractmethod
    def finalize(self, state: State) -> dict[str, Scalar]:
        """Return the figures to report, by suffix: ``""`` is the metric itself, ``"p50"`` becomes ``{metric}_p50``."""

    @abstractmethod
    def serialize(self, state: State) -> Any:
        """Return the state as JSON-friendly data."""

    @abstractmethod
    def deserialize(self, payload: Any) -> State:
        """Undo ``serialize``."""
