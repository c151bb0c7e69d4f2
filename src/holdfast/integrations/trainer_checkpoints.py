"""Which of the Hugging Face Trainer's checkpoints are complete: a job may be killed while the trainer saves.

The trainer writes into ``checkpoint-N`` file by file, ``trainer_state.json`` last, which holds the size of every other
file: after a power loss a file may be truncated or gone. The trainer's own search picks the folder with the highest
number, complete or not, so that a job killed in the middle of a save could never start again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import StateError

__all__ = ["changed_file", "check_whole", "file_sizes", "newest_checkpoint", "unfinished_checkpoints"]

_NAME = re.compile(r"checkpoint-(\d+)")
_WRITTEN_LAST = "trainer_state.json"
_IN_PROGRESS = "checkpoint-is-incomplete.txt"
"""The file that the trainer adds while it saves on SIGTERM, and then removes."""


def newest_checkpoint(folder: str | Path) -> str | None:
    """Return the newest complete checkpoint in the trainer's output folder; None if there is none.

    Pass it to the trainer: ``trainer.train(resume_from_checkpoint=newest_checkpoint("out"))`` starts a run and
    continues it, whenever it was killed.
    """
    return next((str(path) for path in _checkpoints(folder) if _fault(path) is None), None)


def unfinished_checkpoints(folder: str | Path) -> list[str]:
    """Return the incomplete checkpoints in the trainer's output folder, newest first."""
    return [str(path) for path in _checkpoints(folder) if _fault(path) is not None]


def file_sizes(output_dir: str | Path) -> dict[str, int]:
    """Return the size of every file in a checkpoint that is about to be finished, by its path in it."""
    folder = Path(output_dir)
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in (_WRITTEN_LAST, _IN_PROGRESS))
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def changed_file(folder: Path, sizes: Mapping[str, int]) -> str | None:
    """Return which file of a checkpoint no longer has its saved size, and how it differs; None if all have."""
    for name, size in sizes.items():
        try:
            found = (folder / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if found != size:
            return f"{name} has {found} bytes, expected {size}"
    return None


def check_whole(path: str | Path) -> None:
    """Refuse an incomplete checkpoint, and name the newest complete one beside it.

    Raises:
        StateError: the trainer did not finish saving it, or one of its files was truncated or removed.
    """
    fault = _fault(Path(path))
    if fault is not None:
        beside = newest_checkpoint(Path(path).parent)
        raise StateError(
            f"the trainer's checkpoint is incomplete: {fault}",
            path=str(path),
            hint="start the run again" if beside is None else f"resume from {beside}, or with True",
        )


def _checkpoints(folder: str | Path) -> list[Path]:
    found = [
        (int(match[1]), path) for path in Path(folder).glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found, reverse=True)]


def _fault(path: Path) -> str | None:
    """Return why a checkpoint is incomplete; None if it is complete, judged by the sizes of its files."""
    try:
        state = json.loads((path / _WRITTEN_LAST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        state = None
    if (path / _IN_PROGRESS).exists():
        return f"{_IN_PROGRESS}, which the trainer removes once it has saved, is still there"
    if not isinstance(state, dict):
        return f"{_WRITTEN_LAST}, which is written last, is missing or torn"
    return changed_file(path, _saved_sizes(state))


def _saved_sizes(state: dict[str, object]) -> dict[str, int]:
    """Return the file sizes recorded in the state of a checkpoint; empty if it was saved without them."""
    place: object = state
    for name in ("stateful_callbacks", "HoldfastCallback", "attributes", "files"):
        place = place.get(name) if isinstance(place, dict) else None
    if not isinstance(place, dict):
        return {}
    return {name: size for name, size in place.items() if isinstance(size, int) and ".." not in Path(name).parts}
