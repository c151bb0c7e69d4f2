"""Readings on their way from a worker process: many small tensors travel as a few large ones.

torch passes every tensor in shared memory of its own, with a file descriptor. That is right for a batch of images, but
costs more than the reading itself if each sample is a small tensor. So the tensors of a reading are laid end to end, by
dtype, and the receiver cuts views out of them; everything else is pickled as it is.
"""

from __future__ import annotations

import io
import pickle
from itertools import groupby
from math import prod
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch

from holdfast.errors import StreamError
from holdfast.stream.reading import Reading

__all__ = ["Packed", "pack", "unpack"]

# Above this size a tensor's own descriptor costs less than one more copy.
SMALL_BYTES = 256 * 2**10


class _Group(NamedTuple):
    """Tensors of one dtype laid end to end: their numbers in the reading and their shapes."""

    numbers: list[int]
    shapes: list[tuple[int, ...]]


class Packed(NamedTuple):
    """A reading as a worker sends it: a plain tuple, so that torch finds the tensors and can pin them."""

    content: bytes  # the reading without its tensors, pickled
    layout: bytes  # how the first tensors are composed, and the numbers of those sent unchanged after them; pickled
    tensors: list[torch.Tensor]


class _Packer(ForkingPickler):
    """Pickles everything except tensors, which it numbers."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, torch.Tensor):
            return None
        number = self._numbers.setdefault(id(value), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(value)
        return number


def pack(reading: Reading) -> Packed:
    """Prepare a reading to be sent to another process."""
    file = io.BytesIO()
    packer = _Packer(file)
    try:
        packer.dump(reading)
    except Exception as error:
        raise StreamError(
            f"a batch cannot be sent from its worker process: {error!r}",
            hint="have transform and collate return tensors, arrays, text or plain values, or set num_workers=0",
        ) from error
    kinds = [(_kind(tensor), number) for number, tensor in enumerate(packer.tensors)]
    alone = [number for kind, number in kinds if kind is None]
    small = sorted((kind, number) for kind, number in kinds if kind is not None)
    groups, joined = [], []
    for _, members in groupby(small, key=lambda pair: pair[0]):
        numbers = [number for _, number in members]
        tensors = [packer.tensors[number] for number in numbers]
        groups.append(_Group(numbers, [tuple(tensor.shape) for tensor in tensors]))
        joined.append(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    sent = [*joined, *(packer.tensors[number] for number in alone)]
    return Packed(file.getvalue(), pickle.dumps((groups, alone)), sent)


def unpack(packed: Packed) -> Reading:
    """Restore a reading from what ``pack`` made, in the process that uses it."""
    content, layout, tensors = packed
    groups, alone = pickle.loads(layout)  # noqa: S301  # from one of our own processes
    found = dict(zip(alone, tensors[len(groups) :], strict=True))
    for (numbers, shapes), joined in zip(groups, tensors, strict=False):
        views = torch.unsafe_split_with_sizes(joined, [prod(shape) for shape in shapes])
        for number, shape, view in zip(numbers, shapes, views, strict=True):
            found[number] = view if len(shape) == 1 else view.view(shape)
    unpickler = pickle.Unpickler(io.BytesIO(content))  # noqa: S301  # from one of our own processes
    unpickler.persistent_load = found.__getitem__  # type: ignore[method-assign]  # the fastest possible call
    reading: Reading = unpickler.load()
    return reading


def _kind(tensor: torch.Tensor) -> str | None:
    """Return the dtype by which a tensor is grouped with others; None for one that is sent alone."""
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and tensor.device.type == "cpu"
    if not plain or tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return None
    return str(tensor.dtype) if tensor.nbytes <= SMALL_BYTES else None
