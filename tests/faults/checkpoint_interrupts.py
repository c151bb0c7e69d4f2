"""Interrupts a save wherever Python looks for signals in some of its code, each time in a process of its own.

Python looks for signals when a function begins and when a call of a C function has ended; those are the events that a
profile function sees too, and what it raises there is raised as a signal's handler would.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from holdfast import checkpoint, collected

OLD, NEW = ({"w": torch.full((40,), value), "n": (value,)} for value in (1.0, 2.0))
OPENING = ("__init__", "__enter__", "__exit__")
PARTS: dict[str, Callable[[CodeType], bool]] = {
    # How torch opens and ends an archive.
    "archives": lambda code: code.co_filename == torch.serialization.__file__ and code.co_name in OPENING,
    "all": lambda _: True,
}
SECONDS = 60
"""A save that has not ended by then waits for itself."""


class Interrupting:
    """A profile function that raises ``KeyboardInterrupt`` at the nth place of some code."""

    def __init__(self, nth: int, wanted: Callable[[CodeType], bool]) -> None:
        self.seen = 0
        self._nth = nth
        self._wanted = wanted

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_filename == collected.__file__:
            return  # called by the collector, which swallows whatever is raised there
        if event in ("call", "c_return") and self._wanted(frame.f_code):
            self.seen += 1
            if self.seen == self._nth:
                sys.setprofile(None)
                raise KeyboardInterrupt


def save(path: Path, profile: Interrupting) -> None:
    sys.setprofile(profile)
    try:
        checkpoint.save(NEW, path, step=2)
    finally:
        sys.setprofile(None)


def outcome_of(path: Path, interrupting: Interrupting) -> str:
    """Save over a checkpoint with a file of the user's in it, interrupted; what came of it."""
    outcome = "not interrupted"
    try:
        save(path, interrupting)
    except KeyboardInterrupt:
        outcome = "interrupted"
        checkpoint.save(OLD, path.with_name("other"), step=3)  # must not wait for the interrupted one
    gc.collect()  # what the traceback held ends here, torch's archive for one
    check(path)
    checkpoint.save(OLD, path, step=4)
    assert sorted(os.listdir(path.parent)) == ["c", "other"][: len(os.listdir(path.parent))], "litter"
    assert (path / "tokenizer").read_text() == "mine", "the user's file is lost"
    return outcome


def check(path: Path) -> None:
    """Assert that there is one of the two checkpoints, whole."""
    found: dict[str, Any] = {"w": torch.zeros(40), "n": ()}
    checkpoint.load(found, path, require_manifest=True)
    assert found["n"] in ((1.0,), (2.0,))
    assert found["w"].tolist() == [*found["n"]] * 40, "mixed"


def main(given: str, part: str, stride: str = "1") -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    base = Path(given)
    checkpoint.save(OLD, base / "old", step=1)
    (base / "old" / "tokenizer").write_text("mine")
    shutil.copytree(base / "old", base / "new")
    counted = Interrupting(-1, PARTS[part])
    save(base / "new", counted)
    outcomes: Counter[str] = Counter()
    gc.freeze()  # else every child goes through, and copies, all of torch
    for nth in range(1, counted.seen + 1, int(stride)):
        folder = base / str(nth)
        folder.mkdir()
        shutil.copytree(base / "old", folder / "c")
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            told = "failed"
            try:
                told = outcome_of(folder / "c", Interrupting(nth, PARTS[part]))
            except BaseException as error:
                told = f"{type(error).__name__}: {error}"
            finally:
                (base / "told").write_text(told)
                os._exit(0)
        _, status = os.waitpid(child, 0)
        told = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else (base / "told").read_text()
        if told != "interrupted":
            print(nth, told, file=sys.stderr)
        outcomes[told] += 1
        shutil.rmtree(folder)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
