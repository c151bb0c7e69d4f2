"""State files: written whole or not at all, the last few kept, and a damaged one never mistaken for a good one.

Each file is a JSON envelope with a digest of the state inside, written to a temporary file, flushed to disk and renamed
into place. A file's name gives its step: ``state-<step>.json``, or ``state-<step>.<branch>.json`` after a run was
rolled back (or restarted) in the same folder. The branch grows whenever a save finds files of later steps, so the
newest file is always the one that was saved last, whatever the clocks say.
"""

from __future__ import annotations

import json
import os
import re
from hashlib import blake2b
from pathlib import Path
from typing import Any

from holdfast.arguments import check_path
from holdfast.durable import write_whole
from holdfast.errors import StateFileError
from holdfast.foreign import read_plain
from holdfast.stream.state import CheckpointState

__all__ = ["load_state", "save_state", "state_files"]

FORMAT = "holdfast-stream-state"
_NAME = re.compile(r"\.?state-(?P<step>\d{12,})(?:\.(?P<branch>\d+))?\.json(?:\.\d+\.tmp)?")
# A state is a few kilobytes; shares of 100,000 ranks take about two megabytes. No sensible state is larger than this.
MAX_BYTES = 256 << 20


def save_state(folder: str | Path, state: CheckpointState, *, keep: int = 3) -> Path:
    """Save the state atomically in the folder, as its newest, and remove all but the ``keep`` saved last."""
    directory = Path(folder)
    check_path("the folder of stream states", directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file with this name exists" if isinstance(error, FileExistsError) else error.strerror
        raise StateFileError(f"cannot create the folder: {reason}", folder=str(directory)) from error
    body = json.dumps(state.to_json(), separators=(",", ":"))
    text = json.dumps({"format": FORMAT, "digest": _digest(body), "state": body})
    newest = _newest(state.step, directory)
    branch = f".{newest[0]}" if newest[0] else ""
    target = directory / f"state-{state.step:012d}{branch}.json"
    write_whole(target, text)
    for old in state_files(directory)[:-keep]:
        old.unlink(missing_ok=True)
    for left in directory.glob(".state-*.tmp"):
        # Left by a process that was killed while saving; a process that is saving this same step keeps its own file.
        place = _place_of(left)
        if place is not None and place < newest:
            left.unlink(missing_ok=True)
    return target


def state_files(folder: str | Path) -> list[Path]:
    """Return the state files of a folder, the one saved last at the end."""
    found = [(place, path) for path in Path(folder).glob("state-*.json") if (place := _place_of(path)) is not None]
    return [path for _, path in sorted(found)]


def load_state(path: str | Path) -> CheckpointState:
    """Load a state file, or the newest in a folder. The error for a torn or foreign file names the one before it."""
    target = Path(path)
    if target.is_dir():
        files = state_files(target)
        if not files:
            raise StateFileError("the folder holds no stream state", folder=str(target))
        target = files[-1]
    try:
        content = read_plain(target, within=Path(os.path.realpath(target)).parent, max_bytes=MAX_BYTES)
        envelope = json.loads(content.decode("utf-8"))
    except OSError as error:
        raise StateFileError(f"the state file cannot be read: {error.strerror}", file=str(target)) from error
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise _refused(target, "the state file is truncated or not JSON") from error
    if not isinstance(envelope, dict) or envelope.get("format") != FORMAT or not isinstance(envelope.get("state"), str):
        raise _refused(target, "the file is not a holdfast stream state")
    if envelope.get("digest") != _digest(envelope["state"]):
        raise _refused(target, "the state file is damaged: its digest does not match")
    state: Any = json.loads(envelope["state"])
    return CheckpointState.from_json(state)


def _refused(path: Path, message: str) -> StateFileError:
    siblings = state_files(path.parent)
    earlier = siblings[: siblings.index(path)] if path in siblings else []
    if not earlier:
        return StateFileError(message, file=str(path), hint="there is no earlier state file in this folder")
    previous = str(earlier[-1])
    return StateFileError(message, file=str(path), previous=previous, hint=f"the previous state file is {previous}")


Place = tuple[int, int]
"""A file's place among the others: its branch and its step."""


def _place_of(path: Path) -> Place | None:
    match = _NAME.fullmatch(path.name)
    return None if match is None else (int(match["branch"] or 0), int(match["step"]))


def _newest(step: int, directory: Path) -> Place:
    """Return the place at which a state of this step is the newest of the folder."""
    files = state_files(directory)
    branch, last = (_place_of(files[-1]) if files else None) or (0, step)
    return branch + (last > step), step


def _digest(body: str) -> str:
    return blake2b(body.encode(), digest_size=16).hexdigest()
