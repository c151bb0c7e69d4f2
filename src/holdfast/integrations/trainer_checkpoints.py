"""Which of the Hugging Face Trainer's checkpoints are whole: a job may be killed while the trainer saves.

The trainer writes into ``checkpoint-N`` file by file, ``trainer_state.json`` last. Its own search takes the folder of
the highest number, whole or not, and a job that was killed in the middle of a save could then never start again.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from holdfast.errors import StateError

__all__ = ["check_whole", "newest_checkpoint", "unfinished_checkpoints"]

_NAME = re.compile(r"checkpoint-(\d+)")
_WRITTEN_LAST = "trainer_state.json"


def newest_checkpoint(folder: str | Path) -> str | None:
    """Return the newest whole checkpoint in the trainer's output folder; None where there is none.

    Pass it on to the trainer: ``trainer.train(resume_from_checkpoint=newest_checkpoint("out"))`` starts a run and
    continues it, whenever it was killed.
    """
    return next((str(path) for path in _checkpoints(folder) if _is_whole(path)), None)


def unfinished_checkpoints(folder: str | Path) -> list[str]:
    """Return the checkpoints in the trainer's output folder that were never finished, the newest first."""
    return [str(path) for path in _checkpoints(folder) if not _is_whole(path)]


def check_whole(path: str | Path) -> None:
    """Refuse a checkpoint that was never finished, and name the newest whole one beside it.

    Raises:
        StateError: the trainer did not finish saving it.
    """
    if not _is_whole(Path(path)):
        beside = newest_checkpoint(Path(path).parent)
        raise StateError(
            f"the trainer's checkpoint is not whole: {_WRITTEN_LAST}, which is written last, is missing or torn",
            path=str(path),
            hint="start the run again" if beside is None else f"resume from {beside}, or with True",
        )


def _checkpoints(folder: str | Path) -> list[Path]:
    found = [
        (int(match[1]), path) for path in Path(folder).glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found, reverse=True)]


def _is_whole(path: Path) -> bool:
    try:
        return isinstance(json.loads((path / _WRITTEN_LAST).read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return False
