"""Which of Accelerate's checkpoints are complete: a job may be killed while it saves.

Accelerate writes into a folder file by file, from every process. When all have written, a file with the sizes of all
others is added: a folder without it was never finished.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import StateError
from holdfast.integrations.trainer_checkpoints import changed_file, file_sizes
from holdfast.versioned import Count, Format

__all__ = ["FINISHED", "Finished", "mark_finished", "newest_finished", "unmark"]

NAME = "holdfast_finished.json"


@dataclass(frozen=True, slots=True)
class Finished:
    """What is written when a checkpoint is complete.

    Attributes:
        batches: how many batches the model was trained on, as the stream counts them.
        files: the size of every other file, by its path in the checkpoint.
    """

    batches: Count
    files: dict[str, int]


FINISHED = Format("mark of a finished checkpoint", Finished, version=1)


def mark_finished(folder: str | Path, *, batches: int) -> None:
    """Mark a checkpoint as complete: every process has written its part."""
    temporary = Path(folder) / f".{NAME}.tmp"
    content = FINISHED.to_json(Finished(batches, file_sizes(folder)))
    temporary.write_text(json.dumps(content), encoding="utf-8")
    os.replace(temporary, Path(folder) / NAME)


def unmark(folder: str | Path) -> None:
    """Remove the mark of a checkpoint, if any, that is about to be overwritten."""
    (Path(folder) / NAME).unlink(missing_ok=True)


def newest_finished(folder: str | Path) -> str | None:
    """Return the complete checkpoint in a folder that was trained on the most batches; None if there is none.

    Pass it to Accelerate: ``accelerator.load_state(newest)``.
    """
    found = []
    for path in Path(folder).glob(f"*/{NAME}"):
        try:
            mark = FINISHED.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, StateError):
            continue
        if changed_file(path.parent, mark.files) is None:
            found.append((mark.batches, path.stat().st_mtime_ns, str(path.parent)))
    return max(found)[2] if found else None
