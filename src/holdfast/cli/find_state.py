"""Finding the stream state at a path: a state file, a folder of them, a checkpoint, or a run with checkpoints.

A checkpoint holds a loader's state either under the keys that torch's DCP makes from its ``state_dict()`` or, if a
``holdfast.Run`` saved it, in each rank's own bytes. Only those items are read, by the safe reader.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.paths import existing
from holdfast.errors import ConfigError, StateFileError
from holdfast.run.layout import RunFolder, is_run_folder

if TYPE_CHECKING:
    from holdfast.stream.state import CheckpointState

__all__ = ["KeyOption", "StateArgument", "find_state", "states_in_checkpoint"]

_RUN_KEY = "run.rank-00000"  # the state is the same on every rank

StateArgument = Annotated[
    Path,
    typer.Argument(
        metavar="STATE",
        callback=existing,
        help="A stream state's file, a folder of them, a checkpoint, or a run's folder.",
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="The loader to use, if a checkpoint holds the states of several.", show_default=False),
]


def find_state(path: Path, key: str | None = None) -> CheckpointState:
    """Return the stream state at a path; for a run, that of its newest checkpoint.

    Raises:
        StateFileError: there is none.
        ConfigError: there are several, and ``key`` names none of them.
    """
    from holdfast.cli.inspect_state import is_state
    from holdfast.stream.state_files import load_state

    checkpoint = _checkpoint(path)
    if checkpoint is None or is_state(path):
        if key is not None:
            raise ConfigError("--key is only for checkpoints, and this is not one", path=str(path), key=key)
        return load_state(path)
    found = states_in_checkpoint(checkpoint)
    if key is None and len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise StateFileError(
            "the checkpoint holds no stream state",
            folder=str(checkpoint),
            hint="save loader.state_dict() with the model",
        )
    if key not in found:
        raise ConfigError(
            "the checkpoint holds several loaders" if key is None else "the checkpoint has no such loader",
            path=str(checkpoint),
            key=key,
            keys=sorted(found),
            hint="choose one with --key",
        )
    return found[key]


def states_in_checkpoint(folder: Path) -> dict[str, CheckpointState]:
    """Return every stream state in a checkpoint, by the key it was saved under."""
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    from holdfast.checkpoint import ParallelFileSystemReader, load
    from holdfast.stream.state import CheckpointState

    names = ("version", *(field.name for field in fields(CheckpointState)))
    entries = ParallelFileSystemReader(folder).read_metadata().state_dict_metadata
    objects = {key for key, entry in entries.items() if isinstance(entry, BytesStorageMetadata)}
    found = {}
    for prefix in [key.removesuffix("order") for key in objects if key.rpartition(".")[2] == "order"]:
        wanted: dict[str, Any] = {key: None for name in names if (key := f"{prefix}{name}") in objects}
        if {f"{prefix}{name}" for name in ("step", "segments", "fingerprint")} <= wanted.keys():
            load(wanted, folder, warn_not_loaded=False)
            values = {key.removeprefix(prefix): value for key, value in wanted.items()}
            found[prefix.removesuffix(".")] = CheckpointState.from_json(values)
    if _RUN_KEY in entries:
        own = _run_state(folder, entries[_RUN_KEY])
        if own is not None:
            found["loader"] = own
    return found


def _run_state(folder: Path, entry: Any) -> CheckpointState | None:
    import torch

    from holdfast.checkpoint import load
    from holdfast.run.payload import unpack
    from holdfast.stream.state import CheckpointState

    packed = torch.empty(entry.size, dtype=torch.uint8, device="cpu")
    load({_RUN_KEY: packed}, folder, warn_not_loaded=False)
    saved = unpack(packed).get("loader")
    has_order = isinstance(saved, dict) and {"order", "segments"} <= saved.keys()  # other loaders' states have neither
    return CheckpointState.from_json(saved) if has_order else None


def _checkpoint(path: Path) -> Path | None:
    if (path / ".metadata").is_file():
        return path
    steps = RunFolder(path).checkpoint_steps() if is_run_folder(path) else {}
    return steps[max(steps)] if steps else None
