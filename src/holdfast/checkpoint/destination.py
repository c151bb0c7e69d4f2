"""Writing into destinations: raw memory for plain CPU tensors, ``copy_`` for everything else.

Raw writes bypass torch, so two things that ``copy_`` does are done by hand: the target is detached, so grad mode does
not matter, and the version counter is bumped, so that autograd still notices that the tensor was changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from holdfast.checkpoint.plan import Request
from holdfast.errors import CheckpointMismatchError

__all__ = ["bump_version", "check_dtype", "check_request", "copy_into", "memory_of", "narrow"]


def memory_of(address: int, length: int) -> memoryview:
    """Return a writable view of raw memory; the caller must keep its owner alive."""
    return memoryview((ctypes.c_char * length).from_address(address)).cast("B")


def narrow(tensor: torch.Tensor, start: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
    """Return the box of a tensor that starts at ``start``."""
    for dim, (offset, length) in enumerate(zip(start, lengths, strict=True)):
        if length != tensor.size(dim):
            tensor = tensor.narrow(dim, offset, length)
    return tensor


def copy_into(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy with torch, in inference mode for targets that can only be written there."""
    if target.is_inference() and not torch.is_inference_mode_enabled():
        with torch.inference_mode():
            target.copy_(source)
    else:
        target.copy_(source)


def check_dtype(target: torch.Tensor, stored: torch.dtype, *, cast: bool, tensor: str, file: str) -> None:
    """Raise if the dtypes differ and no conversion was requested."""
    if target.dtype != stored and not cast:
        raise CheckpointMismatchError(
            "the stored dtype differs from the destination's",
            tensor=tensor,
            file=file,
            stored=str(stored),
            destination=str(target.dtype),
            hint="build the model in that dtype, or pass cast=True to convert while loading",
        )


def check_request(request: Request, shape: tuple[int, ...], dtype: torch.dtype, file: str, *, cast: bool) -> None:
    """Raise unless a stored tensor holds the box that a request wants, in the dtype it wants."""
    item = request.item
    assert request.target is not None
    if len(shape) != len(item.lengths) or any(
        offset + length > size for offset, length, size in zip(item.storage_offsets, item.lengths, shape, strict=True)
    ):
        raise CheckpointMismatchError(
            "the stored tensor is smaller than its metadata says",
            tensor=request.fqn,
            file=file,
            stored=shape,
            wanted=tuple(item.lengths),
            at=tuple(item.storage_offsets),
            hint="the metadata belongs to another checkpoint, or was tampered with",
        )
    check_dtype(request.target, dtype, cast=cast, tensor=request.fqn, file=file)


def bump_version(target: torch.Tensor) -> None:
    """Tell autograd that the tensor has changed."""
    if not target.is_inference():
        torch.autograd.graph.increment_version(target)
