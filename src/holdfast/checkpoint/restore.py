"""Loading with one call that raises holdfast's own errors.

``torch.distributed.checkpoint.load`` gathers what went wrong on all ranks into a ``CheckpointException``, which is a
``BaseException``, and turns an error in the metadata into the text of an ``AssertionError``. Here the error comes out
as it was raised.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint import _version
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from holdfast.checkpoint.interrupts import interrupt_in
from holdfast.checkpoint.reader import ParallelFileSystemReader
from holdfast.checkpoint.replaced import read_again
from holdfast.checkpoint.report import LoadReport
from holdfast.checkpoint.sharing import naming_peers
from holdfast.checkpoint.state_keys import unsortable
from holdfast.errors import CheckpointError, CheckpointMismatchError, HoldfastError

__all__ = ["load"]


class _NamingPlanner(DefaultLoadPlanner):
    """Torch's default planner; where destination and checkpoint do not fit it says so with our error, to every rank."""

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        if not (dist.is_available() and dist.is_initialized()):  # torch asks the process group for memory
            for name, value in flatten_state_dict(state_dict)[0].items():
                if isinstance(value, torch.Tensor) and value.is_meta:
                    raise CheckpointMismatchError(
                        "the destination has no memory: it is on the meta device",
                        tensor=name,
                        hint="call model.to_empty(device=…) before loading",
                    )
        # Torch copies the state first, to unpack sharded tensors, and the copy lacks empty dicts in lists.
        values = (container[key] for _, (container, key) in _places(state_dict))
        self.flatten_sharded_tensors = any(isinstance(value, ShardedTensor) for value in values)
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self._places = dict(_places(self.original_state_dict))

    def create_local_plan(self) -> LoadPlan:
        try:
            return super().create_local_plan()
        except (RuntimeError, ValueError) as error:
            raise misfit(self) or error from None
        finally:  # Torch sets it while it tries the names of older checkpoints, and forgets it where that fails.
            _version._derived_version = None

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Set an object where the caller has it; under a key that is not text, torch would add another entry."""
        place = self._places.get(read_item.dest_index.fqn)
        if place is None:
            super().load_bytes(read_item, value)
        else:
            container, key = place
            container[key] = torch.load(value, weights_only=False)


def _places(container: Any, prefix: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the flat name of everything that torch stores on its own, and the container and key it is found at."""
    for key, value in container.items() if isinstance(container, Mapping) else enumerate(container):
        name = f"{prefix}{key}"
        if _is_stored_whole(value):
            yield name, (container, key)
        else:
            yield from _places(value, f"{name}.")


def _is_stored_whole(value: Any) -> bool:
    """Return whether torch stores a value as one item: all but dicts, and lists that hold tensors or dicts."""
    if isinstance(value, list):
        return not any(isinstance(entry, torch.Tensor) or not _is_stored_whole(entry) for entry in value)
    return not isinstance(value, Mapping)


def misfit(planner: DefaultLoadPlanner) -> CheckpointMismatchError | None:
    """Return the first entry of the state dict that cannot be loaded, as an error."""
    if getattr(planner, "metadata", None) is None:
        return None
    assert planner.metadata is not None
    stored = planner.metadata.state_dict_metadata
    for name, value in planner.state_dict.items():
        entry = stored.get(name)
        if entry is None and not planner.allow_partial_load:
            return CheckpointMismatchError("the checkpoint has no such key", tensor=name)
        if not isinstance(entry, TensorStorageMetadata):
            continue
        size = getattr(value, "size", None)
        if not callable(size):
            return CheckpointMismatchError(
                "the checkpoint stores a tensor where the destination is something else",
                tensor=name,
                stored=tuple(entry.size),
                destination=type(value).__name__,
                hint="pass a tensor of that shape",
            )
        if size() != entry.size:
            return CheckpointMismatchError(
                "the shape of the destination differs from the stored tensor",
                tensor=name,
                stored=tuple(entry.size),
                destination=tuple(size()),
                hint="build the model with the configuration it was saved with",
            )
    return None


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
        CheckpointError: it cannot be loaded; the error of this rank, or else of the first rank that failed. One process
            reads again where another checkpoint takes the place of this one; several raise CheckpointReadError
            (``replaced``), all of them, and may call again.
    """
    alone = not (dist.is_available() and dist.is_initialized())

    def read() -> LoadReport:
        return _load(state_dict, path, planner, process_group, options, alone=alone)

    return read_again(read) if alone else read()  # no rank may begin again while others wait for it


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
    if isinstance(sharing, dist.ProcessGroup) and process_group is None and sharing.size() == dist.get_world_size():
        process_group = sharing  # where torch gathers what failed: a rank that stalls costs one timeout, not two
    reader = _agreed_reader(state_dict, path, options, None if alone else (process_group or dist.group.WORLD))
    if planner is None or type(planner) is DefaultLoadPlanner:
        planner = _NamingPlanner(allow_partial_load=planner is not None and planner.allow_partial_load)
    handled = sys.exc_info()[1]
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
    assert reader.report is not None
    return reader.report


def _check_keys(state_dict: dict[str, Any]) -> None:
    fault = unsortable(state_dict)
    if fault is not None:
        raise CheckpointError(fault, hint="use text for all of them")


def _agreed_reader(
    state_dict: dict[str, Any],
    path: str | os.PathLike[str],
    options: dict[str, Any],
    group: dist.ProcessGroup | None,
) -> ParallelFileSystemReader:
    """Make the reader; with several ranks all raise what any of them does, where torch would let the others wait."""
    if group is None:
        _check_keys(state_dict)
        return ParallelFileSystemReader(path, **options)
    reader, own = None, None
    try:
        _check_keys(state_dict)
        reader = ParallelFileSystemReader(path, **options)
        reader.keep_metadata()
    except HoldfastError as error:
        own = error
    told: list[HoldfastError | None] = [None] * dist.get_world_size(group)
    with naming_peers(own):
        dist.all_gather_object(told, own, group=group)
    failed = own or next((error for error in told if error is not None), None)
    if failed is not None:
        raise failed
    assert reader is not None
    return reader
