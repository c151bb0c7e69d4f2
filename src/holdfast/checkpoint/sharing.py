"""Sharing within a node: what several ranks want is read once, by one of them, and passed on.

Every rank tells the others on its node which stored chunks it wants. Chunks that several want in the same way are
divided among those ranks, in contiguous sections of the files; each rank reads its share, checks it, and fills its own
destinations as in any load. Then it sends those bytes on through CPU memory, block by block, so destinations may be on
any device.

Ranks proceed together or not at all: what fails on one is raised on all, and a rank that is gone is an error.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.planner import LoadPlanner

from holdfast.checkpoint.destination import copy_into
from holdfast.checkpoint.plan import Chunk, Request, stands_for_another
from holdfast.checkpoint.report import ReportBuilder
from holdfast.errors import CheckpointError, CheckpointReadError, ConfigError, HoldfastError

__all__ = ["NodeSharing", "naming_peers", "node_group", "portable"]

BLOCK_BYTES = 4 << 20
"""Bytes to send at once: one block to send, and one from each other rank, is all the memory this takes."""

Box = tuple[tuple[int, ...], tuple[int, ...], str]
Key = tuple[str, str, int, int, tuple[Box, ...]]
"""A stored chunk, by checkpoint, file, offset and length, and the boxes of it that are wanted, each with its dtype."""
T = TypeVar("T")


def node_group(*, timeout: timedelta | None = None) -> dist.ProcessGroup:
    """Create a gloo group of the ranks on this machine; every rank of the default group calls it, once.

    Args:
        timeout: how long the ranks wait for each other, including reading; torch's default when ``None``. If ranks
            outside the group load too, they wait for a stalled rank as long as the default group's timeout: torch
            collects errors there.

    Raises:
        ConfigError: torch.distributed is not initialised.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError("node_group needs torch.distributed", hint="call init_process_group first")
    machines = [""] * dist.get_world_size()
    dist.all_gather_object(machines, _machine())
    mine: dist.ProcessGroup | None = None
    for machine in dict.fromkeys(machines):
        ranks = [rank for rank, other in enumerate(machines) if other == machine]
        group = dist.new_group(ranks, backend="gloo", timeout=timeout)
        if dist.get_rank() in ranks:
            mine = group
    assert mine is not None
    return mine


def _machine() -> str:
    """Return text that is the same only for processes on one running kernel, even across containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


class _Stream(NamedTuple):
    """The chunks that one rank reads for the same set of other ranks, in order."""

    owner: int
    takers: tuple[int, ...]
    keys: list[Key]


class NodeSharing:
    """One load by the ranks of a group, all of which make the same calls.

    Args:
        group: the ranks that share; must support CPU tensors, as gloo does.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._rank = dist.get_rank(group)
        self._wanted: dict[Key, Chunk] = {}
        self._streams: list[_Stream] = []
        self.received: list[Chunk] = []
        """What other ranks read for this one."""

    def together(self, work: Callable[[], T]) -> list[T]:
        """Call a function on every rank and return all results; if it fails on one, raise that error on all."""
        mine: list[T] = []
        error: BaseException | None = None
        try:
            mine.append(work())
        except BaseException as caught:  # an interrupt too: the others would wait for this rank
            error = caught
        told: list[tuple[list[T], Exception | None]] = [([], None)] * dist.get_world_size(self._group)
        with naming_peers(error):
            dist.all_gather_object(told, (mine, portable(error)), group=self._group)
        if error is not None:
            raise error
        for _, other in told:
            if other is not None:
                raise other
        return [result for (result,), _ in told]

    def divide(self, origin: str, plan: Callable[[], Sequence[Chunk]], *, share: bool) -> list[Chunk]:
        """Make the plan of each rank, and return the chunks that this one reads itself.

        Args:
            origin: the checkpoint, and how it is checked; only ranks that agree on this share.
            plan: returns the chunks that this rank wants.
            share: whether anything may be shared; a rank that may not share still takes part.
        """
        chunks: list[Chunk] = []

        def offer() -> dict[Key, int]:
            chunks.extend(plan())
            self._wanted = _sharable(origin, chunks) if share else {}
            return {key: chunk.needed_bytes for key, chunk in self._wanted.items()}

        offers = self.together(offer)
        takers: dict[Key, list[int]] = {}
        for rank, offered in enumerate(offers):
            for key in offered:
                takers.setdefault(key, []).append(rank)
        alike: dict[tuple[int, ...], list[Key]] = {}
        for key in sorted(takers):
            if len(takers[key]) > 1:
                alike.setdefault(tuple(takers[key]), []).append(key)
        self._streams = [
            stream for ranks, keys in sorted(alike.items()) for stream in _stretches(ranks, keys, offers[ranks[0]])
        ]
        self.received = [
            self._wanted[key]
            for stream in self._streams
            if self._rank in stream.takers and self._rank != stream.owner
            for key in stream.keys
        ]
        others = set(self.received)
        return [chunk for chunk in chunks if chunk not in others]

    def exchange(self, planner: LoadPlanner, report: ReportBuilder) -> None:
        """Send what this rank read for others, and commit what they read for it; call after all have read."""
        streams = [
            (tag, stream, _blocks([view for key in stream.keys for view in _views(self._wanted[key])]))
            for tag, stream in enumerate(self._streams)
            if self._rank in stream.takers
        ]
        with naming_peers():
            while streams:
                streams = self._exchange_blocks(streams)
        for chunk in self.received:
            for request in chunk.requests:
                assert request.target is not None
                planner.commit_tensor(request.item, request.target)
            report.received(chunk.needed_bytes)
            report.done(chunk.needed_bytes)

    def _exchange_blocks(
        self, streams: list[tuple[int, _Stream, Iterator[list[torch.Tensor]]]]
    ) -> list[tuple[int, _Stream, Iterator[list[torch.Tensor]]]]:
        """Pass on the next block of every stream; return the streams that have more."""
        works = []
        arriving: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        going = []
        for entry in streams:
            tag, stream, blocks = entry
            block = next(blocks, None)
            if block is None:
                continue
            going.append(entry)
            if stream.owner == self._rank:
                buffer = torch.cat([view.cpu() for view in block])
                works += [
                    dist.isend(buffer, self._global(rank), group=self._group, tag=tag)
                    for rank in stream.takers
                    if rank != self._rank
                ]
            else:
                buffer = torch.empty(sum(map(len, block)), dtype=torch.uint8, device="cpu")
                works.append(dist.irecv(buffer, self._global(stream.owner), group=self._group, tag=tag))
                arriving.append((buffer, block))
        for work in works:
            assert work is not None
            work.wait()
        for buffer, block in arriving:
            for view, part in zip(block, buffer.split_with_sizes(list(map(len, block))), strict=True):
                copy_into(view, part)
        return going

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self._group, rank)


def check_group(group: object) -> None:
    """Raise unless this rank can share within the group."""
    hint = "create it once, on all ranks, with holdfast.checkpoint.node_group()"
    if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
        raise ConfigError("share_within must be a process group that this rank belongs to", hint=hint)
    try:
        group._get_backend(torch.device("cpu"))
    except RuntimeError:
        raise ConfigError("share_within must be a group that supports CPU tensors", hint=hint) from None


def _sharable(origin: str, chunks: Sequence[Chunk]) -> dict[Key, Chunk]:
    """Return the chunks that may come from another rank.

    These are tensors in contiguous memory that no other chunk writes to.
    """
    found: dict[Key, list[Chunk]] = {}
    for chunk in chunks:
        if chunk.blocked or chunk.followers or not all(map(_is_plain, chunk.requests)):
            continue
        boxes = tuple(
            (tuple(request.item.storage_offsets), tuple(request.item.lengths), str(request.target.dtype))
            for request in _in_order(chunk)
            if request.target is not None
        )
        found.setdefault((origin, chunk.file, chunk.offset, chunk.length, boxes), []).append(chunk)
    return {key: same[0] for key, same in found.items() if len(same) == 1}


def _is_plain(request: Request) -> bool:
    target = request.target
    return (
        type(target) is torch.Tensor
        and not stands_for_another(target)
        and target.layout == torch.strided
        and target.device.type != "meta"
        and not target.is_quantized
        and not target.is_conj()
        and not target.is_neg()
        and target.is_contiguous()
        and target.numel() > 0
    )


def _in_order(chunk: Chunk) -> list[Request]:
    return sorted(chunk.requests, key=lambda one: (tuple(one.item.storage_offsets), tuple(one.item.lengths)))


def _stretches(ranks: tuple[int, ...], keys: list[Key], sizes: dict[Key, int]) -> Iterator[_Stream]:
    """Divide chunks, in file order, into one contiguous section per rank, of about equal size in bytes."""
    total = sum(sizes[key] for key in keys)
    keys_of: dict[int, list[Key]] = {}
    done = 0
    for key in keys:
        keys_of.setdefault(ranks[done * len(ranks) // total], []).append(key)
        done += sizes[key]
    for owner, own in keys_of.items():
        yield _Stream(owner, ranks, own)


def _views(chunk: Chunk) -> list[torch.Tensor]:
    """Return the bytes of a chunk's destinations."""
    return [request.target.view(-1).view(torch.uint8) for request in _in_order(chunk) if request.target is not None]


def _blocks(views: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Cut bytes into blocks of equal size, except for the last; each is a list of slices."""
    block: list[torch.Tensor] = []
    room = BLOCK_BYTES
    for view in views:
        start = 0
        while start < len(view):
            piece = view[start : start + room]
            block.append(piece)
            start += len(piece)
            room -= len(piece)
            if not room:
                yield block
                block, room = [], BLOCK_BYTES
    if block:
        yield block


def portable(error: BaseException | None) -> Exception | None:
    """Return an error that every rank can unpickle."""
    if error is None or isinstance(error, HoldfastError):
        return error
    if not isinstance(error, Exception):
        return CheckpointError("another rank was interrupted while reading", cause=type(error).__name__)
    return CheckpointError(f"the checkpoint cannot be loaded: {error}", cause=type(error).__name__)


@contextmanager
def naming_peers(error: BaseException | None = None) -> Iterator[None]:
    """Explain failures in communicating with the other ranks."""
    try:
        yield
    except RuntimeError as caught:
        raise CheckpointReadError(
            "another rank of the group died, or took too long",
            cause=str(caught).partition("\n")[0],
            hint="find out why that rank ended; the process group's timeout sets how long ranks wait",
        ) from (error or caught)
