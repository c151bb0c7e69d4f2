"""What a new attempt must know about earlier ones, read from the log without parsing every step."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.errors import RunLogError
from holdfast.run.buckets import Origin
from holdfast.run.chain import START, split_line
from holdfast.run.layout import LogFile, RunFolder
from holdfast.run.run_log import Record, parsed, read_lines

__all__ = ["History"]


@dataclass(slots=True)
class History:
    """One rank's log so far.

    Attributes:
        head: the digest of its last line.
        attempts: the number of the last attempt.
        reached: one more than the highest step ever recorded; steps below it are redone.
        saved: the step of the newest checkpoint that it mentions; -1 if there is none.
        origin: when the last attempt that recorded its time began. The time of later ones, which were refused or killed
            before their first record, counts as down.
        elapsed: how long it ran, as far as recorded.
        events: every event, in order.
    """

    head: str = START
    attempts: int = 0
    reached: int = 0
    saved: int = -1
    origin: Origin | None = None
    elapsed: float = 0.0
    events: list[Record] = field(default_factory=list)

    @classmethod
    def read(cls, folder: RunFolder, *, rank: int = 0) -> History:
        """Read a rank's log."""
        history = cls()
        for file in folder.log_files(rank=rank):
            history._add(file, read_lines(file))
        return history

    def _add(self, file: LogFile, lines: list[bytes]) -> None:
        self.attempts = max(self.attempts, file.attempt)
        if not lines:
            return
        ended = split_line(lines[-1])
        if ended is None:
            raise RunLogError(
                "the last line of the run log has no digest",
                file=str(file.path),
                line=len(lines),
                hint="remove the lines that were not written by a run; it then continues from its newest checkpoint",
            )
        self.head = ended[1]
        header = parsed(file, 1, lines[0])
        try:
            origin = Origin(header["time"], header["monotonic"], header["boot"])
        except KeyError as error:
            raise RunLogError(
                f"the header of the run log has no {error.args[0]}", file=str(file.path), line=1
            ) from None
        if self.origin is None:
            self.origin = origin
        last = len(lines) - 1
        for number in range(1, last + 1):
            line = lines[number]
            is_event = b'"event":' in line
            # Steps only increase between two events, so the last one before an event, or the end, is the highest.
            if is_event or number == last or b'"event":' in lines[number + 1]:
                record = parsed(file, number + 1, line)
                if is_event and "event" in record:
                    self.events.append(record)
                    if record["event"] == "checkpoint":
                        self.saved = max(self.saved, record["step"])
                elif "step" in record:
                    self.reached = max(self.reached, record["step"] + 1)
                if "at" in record:
                    self.origin, self.elapsed = origin, record["at"]
