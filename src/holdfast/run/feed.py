"""Where a run's batches come from: which of them no step was made of yet, and which samples the log says they held."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from holdfast.run.attempt import Attempt
from holdfast.run.snapshot import Components, move_loader

__all__ = ["Feed"]

# Steps whose batches are remembered, to say which batches a finding suspects.
MAX_REMEMBERED_STEPS = 10_000


class Feed:
    """The loader of one attempt, and where the step under way began in it.

    Args:
        attempt: counts the batches that were taken.
        components: whose loader it is.

    Attributes:
        first_batch: the first batch of the step under way.
        handed_out: when the last batch was handed to the program.
        noted_schedule: the schedule the log knows; a jump of the loader makes another.
        held: the batches since ``first_batch``, of a loader that cannot hand them out again.
        owed: batches to be handed out again before the loader's next: its state is ahead by as many.
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
        """Write the stream's state after its schedule has changed: the log then tells which samples each batch held."""
        attempt = self._attempt
        if attempt.ranks.is_first:
            state = self._loader.state_dict()
            attempt.note("stream", step=attempt.step, batch=attempt.batch, state=state)
        self.noted_schedule = self._loader.schedule

    def leave_out(self) -> None:
        """Drop the batch that was taken last; a step begins after those left out before it."""
        if self.first_batch == self._attempt.batch - 1:
            self.first_batch = self._attempt.batch
            self.held.clear()

    def close_step(self, step: int) -> None:
        """Count a step, and take the batches since the last one for its own."""
        attempt = self._attempt
        attempt.step = step + 1
        self._batches_of.append((step, self.first_batch))
        self.first_batch = attempt.batch
        if self.has_order:
            self._loader_step = self._loader.step
        else:
            self.held.clear()

    def take_back(self) -> bool:
        """Go back to the first batch no step was made of; returns whether the loader can."""
        if self._attempt.batch == self.first_batch:
            return True
        if not self.has_order:
            return False
        move_loader(self._loader, self._loader_step)
        self.noted_schedule = None
        self._attempt.batch = self.first_batch
        return True

    def hand_out_again(self) -> None:
        """Take back the batches no step was made of, to be handed out again to a loop that is re-entered."""
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
        """Continue from where a rollback put the loader."""
        self._batches_of.clear()
        self.held.clear()
        self.owed.clear()
        self.first_batch = self._attempt.batch
        self._loader_step = getattr(self._loader, "step", 0)
