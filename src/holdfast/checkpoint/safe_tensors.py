"""Tensors inside objects, rebuilt by torch's own functions from checked arguments.

Torch's functions accept whatever they are given: sparse indices out of range, attributes that replace a tensor's own,
hooks that run at the next backward pass. No checkpoint that was saved normally contains any of these.

A tensor may claim more elements than it stores: those of an expanded one share memory. That costs nothing as long as
nobody walks them, so the tensors that are walked or copied here must not claim more than is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch._tensor
import torch._utils
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from holdfast.checkpoint.inert import Name, RefusedPickleError

__all__ = ["MAX_DIMENSIONS", "NESTED_TENSOR", "TENSOR_FUNCTIONS"]

MAX_DIMENSIONS = 64
"""Same as NumPy's: a tensor with thousands of dimensions cannot even be printed."""

NESTED_TENSOR = "a nested (jagged) tensor: store its values() and offsets() instead"
"""Why such a tensor is refused. How torch pickles it depends on what the process has imported."""


class _Places(NamedTuple):
    """Which arguments of a function need a check; ``None`` where there are none."""

    hooks: int | None = None
    attributes: int | None = None
    marks: int | None = None
    """Lazy conjugation and negation."""
    copied: int | None = None
    """A tensor that is converted as a whole."""


# Functions not listed here allocate as much as a number says, or access memory without checking its bounds.
_REBUILD = {
    "_rebuild_tensor": _Places(),
    "_rebuild_tensor_v2": _Places(hooks=5, marks=6),
    "_rebuild_tensor_v3": _Places(hooks=5, marks=7),
    "_rebuild_parameter": _Places(hooks=2),
    "_rebuild_parameter_with_state": _Places(hooks=2, attributes=3),
    "_rebuild_meta_tensor_no_storage": _Places(),
    "_rebuild_device_tensor_from_numpy": _Places(),
    "_rebuild_device_tensor_from_cpu_tensor": _Places(copied=0),
}


_QUANTIZED = {
    torch.qint8: (-(1 << 7), (1 << 7) - 1),
    torch.quint8: (0, (1 << 8) - 1),
    torch.qint32: (-(1 << 31), (1 << 31) - 1),
    torch.quint4x2: (0, (1 << 4) - 1),
    torch.quint2x4: (0, (1 << 2) - 1),
}
"""Smallest and largest zero point."""
_PER_BYTE = {torch.quint4x2: 2, torch.quint2x4: 4}
"""Elements per byte, if several are packed into one."""


def _checked(name: str, places: _Places) -> Callable[..., Any]:
    function = getattr(torch._utils, name)

    def rebuild(*arguments: Any) -> Any:
        if places.hooks is not None:
            _check_hooks(arguments[places.hooks])
        if places.attributes is not None:
            _check_attributes(arguments[places.attributes])
        if places.marks is not None and len(arguments) > places.marks:
            _check_dict("marks", arguments[places.marks])
        if places.copied is not None:
            _check_stored("a tensor", arguments[places.copied])
        return function(*arguments)

    return rebuild


def _version_3(*arguments: Any) -> torch.Tensor:
    """Rebuild a tensor of a dtype without a storage class; torch marks it as a leaf before it gives it memory."""
    dtype = arguments[6]
    if arguments[4] is True and isinstance(dtype, torch.dtype):
        raise RefusedPickleError(
            f"a tensor of dtype {dtype} that requires gradients, which torch.load cannot load either",
            hint="save tensor.detach() or torch.nn.Parameter(tensor) instead; trusted=True does not help",
        )
    made: torch.Tensor = _checked("_rebuild_tensor_v3", _REBUILD["_rebuild_tensor_v3"])(*arguments)
    return made


def _check_stored(what: str, *parts: Any, sizes: tuple[int, ...] = ()) -> None:
    """Raise if a tensor, or part of one, claims more elements than all the parts store.

    Args:
        what: what the parts belong to, for the message.
        parts: the tensors that will be walked or copied; those on the meta device have no elements to walk.
        sizes: numbers of elements that are not those of a part.
    """
    for part in parts:
        if not isinstance(part, torch.Tensor):
            raise TypeError(f"{what} with a part that is a {type(part).__name__}")
    dense = [part for part in parts if not part.is_meta]
    stored = sum(part.untyped_storage().nbytes() // part.itemsize for part in dense)
    claimed = max((*(part.numel() for part in dense), *sizes), default=0)
    if claimed > max(stored, 1):
        raise ValueError(f"{what} that claims {claimed} elements where {stored} are stored (it was expanded)")


def _check_dict(what: str, value: Any) -> None:
    if not isinstance(value, (dict, type(None))):
        raise TypeError(f"a tensor whose {what} are a {type(value).__name__}")


def _check_hooks(hooks: Any) -> None:
    _check_dict("hooks", hooks)
    if hooks:
        raise ValueError("a tensor with hooks")


def _check_attributes(state: Any) -> None:
    """Raise if an attribute would replace one that every tensor has; a user's attributes have other names."""
    for names in state if type(state) is tuple else (state,):
        _check_dict("attributes", names)
        for name in names or ():
            if type(name) is not str or name.startswith("__") or hasattr(torch.Tensor, name):
                raise ValueError(f"a tensor whose attribute {name!r} was replaced")


_SPARSE = "a sparse tensor"


def _sparse(layout: Any, data: Any) -> torch.Tensor:
    """Rebuild a sparse tensor; torch checks its indices only if the user has enabled that."""
    _check_tuple(data)
    if type(layout) is not torch.layout:
        raise TypeError(f"expected a layout, got {type(layout).__name__}")
    if layout == torch.sparse_coo:
        indices, values, size, *coalesced = data
        _check_stored(_SPARSE, indices, values, sizes=() if indices.is_meta else indices.shape[-1:])
        return torch.sparse_coo_tensor(
            indices, values, size, check_invariants=True, is_coalesced=coalesced[0] if coalesced else None
        )
    if layout not in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        raise ValueError(f"a sparse tensor with layout {layout}")
    compressed, plain, values, size = data
    _check_stored(_SPARSE, compressed, plain, values)
    return torch.sparse_compressed_tensor(compressed, plain, values, size, layout=layout, check_invariants=True)


def _quantized(
    storage: Any, offset: Any, size: Any, strides: Any, quantizer: Any, requires_grad: Any, hooks: Any
) -> torch.Tensor:
    """Rebuild a quantized tensor; torch does not check its scales and zero points, old torch not even their number.

    Torch's own function asks the storage for its device, which torch itself warns is deprecated.
    """
    _check_tuple(quantizer)
    _check_shape(storage, size)
    scheme, *parameters = quantizer
    if type(scheme) is not torch.qscheme:
        raise TypeError(f"expected a scheme of quantization, got {type(scheme).__name__}")
    kind: dict[str, Any] = {"dtype": storage.dtype, "device": storage._untyped_storage.device}
    _check_hooks(hooks)
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
        _check_stored("a quantized tensor", scales, zero_points)
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


def _check_shape(storage: Any, size: Any) -> None:
    """Raise if a quantized tensor claims more elements than are stored: torch allocates all of them at first."""
    _check_tuple(size)
    if not all(type(length) is int and length >= 0 for length in size):
        raise ValueError("a quantized tensor with an invalid size")
    if storage.dtype not in _QUANTIZED:
        raise ValueError(f"a quantized tensor of dtype {storage.dtype}")
    stored = storage._untyped_storage.nbytes() // storage.dtype.itemsize * _PER_BYTE.get(storage.dtype, 1)
    if math.prod(size) > stored:
        raise ValueError(
            f"a quantized tensor that claims {math.prod(size)} elements where {stored} are stored (it was expanded)"
        )


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
    _check_tuple(arguments)
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


def _check_tuple(value: Any) -> None:
    """Raise unless a value is a tuple, before it is unpacked: a ``range`` may claim any length."""
    if not isinstance(value, tuple):
        raise TypeError(f"expected tuple, got {type(value).__name__}")


def _layout(name: Any) -> torch.layout:
    if type(name) is not str:
        raise TypeError(f"expected the name of a layout, got {type(name).__name__}")
    found: torch.layout = torch.serialization._get_layout(name)  # type: ignore[no-untyped-call]
    return found


def _size(sizes: Any) -> torch.Size:
    if type(sizes) is not list:
        _check_tuple(sizes)
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
        Name("torch._utils", name): _checked(name, places)
        for name, places in _REBUILD.items()
        if hasattr(torch._utils, name)
    },
    Name("torch._utils", "_rebuild_tensor_v3"): _version_3,
    Name("torch._utils", "_rebuild_qtensor"): _quantized,
    Name("torch._utils", "_rebuild_sparse_tensor"): _sparse,
    Name("torch._utils", "_rebuild_wrapper_subclass"): _wrapper_alone,
    Name("torch._tensor", "_rebuild_from_type_v2"): _from_type,
    Name("torch.serialization", "_get_layout"): _layout,
    Name("torch", "Size"): _size,
    Name("torch", "device"): _device,
}
"""The functions that an object may call to rebuild a tensor, or a property of one."""
