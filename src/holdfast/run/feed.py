"""Where a run's batches come from: which of them belong to no step yet, and which samples the log says they held."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from holdfast.run.attempt import Attempt
from holdfast.run.snapshot import Components, move_loader

__all__ = ["Feed"]

# Number of steps whose batches are remembered, to know which batches a finding suspects.
MAX_REMEMBERED_STEPS = 10_000


class Feed:
    """The loader of one attempt, and where the current step began in it.

    Args:
        attempt: counts the batches that were taken.
        components: contains the loader.

    Attributes:
        first_batch: the first batch of the current step.
        handed_out: when the last batch was handed to the program.
        noted_schedule: the schedule that the log contains; a jump of the loader creates another.
        held: the batches since ``first_batch``, if the loader cannot hand them out again.
        owed: batches to hand out again before the loader's next one: its state is ahead by that many.
    """

    def __init__(self, attempt: Attempt, components: Components) -> None:
        self._attempt = attempt
        self._loader: Any = components.loader
        self.has_order = components.has_order
        self.first_batch = attempt.batch
        self.handed_out = 0.0
        self.noted_schedule: Any = None
        self.held: list[Any] = []
        self.owed: deque[Any] = deque()
        self._loader_step: int = getattr(self._loader, "step", 0)  # where the loader stood after the last step
        self._batches_of: deque[tuple[int, int]] = deque(maxlen=MAX_REMEMBERED_STEPS)

    def note_stream(self) -> None:
        """Write the stream's state if its schedule has changed: the log then says which samples each batch held."""
        attempt = self._attempt
        if attempt.ranks.is_first:
            state = self._loader.state_dict()
            attempt.note("stream", step=attempt.step, batch=attempt.batch, state=state)
        self.noted_schedule = self._loader.schedule

    def leave_out(self) -> None:
        """Drop the last batch taken; a step begins after the batches dropped before it."""
        if self.first_batch == self._attempt.batch - 1:
            self.first_batch = self._attempt.batch
            self.held.clear()

    def close_step(self, step: int) -> None:
        """Count a step, and assign the batches since the last one to it."""
        attempt = self._attempt
        attempt.step = step + 1
        self._batches_of.append((step, self.first_batch))
        self.first_batch = attempt.batch
        if self.has_order:
            self._loader_step = self._loader.step
        else:
            self.held.clear()

    def take_back(self) -> bool:
        """Go back to the first batch that belongs to no step; return whether the loader can."""
        if self._attempt.batch == self.first_batch:
            return True
        if not self.has_order:
            return False
        move_loader(self._loader, self._loader_step)
        self.noted_schedule = None
        self._attempt.batch = self.first_batch
        return True

    def hand_out_again(self) -> None:
        """Take back the batches that belong to no step, to hand them out again when the loop is re-entered."""
        self.owed.extendleft(reversed(self.held))
        self._attempt.batch -= len(self.held)
        self.held.clear()

    def take_owed(self) -> Iterator[Any]:
        """Yield the batches that are owed."""
        while self.owed:
            yield self.owed.popleft()

    def suspects(self, onset: int) -> tuple[int, int]:
        """Return the first batch of this step, or of the first remembered after it, and one past the last taken."""
        taken = self._attempt.batch
        return next((batch for step, batch in self._batches_of if step >= onset), taken), taken

    def jump(self) -> None:
        """Continue from where a rollback moved the loader."""
        self._batches_of.clear()
        self.held.clear()
        self.owed.clear()
        self.first_batch = self._attempt.batch
        self._loader_step = getattr(self._loader, "step", 0)
