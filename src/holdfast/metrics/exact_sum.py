"""Sums that do not depend on the order or the grouping of the values.

Floating-point addition rounds, so the same numbers summed by 2 ranks and by 3 differ in the last bits. Here nothing is
rounded until the very end: a sum of float64 values is a Python integer that counts units of 2^-1074, the smallest
float64. Integers add exactly in any order, so ranks, restarts and changed world sizes all arrive at the same integer,
and one correctly rounded division gives the figure.

It is fast because the array is never visited value by value. Adding and subtracting a large power of two splits every
value into a high part, whose partial sums are all exact in float64, and a rest. NumPy sums the high parts, and the
rests are split again until nothing is left, which takes two or three rounds for real data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]

#: A scaled sum counts units of 2 ** -SUM_SCALE.
SUM_SCALE = 1074
#: A scaled sum of squares counts units of 2 ** -SQUARE_SCALE.
SQUARE_SCALE = 2 * SUM_SCALE

# Small enough to fit in the cache with its temporaries and to keep the BLAS on one thread. With layers of 20 bits, 2 **
# 13 products of 40 bits sum to at most 2 ** 53, up to which float64 represents every integer.
_CHUNK = 1 << 13
_LAYER_BITS = 20
# Real data needs three layers, except for a few values near zero, which are collected and summed together.
_FEW_LAYERS, _MOST_LAYERS = 3, 6
_LARGE = 2.0**1000
# Products of halves of values inside these are exact in float64; values outside are scaled by a power of two first.
_SQUARE_MOST_EXPONENT = 480
_SQUARE_LEAST_EXPONENT = -400
_SQUARE_LARGE = 2.0**_SQUARE_MOST_EXPONENT
_SQUARE_SMALL = 2.0**_SQUARE_LEAST_EXPONENT
# If there is a rest, checking a few values nearly always finds it.
_PEEK = 64
_SPLITTER = 2.0**27 + 1.0


def sum_floats(values: FloatArray) -> int:
    """Return the exact sum of finite ``values``, in units of 2 ** -1074."""
    return sum(_sum_chunk(values[start : start + _CHUNK]) for start in range(0, len(values), _CHUNK))


def sum_with_squares(values: FloatArray) -> tuple[int, int]:
    """Return the exact sums of finite ``values`` and of their squares, in units of 2 ** -1074 and 2 ** -2148."""
    total = squares = 0
    left_over: list[FloatArray] = []
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        layers = _layers(chunk)
        if layers is None:
            sums = _sum_chunk(chunk), _sum_square_chunk(chunk)
        else:
            sums = _sum_layers(layers)
            left_over.append(layers.left_over)
        total += sums[0]
        squares += sums[1]
    if any(map(len, left_over)):
        sums = sum_with_squares(np.concatenate(left_over))
        return total + sums[0], squares + sums[1]
    return total, squares


def sum_integers(values: NDArray[Any]) -> int:
    """Return the exact sum of an int64 array, or of an object array of Python integers."""
    if values.dtype == object:
        return sum(values.tolist())
    if len(values) == 0:
        return 0
    # Two 32-bit halves cannot overflow their int64 sums below 2^31 values; the plain sum can.
    largest = max(abs(int(values.max())), abs(int(values.min())))
    if largest * len(values) < 1 << 63:
        return int(values.sum())
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def sum_integer_squares(values: NDArray[Any]) -> int:
    """Return the exact sum of the squares of an int64 array, or of an object array of Python integers."""
    if values.dtype == object:
        return sum(value * value for value in values.tolist())
    if len(values) == 0:
        return 0
    if max(abs(int(values.max())), abs(int(values.min()))) < 1 << 31:
        return sum_integers(values * values)
    return sum(value * value for value in values.tolist())


def ratio(numerator: int, denominator: int) -> float:
    """Return ``numerator / denominator``, correctly rounded; an overflow gives infinity with its sign."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if (numerator < 0) == (denominator < 0) else -math.inf


def root_of_ratio(numerator: int, denominator: int) -> float:
    """Return the correctly rounded square root of a non-negative ratio of integers."""
    if numerator == 0:
        return 0.0
    # Scale by an even power of two, so that the integer root has at least 64 bits, and note whether it is exact.
    shift = 128 - numerator.bit_length() + denominator.bit_length()
    shift += shift & 1
    scaled, remainder = divmod(numerator << max(shift, 0), denominator << max(-shift, 0))
    root = math.isqrt(scaled)
    if remainder or root * root != scaled:
        root = (root << 1) | 1  # a sticky bit: below every tie, above every exact value
        shift += 2
    half = shift // 2
    return ratio(root << max(-half, 0), 1 << max(half, 0))


def encode_scaled(value: int) -> str:
    """Return ``value`` as ``<odd hexadecimal>p<power of two>``: short, and exact in any JSON reader."""
    if value == 0:
        return "0p0"
    zeros = (value & -value).bit_length() - 1
    return f"{value >> zeros:x}p{zeros}"


def decode_scaled(text: str) -> int:
    """Undo ``encode_scaled``."""
    digits, _, zeros = text.partition("p")
    power = int(zeros)
    if not 0 <= power <= 1 << 16:
        raise ValueError(f"invalid power of two in an exact sum: {power}")
    return int(digits, 16) << power


def _scaled(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator << (SUM_SCALE + 1 - denominator.bit_length())


def _sum_chunk(values: FloatArray) -> int:
    if len(values) == 0:
        return 0
    largest = _largest(values)
    if largest >= _LARGE:
        large = np.abs(values) >= _LARGE
        return (_sum_chunk(values[large] * 2.0**-600) << 600) + _sum_chunk(values[~large])
    headroom = len(values).bit_length() + 1
    total = 0
    rest = values
    while largest > 0.0:
        # Every high part is a multiple of half the pivot's ulp, and the sum of len(values) of them stays below the
        # pivot: NumPy may add them in any order without rounding.
        pivot = math.ldexp(1.0, math.frexp(largest)[1] + headroom)
        high = rest + pivot
        high -= pivot
        total += _scaled(float(high.sum()))
        rest = rest - high
        largest = _largest(rest)
    return total


@dataclass(frozen=True, slots=True)
class _Layers:
    """Values cut into layers of 20 bits on a common grid: value = sum of its layers.

    Every product of two layers is a small multiple of the product of their grids, so dot products are exact and run at
    the speed of the BLAS.

    Args:
        top: the first layer counts units of 2 ** (top - 20), the next of 2 ** (top - 40), and so on.
        layers: the layers, highest first.
        left_over: values in no layer, because they are few and much smaller than the rest.
    """

    top: int
    layers: list[FloatArray]
    left_over: FloatArray


def _layers(values: FloatArray) -> _Layers | None:
    """Return the layers of at most ``_CHUNK`` values; None if their magnitudes differ too much for a few layers."""
    largest = _largest(values)
    top = math.frexp(largest)[1]
    layers: list[FloatArray] = []
    rest = values
    while largest > 0.0 and (not layers or rest[:_PEEK].any() or rest.any()):
        exponent = top - _LAYER_BITS * len(layers)  # no rest exceeds half a unit of the previous layer
        if len(layers) == _MOST_LAYERS or not _SQUARE_LEAST_EXPONENT <= exponent <= _SQUARE_MOST_EXPONENT:
            return None
        if len(layers) == _FEW_LAYERS:
            small = np.flatnonzero(rest != 0.0)
            if len(small) <= len(values) // 4:
                for layer in layers:
                    layer[small] = 0.0
                return _Layers(top, layers, values[small])
        pivot = math.ldexp(1.0, exponent + 53 - _LAYER_BITS)
        high = rest + pivot
        high -= pivot
        layers.append(high)
        rest = rest - high
    return _Layers(top, layers, values[:0])


def _sum_layers(cut: _Layers) -> tuple[int, int]:
    """Return the exact sums of all layers' values, and of their squares."""
    total = squares = 0
    for place, layer in enumerate(cut.layers):
        unit = cut.top - _LAYER_BITS * (place + 1)
        total += int(math.ldexp(float(layer.sum()), -unit)) << (unit + SUM_SCALE)
        for other, left in enumerate(cut.layers[: place + 1]):
            unit_of_product = unit + cut.top - _LAYER_BITS * (other + 1)
            product = int(math.ldexp(float(layer @ left), -unit_of_product)) << (unit_of_product + SQUARE_SCALE)
            squares += product if other == place else 2 * product
    return total, squares


def _sum_square_chunk(values: FloatArray) -> int:
    if len(values) == 0:
        return 0
    largest, smallest = _largest(values), float(np.min(np.abs(values)))
    if largest < _SQUARE_LARGE and smallest >= _SQUARE_SMALL:
        return _sum_products(values) << SUM_SCALE
    magnitudes = np.abs(values)
    large, small = magnitudes >= _SQUARE_LARGE, magnitudes < _SQUARE_SMALL
    return (
        (_sum_products(values[~(large | small)]) << SUM_SCALE)
        + (_sum_products(values[large] * 2.0**-600) << (SUM_SCALE + 1200))
        + (_sum_products(values[small] * 2.0**600) >> (1200 - SUM_SCALE))
    )


def _sum_products(values: FloatArray) -> int:
    """Return the exact sum of squares, in units of 2 ** -1074, of values whose half-products are exact in float64."""
    # Dekker's split: two halves of at most 26 bits each, whose products fit 53 bits.
    high = values * _SPLITTER
    high -= high - values
    low = values - high
    total = _sum_chunk(high * high)
    if low.any():  # never for float32 data, whose 24 bits are all in the high half
        total += 2 * _sum_chunk(high * low) + _sum_chunk(low * low)
    return total


def _largest(values: FloatArray) -> float:
    return max(float(values.max()), -float(values.min()))
