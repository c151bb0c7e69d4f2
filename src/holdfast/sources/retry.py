"""Retries of what a network may do right the next time, and of nothing else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.errors import RemoteReadError, SourceError

if TYPE_CHECKING:
    from holdfast.sources.fetch.options import RemoteOptions


def is_final(error: BaseException) -> bool:
    """Say whether trying again cannot help."""
    if isinstance(error, (SourceError, FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError)):
        return True
    status = getattr(error, "status", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in (408, 425, 429)


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
    """Call until it succeeds, with growing pauses; `RemoteReadError` after the last attempt or a final failure.

    Args:
        call: what may fail.
        options: how often, and with what pauses.
        name: the file, for the error.
        doing: what was being done to it, for the error.
    """
    pause = options.first_pause
    for attempt in range(1, options.attempts + 1):
        try:
            return call()
        except Exception as error:
            if is_final(error) or attempt == options.attempts:
                told = read_failure(error, name=name, doing=doing, attempts=attempt)
                if told is error:
                    raise
                raise told from error
        # Jitter keeps many ranks that failed together from coming back together.
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, options.longest_pause)
    raise AssertionError("unreachable: the last attempt returns or raises")
