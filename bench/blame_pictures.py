"""Draw the worked example of docs/blame.md: its run is made, investigated and drawn as two SVG files.

``python bench/blame_pictures.py [FOLDER]``; the folder is docs/images unless one is given.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from blame import build
from blame_lab import AT, STEPS

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 280, 48, 36, 16, 190
COLOURS = ("#6b7280", "#d1495b", "#00798c", "#edae49")
Curve = tuple[Sequence[int], Sequence[float]]


def draw(curves: Mapping[str, Curve], *, title: str, mark: int | None = None) -> str:
    """Return a chart of losses by step as SVG; a step may be marked."""
    steps = [step for xs, _ in curves.values() for step in xs]
    losses = [loss for _, ys in curves.values() for loss in ys]
    low, high = min(0.0, *losses), 1.05 * max(losses)

    def place(step: float, loss: float) -> tuple[float, float]:
        x = LEFT + (step - min(steps)) / (max(steps) - min(steps)) * (WIDTH - LEFT - RIGHT)
        return round(x, 1), round(HEIGHT - BOTTOM - (loss - low) / (high - low) * (HEIGHT - BOTTOM - TOP), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" '
        f'font-family="sans-serif" font-size="11"><title>{title}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    ]
    for tick in range(int(high) + 1):
        _, y = place(steps[0], tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end" fill="#374151">{tick}</text>')
    every = max(1, (max(steps) - min(steps)) // 6)
    for step in range(min(steps), max(steps) + 1, every):
        x, _ = place(step, low)
        parts.append(f'<text x="{x}" y="{HEIGHT - 18}" text-anchor="middle" fill="#374151">{step}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle" fill="#374151">step</text>')
    if mark is not None:
        x, _ = place(mark, low)
        line = f'x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#9ca3af" stroke-dasharray="3 3"'
        parts.append(f"<line {line}/>")
    for number, (name, (xs, ys)) in enumerate(curves.items()):
        colour = COLOURS[min(number, len(COLOURS) - 1)]
        points = " ".join(f"{x},{y}" for x, y in (place(*point) for point in zip(xs, ys, strict=False)))
        dash = ' stroke-dasharray="5 4"' if name == "recorded" else ""
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        y = TOP + 14 + 18 * number
        parts.append(f'<line x1="{WIDTH - RIGHT + 12}" x2="{WIDTH - RIGHT + 34}" y1="{y - 4}" y2="{y - 4}" ')
        parts.append(f'stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 40}" y="{y}" fill="#111827">{name}</text>')
    return "".join(parts) + "</svg>\n"


def main() -> None:
    """Make the run and draw it."""
    torch.set_num_threads(1)
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "images"
    with tempfile.TemporaryDirectory() as folder:
        with build(Path(folder) / "night") as run:
            run.train(steps=STEPS)
        records = run.log.steps()
        proof = run.prove(AT)
    losses = [record["loss"] for record in records]
    recorded: Curve = ([record["step"] for record in records], losses)
    title = f"The loss of a run, with a jump at step {AT}"
    (place / "blame-jump.svg").write_text(draw({"loss": recorded}, title=title, mark=AT))
    curves: dict[str, Curve] = {
        "A as it was": (proof.steps, proof.as_it_was),
        "recorded": (proof.steps, proof.recorded),
        "B without the suspects": (proof.steps, proof.without_suspects),
    }
    curves |= {f"C random draw {n}": (proof.steps, draw) for n, draw in enumerate(proof.without_random, start=1)}
    title = f"{proof.verdict.value}: {proof.reason}"
    (place / "blame-proof.svg").write_text(draw(curves, title=title, mark=AT))
    print(title)


if __name__ == "__main__":
    main()
