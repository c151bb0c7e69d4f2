"""Loading with one call that raises holdfast's own errors.

``torch.distributed.checkpoint.load`` gathers what went wrong on all ranks into a ``CheckpointException``, which is a
``BaseException``, and turns an error in the metadata into the text of an ``AssertionError``. Here the error comes out
as it was raised.
"""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from holdfast.checkpoint.reader import ParallelFileSystemReader
from holdfast.checkpoint.report import LoadReport
from holdfast.errors import CheckpointError, CheckpointMismatchError, HoldfastError

__all__ = ["load"]


# What torch's planner says where destination and checkpoint do not fit.
_MISMATCHES = (
    re.compile(r"Size mismatch between saved (?P<stored>.+) and current: (?P<wanted>.+) for (?P<tensor>.+)"),
    re.compile(r"Missing key in checkpoint state_dict: (?P<tensor>.+)\."),
)


def load(
    state_dict: dict[str, Any],
    path: str | os.PathLike[str],
    *,
    planner: LoadPlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    **options: Any,
) -> LoadReport:
    """Load a checkpoint into a state dict, in place; every rank of the group calls it.

    Args:
        state_dict: what to fill, as for ``torch.distributed.checkpoint.load``.
        path: the checkpoint's folder, or its URL.
        planner: torch's default one when ``None``.
        process_group: the ranks that load together; the default group where torch.distributed is initialised.
        **options: those of :class:`~holdfast.checkpoint.ParallelFileSystemReader`.

    Returns:
        What was read and checked on this rank.

    Raises:
        CheckpointError: it cannot be loaded; the error of this rank, or else of the first rank that failed.
    """
    reader = ParallelFileSystemReader(path, **options)
    alone = not (dist.is_available() and dist.is_initialized())
    failure: CheckpointException | None = None
    try:
        with warnings.catch_warnings():
            # Torch says that it loads in one process, which is meant.
            warnings.filterwarnings("ignore", message=".*torch.distributed is disabled")
            dcp_load(state_dict, storage_reader=reader, planner=planner, process_group=process_group, no_dist=alone)
    except CheckpointException as wrapped:
        failure = wrapped
    except RuntimeError as error:  # a rank is gone, and torch cannot tell the others of it
        if isinstance(reader.error, HoldfastError):
            raise reader.error from error
        raise
    if failure is not None:
        causes = [reader.error, *(cause for cause, _ in failure.failures.values())]
        own = next((cause for cause in causes if isinstance(cause, HoldfastError)), None)
        if own is not None:
            raise own from failure
        rank, (cause, _) = next(iter(failure.failures.items()))
        raise _own_error(str(cause), str(path), rank) from failure
    assert reader.report is not None
    return reader.report


def _own_error(cause: str, path: str, rank: int) -> CheckpointError:
    for pattern in _MISMATCHES:
        if found := pattern.match(cause):
            where = found.groupdict()
            message = "the destination's shape is another" if "stored" in where else "the checkpoint has no such key"
            return CheckpointMismatchError(message, path=path, rank=rank, **where)
    return CheckpointError(f"the checkpoint cannot be loaded: {cause}", path=path, rank=rank)
