"""What a trainer trains on when it is killed and started again: with holdfast, and the way its documentation says.

Each job trains for two epochs of 48 samples, or of 52, which is not a multiple of the global batch of 8. It is killed
with SIGKILL in the middle of a step, and continues from its own newest checkpoint: at the same size, or on another
number of processes with the same global batch. Every batch the model was trained on is written down. Of the steps that
count, every sample should be there exactly twice; what is missing is *lost*, what is too much is *repeated*. *Read in
vain* is how many samples the resumed jobs took from the data set before the first one they trained on.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from common import arguments, publish

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.integrations.jobs import errors_of, first_step, live_all, trained_on
from tests.integrations.trainer_job import GLOBAL_BATCH, Life

SIZES, EPOCHS = (48, 52), 2
TIMEOUT = 1800.0
FAULTS = {"killed twice": [(1, 5), (1, 6), (1, 0)], "killed, 1 → 2 → 1 processes": [(1, 8), (2, 4), (1, 0)]}
NAMES = {
    "transformers": "Hugging Face Trainer",
    "trl": "TRL's SFTTrainer",
    "lightning": "Lightning",
    "accelerate": "Accelerate",
    "dcp": "torchtitan-like loop on DCP",
    "ray": "Ray Train",
}
USUAL = {
    "transformers": "the Trainer's own skipping",
    "trl": "the Trainer's own skipping",
    "lightning": "torchdata's StatefulDataLoader",
    "accelerate": "skip_first_batches",
    "ray": "Ray Data's iterator",
}


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One job: a trainer, a fault, and where its data comes from."""

    trainer: str
    fault: str
    data: str
    title: str
    samples: int
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{NAMES[self.trainer]} · {self.fault} · {self.title}, {self.samples} samples"

    @property
    def steps(self) -> int:
        """How many steps two epochs take: the usual loaders end every epoch with what is left of it."""
        per_epoch = -(-self.samples // GLOBAL_BATCH)
        return EPOCHS * per_epoch if self.data == "usual" else -(-EPOCHS * self.samples // GLOBAL_BATCH)

    def lives(self, folder: Path) -> list[Life]:
        """Return the starts of the job."""
        return [
            Life(
                trainer=self.trainer,
                folder=str(folder),
                number=number,
                world=world,
                die_after=die_after,
                steps=self.steps,
                samples=self.samples,
                data=self.data,
                **self.options,
            )
            for number, (world, die_after) in enumerate(FAULTS[self.fault])
        ]


def rows_of(trainer: str, *, quick: bool) -> Iterator[Row]:
    """Yield every job of a trainer."""
    workers = (0,) if quick else (0, 2)
    for fault, samples in product(list(FAULTS)[: 1 if quick else None], SIZES[: 1 if quick else None]):
        for epochs, each in product((True, False), workers):
            title = f"holdfast, {'epochs' if epochs else 'endless'}, {each} workers"
            yield Row(trainer, fault, "holdfast", title, samples, {"epochs": epochs, "workers": each})
        for each in workers[: 1 if trainer == "ray" else None] if trainer in USUAL else ():  # Ray Data reads by itself
            title = f"{USUAL[trainer]}, {each} workers"
            yield Row(trainer, fault, "usual", title, samples, {"epochs": True, "workers": each})


def count(row: Row, folder: Path) -> dict[str, int]:
    """Return how many samples a job that has been lived through lost, repeated and read in vain."""
    worlds = [world for world, _ in FAULTS[row.fault]]
    steps = trained_on(folder, worlds)
    if sorted(steps) != list(range(row.steps)):
        raise AssertionError(errors_of(folder) or f"it made the steps {sorted(steps)}")
    for life in range(1, len(worlds)):
        if first_step(folder, life) == 0:
            raise AssertionError(f"start {life + 1} began at step 0 again")
    seen = Counter(index for batches in steps.values() for batch in batches for index in batch)
    return {
        "lost": sum(max(0, EPOCHS - seen[index]) for index in range(row.samples)),
        "repeated": sum(max(0, times - EPOCHS) for times in seen.values()),
        "read in vain": sum(int(path.read_text()) for path in folder.glob("vain-*")),
    }


def cell(found: Sequence[dict[str, int] | None]) -> str:
    """Say in a few words what became of some jobs; None is one that did not resume."""
    if not found:
        return "–"
    counted = [each for each in found if each is not None]
    worst = max(counted, key=lambda each: each["lost"] + each["repeated"], default=None)
    said = f"lost {worst['lost']}, repeated {worst['repeated']}" if worst else "does not resume"
    return f"{said} ({len(counted)} of {len(found)})"


def table(results: Mapping[Row, dict[str, int] | None]) -> Iterator[str]:
    """Yield one line per trainer and way to read: the worst job under each fault, and how many of the jobs ended."""
    ways = dict.fromkeys((row.trainer, row.data, row.samples) for row in results)
    yield f"{'':<28} {'reads from':<32} {'samples':>7}  " + "".join(f"{fault:<34}" for fault in FAULTS)
    for trainer, data, samples in ways:
        faults = [
            [found for row, found in results.items() if (row.trainer, row.data, row.samples, row.fault) == each]
            for each in ((trainer, data, samples, fault) for fault in FAULTS)
        ]
        reads = "holdfast" if data == "holdfast" else USUAL[trainer]
        yield f"{NAMES[trainer]:<28} {reads:<32} {samples:>7}  " + "".join(f"{cell(found):<34}" for found in faults)


def main() -> None:
    """Print every row, and one table of all."""
    options = arguments(__doc__ or "", parts=tuple(NAMES))
    figures: dict[str, float] = {}
    about: dict[str, str] = {}
    failed: list[str] = []
    results: dict[Row, dict[str, int] | None] = {}
    for trainer in options.parts:
        if trainer != "dcp" and find_spec(trainer) is None:
            about[NAMES[trainer]] = "not installed"
            continue
        with tempfile.TemporaryDirectory() as name:
            rows = {row: Path(name) / str(number) for number, row in enumerate(rows_of(trainer, quick=options.quick))}
            plan = [life for row, folder in rows.items() for life in row.lives(folder)]
            if trainer == "ray":
                from trainers_ray import live_all_on_ray

                live_all_on_ray(plan)
            else:
                live_all(plan, timeout=TIMEOUT)
            for row, folder in rows.items():
                results[row] = None
                try:
                    found = results[row] = count(row, folder)
                except AssertionError as error:  # it did not come back, or not to the end
                    about[row.name] = f"does not resume: {str(error).strip().splitlines()[-1]}"
                    failed += [row.name] if row.data == "holdfast" else []
                    continue
                figures |= {f"{row.name}: {what}": number for what, number in found.items()}
                failed += [row.name] if row.data == "holdfast" and any(found.values()) else []
                if not options.json:
                    print(f"{row.name:<110}", *(f"{what} {number:>3} " for what, number in found.items()), flush=True)
    if options.json:
        publish(figures, about, as_json=True)
    else:
        print("\n".join(f"{name}: {text}" for name, text in about.items()))
        print("\n", *table(results), sep="\n")
    if failed:
        sys.exit(f"lost, repeated or not resumed with holdfast: {failed}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
