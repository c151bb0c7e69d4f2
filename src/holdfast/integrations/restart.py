"""Going back inside a trainer: the way out of its loop, and the file that says where to continue.

A trainer's loop cannot jump. So a rollback writes its decision to the run's log, moves the checkpoints of the branch
that is given up aside, and leaves through ``Restart``. ``train_again`` enters the trainer again from the chosen
checkpoint; otherwise the process ends with exit code 75 and the launcher starts it again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from holdfast.errors import StateError

__all__ = [
    "RESTART_CODE",
    "RESUME_FILE",
    "Restart",
    "abandon",
    "reachable",
    "resume_path",
    "train_again",
    "write_resume_file",
]

T = TypeVar("T")

RESTART_CODE = 75
"""The exit code (``EX_TEMPFAIL``) with which a job asks its launcher to start it again."""

RESUME_FILE = "RESUME.json"
"""The file in the run's folder that names the checkpoint from which to continue."""


class Restart(SystemExit):
    """Ends the trainer's loop; uncaught it ends the process with exit code 75.

    Attributes:
        checkpoint: the trainer's checkpoint to continue from.
    """

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(RESTART_CODE)
        self.checkpoint = checkpoint


def train_again(train: Callable[[Any], T], checkpoint: Any) -> T:
    """Call a trainer, and again from an earlier checkpoint whenever the run is rolled back.

    Args:
        train: called with a checkpoint to continue from.
        checkpoint: the one to begin with.
    """
    while True:
        try:
            return train(checkpoint)
        except Restart as restart:  # noqa: PERF203 - once per rollback
            checkpoint = str(restart.checkpoint)


def reachable(events: Iterable[Mapping[str, Any]]) -> dict[Path, int]:
    """Return the checkpoints of the present branch that still exist, and the steps they were saved after, in order."""
    found: dict[Path, int] = {}
    for event in events:
        if event["event"] == "checkpoint":
            found[Path(event["path"])] = event["step"]  # one written again, as "last" is, holds its newest step only
        elif event["event"] == "rollback":
            found = {path: step for path, step in found.items() if step <= event["to"]}
    return {path: step for path, step in sorted(found.items(), key=lambda entry: entry[1]) if path.exists()}


def abandon(checkpoints: Mapping[Path, int], *, after: int, number: int) -> list[str]:
    """Move checkpoints taken after a step into a folder beside them, where no trainer looks for its newest."""
    moved = []
    for path, step in checkpoints.items():
        if step > after and path.exists():
            place = path.parent / f"rolled-back-{number:03d}"
            place.mkdir(exist_ok=True)
            os.replace(path, place / path.name)
            moved.append(path.name)
    return moved


def write_resume_file(folder: Path, decision: Mapping[str, Any]) -> None:
    """Say from which checkpoint, and because of what, the next start continues."""
    temporary = folder / f".{RESUME_FILE}.tmp"
    finding = decision["finding"]
    content = {
        "checkpoint": decision["checkpoint"],
        "step": decision["to"],
        "because": f"{finding['title']} from step {finding['onset']}",
        "skipped_batches": decision["skipped"],
    }
    temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    os.replace(temporary, folder / RESUME_FILE)


def resume_path(folder: str | Path) -> str | None:
    """Return the checkpoint from which a run that was rolled back continues; None where it was not.

    Pass it on to the trainer: ``trainer.train(resume_from_checkpoint=resume_path("runs/exp7") or True)``.

    Raises:
        StateError: the file is there and cannot be read.
    """
    try:
        found = json.loads((Path(folder) / RESUME_FILE).read_text(encoding="utf-8"))["checkpoint"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{RESUME_FILE} cannot be read", folder=str(folder)) from error
    return str(found)
