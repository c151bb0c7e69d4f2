"""Rolling back inside a trainer: the exception that leaves its loop, and the file that says where to continue.

A trainer's loop cannot jump. So a rollback writes its decision to the run's log, moves the checkpoints of the abandoned
branch aside, and raises ``Restart``. ``train_again`` restarts the trainer from the chosen checkpoint; otherwise the
process ends with exit code 75 and the launcher starts it again.
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
    """Ends the trainer's loop; if not caught, it ends the process with exit code 75.

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
        checkpoint: the first checkpoint.
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
            found[Path(event["path"])] = event["step"]  # an overwritten one, such as "last", holds only its newest
        elif event["event"] == "rollback":
            found = {path: step for path, step in found.items() if step <= event["to"]}
    return {path: step for path, step in sorted(found.items(), key=lambda entry: entry[1]) if path.exists()}


def abandon(checkpoints: Mapping[Path, int], *, after: int, number: int) -> list[str]:
    """Move checkpoints saved after a step into a folder beside them, where no trainer looks for its newest."""
    moved = []
    for path, step in checkpoints.items():
        if step > after and path.exists():
            place = path.parent / f"rolled-back-{number:03d}"
            place.mkdir(exist_ok=True)
            os.replace(path, place / path.name)
            moved.append(path.name)
    return moved


def write_resume_file(folder: Path, decision: Mapping[str, Any]) -> None:
    """Write the file that says from which checkpoint the next start continues, and why."""
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
    """Return the checkpoint from which a rolled-back run continues; None if it was not rolled back.

    Pass it to the trainer: ``trainer.train(resume_from_checkpoint=resume_path("runs/exp7") or True)``.

    Raises:
        StateError: the file exists but cannot be read.
    """
    try:
        found = json.loads((Path(folder) / RESUME_FILE).read_text(encoding="utf-8"))["checkpoint"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{RESUME_FILE} cannot be read", folder=str(folder)) from error
    return str(found)
