"""What has become of a job's chunks: kept as it happens, completed at the end, and told to whoever asks.

Holds no lock that the renewal of leases needs, and reads over a connection of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.coordinate.begin import Begun, read_pages
from holdfast.coordinate.finals import Finals
from holdfast.coordinate.ledger import Ledger
from holdfast.coordinate.records import Dead, Done
from holdfast.coordinate.sink import FolderSink
from holdfast.coordinate.store import StoreClient
from holdfast.errors import DeadLetterError

__all__ = ["Outcome"]


class Outcome:
    """The ends of a job's chunks, over all its generations.

    Args:
        client: a connection of its own.
        begun: the job.
        ledger: its folder, if it has one.
        sink: where its outputs go.
        ended_before: says whether a chunk had ended before this generation.
    """

    def __init__(
        self,
        client: StoreClient,
        begun: Begun,
        *,
        ledger: Ledger | None,
        sink: FolderSink | None,
        ended_before: Callable[[int], bool],
    ) -> None:
        self.client = client
        """The connection."""
        self._begun = begun
        self._ledger = ledger
        self._sink = sink
        self._place = client.below(f"lease/{begun.job.name}/{begun.prefix}")
        self._finals = Finals(self._place, begun.job.chunks, ended_before)
        self._before: dict[int, Done | Dead] | None = None

    def keep(self, entry: Done | Dead) -> None:
        """Keep the end of a chunk that the store has accepted, and give its output the real name.

        Raises:
            SupersededError: the job has begun again on another store, and this end does not count.
        """
        if self._ledger is not None:
            self._ledger.record(entry)
        if self._sink is not None and isinstance(entry, Done) and entry.file:
            self._sink.publish(entry.file)

    def ends(self) -> list[Done | Dead]:
        """Return the end of every chunk that has ended so far, in order of chunks."""
        found = {**self._earlier(), **self._finals.read()}
        return [found[chunk] for chunk in sorted(found)]

    def _earlier(self) -> dict[int, Done | Dead]:
        """Return the ends of earlier generations, which never change."""
        if self._before is None:
            ended = self._begun.finished
            if self._ledger is None:
                self._before = read_pages(self._place, self._begun.pages)
            elif not ended:
                self._before = {}
            else:
                chunks = {chunk for start, stop in ended for chunk in range(start, stop)}
                self._before = {chunk: end for chunk, end in self._ledger.read().items() if chunk in chunks}
        return self._before

    def settle(self, ttl: float, wait: Callable[[float], None]) -> None:
        """Complete, once all chunks have ended, what workers that died after their commit left undone.

        One worker does it; the others wait for it, or do it themselves where it falls silent.
        """
        if self._ledger is None and self._sink is None:
            return
        if self._place.add("settlers", 1) > 1 and self._settled_by_another(ttl, wait):
            return
        kept = {} if self._ledger is None else self._ledger.read()
        for chunk, entry in {**self._earlier(), **self._finals.read()}.items():
            if self._ledger is not None and chunk not in kept:
                self._ledger.record(entry)
            if self._sink is not None and isinstance(entry, Done) and entry.file:
                self._sink.publish(entry.file)
        if self._sink is not None:
            self._sink.sweep(self._begun.job.job)
        self._place.set("settled", b"yes")

    def _settled_by_another(self, ttl: float, wait: Callable[[float], None]) -> bool:
        end = time.monotonic() + ttl
        while self._place.get("settled") is None:
            if time.monotonic() > end:
                return False
            wait(ttl / 100)
        return True

    def raise_dead_letters(self) -> None:
        """Raise ``DeadLetterError`` if any chunk was given up."""
        dead = [entry for entry in self.ends() if isinstance(entry, Dead)]
        if not dead:
            return
        last = dead[0].error.strip().rpartition("\n")[2]
        where = "" if self._ledger is None else f" {self._ledger.folder}"
        raise DeadLetterError(
            f"{len(dead)} of {self._begun.job.chunks} chunks were given up, all others are committed; chunk "
            f"{dead[0].chunk} after {dead[0].attempts} attempts: {last}",
            chunks=[entry.chunk for entry in dead[:20]],
            hint=f"dead_letters() has the tracebacks; mend the cause, then `holdfast job retry{where or ' FOLDER'}`",
        )

    def close(self) -> None:
        """End the connection and the journal."""
        if self._ledger is not None:
            self._ledger.close()
        self.client.close()
