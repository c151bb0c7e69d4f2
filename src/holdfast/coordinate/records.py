"""What stands in the store for a chunk: a lease, an accepted commit, or a chunk that was given up."""

from __future__ import annotations

import json
from dataclasses import dataclass

from holdfast.errors import CoordinationError

__all__ = ["Dead", "Done", "Lease", "decode", "first_token", "from_line", "generation_of", "is_final", "to_line"]

# How the records begin that never change again: most of what is ever read, and so told apart without decoding it.
_FINAL = (b'["done",', b'["dead",')

# Tokens of one generation of a job: more than a chunk is ever handed on.
TOKENS_PER_GENERATION = 1_000_000


def first_token(generation: int) -> int:
    """Return the first fencing token of a generation: above every token of the ones before it."""
    return (generation - 1) * TOKENS_PER_GENERATION + 1


def generation_of(token: int) -> int:
    """Return the generation that handed a token out."""
    return (token - 1) // TOKENS_PER_GENERATION + 1


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a chunk, while its record stands unchanged by others.

    Attributes:
        chunk: which piece of the job.
        owner: who holds it; unique to one process's life. Nobody: it was given back.
        token: the fencing token, higher at each change of hands; it tells the job's generation, too.
        sequence: one more at each renewal.
        attempts: how many attempts at the chunk have ended badly.
    """

    chunk: int
    owner: str
    token: int = 1
    sequence: int = 0
    attempts: int = 0

    def encode(self) -> bytes:
        """Return the record as it stands in the store."""
        return _dump("leased", self.owner, self.token, self.sequence, self.attempts)


@dataclass(frozen=True, slots=True)
class Done:
    """A chunk's accepted commit: by whom, under which token, and what the worker left with it.

    Attributes:
        chunk: which piece of the job.
        owner: who committed it.
        token: the fencing token it was committed under.
        payload: the worker's small text.
        file: the output's name in the job's sink, if it has one.
    """

    chunk: int
    owner: str
    token: int
    payload: str = ""
    file: str = ""

    def encode(self) -> bytes:
        """Return the record as it stands in the store."""
        return _dump("done", self.owner, self.token, self.payload, self.file)


@dataclass(frozen=True, slots=True)
class Dead:
    """A chunk that was given up after its last attempt.

    Attributes:
        chunk: which piece of the job.
        owner: who gave it up.
        token: the fencing token at that time.
        attempts: how many attempts ended badly.
        error: the last one's traceback, or what is known of it.
    """

    chunk: int
    owner: str
    token: int
    attempts: int
    error: str

    def encode(self) -> bytes:
        """Return the record as it stands in the store."""
        return _dump("dead", self.owner, self.token, self.attempts, self.error)


def is_final(record: bytes) -> bool:
    """Say whether a record never changes again."""
    return record.startswith(_FINAL)


def decode(chunk: int, record: bytes) -> Lease | Done | Dead:
    """Read a record back."""
    return from_line(to_line(chunk, record))


def to_line(chunk: int, record: bytes) -> str:
    """Return a record as one line of text that begins with its chunk's number."""
    return f"[{chunk},{record.decode(errors='replace')[1:]}"


def from_line(line: str) -> Lease | Done | Dead:
    """Read a record back from a line."""
    try:
        chunk, kind, *fields = json.loads(line)
        entry: Lease | Done | Dead = _KINDS[kind](chunk, *fields)
        return entry
    except (ValueError, TypeError, KeyError) as error:
        raise CoordinationError(
            "a lease record was not written by this version of holdfast", record=line[:80]
        ) from error


_KINDS: dict[str, type[Lease | Done | Dead]] = {"leased": Lease, "done": Done, "dead": Dead}


def _dump(*fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
