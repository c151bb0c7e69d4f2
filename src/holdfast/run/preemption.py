"""The preemption notice: SIGTERM or SIGUSR1 asks for a checkpoint and an orderly end."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["Preemption"]

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Preemption:
    """Notes the signals instead of dying of them; a second one of the same kind is passed on to the handler before.

    Args:
        enabled: install the handlers; possible in the main thread only, elsewhere nothing is installed.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}
        if enabled and threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
            return
        self.close()
        signal.raise_signal(number)

    def close(self) -> None:
        """Put the handlers back that were there before."""
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            self._before.clear()
