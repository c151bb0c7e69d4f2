"""Draw the worked example of docs/blame.md: its run is made, investigated and drawn as two SVG files.

``python bench/blame_pictures.py [FOLDER]``; the folder is docs/images unless one is given.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from blame import build
from blame_lab import AT, STEPS
from charts import Curve, Panel, draw


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
    marks = {f"step {AT}": AT}
    title = f"The loss of a run, with a jump at step {AT}"
    (place / "blame-jump.svg").write_text(draw([Panel("loss", {"loss": recorded})], title=title, marks=marks))
    curves: dict[str, Curve] = {
        "recorded": (proof.steps, proof.recorded),
        "A as it was": (proof.steps, proof.as_it_was),
        "B without the suspects": (proof.steps, proof.without_suspects),
    }
    curves |= {f"C random draw {n}": (proof.steps, losses) for n, losses in enumerate(proof.without_random, start=1)}
    title = f"{proof.verdict.value}: {proof.reason}"
    chart = draw([Panel("loss", curves)], title=title, marks=marks, dashed=["recorded"])
    (place / "blame-proof.svg").write_text(chart)
    print(title)


if __name__ == "__main__":
    main()
