"""Arrays of any framework, recognised by their interface: torch is never imported.

Anything with ``detach`` is treated as a torch tensor, anything with ``__array__`` (NumPy, JAX) as an array.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["NamedArray", "named_arrays", "steps_of", "to_array"]

# Largest finite value, and smallest normal one, of each floating type.
_RANGES: Mapping[str, tuple[float, float]] = {
    "float64": (1.7976931348623157e308, 2.2250738585072014e-308),
    "float32": (3.4028234663852886e38, 1.1754943508222875e-38),
    "bfloat16": (3.3895313892515355e38, 1.1754943508222875e-38),
    "float16": (65504.0, 6.103515625e-05),
    "float8_e4m3fn": (448.0, 0.015625),
    "float8_e5m2": (57344.0, 6.103515625e-05),
}


@dataclass(frozen=True, slots=True)
class NamedArray:
    """One array with its name, flat, in float64 or float32, and the range of the type it had."""

    name: str
    values: NDArray[Any]
    dtype: str
    fan_in: int = 0
    """The number of inputs that each output of a weight matrix or kernel sums over; 0 for fewer dimensions."""

    @property
    def range(self) -> tuple[float, float]:
        """The largest finite and the smallest normal value of the original type."""
        return _RANGES.get(self.dtype, _RANGES["float64"])


def to_array(name: str, value: Any) -> NamedArray | None:
    """Return one value as a flat array, or None if it contains no real numbers."""
    dtype = str(getattr(value, "dtype", "float64")).removeprefix("torch.")
    if hasattr(value, "to_local"):
        value = value.to_local()
    if hasattr(value, "detach"):
        value = value.detach()
        if value.is_sparse if hasattr(value, "is_sparse") else False:
            value = value.coalesce().values()
        if dtype in ("bfloat16",) or dtype.startswith("float8"):
            value = value.float()
        value = value.cpu().numpy()
    elif dtype in ("bfloat16",) or dtype.startswith("float8"):
        value = np.asarray(value).astype(np.float32)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    if array.dtype.kind not in "iufb" or array.size == 0:
        return None
    kept = array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
    return NamedArray(name, kept.reshape(-1), dtype, array[0].size if array.ndim > 1 else 0)


def named_arrays(raw: Any, *, gradients: bool = False) -> Iterator[NamedArray]:
    """Return the arrays in a module, a mapping, a sequence of pairs, or one array.

    Optionally returns gradients instead of values.
    """
    for name, value in _pairs(raw):
        if gradients and hasattr(value, "requires_grad"):
            value = getattr(value, "grad", None) if getattr(value, "grad", None) is not None else _own(value, raw)
        if value is None:
            continue
        array = to_array(name, value)
        if array is not None:
            yield array


def _own(value: Any, raw: Any) -> Any:
    """Return a bare tensor as the gradient itself; a parameter of a module without a gradient has none."""
    return None if hasattr(raw, "named_parameters") or getattr(value, "requires_grad", False) else value


def _pairs(raw: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(raw, "named_parameters"):
        yield from raw.named_parameters()
    elif isinstance(raw, Mapping):
        for name, value in raw.items():
            if isinstance(value, Mapping):
                for inner, part in _pairs(value):
                    yield f"{name}.{inner}", part
            else:
                yield str(name), value
    elif isinstance(raw, Sequence) and not isinstance(raw, (str, bytes)):
        for item in raw:
            if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
                yield item
    elif hasattr(raw, "__array__") or hasattr(raw, "detach"):
        yield "", raw


def steps_of(raw: Any, step: float | None) -> list[tuple[float, Any]]:
    """Return the object as a list of (step, object): a list of mappings is one per step, anything else is one step."""
    if isinstance(raw, (list, tuple)) and raw and all(isinstance(item, Mapping) for item in raw):
        return [(float(item.get("step", number)), item) for number, item in enumerate(raw)]
    return [(0.0 if step is None else float(step), raw)]
