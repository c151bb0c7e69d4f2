"""Exchanging bytes between ranks on any backend: pieces for single receivers, or every rank's payload for all.

Payloads differ in size from rank to rank, so sizes travel first. ``exchange_bytes`` sends every rank its own piece;
``gather_bytes`` gives every rank all payloads, in one ``all_gather`` of padded buffers or, if that would take too
much memory at once, one rank after another by broadcast. Tensors are placed where the backend needs them: in host
memory for gloo, on the current device for NCCL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

#: Above this many bytes, payloads are sent one rank after another.
GATHER_AT_ONCE = 64 << 20


def world_of(process_group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Return (rank, world size) in the group; (0, 1) when nothing is distributed."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return 0, 1
    return dist.get_rank(process_group), dist.get_world_size(process_group)


def exchange_bytes(pieces: Sequence[bytes], process_group: dist.ProcessGroup | None) -> list[bytes]:
    """Return the pieces that all ranks sent to this one, in rank order; a collective call.

    Args:
        pieces: the bytes that this rank sends to each rank.
        process_group: the group, None for the default one.
    """
    import torch
    import torch.distributed as dist

    device = _device(process_group)
    sent = torch.tensor([len(piece) for piece in pieces], dtype=torch.int64, device=device)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=process_group)
    lengths: list[int] = received.tolist()
    outgoing = torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.uint8).to(device)
    incoming = torch.empty(sum(lengths), dtype=torch.uint8, device=device)
    dist.all_to_all_single(incoming, outgoing, lengths, sent.tolist(), group=process_group)
    raw = _bytes_of(incoming, len(incoming))
    ends = list(accumulate(lengths))
    return [raw[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def gather_bytes(
    payload: bytes, world_size: int, process_group: dist.ProcessGroup | None, *, at_once: int = GATHER_AT_ONCE
) -> Iterator[bytes]:
    """Yield every rank's payload, in rank order; a collective call.

    Args:
        payload: this rank's bytes.
        world_size: number of ranks; more than 1.
        process_group: the group, None for the default one.
        at_once: maximum number of bytes received in one operation.
    """
    import torch
    import torch.distributed as dist

    device = _device(process_group)
    size = torch.tensor([len(payload)], dtype=torch.int64, device=device)
    sizes = [torch.zeros_like(size) for _ in range(world_size)]
    dist.all_gather(sizes, size, group=process_group)
    lengths = [int(length) for length in torch.cat(sizes).tolist()]
    longest = max(1, *lengths)  # an empty tensor has no storage to make one from
    mine = torch.frombuffer(bytearray(payload.ljust(longest, b"\0")), dtype=torch.uint8).to(device)
    if longest * world_size <= at_once:
        buffers = [torch.empty_like(mine) for _ in range(world_size)]
        dist.all_gather(buffers, mine, group=process_group)
        for buffer, length in zip(buffers, lengths, strict=True):
            yield _bytes_of(buffer, length)
        return
    rank = dist.get_rank(process_group)
    for source, length in enumerate(lengths):
        buffer = mine[:length].clone() if source == rank else torch.empty(length, dtype=torch.uint8, device=device)
        dist.broadcast(buffer, group=process_group, group_src=source)
        yield _bytes_of(buffer, length)


def _bytes_of(buffer: torch.Tensor, length: int) -> bytes:
    raw: bytes = buffer[:length].cpu().numpy().tobytes()
    return raw


def _device(process_group: dist.ProcessGroup | None) -> torch.device:
    import torch
    import torch.distributed as dist

    # "gloo", "nccl", or one backend per device type: "cpu:gloo,cuda:nccl". Prefer host memory, where the JSON is.
    backends: Any = dist.get_backend_config(process_group)
    by_device = dict(part.split(":", 1) for part in str(backends).split(",") if ":" in part)
    if by_device.get("cpu") in ("gloo", "mpi", "ucc"):
        return torch.device("cpu")
    if "cuda" in by_device or not by_device:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    name = next(iter(by_device))
    return torch.device(name) if name == "cpu" else torch.device(name, torch.get_device_module(name).current_device())
