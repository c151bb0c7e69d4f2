"""The watchdog: one thread per process, with its own clock, that notices when a run makes no progress.

Every watchdog writes a heartbeat with its rank's progress. When its own rank has made no progress for ``stall_after``
seconds it writes the stack of every thread, reads the other heartbeats, and reports which ranks hold up the run: those
whose heartbeat has stopped, otherwise those behind the others, otherwise those that are not waiting in a collective.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from holdfast.run.layout import RunFolder

__all__ = ["EXIT_STALLED", "Watchdog", "where_is"]

EXIT_STALLED = 75
"""The exit code of a process that its watchdog ended: a temporary failure, worth a retry."""

MIN_BEAT, MAX_BEAT = 0.05, 5.0
BEATS_PER_STALL = 10
MAX_TELLING_SECONDS = 5.0
# Phases in which lack of progress is normal.
UNWATCHED = frozenset(("evaluation", "paused", "idle"))
_ORDER = {"data": 0, "step": 1, "save": 2, "restore": 2}


def where_is(frame: FrameType | None) -> tuple[str, str | None]:
    """Return the innermost location of a stack, and the collective in which it waits, if any."""
    place, collective = "", None
    while frame is not None:
        code = frame.f_code
        name = code.co_filename.replace(os.sep, "/")
        if not place:
            place = f"{name.rpartition('/')[2]}:{frame.f_lineno} {code.co_name}"
        if "torch/distributed" in name and not code.co_name.startswith(("_", "<", "wrapper")):
            collective = code.co_name
        elif collective is None and name.endswith("torch/autograd/graph.py"):
            collective = "backward"
        frame = frame.f_back
    return place, collective


class Watchdog:
    """The watchdog of one rank.

    Args:
        folder: the run's folder.
        rank: this rank.
        world: the number of ranks.
        stall_after: seconds without progress that make a stall.
        stall_timeout: seconds without progress after which the process ends.
        on_stall: called once per stall with what is known about it.
        on_timeout: called before the process ends.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        rank: int,
        world: int,
        stall_after: float,
        stall_timeout: float | None,
        on_stall: Callable[[dict[str, Any]], None],
        on_timeout: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._rank = rank
        self._world = world
        self._stall_after = stall_after
        self._stall_timeout = stall_timeout
        self._on_stall = on_stall
        self._on_timeout = on_timeout
        self._beat_every = min(MAX_BEAT, max(MIN_BEAT, stall_after / BEATS_PER_STALL))
        self._main = threading.get_ident()
        self.place: tuple[str, int] = ("idle", 0)
        """The phase and the step; the training loop sets it at every change, and a new tuple is progress."""
        self._beats = 0
        self._stopping = threading.Event()
        # By rank: the number of its last heartbeat, and when it was seen, by this rank's own clock.
        began = time.monotonic()
        self._heard = {other: (-1, began) for other in range(world) if other != rank}
        self._beat(0.0)
        self._thread = threading.Thread(target=self._watch, name="holdfast-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopping.set()
        if threading.current_thread() is not self._thread:  # an unreferenced run may be released on any thread
            self._thread.join()

    def _watch(self) -> None:
        seen, since, told = self.place, time.monotonic(), False
        while not self._stopping.wait(self._beat_every):
            now = time.monotonic()
            place = self.place
            if place is not seen or place[0] in UNWATCHED:
                seen, since, told = place, now, False
            standing = now - since
            self._beat(standing)
            others = self._listen(now)
            if standing >= self._stall_after and not told:
                told = True
                self._tell(self._on_stall, self._describe(standing, others, now))
            if self._stall_timeout is not None and standing >= self._stall_timeout:
                self._tell(self._on_timeout)
                os._exit(EXIT_STALLED)

    def _tell(self, listener: Callable[..., None], *arguments: Any) -> None:
        """Call a listener in a separate thread: it may wait for a disk that does not answer, the watchdog may not."""
        thread = threading.Thread(target=listener, args=arguments, name="holdfast-stall", daemon=True)
        thread.start()
        thread.join(MAX_TELLING_SECONDS)

    def _beat(self, standing: float) -> None:
        self._beats += 1
        phase, step = self.place
        place, collective = where_is(sys._current_frames().get(self._main))
        about = {
            "rank": self._rank, "beat": self._beats, "step": step, "phase": phase,
            "standing": round(standing, 3), "where": place, "collective": collective,
        }  # fmt: skip
        path = self._folder.progress / f"rank-{self._rank:05d}.json"
        temporary = path.with_name(f".{path.name}.tmp")
        with contextlib.suppress(OSError):  # a full or missing disk must not stop the watchdog
            self._folder.progress.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(about), encoding="utf-8")
            os.replace(temporary, path)

    def _listen(self, now: float) -> dict[int, dict[str, Any]]:
        """Return the other ranks' last heartbeats; record when each was seen."""
        others: dict[int, dict[str, Any]] = {}
        for rank in range(self._world):
            if rank == self._rank:
                continue
            with contextlib.suppress(OSError, ValueError):
                about = json.loads((self._folder.progress / f"rank-{rank:05d}.json").read_text(encoding="utf-8"))
                others[rank] = about
                if self._heard[rank][0] != about["beat"]:
                    self._heard[rank] = (about["beat"], now)
        return others

    def _describe(self, standing: float, others: dict[int, dict[str, Any]], now: float) -> dict[str, Any]:
        # A rank is silent if it has missed most of its heartbeats while this rank made no progress.
        patience = 0.7 * self._stall_after
        silent = sorted(rank for rank, (_, heard_at) in self._heard.items() if now - heard_at > patience)
        place, collective = where_is(sys._current_frames().get(self._main))
        phase, step = self.place
        heard = {rank: about for rank, about in others.items() if rank not in silent}
        places = {rank: (about["step"], _ORDER.get(about["phase"], 1)) for rank, about in heard.items()}
        places[self._rank] = (step, _ORDER.get(phase, 1))
        behind = sorted(rank for rank, at in places.items() if at == min(places.values()) != max(places.values()))
        waiting = {rank: about["collective"] for rank, about in heard.items()} | {self._rank: collective}
        alone = sorted(rank for rank, name in waiting.items() if name is None)
        culprits = silent or behind or (alone if len(alone) < len(waiting) else [])
        return {
            "rank": self._rank,
            "step": step,
            "phase": phase,
            "standing": round(standing, 3),
            "where": place,
            "collective": collective or next((name for name in waiting.values() if name), None),
            "silent": silent,
            "behind": behind,
            "culprits": culprits or ([self._rank] if self._world == 1 else []),
            "speaker": min((rank for rank in range(self._world) if rank not in silent), default=self._rank),
            "stacks": self._write_stacks(step),
        }

    def _write_stacks(self, step: int) -> str | None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        text = []
        for number, frame in sys._current_frames().items():
            text.append(f"thread {names.get(number, number)}:\n" + "".join(traceback.format_stack(frame)))
        path = self._folder.stalls / f"rank-{self._rank:05d}.step-{step:08d}.{self._beats}.txt"
        try:
            self._folder.stalls.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(text), encoding="utf-8")
        except OSError:
            return None
        return path.name
