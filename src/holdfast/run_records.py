"""The records of a run log, checked when they are read and nowhere else.

A run's folder is untrusted, so a line is mere data until this module has checked it: a returned record has every field
that its kind needs, and every field that is read anywhere has the expected type. Unknown fields are kept as they are.
The run, its page and the debugger all read through ``parse_record``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from holdfast.errors import RunLogError
from holdfast.foreign import parse_json
from holdfast.versioned import MAX_COUNT, Between, Count, problem_with

__all__ = ["FORMAT_VERSION", "HEADER", "MAX_BATCHES_PER_STEP", "MAX_SECONDS", "Batch", "Record", "parse_record"]

Record = dict[str, Any]

HEADER = "holdfast"
"""The field that marks a record as the header of its file."""
FORMAT_VERSION = 1
"""The version of the run log's format; a newer one is refused."""
MAX_SECONDS = 1e12
"""No lap of a run takes longer: thirty thousand years."""
MAX_BATCHES_PER_STEP = 1 << 20
MAX_BATCH = 1 << 44
"""More batches than any run takes; the positions of its samples still fit into 64 bits."""
Batch = Annotated[int, Between(0, MAX_BATCH)]
Seconds = Annotated[float, Between(0.0, MAX_SECONDS)]
Moment = Annotated[float, Between(-MAX_SECONDS, MAX_SECONDS)]
Attempt = Annotated[int, Between(1, MAX_COUNT)]
Unknown = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Timed:
    """The fields that every record except a header can have."""

    startup_time: Seconds = 0.0
    data_time: Seconds = 0.0
    step_time: Seconds = 0.0
    evaluation_time: Seconds = 0.0
    save_time: Seconds = 0.0
    restore_time: Seconds = 0.0
    stalled_time: Seconds = 0.0
    paused_time: Seconds = 0.0
    down_time: Seconds = 0.0
    own_time: Seconds = 0.0
    at: Seconds = 0.0
    redone: bool = False
    chain: str = ""
    unknown: Unknown = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Header:
    holdfast: str
    version: Attempt
    attempt: Attempt
    rank: Count
    part: Count
    previous: str = ""
    run: str = ""
    world_size: Attempt = 1
    time: Moment = 0.0
    monotonic: Moment = 0.0
    boot: str = ""
    ranks_before: dict[str, str] | None = None
    config: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None
    unknown: Unknown = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(name.isdecimal() and name.isascii() for name in self.ranks_before or ()):
            raise ValueError("ranks_before must name ranks")


@dataclass(frozen=True, kw_only=True)
class _Step(_Timed):
    step: Count
    batches: tuple[Batch, Batch] = (0, 0)
    loss: float = 0.0
    grad_norm: float = 0.0
    lr: float = 0.0
    loss_bits: str = ""
    grad_norm_bits: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.batches[1] - self.batches[0] <= MAX_BATCHES_PER_STEP:
            raise ValueError("batches must be the first and one past the last")


@dataclass(frozen=True, kw_only=True)
class _Event(_Timed):
    """An event of a kind whose other fields are read nowhere."""

    event: str
    step: Count | None = None
    batch: Count | None = None


@dataclass(frozen=True, kw_only=True)
class _At(_Event):
    """An event with the step at which it happened."""

    step: Count = field()  # field(): without it, the inherited default would apply


@dataclass(frozen=True, kw_only=True)
class _Checkpoint(_At):
    path: str = ""
    parameter_hash: str = ""


@dataclass(frozen=True, kw_only=True)
class _Start(_At):
    checkpoint: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Stream(_Event):
    state: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Figures(_At):
    figures: dict[str, float | bool]


@dataclass(frozen=True, kw_only=True)
class _ReadingFields:
    """What was read from one source."""

    samples_local: Count = 0
    samples_remote: Count = 0
    bytes_read: Count = 0
    bytes_fetched: Count = 0
    cache_hits: Count = 0
    retries: Count = 0
    hedges: Count = 0
    seconds_waited: Seconds = 0.0
    unknown: Unknown = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Reading(_At):
    sources: dict[str, _ReadingFields]


@dataclass(frozen=True, kw_only=True)
class _CauseFields:
    cause: str = ""
    confidence: float = 0.0
    remediation: str = ""
    evidence_for: list[str] = field(default_factory=list)
    evidence_against: list[str] = field(default_factory=list)
    unknown: Unknown = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _FindingFields:
    failure: str = ""
    title: str = ""
    severity: str = "info"
    confidence: float = 0.0
    onset: float | None = None
    certain_step: float | None = None
    last_step: float | None = None
    found_at: float | None = None
    rank: Count | None = None
    names_rank: bool = False
    layer: str | None = None
    signal: str | None = None
    evidence: list[str] = field(default_factory=list)
    causes: list[_CauseFields] = field(default_factory=list)
    advice: str = ""
    unknown: Unknown = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _SentFinding(_FindingFields):
    """A finding that is compared with later ones, so that it is sent once."""

    failure: str = field()
    onset: float = field()
    found_at: float = field()
    rank: Count = field()
    names_rank: bool = field()
    layer: str | None = field()


@dataclass(frozen=True, kw_only=True)
class _Finding(_FindingFields, _Timed):
    event: str
    step: Count | None = None


@dataclass(frozen=True, kw_only=True)
class _Alert(_Event):
    finding: _SentFinding


@dataclass(frozen=True, kw_only=True)
class _CureFields:
    skip_batches: tuple[Count, Count] | None = None
    mask_batches: tuple[Count, Count] | None = None
    mask_samples: dict[str, list[Count]] = field(default_factory=dict)
    skip_samples: dict[str, list[Count]] = field(default_factory=dict)
    rate_scale: Annotated[float, Between(0.0, 1e30)] | None = None
    unknown: Unknown = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Rollback(_Event):
    to: Count
    number: Count
    cure: _CureFields
    checkpoint: str = ""


_EVENTS: Mapping[str, type[Any]] = {
    "start": _Start,
    "rolled_back": _At,
    "rollback": _Rollback,
    "checkpoint": _Checkpoint,
    "stream": _Stream,
    "evaluation": _Figures,
    "metrics": _Figures,
    "reading": _Reading,
    "finding": _Finding,
    "alert": _Alert,
}

_NUMBERS = ("loss", "grad_norm", "lr")
_TEXTS = ("loss_bits", "grad_norm_bits", "chain")
_NO_BATCHES = [0, 0]
_TIMES = (*(name for name in _Timed.__dataclass_fields__ if name.endswith("_time")), "at")


_HINT = "the log was damaged or edited, or is not a holdfast run log: restore it from a backup"


def parse_record(line: bytes, *, file: str, number: int) -> Record:
    """Return the record of one line.

    Args:
        line: the line.
        file: the file it is in, for the error.
        number: its number in the file, from 1; the first line must be a header, and no other may be.

    Raises:
        RunLogError: it is not a record of a run log.
    """
    try:
        record = parse_json(line)
    except ValueError as error:
        reason = getattr(error, "msg", error)  # without the parser's line and column, which are not the file's
        raise RunLogError(f"a line of the run log is not JSON: {reason}", file=file, line=number, hint=_HINT) from None
    if not isinstance(record, dict):
        raise RunLogError("a line of the run log is not an object", file=file, line=number, hint=_HINT)
    if (HEADER in record) != (number == 1):
        what = "the first line of a run log is not its header" if number == 1 else "a run log has a second header"
        raise RunLogError(what, file=file, line=number, hint=_HINT)
    problem = _problem(record)
    if problem is not None:
        shown = "".join(each if each.isprintable() else "\ufffd" for each in problem[:200])  # names come from the file
        raise RunLogError(f"invalid record in the run log: {shown}", file=file, line=number, hint=_HINT)
    return record


def _problem(record: Record) -> str | None:
    if HEADER in record:
        problem = problem_with(_Header, record)
        if problem is None and record["version"] > FORMAT_VERSION:
            return f"version {record['version']} was made by a newer holdfast"
        return problem
    if "event" not in record:
        return None if _is_plain_step(record) else problem_with(_Step, record)
    kind = record["event"]
    return problem_with(_EVENTS.get(kind, _Event) if isinstance(kind, str) else _Event, record)


def _is_plain_step(record: Record) -> bool:
    """Return whether a step passes a quick check: there are millions, and ``problem_with`` takes ten times as long."""
    step, batches = record.get("step"), record.get("batches", _NO_BATCHES)
    if type(step) is not int or not 0 <= step <= MAX_COUNT or type(batches) is not list or len(batches) != 2:
        return False
    first, stop = batches
    if type(first) is not int or type(stop) is not int or not 0 <= first <= stop <= first + MAX_BATCHES_PER_STEP:
        return False
    for name in _NUMBERS:
        if type(record.get(name, 0.0)) is not float:
            return False
    for name in _TIMES:
        seconds = record.get(name, 0.0)
        if type(seconds) is not float or not 0.0 <= seconds <= MAX_SECONDS:
            return False
    for name in _TEXTS:
        if type(record.get(name, "")) is not str:
            return False
    return stop <= MAX_COUNT and type(record.get("redone", False)) is bool
