"""Loading with one call that raises holdfast's own errors.

``torch.distributed.checkpoint.load`` collects the errors of all ranks in a ``CheckpointException``, which is a
``BaseException``, and turns an error in the metadata into the text of an ``AssertionError``. Here the original error is
raised.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.stateful import Stateful

from holdfast.checkpoint.agreement import agree_on_sharing
from holdfast.checkpoint.interrupts import interrupt_in
from holdfast.checkpoint.load_planner import NamingPlanner, misfit
from holdfast.checkpoint.reader import ParallelFileSystemReader
from holdfast.checkpoint.replaced import read_again
from holdfast.checkpoint.report import LoadReport
from holdfast.checkpoint.sharing import naming_peers, portable
from holdfast.checkpoint.state_keys import unsortable
from holdfast.errors import CheckpointError, ConfigError, HoldfastError

__all__ = ["load"]

T = TypeVar("T")


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
        **options: those of ``holdfast.checkpoint.ParallelFileSystemReader``.

    Returns:
        What was read and checked on this rank.

    Raises:
        CheckpointError: it cannot be loaded; the error of this rank, or otherwise of the first rank that failed. If the
            checkpoint is replaced meanwhile, a single process reads it again; several ranks all raise
            CheckpointReadError (``replaced``), and may call again.
        ConfigError: the state is not a dict, or an option is invalid, or the ranks disagree on ``share_within``.
    """
    alone = not (dist.is_available() and dist.is_initialized())

    def read() -> LoadReport:
        return _load(state_dict, path, planner, process_group, options, alone=alone)

    return read_again(read) if alone else read()  # no rank may start over while others wait for it


def _load(
    state_dict: dict[str, Any],
    path: str | os.PathLike[str],
    planner: LoadPlanner | None,
    process_group: dist.ProcessGroup | None,
    options: dict[str, Any],
    *,
    alone: bool,
) -> LoadReport:
    sharing = options.get("share_within")
    if not alone:
        agree_on_sharing(sharing, process_group)
    if isinstance(sharing, dist.ProcessGroup) and process_group is None and sharing.size() == dist.get_world_size():
        process_group = sharing  # where torch collects errors: a rank that stalls costs one timeout, not two
    group = None if alone else (process_group or dist.group.WORLD)
    values, reader = _together(lambda: _begin(state_dict, path, options, keep_metadata=not alone), group)
    if planner is None:
        planner = NamingPlanner()
    elif type(planner) is DefaultLoadPlanner and planner.flatten_state_dict:
        planner = NamingPlanner(
            flatten_sharded_tensors=planner.flatten_sharded_tensors, allow_partial_load=planner.allow_partial_load
        )
    handled = sys.exc_info()[1]
    failure: CheckpointException | None = None
    try:
        # Torch's ``load`` without its warning that there is only one process, which is intended, and without calling
        # the program's own objects, whose errors are not those of the load.
        _load_state_dict(values, reader, process_group=process_group, no_dist=alone, planner=planner)
    except CheckpointException as wrapped:
        failure = wrapped
    except RuntimeError as error:  # a rank is gone, and torch cannot inform the others
        if isinstance(reader.error, HoldfastError):
            raise reader.error from error
        if alone or isinstance(error, HoldfastError):
            raise
        with naming_peers():
            raise
    if failure is not None:
        mine, _ = failure.failures.get(0 if alone else dist.get_rank(process_group), (failure, None))
        interrupt = interrupt_in(mine, handled=handled)
        if interrupt is not None:  # which is for the program to handle
            raise interrupt from None
        causes = [reader.error, *(cause for cause, _ in failure.failures.values())]
        own = next((cause for cause in causes if isinstance(cause, HoldfastError)), None)
        if own is not None:
            raise own from failure
        rank, (cause, _) = next(iter(failure.failures.items()))
        named = misfit(planner) if isinstance(planner, DefaultLoadPlanner) else None
        message = f"the checkpoint cannot be loaded: {str(cause) or type(cause).__name__}"
        raise named or CheckpointError(message, path=str(path), rank=rank) from failure
    for key in sorted(state_dict):  # like torch, ignore what a planner has added
        if isinstance(state_dict[key], Stateful):
            state_dict[key].load_state_dict(values[key])
        else:
            state_dict[key] = values[key]
    assert reader.report is not None
    return reader.report


def _check_state(state_dict: Any) -> None:
    if not isinstance(state_dict, Mapping):
        raise ConfigError(f"the state must be a dict, got {type(state_dict).__name__}")
    fault = unsortable(state_dict)
    if fault is not None:
        raise CheckpointError(fault, hint="use text for all of them")


def _begin(
    state_dict: dict[str, Any], path: str | os.PathLike[str], options: dict[str, Any], *, keep_metadata: bool
) -> tuple[dict[str, Any], ParallelFileSystemReader]:
    """Return the values to fill, with stateful objects replaced by their ``state_dict()``, and the reader."""
    _check_state(state_dict)
    # First, and in torch's order: collecting a model's state may need all ranks, even if one has invalid options.
    values = {key: state_dict[key] for key in sorted(state_dict)}
    values = {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in values.items()}
    reader = ParallelFileSystemReader(path, **options)
    if keep_metadata:
        reader.keep_metadata()
    return values, reader


def _together(begin: Callable[[], T], group: dist.ProcessGroup | None) -> T:
    """Call ``begin`` on all ranks and return its result; if one fails, all do. Torch would leave the rest waiting."""
    if group is None:
        return begin()
    result: list[T] = []
    own: Exception | None = None
    try:
        result = [begin()]
    except Exception as error:
        own = error
    told: list[Exception | None] = [None] * dist.get_world_size(group)
    with naming_peers(own):
        dist.all_gather_object(told, portable(own), group=group)
    failed = own or next((error for error in told if error is not None), None)
    if failed is not None:
        raise failed
    return result[0]
