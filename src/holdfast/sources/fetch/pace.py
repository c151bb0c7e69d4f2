"""Pace: how many requests at a time pay off, and when one is late; both learned from the answers so far."""

from __future__ import annotations

from collections import deque

__all__ = ["Pace"]

MIN_CONNECTIONS, FIRST_CONNECTIONS = 4, 16
# Answers after which the connections are set by how long they waited beside how long they took to come.
FIRST_ANSWERS = 4
# How many should be receiving at any time, the others waiting: what plain fetching does well with.
RECEIVING = 8
# A trial of more or fewer connections: the factor, answers per connection to judge it by, and its shortest time.
STEP, ANSWERS_PER_TRIAL, MIN_TRIAL_SECONDS = 1.5, 2, 0.2
# More connections are kept if they bring at least this share of what they would if each brought the same as before.
WORTHWHILE = 0.25
# Trials that are left out after one that brought nothing.
HOLD = 12
# A request is late after this multiple of what nearly all of the last ones took; none is judged by fewer answers.
LATE_FACTOR, LATE_SHARE, REMEMBERED, MIN_REMEMBERED = 3.0, 0.95, 128, 16
MIN_LATE_SECONDS = 0.1
# Failed requests that may be sent again without a pause: this many at first, this share of the answers after that, and
# no more than this many in a row. A server in trouble gets at most a tenth more requests, and the usual pauses.
FIRST_REPEATS, REPEATED_SHARE, MAX_REPEATS = 4, 0.1, 16
# Small answers come at once, which says little about how fast a connection is.
MIN_RECEIVING_SECONDS = 0.01


class Pace:
    """Learns from answers. Not thread-safe: the caller holds its own lock, and passes the time.

    The number of connections climbs while throughput climbs with it: what latency times bandwidth asks for is found by
    trying, as a server may also limit what one connection gets.

    Args:
        most: most connections.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.connections = min(FIRST_CONNECTIONS, most)
        self._durations: deque[float] = deque(maxlen=REMEMBERED)
        self._began, self._answers, self._bytes = 0.0, 0, 0
        self._before: tuple[int, float] | None = None  # connections before the trial that runs, and their throughput
        self._up = True
        self._hold = 0
        self._repeats = float(FIRST_REPEATS)
        self._first: list[tuple[float, float]] = []  # seconds of waiting and of receiving, of the first answers

    def answered(self, size: int, seconds: float, now: float, *, busy: bool, waited: float | None = None) -> None:
        """Take an answer into account.

        Args:
            size: its bytes.
            seconds: how long it took.
            now: the time.
            busy: whether all connections were in use; what an idle fetcher reaches says nothing.
            waited: seconds of them before its first byte came; None where that is not known.
        """
        if waited is not None and len(self._first) < FIRST_ANSWERS:
            self._first.append((waited, seconds - waited))
            if len(self._first) == FIRST_ANSWERS:
                self._estimate()
        self._repeats = min(MAX_REPEATS, self._repeats + REPEATED_SHARE)
        self._durations.append(seconds)
        if not busy or not self._answers:
            self._begin(now)
        self._answers += 1
        self._bytes += size
        elapsed = now - self._began
        if self._answers > ANSWERS_PER_TRIAL * self.connections and elapsed >= MIN_TRIAL_SECONDS:
            self._judge(self._bytes / elapsed)
            self._answers = 0

    def refused(self) -> None:
        """Take into account that the server asked for fewer requests."""
        self.connections = max(1, self.connections // 2)
        self._before, self._hold, self._answers = None, HOLD, 0

    def may_repeat(self) -> bool:
        """Say whether a request that failed may be sent again without a pause, and count it if so."""
        if self._repeats < 1 - 1e-9:  # tenths do not add up to exactly one
            return False
        self._repeats -= 1
        return True

    def late_after(self) -> float | None:
        """Return how many seconds a request may take before it counts as late; None where too little is known."""
        if len(self._durations) < MIN_REMEMBERED:
            return None
        usual = sorted(self._durations)[int(LATE_SHARE * (len(self._durations) - 1))]
        return max(MIN_LATE_SECONDS, LATE_FACTOR * usual)

    def _estimate(self) -> None:
        """Set the connections so that some receive while the others wait."""
        waiting, receiving = (sum(times) for times in zip(*self._first, strict=True))
        wanted = RECEIVING * (1 + waiting / max(receiving, MIN_RECEIVING_SECONDS))
        self.connections = min(self._most, max(min(MIN_CONNECTIONS, self._most), round(wanted)))
        self._answers = 0

    def _begin(self, now: float) -> None:
        self._began, self._answers, self._bytes = now, 0, 0

    def _judge(self, throughput: float) -> None:
        if self._before is not None:
            count, known = self._before
            self._before = None
            wanted = 1 + WORTHWHILE * (self.connections / count - 1)
            if throughput < known * wanted:  # more brought too little, or fewer cost too much
                self.connections, self._up, self._hold = count, not self._up, HOLD
                return
        if self._hold:
            self._hold -= 1
            return
        factor = STEP if self._up else 1 / STEP
        trial = min(self._most, max(min(MIN_CONNECTIONS, self._most), round(self.connections * factor)))
        if trial == self.connections:
            self._up, self._hold = not self._up, HOLD
            return
        self._before, self.connections = (self.connections, throughput), trial
