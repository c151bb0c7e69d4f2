"""Tensors inside objects, rebuilt by torch's own functions from arguments that were looked at first.

Torch's functions believe what they are told: indices of a sparse tensor that lie outside it, attributes that replace a
tensor's own, hooks that run at the next backward pass. Nothing of that is in a checkpoint that anybody saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._tensor
import torch._utils

from holdfast.checkpoint.inert import Name

__all__ = ["MAX_DIMENSIONS", "TENSOR_FUNCTIONS"]

MAX_DIMENSIONS = 64
"""As NumPy's: a tensor of thousands of dimensions cannot even be printed."""

# Which argument holds the hooks, and which the attributes; ``None`` where there are none. Functions that are left out
# allocate what a number tells them to, or see memory without looking at its bounds.
_REBUILD: dict[str, tuple[int | None, int | None]] = {
    "_rebuild_tensor": (None, None),
    "_rebuild_tensor_v2": (5, None),
    "_rebuild_tensor_v3": (5, None),
    "_rebuild_parameter": (2, None),
    "_rebuild_parameter_with_state": (2, 3),
    "_rebuild_meta_tensor_no_storage": (None, None),
    "_rebuild_wrapper_subclass": (None, None),
    "_rebuild_device_tensor_from_numpy": (None, None),
    "_rebuild_device_tensor_from_cpu_tensor": (None, None),
}


def _checked(function: Callable[..., Any], hooks_at: int | None, state_at: int | None) -> Callable[..., Any]:
    def rebuild(*arguments: Any) -> Any:
        if hooks_at is not None and arguments[hooks_at]:
            raise ValueError("a tensor with hooks")
        if state_at is not None:
            _check_attributes(arguments[state_at])
        return function(*arguments)

    return rebuild


def _check_attributes(state: Any) -> None:
    """Raise if setting these attributes would replace what every tensor has; a user's attributes have other names."""
    for names in state if type(state) is tuple else (state,):
        for name in names or ():
            if type(name) is not str or name.startswith("__") or hasattr(torch.Tensor, name):
                raise ValueError(f"a tensor whose attribute {name!r} was replaced")


def _sparse(layout: Any, data: Any) -> torch.Tensor:
    """Rebuild a sparse tensor; torch looks at its indices only where the user has switched that on."""
    if layout == torch.sparse_coo:
        indices, values, size, *coalesced = data
        return torch.sparse_coo_tensor(
            indices, values, size, check_invariants=True, is_coalesced=coalesced[0] if coalesced else None
        )
    if layout not in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        raise ValueError(f"a sparse tensor of layout {layout}")
    compressed, plain, values, size = data
    return torch.sparse_compressed_tensor(compressed, plain, values, size, layout=layout, check_invariants=True)


def _quantized(*arguments: Any) -> Any:
    """Rebuild a quantized tensor; older torch believes that there is a scale for every channel."""
    _, _, size, _, (scheme, *parameters), *_ = arguments
    if scheme in (torch.per_channel_affine, torch.per_channel_affine_float_qparams):
        scales, zero_points, axis = parameters
        if not scales.numel() == zero_points.numel() == size[axis]:
            raise ValueError("a quantized tensor with too few or too many scales")
    return _checked(torch._utils._rebuild_qtensor, 6, None)(*arguments)


def _size(sizes: Any) -> torch.Size:
    if len(sizes) > MAX_DIMENSIONS or not all(type(size) is int and abs(size) < 1 << 62 for size in sizes):
        raise ValueError("a size that no tensor has")
    return torch.Size(sizes)


def _device(kind: Any, index: Any = None) -> torch.device:
    # Torch keeps the index in a byte and lets larger ones wrap around.
    if type(kind) is not str or not (index is None or (type(index) is int and 0 <= index < 128)):
        raise ValueError("a device that no machine has")
    return torch.device(kind) if index is None else torch.device(kind, index)


TENSOR_FUNCTIONS: dict[Name, Callable[..., Any]] = {
    **{
        Name("torch._utils", name): _checked(getattr(torch._utils, name), *where)
        for name, where in _REBUILD.items()
        if hasattr(torch._utils, name)
    },
    Name("torch._utils", "_rebuild_qtensor"): _quantized,
    Name("torch._utils", "_rebuild_sparse_tensor"): _sparse,
    Name("torch._tensor", "_rebuild_from_type_v2"): _checked(torch._tensor._rebuild_from_type_v2, None, 3),
    Name("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    Name("torch", "Size"): _size,
    Name("torch", "device"): _device,
}
"""What an object may call to rebuild a tensor, or a property of one."""
