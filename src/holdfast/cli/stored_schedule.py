"""The schedule of a saved state, with the labels or keys that its partition uses, if any.

A state holds only a digest of them, because there is one value per sample. The digest shows whether a file holds the
right ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError, PartitionError

if TYPE_CHECKING:
    from holdfast.order import Partition, Schedule
    from holdfast.stream.state import CheckpointState

__all__ = ["LABELS_HELP", "stored_schedule"]

LABELS_HELP = "A .npy file with every sample's label or key, for partitions that use them."


def stored_schedule(state: CheckpointState, labels: Path | None) -> Schedule:
    """Return the schedule that a state describes."""
    # Imported here because it takes time, and `--help` should be fast.
    from holdfast.order.partition import parse_partition

    if labels is not None:
        return state.rebuild(_with_labels(parse_partition(state.order["partition"]), labels))
    try:
        return state.rebuild()
    except PartitionError as error:
        raise PartitionError(
            "the partition uses labels or keys, and a state holds only their digest",
            partition=state.order["partition"]["kind"],
            hint="pass them with --labels FILE.npy",
        ) from error


def _with_labels(partition: Partition, path: Path) -> Partition:
    import numpy as np

    try:
        values = np.load(path, allow_pickle=False)
    except OSError as error:
        raise ConfigError(f"the labels cannot be read: {error.strerror or error}", file=str(path)) from error
    except (ValueError, EOFError) as error:  # NumPy's own message would advise loading pickles
        raise ConfigError(
            "the labels are not a .npy file of numbers or text", file=str(path), hint="write them with np.save"
        ) from error
    return partition.with_values(values)
