"""Torch's default planner, with our errors, and with objects set where the caller has them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem

from holdfast.checkpoint.state_keys import alike, flatten_as_now
from holdfast.errors import CheckpointMismatchError

__all__ = ["NamingPlanner", "misfit"]


class NamingPlanner(DefaultLoadPlanner):
    """Torch's default planner, but every rank raises our error when destination and checkpoint do not match."""

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Flatten the destination."""
        values = {name: _at(place) for name, place in _places(state_dict)}
        if not (dist.is_available() and dist.is_initialized()):  # torch takes the device from the process group
            for name, value in values.items():
                if isinstance(value, torch.Tensor) and value.is_meta:
                    raise CheckpointMismatchError(
                        "the destination has no memory: it is on the meta device",
                        tensor=name,
                        hint="call model.to_empty(device=…) before loading",
                    )
        # Torch first copies the state to unpack sharded tensors, and the copy lacks empty dicts in lists.
        is_sharded = any(isinstance(value, ShardedTensor) for value in values.values())
        self.flatten_sharded_tensors = self.flatten_sharded_tensors and is_sharded
        flatten_as_now()
        try:
            super().set_up_planner(state_dict, metadata, is_coordinator)
        except ValueError as error:
            raise CheckpointMismatchError(
                alike(state_dict) or f"the destination cannot be flattened: {error}", hint="use other keys"
            ) from error
        # Afterwards, because torch replaces lists. Last come those that are stored as one item: an empty dict may have
        # the flat name of another entry.
        self._places = dict(sorted(_places(state_dict), key=lambda named: _is_stored_whole(_at(named[1]))))
        if metadata is not None:
            self._take_whole(metadata)

    def _take_whole(self, metadata: Metadata) -> None:
        """Take an object where the destination has an empty dict in a list, or a list of values and empty dicts."""
        for name, place in self._places.items():
            if name not in metadata.state_dict_metadata or name in self.state_dict:
                continue
            inside = dict(_places(_at(place), f"{name}."))
            leaves = [value for value in map(_at, inside.values()) if _is_stored_whole(value)]
            tensors = any(isinstance(value, torch.Tensor) for value in leaves)
            # Torch leaves an empty dict in a dict as it is.
            if isinstance(_at(place) if leaves else place[0], list) and not tensors:
                for other in inside:
                    self.state_dict.pop(other, None)
                self.state_dict[name] = _at(place)

    def create_local_plan(self) -> LoadPlan:
        """Plan what this rank reads."""
        try:
            return super().create_local_plan()
        except (RuntimeError, ValueError) as error:
            raise misfit(self) or error from None
        finally:
            flatten_as_now()

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Set an object under the caller's own key; where that is not text, torch would add another entry."""
        place = self._places.get(read_item.dest_index.fqn)
        if place is None:
            super().load_bytes(read_item, value)
        else:
            container, key = place
            container[key] = torch.load(value, weights_only=False)


Place = tuple[Any, Any]  # a container and a key


def _at(place: Place) -> Any:
    return place[0][place[1]]


def _places(container: Any, prefix: str = "") -> Iterator[tuple[str, Place]]:
    """Yield the flat name of everything in a state, with its container and key."""
    for key, value in container.items() if isinstance(container, Mapping) else enumerate(container):
        name = f"{prefix}{key}"
        yield name, (container, key)
        if not _is_stored_whole(value):
            yield from _places(value, f"{name}.")


def _is_stored_whole(value: Any) -> bool:
    """Return whether torch stores a value as one item: all except dicts, and lists that hold tensors or dicts."""
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
