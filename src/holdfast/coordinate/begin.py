"""How workers begin a job together, or join one: exactly one worker defines it and the others read the definition.

The model: the job is one record in the store. The first worker puts a placeholder there by compare-and-set, finds out
which chunks have already ended (from the job's folder, or from a saved state) and replaces the placeholder with the
job. Others wait. If that worker shows no sign of life for a TTL, it is presumed dead and another worker begins the
job. If it wakes up after all and begins a generation of the folder, nobody works in that generation: the next worker to
arrive begins another.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from holdfast.coordinate.job import JOB, JobRecord, LeasedJob, check_same
from holdfast.coordinate.ledger import Ledger
from holdfast.coordinate.pages import count_dead
from holdfast.coordinate.progress import Run
from holdfast.coordinate.stores.contract import KeyValue
from holdfast.coordinate.turns import NOBODY, Turns
from holdfast.errors import CoordinationError

__all__ = ["Beginner", "Begun"]


@dataclass(frozen=True, slots=True)
class Begun:
    """A job under way.

    Attributes:
        job: its definition.
        generation: how many times it has begun, on any store.
        finished: the chunks that had ended before this generation, as runs.
        pages: how many records of the store hold their results; 0 if a folder holds them.
        dead: how many of the chunks that had ended before this generation were given up.
    """

    job: LeasedJob
    generation: int
    finished: list[Run]
    pages: int = 0
    dead: int = 0

    @property
    def prefix(self) -> str:
        """The prefix of the generation's records, below the job's prefix."""
        return str(self.generation)


class Beginner:
    """How one worker begins or joins a job.

    Args:
        store: the job's place in the store.
        name: the job's name.
        order: the fingerprint of the dataset's order.
        positions: the positions to read.
        chunk_size: positions per chunk, or None for the job's own.
        data: the digest of the fingerprints of the dataset's sources.
        default_size: computes the chunk size of a new job if none was given.
        ledger: the job's folder.
        state: the result of ``state_dict()`` in an earlier generation.
        turns: whose turn it is to begin the job.
    """

    def __init__(
        self,
        store: KeyValue,
        *,
        name: str,
        order: str,
        positions: range,
        chunk_size: int | None,
        data: str,
        default_size: Callable[[], int],
        ledger: Ledger | None,
        state: Mapping[str, Any] | None,
        turns: Turns,
    ) -> None:
        self._store = store
        self._name = name
        self._same: dict[str, Any] = {"order": order, "positions": positions, "chunk_size": chunk_size, "data": data}
        self._default_size = default_size
        self._ledger = ledger
        self._state = None if state is None else replace(JOB.from_json(state), name=name)
        self._turns = turns

    def begin(self) -> Begun:
        """Begin the job, or wait until another worker has; return it."""
        if self._state is not None:
            self._check(self._state.definition, "the state")
        found = self._store.get("job") or b""
        while True:
            record = json.loads(found) if found else None
            if record is not None and "starting" not in record:
                begun = self._join(JOB.from_json(record))
                if begun is not None:
                    return begun
            elif record is not None and not self._turns.is_silent(record["starting"]):
                self._turns.pause()
                found = self._store.get("job") or b""
                continue
            attempt = uuid.uuid4().hex
            mine = json.dumps({"starting": self._turns.name, "attempt": attempt}).encode()
            found = self._store.compare_set("job", found, mine)
            if found == mine:
                found = self._begin(attempt, mine)

    def _begin(self, attempt: str, mine: bytes) -> bytes:
        """Replace this worker's placeholder with the job; return the record that is there afterwards."""
        try:
            self._store.set(f"attempt/{attempt}", self._turns.name.encode())
            decided, ended = self._decide(attempt)
            wanted = json.dumps(JOB.to_json(decided)).encode()
            self._store.set(f"{decided.generation}/before", str(ended).encode())  # for observers
            return self._store.compare_set("job", mine, wanted)
        except BaseException:
            with suppress(CoordinationError):  # this process may stay alive, and others must not wait for it
                self._store.compare_set("job", mine, json.dumps({"starting": NOBODY}).encode())
            raise

    def _check(self, stored: LeasedJob, where: str) -> LeasedJob:
        return check_same(stored, **self._same, where=where)

    def _join(self, record: JobRecord) -> Begun | None:
        """Return the job found in the store; None if nobody can work in the folder's last generation."""
        job = self._check(record.definition, "the other workers")
        if self._ledger is None:
            if record.mark:
                raise CoordinationError("the other workers keep this job in a folder", hint="pass the same folder=")
            return Begun(job, record.generation, record.finished, record.pages, dead=record.dead)
        stored = self._ledger.definition()
        if not record.mark or stored is None or stored.job != job.job:
            raise CoordinationError(
                "the job in this store is not the one in this folder",
                job=job.job,
                folder=str(self._ledger.folder),
                hint="give every worker the same folder=, or the job another name",
            )
        mark = self._ledger.open_mark()
        begun_too_late = mark != record.mark and self._store.get(f"attempt/{mark}") is not None
        if mark is None or begun_too_late:
            return None
        finished = self._ledger.enter(record.generation, record.mark)
        place = f"{record.generation}/"
        if self._ledger.is_ahead_of(lambda keys: self._store.get_many([place + key for key in keys])):
            return None  # the store lost recent writes, so the folder is right
        return Begun(job, record.generation, finished, dead=record.dead)

    def _decide(self, attempt: str) -> tuple[JobRecord, int]:
        """Return the next generation (after the folder's, the state's, or the first) and how many chunks had ended."""
        if self._ledger is not None:
            stored = self._ledger.definition() or self._ledger.define(self._fresh())
            job = self._check(stored, f"the folder {self._ledger.folder}")
            if job.name != self._name:
                raise CoordinationError(
                    "the folder belongs to a job with another name",
                    folder=str(self._ledger.folder),
                    here=self._name,
                    there=job.name,
                    hint="pass the name that the job was begun with, or use another folder",
                )
            begun = self._ledger.begin(attempt)
            return job.record(generation=begun.number, mark=begun.mark, dead=begun.dead), _count(begun.finished)
        if self._state is None:
            return self._fresh().record(generation=1), 0
        generation, pages = self._state.generation + 1, self._state.results
        for number, page in enumerate(pages):
            self._store.set(f"{generation}/before/{number}", page.encode())
        decided = replace(self._state, generation=generation, pages=len(pages), results=[], dead=count_dead(pages))
        return decided, _count(decided.finished)

    def _fresh(self) -> LeasedJob:
        size = self._same["chunk_size"] or self._default_size()
        return LeasedJob(self._name, self._same["order"], self._same["positions"], size, data=self._same["data"])


def _count(runs: Sequence[Run]) -> int:
    return sum(stop - start for start, stop in runs)
