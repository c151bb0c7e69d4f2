"""What a trainer trains on when it is killed and started again: with holdfast, and the way its documentation says.

Each job trains for two epochs of 48 samples, is killed with SIGKILL in the middle of a step, and continues from its own
newest checkpoint: at the same size, or on another number of processes with the same global batch. Every batch the model
was trained on is written down. Of the steps that count, every sample should be there exactly twice; what is missing is
*lost*, what is too much is *repeated*.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from common import arguments, publish

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.integrations.jobs import live, trained_on

SAMPLES, STEPS, EPOCHS = 48, 12, 2
FAULTS = {"killed twice": [(1, 5), (1, 6), (1, 0)], "killed, 1 → 2 → 1 processes": [(1, 8), (2, 4), (1, 0)]}
TRAINERS = ("transformers", "lightning", "accelerate")
USUAL = {
    "transformers": "the Trainer's own skipping",
    "lightning": "torchdata's StatefulDataLoader",
    "accelerate": "skip_first_batches",
}


def count(trainer: str, data: str, lives: list[tuple[int, int]], *options: str) -> tuple[int, int]:
    """Run a job through its lives; returns how many samples were lost and how many repeated."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common = ("--steps", str(STEPS), "--samples", str(SAMPLES), "--data", data, *options)
        for life, (world, die_after) in enumerate(lives):
            live(trainer, folder, life, "--die-after", str(die_after), *common, world=world)
        steps = trained_on(folder, [world for world, _ in lives])
    seen = Counter(index for batches in steps.values() for batch in batches for index in batch)
    lost = sum(max(0, EPOCHS - seen[index]) for index in range(SAMPLES))
    return lost, sum(max(0, times - EPOCHS) for times in seen.values())


def main() -> None:
    """Print the table, and the figures of every row."""
    options = arguments(__doc__ or "")
    figures: dict[str, float] = {}
    about: dict[str, str] = {}
    kinds = [("epochs", ("--epochs",)), ("endless", ())]
    workers = ("0",) if options.quick else ("0", "2")
    for trainer in TRAINERS:
        if find_spec(trainer) is None:
            about[trainer] = "not installed"
            continue
        for fault, lives in FAULTS.items():
            rows = [
                ("holdfast", f"{kind}, {each} workers", (*flags, "--workers", each))
                for kind, flags in kinds
                for each in workers
            ]
            rows += [
                ("usual", f"{USUAL[trainer]}, {each} workers", ("--epochs", "--workers", each)) for each in workers
            ]
            for data, title, flags in rows:
                name = f"{trainer} · {fault} · {'holdfast, ' if data == 'holdfast' else ''}{title}"
                try:
                    lost, repeated = count(trainer, data, lives, *flags)
                except AssertionError as error:  # it did not come back at all
                    about[name] = f"does not resume: {str(error).strip().splitlines()[-1]}"
                    continue
                figures[f"{name}: lost"], figures[f"{name}: repeated"] = lost, repeated
                if not options.json:
                    print(f"{name:<90} lost {lost:>3}  repeated {repeated:>3}", flush=True)
    if options.json:
        publish(figures, about, as_json=True)
    else:
        print("\n".join(f"{name}: {text}" for name, text in about.items()))


if __name__ == "__main__":
    main()
