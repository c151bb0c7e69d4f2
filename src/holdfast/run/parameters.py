"""A description of a model, and a hash of its parameters that does not depend on how they are sharded.

Every element contributes a number mixed from its bits, its position in the whole tensor and the tensor's name; the hash
is their sum modulo 2**64. So the parts of a sharded tensor add up to the hash of the whole, in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import torch
from torch import nn

from holdfast.errors import RunMismatchError

__all__ = [
    "ParameterHash",
    "describe_model",
    "hash_parameters",
    "is_sharded",
    "local_tensor",
    "parameters_of",
    "shares_elements",
    "write_shared",
]

# Elements mixed at a time: eight bytes each, twice, so that hashing takes little memory for any model.
CHUNK = 1 << 20
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ODD = (-7046029254386353131, -4417276706812531889)  # the odd constants of splitmix64 and xxHash, as signed integers
_MASK = (1 << 64) - 1


class ParameterHash:
    """The hash of one rank's part of the parameters.

    Attributes:
        whole: the hash of the tensors that this rank holds whole; equal on all ranks that are in sync.
        part: the hash of the shards that this rank holds; the ranks' parts add up to the hash of the sharded tensors.
    """

    __slots__ = ("part", "whole")

    def __init__(self, whole: int, part: int) -> None:
        self.whole = whole
        self.part = part


def parameters_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every parameter and persistent buffer with its plain name (no wrapper's prefix)."""
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor):
            yield name.removeprefix("module.").replace("._orig_mod", "").removeprefix("_orig_mod."), value


def describe_model(model: nn.Module) -> dict[str, str]:
    """Return name → shape and type of every parameter and buffer, for the whole tensors."""
    return {
        name: f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}" for name, value in parameters_of(model)
    }


def shares_elements(value: torch.Tensor) -> bool:
    """Return whether elements of a tensor share memory, as those of an expanded one do: torch cannot copy into it."""
    return type(value) in (torch.Tensor, nn.Parameter) and any(
        stride == 0 and size > 1 for stride, size in zip(value.stride(), value.size(), strict=True)
    )


def write_shared(name: str, target: torch.Tensor, values: torch.Tensor) -> None:
    """Write values into a tensor whose elements share memory.

    Raises:
        RunMismatchError: elements that share memory would need different values.
    """
    own, shown = target.detach(), values
    for dimension, stride in enumerate(target.stride()):
        if stride == 0:
            own, shown = own.narrow(dimension, 0, 1), shown.narrow(dimension, 0, 1)
    if not torch.equal(_bits(shown.expand_as(values)), _bits(values)):
        raise RunMismatchError(
            "a tensor of the model was expanded since the run was started, and cannot hold what was saved",
            tensor=name,
            hint="build the model as in the program that started the run",
        )
    own.copy_(shown)


def _bits(value: torch.Tensor) -> torch.Tensor:
    return value.detach().contiguous().view(torch.uint8)


def local_tensor(value: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that is on this rank."""
    local = getattr(value, "to_local", None)
    return local().detach() if local is not None else value.detach()


def is_sharded(value: torch.Tensor) -> bool:
    """Return whether each rank holds only a part of a tensor."""
    placements: Any = getattr(value, "placements", None)
    return placements is not None and not all(placement.is_replicate() for placement in placements)


def hash_parameters(model: nn.Module) -> ParameterHash:
    """Hash the parameters and buffers of a model that are on this rank."""
    whole = part = 0
    for name, value in parameters_of(model):
        seed = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)
        shard = _shard_offset(value)
        if shard is None:
            whole += _hash(local_tensor(value), None, tuple(value.shape), seed)
        else:
            part += _hash(local_tensor(value), shard, tuple(value.shape), seed)
    return ParameterHash(whole & _MASK, part & _MASK)


def _shard_offset(value: torch.Tensor) -> tuple[int, ...] | None:
    """Return where this rank's shard begins in the whole tensor; None for a tensor that is whole on every rank."""
    if not is_sharded(value):
        return None
    placements: Any = value.placements  # type: ignore[attr-defined]
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, placements)  # type: ignore[attr-defined]
    return tuple(offset)


def _hash(local: torch.Tensor, offset: tuple[int, ...] | None, shape: tuple[int, ...], seed: int) -> int:
    if local.numel() == 0:
        return 0
    flat = local.contiguous().reshape(-1)
    if flat.dtype is torch.bool:
        flat = flat.to(torch.uint8)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
        shape = (*shape, 2)
        offset = None if offset is None else (*offset, 0)
        local_shape = (*local.shape, 2)
    else:
        local_shape = tuple(local.shape)
    bits = flat.view(_INTEGERS[flat.element_size()])
    total = 0
    for start in range(0, bits.numel(), CHUNK):
        piece = bits[start : start + CHUNK].to(torch.int64)
        place = torch.arange(start, start + piece.numel(), dtype=torch.int64, device=piece.device)
        if offset is not None:
            place = _places(place, offset, local_shape, shape)
        mixed = (piece + seed) * _ODD[0] ^ (place + 1) * _ODD[1]
        mixed = (mixed ^ (mixed >> 29)) * _ODD[1]
        mixed = (mixed ^ (mixed >> 32)) * _ODD[0]
        total += int(mixed.sum().item())
    return total & _MASK


def _places(
    local: torch.Tensor, offset: tuple[int, ...], local_shape: tuple[int, ...], shape: tuple[int, ...]
) -> torch.Tensor:
    """Return the positions in the whole tensor of the shard's elements ``local``."""
    place = torch.zeros_like(local)
    stride = 1
    for size, begin, whole in zip(reversed(local_shape), reversed(offset), reversed(shape), strict=True):
        place += (local % size + begin) * stride
        local = local // size
        stride *= whole
    return place


def differences(saved: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """Return the differences between two descriptions of a model, in words."""
    found = [f"{name} is missing" for name in saved if name not in current]
    found += [f"{name} is new" for name in current if name not in saved]
    found += [
        f"{name} was {saved[name]} and is {current[name]}"
        for name in saved
        if name in current and saved[name] != current[name]
    ]
    return found
