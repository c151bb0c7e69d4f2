"""The preemption notice: SIGTERM or SIGUSR1 asks for a checkpoint and an orderly end."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["Preemption"]

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Preemption:
    """Signal handlers that record a signal instead of ending the process; a repeated one goes to the previous handler.

    Args:
        enabled: install the handlers; only possible in the main thread, elsewhere nothing is installed.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.received: int | None = None
        self._process = os.getpid()
        self._before: dict[int, Any] = {}
        if enabled and threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is None and os.getpid() == self._process:  # a forked process has no run to save
            self.received = number
            return
        self.close()
        signal.raise_signal(number)

    def close(self) -> None:
        """Restore the previous handlers."""
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            self._before.clear()
