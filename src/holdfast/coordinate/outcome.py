"""The ends of a job's chunks: recorded as they happen, completed when the job ends, and reported to the caller.

It holds no lock that the renewal of leases needs, and reads over its own connection.
"""

from __future__ import annotations

from typing import Any

from holdfast.coordinate.begin import Begun
from holdfast.coordinate.finals import Finals
from holdfast.coordinate.job import JOB
from holdfast.coordinate.ledger import Ledger
from holdfast.coordinate.pages import Pages, read_ends
from holdfast.coordinate.progress import Progress
from holdfast.coordinate.records import Dead, Done, to_line
from holdfast.coordinate.sink import FolderSink
from holdfast.coordinate.store import StoreClient
from holdfast.coordinate.turns import Turns
from holdfast.errors import DeadLetterError

__all__ = ["Outcome"]


class Outcome:
    """The ends of a job's chunks, in all its generations.

    Args:
        client: its own connection to the store.
        begun: the job.
        ledger: its folder, if it has one.
        sink: where its outputs go.
        turns: whose turn it is to complete the job.
    """

    def __init__(
        self, client: StoreClient, begun: Begun, *, ledger: Ledger | None, sink: FolderSink | None, turns: Turns
    ) -> None:
        self.client = client
        """The connection."""
        self._begun = begun
        self._ledger = ledger
        self._sink = sink
        self._turns = turns
        self._place = client.below(f"lease/{begun.job.name}/{begun.prefix}")
        self._finals = Finals(self._place, begun.job.chunks, begun.finished)
        self._before: list[str] | None = None

    def keep(self, entry: Done | Dead) -> None:
        """Record the end of a chunk that the store has accepted, and give its output its real name.

        Raises:
            SupersededError: the job has begun again on another store, and this end does not count.
        """
        if self._ledger is not None:
            self._ledger.record(entry)
        if self._sink is not None and isinstance(entry, Done) and entry.file:
            self._sink.publish(entry.file)

    def ends(self) -> list[Done | Dead]:
        """Return the end of every chunk that has ended so far, in chunk order."""
        return sorted(read_ends([*self._earlier(), *self._finals.read()[0]]), key=lambda entry: entry.chunk)

    def state(self) -> dict[str, Any]:
        """Return the chunks that have ended so far, with their results, as plain JSON."""
        pages, finished = self._finals.read()
        record = self._begun.job.record(
            generation=self._begun.generation, finished=finished, results=[*self._earlier(), *pages]
        )
        return JOB.to_json(record)

    def _earlier(self) -> list[str]:
        """Return the ends of earlier generations, which never change, on pages."""
        if self._before is None:
            if self._ledger is None:
                numbers = range(self._begun.pages)  # one at a time: together they may be too large for one answer
                self._before = [(self._place.get(f"before/{number}") or b"").decode() for number in numbers]
            else:
                before = Progress(self._begun.job.chunks, self._begun.finished)
                kept = self._ledger.read().values() if self._begun.finished else ()
                self._before = Pages(
                    to_line(entry.chunk, entry.encode()) for entry in kept if before.was_before(entry.chunk)
                ).texts()
        return self._before

    def settle(self) -> None:
        """Complete what workers that died after a commit left undone, once all chunks have ended.

        One worker does it. The others wait, and one of them takes its place if it falls silent.
        """
        if self._ledger is None and self._sink is None:
            return
        if not self._turns.take(self._place, "settler", done=lambda: self._place.get("settled") is not None):
            return
        with self._turns.given_back(self._place, "settler"):
            self._complete(self.ends())
            self._place.set("settled", b"yes")

    def _complete(self, ends: list[Done | Dead]) -> None:
        if self._ledger is not None:
            kept = self._ledger.read()
            for entry in ends:
                if entry.chunk not in kept:
                    self._ledger.record(entry)
        if self._sink is not None:
            self._sink.publish_all([entry.file for entry in ends if isinstance(entry, Done) and entry.file])
            self._sink.sweep(self._begun.job.job, self._begun.generation)

    def raise_dead_letters(self) -> None:
        """Raise ``DeadLetterError`` if any chunk was given up."""
        dead = [entry for entry in self.ends() if isinstance(entry, Dead)]
        if not dead:
            return
        last = dead[0].error.strip().rpartition("\n")[2]
        where = "" if self._ledger is None else f" {self._ledger.folder}"
        raise DeadLetterError(
            f"{len(dead)} of {self._begun.job.chunks} chunks were given up and all others are committed; chunk "
            f"{dead[0].chunk} after {dead[0].attempts} attempts: {last}",
            chunks=[entry.chunk for entry in dead[:20]],
            hint=f"dead_letters() has the tracebacks; fix the cause, then run `holdfast job retry{where or ' FOLDER'}`",
        )

    def close(self) -> None:
        """Close the connection and the journal."""
        if self._ledger is not None:
            self._ledger.close()
        self.client.close()
