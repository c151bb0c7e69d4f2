"""What a leased job is: a range of positions of one order, cut into chunks. Every worker of a job must say the same.

The first worker writes the job down; the others compare. What was finished on an earlier store is part of it, so that
all workers agree on that too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.coordinate.progress import Progress
from holdfast.coordinate.records import KeyValue
from holdfast.errors import CoordinationError

__all__ = ["LeasedJob"]

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A job's definition.

    Attributes:
        name: of the job, in the store.
        order: the fingerprint of the dataset's order.
        positions: what is read.
        chunk_size: positions a chunk; the last one may be shorter.
    """

    name: str
    order: str
    positions: range
    chunk_size: int

    @property
    def chunks(self) -> int:
        """How many there are."""
        return -(-len(self.positions) // self.chunk_size)

    def positions_of(self, chunk: int) -> NDArray[np.int64]:
        """Return the positions of a chunk."""
        first = self.positions.start + chunk * self.chunk_size
        return np.arange(first, min(first + self.chunk_size, self.positions.stop), dtype=np.int64)

    def agree(self, store: KeyValue, state: Mapping[str, Any] | None) -> list[tuple[int, int]]:
        """Write down what the job is, or check that the one written down is the same; return what was finished."""
        if state is not None:
            self._refuse_difference(state, "the state")
        finished = [] if state is None else [list(run) for run in state["finished"]]
        wanted = json.dumps({**self._definition(), "finished": finished}, sort_keys=True).encode()
        found = json.loads(store.compare_set("job", b"", wanted))
        self._refuse_difference(found, "the other workers' job")
        return [(start, stop) for start, stop in found["finished"]]

    def state(self, done: Progress) -> dict[str, Any]:
        """Return the job with the chunks that are finished, as runs: plain JSON."""
        runs: list[list[int]] = []
        for chunk in range(self.chunks):
            if chunk not in done:
                continue
            if runs and runs[-1][1] == chunk:
                runs[-1][1] = chunk + 1
            else:
                runs.append([chunk, chunk + 1])
        return {**self._definition(), "finished": runs}

    def _definition(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "order": self.order,
            "positions": [self.positions.start, self.positions.stop],
            "chunk_size": self.chunk_size,
        }

    def _refuse_difference(self, other: Mapping[str, Any], what: str) -> None:
        here = self._definition()
        different = [key for key, value in here.items() if other.get(key) != value]
        if different:
            raise CoordinationError(
                f"this job is not that of {what}: {', '.join(different)} differ",
                job=self.name,
                here={key: here[key] for key in different},
                there={key: other.get(key) for key in different},
                hint="give every worker the same dataset, positions and chunk_size, or the job another name",
            )
