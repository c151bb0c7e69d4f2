"""The record of a chunk in the store: a lease, an accepted commit, or a chunk that was given up."""

from __future__ import annotations

import json
from dataclasses import dataclass

from holdfast.errors import CoordinationError

__all__ = ["Dead", "Done", "Lease", "decode", "first_token", "from_line", "generation_of", "is_final", "to_line"]

# The beginnings of final records: most records that are read are final, so they are recognised without decoding.
_FINAL = (b'["done",', b'["dead",')

# Tokens per generation of a job: more than the number of times a chunk ever changes hands.
TOKENS_PER_GENERATION = 1_000_000


def first_token(generation: int) -> int:
    """Return the first fencing token of a generation: above every token of earlier generations."""
    return (generation - 1) * TOKENS_PER_GENERATION + 1


def generation_of(token: int) -> int:
    """Return the generation that issued a token."""
    return (token - 1) // TOKENS_PER_GENERATION + 1


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a chunk, as long as no other worker has changed its record.

    Attributes:
        chunk: the chunk's number.
        owner: the unique id of the worker process that holds it; empty if it was released.
        token: the fencing token, higher at each change of owner; it includes the job's generation.
        sequence: incremented at each renewal.
        attempts: number of failed attempts at the chunk.
    """

    chunk: int
    owner: str
    token: int = 1
    sequence: int = 0
    attempts: int = 0

    def encode(self) -> bytes:
        """Return the record as it is stored."""
        return _dump("leased", self.owner, self.token, self.sequence, self.attempts)


@dataclass(frozen=True, slots=True)
class Done:
    """The accepted commit of a chunk.

    Attributes:
        chunk: the chunk's number.
        owner: the worker process that committed it.
        token: the fencing token it was committed under.
        payload: the worker's short text.
        file: the output's name in the job's sink, if it has one.
    """

    chunk: int
    owner: str
    token: int
    payload: str = ""
    file: str = ""

    def encode(self) -> bytes:
        """Return the record as it is stored."""
        return _dump("done", self.owner, self.token, self.payload, self.file)


@dataclass(frozen=True, slots=True)
class Dead:
    """A chunk that was given up after its last attempt.

    Attributes:
        chunk: the chunk's number.
        owner: the worker process that gave it up.
        token: the fencing token at that time.
        attempts: number of failed attempts.
        error: the last attempt's traceback, or what is known about it.
    """

    chunk: int
    owner: str
    token: int
    attempts: int
    error: str

    def encode(self) -> bytes:
        """Return the record as it is stored."""
        return _dump("dead", self.owner, self.token, self.attempts, self.error)


def is_final(record: bytes) -> bool:
    """Return whether a record is final."""
    return record.startswith(_FINAL)


def decode(chunk: int, record: bytes) -> Lease | Done | Dead:
    """Decode a stored record."""
    return from_line(to_line(chunk, record))


def to_line(chunk: int, record: bytes) -> str:
    """Return a record as one line of text that begins with its chunk's number."""
    return f"[{chunk},{record.decode(errors='replace')[1:]}"


def from_line(line: str) -> Lease | Done | Dead:
    """Decode a record from a line."""
    try:
        chunk, kind, *fields = json.loads(line)
        entry: Lease | Done | Dead = _KINDS[kind](chunk, *fields)
        return entry
    except (ValueError, TypeError, KeyError) as error:
        raise CoordinationError(
            "a lease record was not written by this version of holdfast",
            record=line[:80],
            hint="run the same version of holdfast in all workers, or give the job a new name",
        ) from error


_KINDS: dict[str, type[Lease | Done | Dead]] = {"leased": Lease, "done": Done, "dead": Dead}


def _dump(*fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
