"""Interrupts inside errors: torch catches ``KeyboardInterrupt`` and ``SystemExit`` too, and wraps them in an error.

Whoever ends a program must not have to know that it was saving: what asks the program to stop comes out as itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.distributed.checkpoint.api import CheckpointException

__all__ = ["causes_of", "interrupt_in"]


def causes_of(error: BaseException, *, handled: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what led to it, the nearest first.

    Args:
        error: what was raised.
        handled: what was being handled when the work began, which did not lead to it: a program may well save because
            it was interrupted, and that save may fail for a reason of its own.
    """
    found: list[BaseException] = [error]
    for one in found:  # grows as it goes
        yield one
        for cause in (one.__cause__, one.__context__):
            if cause is not None and cause is not handled and all(cause is not other for other in found):
                found.append(cause)


def interrupt_in(error: BaseException, *, handled: BaseException | None) -> BaseException | None:
    """Return the interrupt that an error comes from, or ``None``; the arguments are those of :func:`causes_of`."""
    causes = causes_of(error, handled=handled)
    # Torch derives its own error from BaseException, which is no interrupt for that.
    return next((cause for cause in causes if not isinstance(cause, (Exception, CheckpointException))), None)
