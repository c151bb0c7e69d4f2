"""Draw series by step as compact SVG files for the documentation, one panel below the other.

Grid and text are middle grey and curves are not filled, so that a chart is readable on light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

__all__ = ["Curve", "Panel", "draw", "draw_bars"]

WIDTH, PANEL, LEFT, RIGHT, BOTTOM, GAP, LINE = 640, 200, 52, 168, 36, 26, 14
TEXT, GRID = "#7b848f", "#8a93a04d"
COLOURS = ("#d1495b", "#2297a8", "#d08a1d", "#8a6fd1", "#8a93a0")
MAX_DECADES_LABELLED = 7
Curve = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """What shares one vertical axis: its label, and curves (steps, values) by name."""

    label: str
    curves: Mapping[str, Curve]
    log: bool = False
    zero: bool = True
    """Whether a linear axis begins at zero."""


def draw(
    panels: Sequence[Panel],
    *,
    title: str,
    marks: Mapping[str, float] | None = None,
    dashed: Iterable[str] = (),
    axis: str = "step",
) -> str:
    """Return a chart as SVG.

    Values that are not finite leave a gap, with a thick line in the curve's colour at the top of the panel instead.

    Args:
        panels: from top to bottom; they share the axis of steps.
        title: for people who cannot see it.
        marks: steps to mark by a vertical line, by the word beside it.
        dashed: names of curves to draw dashed.
        axis: what is counted from left to right.
    """
    steps = [step for panel in panels for xs, _ in panel.curves.values() for step in xs]
    first, last = min(steps), max(steps)
    margin = LINE * (1 + len(marks or {})) + 6
    height = margin + len(panels) * PANEL + (len(panels) - 1) * GAP + BOTTOM

    def across(step: float) -> float:
        return round(LEFT + (step - first) / max(last - first, 1) * (WIDTH - LEFT - RIGHT), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif" font-size="11" fill="{TEXT}">'
        f"<title>{escape(title)}</title>"
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, margin + number * (PANEL + GAP), across, dashed=frozenset(dashed))
    floor = height - BOTTOM
    for tick in _round_ticks(first, last, 6):
        parts.append(f'<text x="{across(tick)}" y="{floor + 16}" text-anchor="middle">{tick:,.4g}</text>')
    parts.append(f'<text x="{across((first + last) / 2)}" y="{floor + 31}" text-anchor="middle">{escape(axis)}</text>')
    for number, (word, step) in enumerate((marks or {}).items()):
        x, y = across(step), LINE * (number + 1) - 3
        side, anchor = (4, "start") if x < (LEFT + WIDTH - RIGHT) / 2 else (-4, "end")
        parts.append(f'<line x1="{x}" x2="{x}" y1="{y - 8}" y2="{floor}" stroke="{TEXT}" stroke-dasharray="3 3"/>')
        parts.append(f'<text x="{x + side}" y="{y}" text-anchor="{anchor}">{escape(word)}</text>')
    return "".join(parts) + "</svg>\n"


def draw_bars(values: Mapping[str, float], *, title: str, log: bool = False) -> str:
    """Return one horizontal bar per name as SVG, the first in its own colour.

    Args:
        values: what each bar shows; positive.
        title: what is compared, and in which unit.
        log: on a scale from a third of the smallest value, for values that differ a hundredfold.
    """
    top, height, left = 2 * LINE, 22, 220
    low = math.log10(min(values.values()) / 3) if log else 0.0
    high = max(math.log10(value) if log else value for value in values.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + height * len(values) + 6}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif" font-size="11" fill="{TEXT}">'
        f'<title>{escape(title)}</title><text x="6" y="{LINE}">{escape(title)}{" (log scale)" if log else ""}</text>'
    ]
    for number, (name, value) in enumerate(values.items()):
        y = top + height * number
        width = round(((math.log10(value) if log else value) - low) / (high - low) * (WIDTH - left - 70), 1)
        colour = COLOURS[1] if number == 0 else COLOURS[-1]
        parts.append(f'<text x="{left - 6}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{width}" height="{height - 6}" fill="{colour}"/>')
        parts.append(f'<text x="{left + width + 5}" y="{y + 12}">{value:,.3g}</text>')
    return "".join(parts) + "</svg>\n"


def _panel(panel: Panel, top: float, across: object, *, dashed: frozenset[str]) -> Iterator[str]:
    assert callable(across)
    floor = top + PANEL
    finite = [y for _, ys in panel.curves.values() for y in ys if math.isfinite(y) and (y > 0 or not panel.log)]
    low, high = _range(finite, log=panel.log, zero=panel.zero)

    def scale(value: float) -> float:
        return math.log10(value) if panel.log else value

    def down(value: float) -> float:
        return round(floor - (scale(value) - low) / (high - low) * PANEL, 1)

    ticks = _decades(low, high) if panel.log else _round_ticks(low, high, 5)
    whole = all(value == int(value) for value in finite)
    for tick in (tick for tick in ticks if not whole or tick == int(tick)):
        y = down(tick)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="{GRID}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{_short(tick)}</text>'
    yield f'<text x="{LEFT}" y="{top - 6}">{escape(panel.label)}{" (log scale)" if panel.log else ""}</text>'
    for number, (name, (xs, ys)) in reversed(list(enumerate(panel.curves.items()))):  # the first lies on top
        stroke = f'stroke="{COLOURS[min(number, len(COLOURS) - 1)]}"'
        dash = ' stroke-dasharray="5 4"' if name in dashed else ""
        for drawn, group in groupby(
            zip(xs, ys, strict=True), lambda point: math.isfinite(point[1]) and (point[1] > 0 or not panel.log)
        ):
            points = list(group)
            if drawn:
                line = " ".join(f"{across(x)},{down(y)}" for x, y in points)
                line = f"{line} {line}" if len(points) == 1 else line
                yield (
                    f'<polyline points="{line}" fill="none" {stroke} stroke-width="1.6" '
                    f'stroke-linejoin="round" stroke-linecap="round"{dash}/>'
                )
            elif not math.isfinite(points[0][1]):
                start, end = across(points[0][0]), across(points[-1][0])
                yield (
                    f'<line x1="{start}" x2="{max(end, start + 2)}" y1="{top + 3}" y2="{top + 3}" {stroke} '
                    f'stroke-width="5"><title>{escape(name)} is not finite here</title></line>'
                )
        y = top + 10 + 18 * number
        x = WIDTH - RIGHT + 12
        yield f'<line x1="{x}" x2="{x + 20}" y1="{y - 4}" y2="{y - 4}" {stroke} stroke-width="2"{dash}/>'
        yield f'<text x="{x + 26}" y="{y}">{escape(name)}</text>'


def _range(values: Sequence[float], *, log: bool, zero: bool) -> tuple[float, float]:
    if not values:
        return (-1.0, 1.0) if log else (0.0, 1.0)
    low, high = min(values), max(values)
    if log:
        return math.floor(math.log10(low) * 4) / 4, max(math.ceil(math.log10(high) * 4), 1 + 4 * math.log10(low)) / 4
    low = min(low, 0.0) if zero else low
    margin = 0.05 * (high - low) or 1.0
    return (low if zero and low == 0 else low - margin), high + margin


def _decades(low: float, high: float) -> list[float]:
    exponents = range(math.ceil(low), math.floor(high) + 1)
    ticks = [10.0**exponent for exponent in exponents[:: -(-len(exponents) // MAX_DECADES_LABELLED) or 1]]
    if len(ticks) > 1:
        return ticks
    between = (m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5))
    return [tick for tick in between if low <= math.log10(tick) <= high]


def _round_ticks(low: float, high: float, count: int) -> list[float]:
    raw = (high - low) / count or 1.0
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _short(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"
