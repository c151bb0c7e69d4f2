"""One series as an inline SVG: no scripts, no fonts, no network; a million points cost a few kilobytes.

A series longer than the plot is wide is drawn as the band between its lowest and highest value in each column of
pixels, so that no spike is lost. NaN and Inf are drawn as marks on the upper edge: a gap would hide the most important
points.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.reporting.words import clean, number
from holdfast.debug.types import Signal

__all__ = ["draw"]

_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 14, 16, 26
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Frame:
    """Maps a step and a value to coordinates."""

    width: int
    height: int
    first: float
    last: float
    bottom: float
    top: float

    def x(self, step: float) -> float:
        share = (step - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return _LEFT + min(max(share, 0.0), 1.0) * (self.width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return self.height - _BOTTOM - (value - self.bottom) / (self.top - self.bottom) * (self.height - _TOP - _BOTTOM)


def draw(signal: Signal, bad: Sequence[tuple[float, float]], *, width: int = 760, height: int = 190) -> str:
    """Draw the series with the bad ranges marked; empty if there is nothing to draw."""
    steps, values = signal.steps, signal.values
    placed = np.isfinite(steps)
    finite = np.isfinite(values) & placed
    if not finite.any():
        return _opening(signal, width, 60) + _all_lost(signal, width) + "</svg>" if len(values) else ""
    shown = np.clip(values[finite], -1e300, 1e300)  # Room for the margins: the axis itself must not overflow.
    lowest, highest = float(shown.min()), float(shown.max())
    logarithmic = lowest > 0 and highest > 50 * lowest
    heights = np.log10(shown) if logarithmic else shown
    bottom, top = _room(float(heights.min()), float(heights.max()))
    frame = _Frame(width, height, float(steps[placed].min()), float(steps[placed].max()), bottom, top)
    parts = [
        _opening(signal, width, height),
        *_grid(frame, logarithmic),
        *(_stretch(frame, first, last) for first, last in bad),
        _curve(frame, steps[finite], heights),
        *_lost(frame, steps[~finite & placed], values[~finite & placed]),
        "</svg>",
    ]
    return "".join(parts)


def _opening(signal: Signal, width: int, height: int) -> str:
    label = html.escape(clean(signal.name), quote=True)
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}" class="plot">'


def _room(low: float, high: float) -> tuple[float, float]:
    if high - low < 1e-9 * max(1.0, abs(high)):
        pad = max(abs(high), 1e-9) * 0.05
        return low - pad, high + pad
    return low - 0.05 * (high - low), high + 0.07 * (high - low)


def _ticks(bottom: float, top: float, logarithmic: bool) -> Iterator[tuple[float, str]]:
    """Return at most five round values inside the range."""
    if logarithmic and top - bottom >= 1.2:
        stride = max(1, math.ceil((top - bottom) / 4))
        for power in range(math.ceil(bottom), math.floor(top) + 1, stride):
            yield float(power), _short(10.0**power)
        return
    rough = (top - bottom) / 4
    scale = 10.0 ** math.floor(math.log10(rough))
    stride_size = next(step * scale for step in (1, 2, 5, 10) if step * scale >= rough)
    value = math.ceil(bottom / stride_size) * stride_size
    while value <= top:
        yield value, _short(10.0**value if logarithmic else value)
        value += stride_size


def _short(value: float) -> str:
    size = abs(value)
    if 1e4 <= size < 1e15:
        for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if size >= limit:
                return f"{value / limit:.4g}{letter}"
    return "0" if size < 1e-300 else f"{value:.4g}"


def _grid(frame: _Frame, logarithmic: bool) -> Iterator[str]:
    right = frame.width - _RIGHT
    for value, text in _ticks(frame.bottom, frame.top, logarithmic):
        y = frame.y(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    low = frame.height - 8
    yield f'<text class="tick" x="{_LEFT}" y="{low}">step {number(frame.first)}</text>'
    yield f'<text class="tick" x="{right}" y="{low}" text-anchor="end">{number(frame.last)}</text>'
    if logarithmic:
        yield f'<text class="tick" x="{(_LEFT + right) / 2}" y="{low}" text-anchor="middle">log scale</text>'


def _stretch(frame: _Frame, first: float, last: float) -> str:
    begin = frame.x(first)
    width = max(frame.x(last) - begin, 3.0)
    begin = min(begin, frame.width - _RIGHT - width)
    top, height = _TOP - 8, frame.height - _TOP - _BOTTOM + 8
    return (
        f'<rect class="bad" x="{begin:.1f}" y="{top}" width="{width:.1f}" height="{height}"/>'
        f'<line class="onset" x1="{begin:.1f}" x2="{begin:.1f}" y1="{top}" y2="{top + height}"/>'
    )


def _points(frame: _Frame, steps: Floats, heights: Floats) -> list[str]:
    pairs = zip(steps.tolist(), heights.tolist(), strict=True)
    return [f"{frame.x(step):.1f},{frame.y(value):.1f}" for step, value in pairs]


def _curve(frame: _Frame, steps: Floats, heights: Floats) -> str:
    columns = frame.width // 2
    if len(steps) <= 2 * columns:
        points = _points(frame, steps, heights)
        marks = points if len(points) <= 40 else []
        dots = "".join('<circle class="dot" cx="{}" cy="{}" r="2.2"/>'.format(*point.split(",")) for point in marks)
        return f'<polyline class="line" points="{" ".join(points)}"/>{dots}'
    edges = np.linspace(0, len(steps), columns + 1).astype(np.int64)[:-1]
    at = steps[edges]
    upper = _points(frame, at, np.maximum.reduceat(heights, edges))
    lower = _points(frame, at, np.minimum.reduceat(heights, edges))
    counts = np.diff(np.append(edges, len(heights)))
    middle = _points(frame, at, np.add.reduceat(heights, edges) / counts)
    band = " ".join([*upper, *reversed(lower)])
    return f'<polygon class="band" points="{band}"/><polyline class="line" points="{" ".join(middle)}"/>'


def _lost(frame: _Frame, steps: Floats, values: Floats) -> Iterator[str]:
    """Return marks at which the value is NaN or infinite, at most one per pixel column."""
    if not len(steps):
        return
    stride = max(1, len(steps) // 4000)
    columns: dict[int, tuple[float, bool]] = {}
    for step, value in zip(steps[::stride].tolist(), values[::stride].tolist(), strict=True):
        columns.setdefault(int(frame.x(step)), (frame.x(step), math.isnan(value)))
    for x, _ in columns.values():
        yield f'<line class="lost" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{_TOP + 4}"/>'
    x, missing = min(columns.values())
    anchor = "end" if x > frame.width - 120 else "start"
    word = "NaN" if missing else "Inf"
    yield f'<text class="lostword" x="{x:.1f}" y="{_TOP + 16}" text-anchor="{anchor}">{word}</text>'


def _all_lost(signal: Signal, width: int) -> str:
    word = "NaN" if np.isnan(signal.values).any() else "infinite"
    return (
        f'<rect class="bad" x="{_LEFT}" y="8" width="{width - _LEFT - _RIGHT}" height="44"/>'
        f'<text class="lostword" x="{width / 2}" y="35" text-anchor="middle">'
        f"all {len(signal.values):,} values are {word}</text>"
    )
