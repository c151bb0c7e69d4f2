"""Load plans made by hand: any box of any stored tensor into any destination."""

from __future__ import annotations

import io

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader


class HandPlanner(LoadPlanner):
    """Gives out the destinations it was made with, by the number of the read item, and notes every call."""

    commits_in_any_order = True

    def __init__(self, plan: LoadPlan, targets: list[torch.Tensor]) -> None:
        self.calls: list[tuple[str, int]] = []
        self._number = {id(item): number for number, item in enumerate(plan.items)}
        self._targets = targets

    def set_up_planner(
        self, state_dict: object, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        raise NotImplementedError

    def create_local_plan(self) -> LoadPlan:
        raise NotImplementedError

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        raise NotImplementedError

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        raise NotImplementedError

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise NotImplementedError

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        number = self._number[id(read_item)]
        self.calls.append(("resolve", number))
        return self._targets[number]

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        self.calls.append(("commit", self._number[id(read_item)]))


def read_box(fqn: str, start: tuple[int, ...], lengths: tuple[int, ...]) -> ReadItem:
    """A read item for a box of a tensor that was saved whole."""
    index = MetadataIndex(fqn, [0] * len(lengths))
    return ReadItem(
        type=LoadItemType.TENSOR,
        dest_index=index,
        dest_offsets=torch.Size([0] * len(lengths)),
        storage_index=index,
        storage_offsets=torch.Size(start),
        lengths=torch.Size(lengths),
    )


def run_plan(reader: StorageReader, items: list[ReadItem], targets: list[torch.Tensor]) -> HandPlanner:
    """Let a reader carry out a plan."""
    reader.reset()
    reader.set_up_storage_reader(reader.read_metadata(), True)
    plan = LoadPlan(items)
    planner = HandPlanner(plan, targets)
    reader.read_data(plan, planner).wait()
    return planner


__all__ = ["HandPlanner", "read_box", "run_plan"]
