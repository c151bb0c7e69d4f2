"""The content of a stream state, for people and for machines, from the file alone, without the data."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import HoldfastError
from holdfast.foreign import open_plain
from holdfast.stream.state import CheckpointState
from holdfast.stream.state_files import FORMAT, state_files

__all__ = ["describe_state", "is_state"]


def is_state(path: Path) -> bool:
    """Return whether the path is a stream state's file, torn or not, or a folder of them."""
    if path.is_dir():
        return bool(state_files(path))
    try:
        with open_plain(path, within=Path(os.path.realpath(path)).parent) as file:
            return FORMAT.encode() in file.read(256) or path in state_files(path.parent)
    except OSError:
        return False


def describe_state(state: CheckpointState, path: Path) -> dict[str, Any]:
    """Return the content of a state as plain JSON."""
    description: dict[str, Any] = {
        "path": str(path),
        "step": state.step,
        "epoch": state.epoch,
        "position": state.position,
        "epochs": state.epochs,
        "world_size": state.world_size,
        "shuffle_seed": state.shuffle_seed,
        "partition": state.order.get("partition", {}).get("kind"),
        "fingerprint": state.fingerprint,
        "saved": datetime.fromtimestamp(state.timestamp, timezone.utc).isoformat(timespec="seconds"),
        "segments": [
            {"from_step": start, "world_size": world, "global_batch_size": total, "skips": skips}
            for start, world, total, _, skips in state.segments
        ],
        "skips": state.skips,
        "samples_failed": state.samples_failed,
    }
    description["sources"] = _sources(state)
    return description


def _sources(state: CheckpointState) -> list[dict[str, Any]]:
    try:
        order = state.rebuild().order
    except HoldfastError:
        # Labels or keys are not part of a state; without them, only the sources' own descriptions are known.
        return [
            {"name": source["name"], "length": source["length"], "fingerprint": state.sources.get(source["name"])}
            for source in state.order["sources"]
        ]
    found = []
    for number, cycle in enumerate(order.cycles):
        count = order.count(number, np.array([state.position]))
        epoch, place = cycle.split(count)
        found.append(
            {
                "name": cycle.name,
                "length": cycle.epoch_length(int(epoch[0])),
                "samples": int(count[0]),
                "epoch": int(epoch[0]),
                "place": int(place[0]),
                "fingerprint": state.sources.get(cycle.name),
            }
        )
    return found
