"""Tensors inside objects, rebuilt by torch's own functions from checked arguments.

Torch's functions accept whatever they are given: sparse indices out of range, attributes that replace a tensor's own,
hooks that run at the next backward pass. No checkpoint that was saved normally contains any of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._tensor
import torch._utils
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from holdfast.checkpoint.inert import Name

__all__ = ["MAX_DIMENSIONS", "NESTED_TENSOR", "TENSOR_FUNCTIONS"]

MAX_DIMENSIONS = 64
"""Same as NumPy's: a tensor with thousands of dimensions cannot even be printed."""

NESTED_TENSOR = "a nested (jagged) tensor: store its values() and offsets() instead"
"""Why such a tensor is refused. How torch pickles it depends on what the process has imported."""

# Which argument holds the hooks, and which the attributes; ``None`` where there are none. Functions not listed here
# allocate as much as a number says, or access memory without checking its bounds.
_REBUILD: dict[str, tuple[int | None, int | None]] = {
    "_rebuild_tensor": (None, None),
    "_rebuild_tensor_v2": (5, None),
    "_rebuild_tensor_v3": (5, None),
    "_rebuild_parameter": (2, None),
    "_rebuild_parameter_with_state": (2, 3),
    "_rebuild_meta_tensor_no_storage": (None, None),
    "_rebuild_device_tensor_from_numpy": (None, None),
    "_rebuild_device_tensor_from_cpu_tensor": (None, None),
}


_QUANTIZED = {
    torch.qint8: (-(1 << 7), (1 << 7) - 1),
    torch.quint8: (0, (1 << 8) - 1),
    torch.qint32: (-(1 << 31), (1 << 31) - 1),
    torch.quint4x2: (0, (1 << 4) - 1),
    torch.quint2x4: (0, (1 << 2) - 1),
}
"""Smallest and largest zero point."""


def _checked(function: Callable[..., Any], hooks_at: int | None, state_at: int | None) -> Callable[..., Any]:
    def rebuild(*arguments: Any) -> Any:
        if hooks_at is not None and arguments[hooks_at]:
            raise ValueError("a tensor with hooks")
        if state_at is not None:
            _check_attributes(arguments[state_at])
        return function(*arguments)

    return rebuild


def _check_attributes(state: Any) -> None:
    """Raise if an attribute would replace one that every tensor has; a user's attributes have other names."""
    for names in state if type(state) is tuple else (state,):
        for name in names or ():
            if type(name) is not str or name.startswith("__") or hasattr(torch.Tensor, name):
                raise ValueError(f"a tensor whose attribute {name!r} was replaced")


def _sparse(layout: Any, data: Any) -> torch.Tensor:
    """Rebuild a sparse tensor; torch checks its indices only if the user has enabled that."""
    if layout == torch.sparse_coo:
        indices, values, size, *coalesced = data
        return torch.sparse_coo_tensor(
            indices, values, size, check_invariants=True, is_coalesced=coalesced[0] if coalesced else None
        )
    if layout not in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        raise ValueError(f"a sparse tensor with layout {layout}")
    compressed, plain, values, size = data
    return torch.sparse_compressed_tensor(compressed, plain, values, size, layout=layout, check_invariants=True)


def _quantized(
    storage: Any, offset: Any, size: Any, strides: Any, quantizer: Any, requires_grad: Any, hooks: Any
) -> torch.Tensor:
    """Rebuild a quantized tensor; torch does not check its scales and zero points, old torch not even their number.

    Torch's own function asks the storage for its device, which torch itself warns is deprecated.
    """
    scheme, *parameters = quantizer
    kind: dict[str, Any] = {"dtype": storage.dtype, "device": storage._untyped_storage.device}
    if hooks:
        raise ValueError("a tensor with hooks")
    if scheme == torch.per_tensor_affine:
        scale, zero_point = parameters
        if type(scale) is not float or type(zero_point) is not int:
            raise ValueError("a quantized tensor whose scale or zero point is not a number")
        _check_quantization(
            torch.tensor([scale], dtype=torch.float64, device="cpu"),
            torch.tensor([zero_point], device="cpu"),
            storage.dtype,
        )
        made = torch._empty_affine_quantized(size, scale=scale, zero_point=zero_point, **kind)
    elif scheme in (torch.per_channel_affine, torch.per_channel_affine_float_qparams):
        scales, zero_points, axis = parameters
        if type(axis) is not int or not 0 <= axis < len(size):
            raise ValueError("a quantized tensor whose channel axis does not exist")
        if not scales.shape == zero_points.shape == (size[axis],):
            raise ValueError("a quantized tensor with too few or too many scales or zero points")
        _check_quantization(scales, zero_points, storage.dtype)
        made = torch._empty_per_channel_affine_quantized(
            size, scales=scales, zero_points=zero_points, axis=axis, **kind
        )
    else:
        raise ValueError(f"a quantized tensor with scheme {scheme}")
    made.set_(storage, offset, size, strides)
    made.requires_grad = requires_grad
    return made


def _check_quantization(scales: torch.Tensor, zero_points: torch.Tensor, dtype: torch.dtype) -> None:
    if not bool((torch.isfinite(scales) & (scales > 0)).all()):
        raise ValueError("a quantized tensor with a scale that is not a positive number")
    least, most = _QUANTIZED[dtype]
    if not bool(((zero_points >= least) & (zero_points <= most)).all()):
        raise ValueError(f"a quantized tensor with a zero point outside {dtype}")


def _from_type(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """Rebuild an instance of a subclass; one that wraps other tensors must have them."""
    if getattr(kind, "__module__", "").startswith("torch.nested."):
        raise ValueError(NESTED_TENSOR)
    _check_attributes(state)
    wraps = function is _wrapper_alone
    rebuild = torch._utils._rebuild_wrapper_subclass if wraps else function
    made = torch._tensor._rebuild_from_type_v2(rebuild, kind, arguments, state)  # type: ignore[no-untyped-call]
    if wraps:
        if not is_traceable_wrapper_subclass(made):
            raise ValueError(f"a {type(made).__name__} that wraps other tensors")
        inner, _ = made.__tensor_flatten__()
        if not inner or not all(isinstance(getattr(made, name, None), torch.Tensor) for name in inner):
            raise ValueError(f"a {type(made).__name__} without the tensors that it wraps")
    return made


def _wrapper_alone(*_: Any) -> Any:
    """Refuse to make a wrapper tensor without the tensors it wraps, which torch saves as its attributes."""
    raise ValueError("a wrapper tensor without the tensors that it wraps")


def _size(sizes: Any) -> torch.Size:
    if len(sizes) > MAX_DIMENSIONS or not all(type(size) is int and abs(size) < 1 << 62 for size in sizes):
        raise ValueError("an invalid size")
    return torch.Size(sizes)


def _device(kind: Any, index: Any = None) -> torch.device:
    # Torch stores the index in one byte, and larger ones wrap around.
    if type(kind) is not str or not (index is None or (type(index) is int and 0 <= index < 128)):
        raise ValueError("an invalid device")
    return torch.device(kind) if index is None else torch.device(kind, index)


TENSOR_FUNCTIONS: dict[Name, Callable[..., Any]] = {
    **{
        Name("torch._utils", name): _checked(getattr(torch._utils, name), *where)
        for name, where in _REBUILD.items()
        if hasattr(torch._utils, name)
    },
    Name("torch._utils", "_rebuild_qtensor"): _quantized,
    Name("torch._utils", "_rebuild_sparse_tensor"): _sparse,
    Name("torch._utils", "_rebuild_wrapper_subclass"): _wrapper_alone,
    Name("torch._tensor", "_rebuild_from_type_v2"): _from_type,
    Name("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    Name("torch", "Size"): _size,
    Name("torch", "device"): _device,
}
"""The functions that an object may call to rebuild a tensor, or a property of one."""
