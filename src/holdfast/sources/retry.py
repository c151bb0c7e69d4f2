"""Retries of transient network failures, and of nothing else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.errors import RemoteReadError, SourceError

if TYPE_CHECKING:
    from holdfast.sources.fetch.options import RemoteOptions


def is_final(error: BaseException) -> bool:
    """Return whether retrying cannot help."""
    if isinstance(error, (SourceError, FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError)):
        return True
    status = getattr(error, "status", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in (408, 425, 429)


def pause_before(attempt: int, error: Exception, options: RemoteOptions) -> float:
    """Return the number of seconds to wait after a failed attempt.

    If the server sent ``Retry-After``, that is used, up to ``longest_pause``.

    Args:
        attempt: the number of the failed attempt, from 1.
        error: its error.
        options: the length of pauses.
    """
    # Jitter keeps many ranks that failed together from retrying together.
    pause = min(options.longest_pause, options.first_pause * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
    asked: float = getattr(error, "retry_after", None) or 0.0
    return float(max(pause, min(asked, options.longest_pause)))


def read_failure(error: Exception, *, name: str, doing: str, attempts: int) -> SourceError:
    """Return the error that says what could not be done to a remote file, with its cause."""
    if isinstance(error, SourceError):
        return error
    told = RemoteReadError(
        f"could not {doing} a remote file: {str(error).strip() or type(error).__name__}",
        file=name,
        attempts=attempts,
        hint="retrying will not help: check the URL and the credentials" if is_final(error) else None,
    )
    told.__cause__ = error
    return told


def retry(call: Callable[[], Any], options: RemoteOptions, name: str, doing: str) -> Any:
    """Call until it succeeds, with growing pauses; raise ``RemoteReadError`` after the last attempt or a fatal error.

    Args:
        call: the function that may fail.
        options: the number of attempts and the pauses.
        name: the file, for the error.
        doing: what was being done to it, for the error.
    """
    for attempt in range(1, options.attempts + 1):
        try:
            return call()
        except Exception as error:
            if is_final(error) or attempt == options.attempts:
                told = read_failure(error, name=name, doing=doing, attempts=attempt)
                if told is error:
                    raise
                raise told from error
            pause = pause_before(attempt, error, options)
        time.sleep(pause)
    raise AssertionError("unreachable: the last attempt returns or raises")
