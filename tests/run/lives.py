"""Lives: a part of a test in a process of its own, forked, so that it may be killed and costs no start-up."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch


def live(program: Callable[[], object]) -> int:
    """Run a function in a forked process; returns its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            program()
            code = 0
        except BaseException:  # nothing may leave the fork: it holds a copy of the whole test session
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, call: int = 1, after: bool = False) -> None:
    """Let this process be killed at the n-th call of a function, before it does anything or once it is done."""
    original, calls = getattr(owner, name), [0]

    def killed(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] != call:
            return original(*arguments, **options)
        if after:
            original(*arguments, **options)
        return os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(owner, name, killed)
