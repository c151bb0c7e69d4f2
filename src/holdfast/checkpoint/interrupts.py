"""Interrupts inside errors: torch catches ``KeyboardInterrupt`` and ``SystemExit`` too, and wraps them in an error.

A program can be stopped while it is saving: the request to stop is raised as itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.distributed.checkpoint.api import CheckpointException

__all__ = ["causes_of", "interrupt_in"]


def causes_of(error: BaseException, *, handled: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, the nearest first.

    Args:
        error: what was raised.
        handled: the exception that was being handled when the work began, which is not a cause: a program may save
            because it was interrupted, and that save may fail for another reason.
    """
    found: list[BaseException] = [error]
    for one in found:  # grows during the loop
        yield one
        for cause in (one.__cause__, one.__context__):
            if cause is not None and cause is not handled and all(cause is not other for other in found):
                found.append(cause)


def interrupt_in(error: BaseException, *, handled: BaseException | None) -> BaseException | None:
    """Return the interrupt that an error comes from, or ``None``; the arguments are those of ``causes_of``."""
    causes = causes_of(error, handled=handled)
    # Torch derives its own error from BaseException, but it is not an interrupt.
    return next((cause for cause in causes if not isinstance(cause, (Exception, CheckpointException))), None)
