"""The definition of a leased job: a range of positions of one order, cut into chunks; the same in every worker.

A job has an identity, and a generation that is incremented each time the job begins again on a store that does not know
it. Both are part of every output's name, and the generation is part of every fencing token, so no name or token is ever
used twice.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.coordinate.pages import Pages
from holdfast.errors import CoordinationError
from holdfast.versioned import Count, Format

__all__ = ["JOB", "JobRecord", "LeasedJob", "check_same", "data_digest"]


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A job's definition.

    Attributes:
        name: the job's name in the store.
        order: the fingerprint of the dataset's order.
        positions: the positions to read.
        chunk_size: positions per chunk; the last one may be shorter.
        job: its identity, chosen at random by the worker that begins the job.
        data: the digest of the fingerprints of the sources; empty in jobs of earlier releases.
    """

    name: str
    order: str
    positions: range
    chunk_size: int
    job: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    data: str = ""

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-len(self.positions) // self.chunk_size)

    def positions_of(self, chunk: int) -> NDArray[np.int64]:
        """Return the positions of a chunk."""
        first = self.positions.start + chunk * self.chunk_size
        return np.arange(first, min(first + self.chunk_size, self.positions.stop), dtype=np.int64)

    def record(self, **more: Any) -> JobRecord:
        """Return the job as it is saved, with more of its fields."""
        positions = (self.positions.start, self.positions.stop)
        record = JobRecord(self.job, self.name, self.order, positions, self.chunk_size, data=self.data)
        return replace(record, **more)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it is saved in its folder, in the store and in a state that a user keeps.

    Attributes:
        job: its identity.
        name: its name in the store.
        order: the fingerprint of the dataset's order.
        positions: start and stop.
        chunk_size: positions per chunk.
        generation: how many times it has begun; 0 in the folder, where each generation has a folder of its own.
        mark: which of the folder's generations this is; empty for a job without a folder.
        finished: chunks that had ended before this generation, or (in a state) by now, as runs.
        pages: how many records of the store hold their results.
        results: in a saved state, the end of each chunk: one line each, on pages.
        data: the digest of the fingerprints of the sources.
        dead: how many of the chunks that had ended before were given up; their tracebacks are with the results.
    """

    job: str
    name: str
    order: str
    positions: tuple[Count, Count]
    chunk_size: Count
    generation: Count = 0
    mark: str = ""
    finished: list[tuple[Count, Count]] = field(default_factory=list)
    pages: Count = 0
    results: list[str] = field(default_factory=list)
    data: str = ""
    dead: Count = 0

    @property
    def definition(self) -> LeasedJob:
        """The job itself."""
        return LeasedJob(self.name, self.order, range(*self.positions), self.chunk_size, self.job, self.data)


def _identified(old: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a job of the first version, which had neither name nor identity nor generation nor results."""
    return {**old, "job": uuid.uuid4().hex[:8], "name": "job", "generation": 1}


def _paged(old: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a job of the second version, which had each result as a list of its own."""
    return {**old, "results": Pages(map(json.dumps, old.get("results", []))).texts()}


JOB = Format(
    "leased job",
    JobRecord,
    version=5,
    upgrades={1: _identified, 2: _paged, 3: dict, 4: dict},  # version 3 had no data, version 4 no dead
    error=CoordinationError,
    version_error=CoordinationError,
)


def data_digest(fingerprints: Mapping[str, str]) -> str:
    """Return one digest of the fingerprints of all sources, by name."""
    return hashlib.blake2b(json.dumps(sorted(fingerprints.items())).encode(), digest_size=16).hexdigest()


def check_same(
    stored: LeasedJob, *, order: str, positions: range, chunk_size: int | None, data: str, where: str
) -> LeasedJob:
    """Return a stored job, or raise if this worker's dataset, data, positions or chunk size differ from the job's."""
    here: dict[str, object] = {"order": order, "positions": positions, "chunk_size": chunk_size or stored.chunk_size}
    if stored.data:
        here["data"] = data
    there: dict[str, object] = {name: getattr(stored, name) for name in here}
    different = [name for name in here if here[name] != there[name]]
    if different:
        raise CoordinationError(
            f"this job differs from that of {where}: {', '.join(different)}",
            job=stored.name,
            here={name: str(here[name]) for name in different},
            there={name: str(there[name]) for name in different},
            hint="give every worker the same dataset, positions and chunk_size, or use another name and folder",
        )
    return stored
