"""The checks on a leased job's options, made before a chunk is drawn."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigError
from holdfast.order.numbers import whole_number

__all__ = ["check_options", "check_payload", "chosen_positions"]

# Maximum number of characters in a payload: escaped, at up to six bytes each, it must fit in a record of any store.
MAX_PAYLOAD = 100_000


def check_options(
    *,
    name: str,
    batch_size: int,
    chunk_size: int | None,
    chunk_bytes: int,
    max_attempts: int,
    standby_chunks: int,
    backoff: float,
    save_interval: float,
    on_error: str,
) -> None:
    """Raise a ``ConfigError`` that names the invalid option; the options are those of ``LeasedReader``."""
    counts: dict[str, Any] = {"batch_size": batch_size, "chunk_bytes": chunk_bytes, "max_attempts": max_attempts}
    counts |= {} if chunk_size is None else {"chunk_size": chunk_size}
    for what, value in counts.items():
        if whole_number(value, what) < 1:
            raise ConfigError(f"{what} must be at least 1", **{what: value})
    if whole_number(standby_chunks, "standby_chunks") < 0:
        raise ConfigError("standby_chunks must be 0 or more", standby_chunks=standby_chunks)
    if not isinstance(backoff, (int, float)) or not backoff >= 0:
        raise ConfigError("backoff must be 0 seconds or more", backoff=backoff)
    if not isinstance(save_interval, (int, float)) or not save_interval > 0:
        raise ConfigError("save_interval must be more than 0 seconds", save_interval=save_interval)
    if not isinstance(name, str) or not name:
        raise ConfigError("a job needs a name", name=name)
    if on_error not in ("raise", "skip"):
        raise ConfigError("on_error must be 'raise' or 'skip'", on_error=on_error)


def chosen_positions(positions: range | None, epoch: int) -> range:
    """Return the positions that a job reads: those given, or one epoch."""
    chosen = range(epoch) if positions is None else positions
    if not isinstance(chosen, range) or chosen.step != 1 or chosen.start < 0 or not len(chosen):
        raise ConfigError("positions must be a non-empty range with step 1, from 0 or above", positions=str(positions))
    return chosen


def check_payload(payload: str, chunk: int) -> None:
    """Raise ``ConfigError`` if a payload is not text, or is too long."""
    if not isinstance(payload, str) or len(payload) > MAX_PAYLOAD:
        raise ConfigError(
            f"a payload must be text of at most {MAX_PAYLOAD:,} characters",
            chunk=chunk,
            type=type(payload).__name__,
            hint="convert it with str() or json.dumps(); write large results to the job's sink and commit their digest",
        )
