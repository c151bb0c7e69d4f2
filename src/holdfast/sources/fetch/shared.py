"""The blocks that the processes of a machine share: found in its cache, claimed before they are fetched, kept after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from holdfast.sources.fetch.blocks import Block, runs_of
from holdfast.sources.fetch.claims import Claims
from holdfast.sources.fetch.transport import Data

__all__ = ["SharedBlocks"]


class SharedBlocks:
    """What a fetcher shares with others; all blocks of a call are of one file, in its order.

    Args:
        folder: the cache folder; None where nothing is kept, and nothing shared.
    """

    def __init__(self, folder: Path | None) -> None:
        self._claims = None if folder is None else Claims(folder)

    @property
    def keeps(self) -> bool:
        """Whether blocks are kept."""
        return self._claims is not None

    def find_or_claim(self, blocks: Sequence[Block]) -> tuple[dict[int, Data], set[int]]:
        """Return the blocks that are here, and the numbers of those to fetch; others are fetched by another process."""
        if self._claims is None:
            return {}, {block.number for block in blocks}
        key = blocks[0].file.key
        claimed = self._claims.take(key, [block.number for block in blocks])
        found = _look_up(blocks)  # after claiming, so that what another process has published by then is found
        self._claims.release(key, [number for number in found if number in claimed])
        return found, claimed - found.keys()

    def keep(self, pieces: Sequence[tuple[Block, Data]]) -> None:
        """Write blocks to the cache, those that lie side by side together."""
        data = {block.number: piece for block, piece in pieces}
        for run in runs_of(list(data)):
            pieces[0][0].file.cache.put(run.start, [data[number] for number in run])

    def release(self, blocks: Sequence[Block]) -> None:
        """Give back the claims of blocks."""
        if self._claims is not None:
            self._claims.release(blocks[0].file.key, [block.number for block in blocks])


def _look_up(blocks: Iterable[Block]) -> dict[int, Data]:
    looked = ((block.number, block.file.cache.get(block.number, block.size)) for block in blocks)
    return {number: data for number, data in looked if data is not None}
