"""Everything needed to continue a run, in one checkpoint: model, optimizer, and the state of each rank.

``model`` and ``optimizer`` are stored under their parameters' names, so they load at any world size and outside
holdfast too. Scheduler, scaler, loader, metrics, monitor, generators and the position are packed per rank under
``run``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

from holdfast.checkpoint import ParallelFileSystemReader, load
from holdfast.errors import ConfigError, RunMismatchError
from holdfast.run.generators import generator_states, restore_generators
from holdfast.run.optimizer_state import (
    check_optimizers,
    collect_optimizer,
    lay_out_optimizer,
    parameter_names,
    restore_optimizer,
)
from holdfast.run.parameters import shares_elements, write_shared
from holdfast.run.payload import pack, unpack
from holdfast.run.ranks import Ranks

__all__ = ["Components", "Restored", "Stateful", "move_loader"]

_STATE = "optimizer.state."
_SCHEDULER = "scheduler"


@runtime_checkable
class Stateful(Protocol):
    """An object whose state can be saved and restored."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restore a state."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a checkpoint contains besides the restored states.

    Attributes:
        position: the run's own counters.
        world: how many ranks saved it.
        notes: what could not be restored exactly at another world size, in words.
    """

    position: dict[str, Any]
    world: int
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Components:
    """The parts of a training program that a checkpoint holds.

    Attributes:
        model: what is trained.
        optimizers: its optimizers.
        loader: where batches come from.
        metrics: a metrics aggregator, merged over ranks when the world size changes.
        parts: anything else with a state, by name: scheduler, scaler, monitor, a user's own.
    """

    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    loader: Any
    metrics: Any = None
    parts: dict[str, Stateful] = field(default_factory=dict)
    _checked: bool = field(default=False, init=False)

    @property
    def has_order(self) -> bool:
        """Whether the loader computes its order, so that it resumes at any world size and can return past batches."""
        return all(hasattr(self.loader, name) for name in ("batch_at", "samples_in", "skip", "schedule"))

    def check(self) -> None:
        """Raise if a part has no state."""
        stateful: dict[str, Any] = {"loader": self.loader, **self.parts}
        if self.metrics is not None:
            stateful["metrics"] = self.metrics
        for name, part in stateful.items():
            if not isinstance(part, Stateful):
                raise ConfigError(
                    f"{name} has no state_dict() and load_state_dict()",
                    part=name,
                    found=type(part).__name__,
                    hint="a run can only continue objects that have a state; for data, use StreamingShardLoader "
                    "or torchdata's StatefulDataLoader",
                )

    def _kinds(self) -> dict[str, str]:
        """Return the class of those parts that would take the state of another class without complaint."""
        return {name: type(part).__name__ for name, part in self.parts.items() if name == _SCHEDULER}

    def _check_kinds(self, saved: Mapping[str, str]) -> None:
        for name, kind in self._kinds().items():
            if saved.get(name, kind) != kind:
                raise RunMismatchError(
                    f"the run was trained with another {name}",
                    found=kind,
                    expected=saved[name],
                    hint=f"create the {name} that the run was started with, or choose another folder",
                )

    def collect(self, ranks: Ranks, position: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state to save. Tensors of model and optimizer are the live ones, not copies."""
        tensors, rest = collect_optimizer(self.optimizers, parameter_names(self.model))
        own: dict[str, Any] = {
            "position": dict(position),
            "world": ranks.world,
            "optimizer": rest,
            "loader": self.loader.state_dict(),
            "generators": generator_states(),
            "kinds": self._kinds(),
            **{f"part/{name}": part.state_dict() for name, part in self.parts.items()},
        }
        if self.metrics is not None:
            own["metrics"] = self.metrics.state_dict()
        packed = pack(own, check=not self._checked)
        self._checked = True
        model = get_model_state_dict(self.model)
        return {"model": model, "optimizer": {"state": tensors}, "run": {_key(ranks.rank): packed}}

    def restore(self, path: Path, ranks: Ranks) -> Restored:
        """Restore everything from a checkpoint, at this world size."""
        names = parameter_names(self.model)
        entries = ParallelFileSystemReader(path).read_metadata().state_dict_metadata
        stored = {name.removeprefix(_STATE): about for name, about in entries.items() if name.startswith(_STATE)}
        kept = self._lay_out_own(_packed_sizes(entries), ranks, path)
        model: dict[str, Any] = get_model_state_dict(self.model)
        shared = {name: value for name, value in model.items() if _is_shared(value)}
        state: dict[str, Any] = {
            "model": {name: value.clone() if name in shared else value for name, value in model.items()},
            "optimizer": {"state": lay_out_optimizer(self.optimizers, names, stored)},
            "run": {_key(rank): kept[rank] for rank in kept},
        }
        # The state of other ranks is deliberately not loaded.
        load(state, path, process_group=ranks.group, warn_not_loaded=False)
        saved = {rank: unpack(packed) for rank, packed in kept.items()}
        own = saved[ranks.rank] if ranks.rank in saved else saved[0]
        notes = check_optimizers(self.optimizers, own["optimizer"], names if own["world"] == ranks.world else None)
        self._check_kinds(own.get("kinds", {}))
        for name, target in shared.items():
            write_shared(name, target, state["model"].pop(name))
        set_model_state_dict(self.model, state["model"], options=StateDictOptions(strict=not shared))
        restore_optimizer(self.optimizers, names, state["optimizer"]["state"], own["optimizer"])
        return self._restore_own(saved, own, ranks, notes)

    def _lay_out_own(self, sizes: dict[int, int], ranks: Ranks, path: Path) -> dict[int, torch.Tensor]:
        """Return empty tensors for the per-rank states that this rank needs."""
        if 0 not in sizes:
            raise RunMismatchError("the checkpoint was not made by a run", path=str(path))
        same = len(sizes) == ranks.world
        wanted = {ranks.rank} if same else {0, *([ranks.rank] if ranks.rank in sizes else [])}
        if not same and ranks.is_first and self.metrics is not None:
            wanted = set(sizes)
        return {rank: torch.empty(sizes[rank], dtype=torch.uint8, device="cpu") for rank in wanted}

    def _restore_own(
        self, saved: dict[int, dict[str, Any]], own: dict[str, Any], ranks: Ranks, notes: list[str]
    ) -> Restored:
        world = own["world"]
        if world != ranks.world and not self.has_order:
            raise RunMismatchError(
                "this loader cannot continue at a different world size",
                world_size=ranks.world,
                expected=world,
                loader=type(self.loader).__name__,
                hint="start with the same number of ranks, or read through a StreamingShardLoader",
            )
        self.loader.load_state_dict(own["loader"])
        if not own["position"].get("passing", False) and not self.has_order:
            # Between passes torchdata's loader makes an iterator when asked for its state, and draws from the global
            # generator for it. The saved run asked, so this one asks too: both begin the next pass from the same place.
            self.loader.state_dict()
        for name, part in self.parts.items():
            if f"part/{name}" in own:
                part.load_state_dict(own[f"part/{name}"])
            else:
                notes.append(f"the checkpoint holds no state of {name}: it keeps its initial state")
        notes += [
            f"the program no longer has the part {name}: later checkpoints will not contain it"
            for name in (key.removeprefix("part/") for key in own if key.startswith("part/"))
            if name not in self.parts
        ]
        if self.metrics is not None and "metrics" in own:
            self._restore_metrics(saved, world, ranks)
        if ranks.rank in saved:
            restore_generators(own["generators"])
        else:
            notes.append(f"rank {ranks.rank} is new: its generators keep the program's seeds")
        return Restored(own["position"], world, tuple(notes))

    def _restore_metrics(self, saved: dict[int, dict[str, Any]], world: int, ranks: Ranks) -> None:
        if world == ranks.world:
            self.metrics.load_state_dict(saved[ranks.rank]["metrics"])
        elif ranks.is_first:
            from holdfast.metrics import merge_state_dicts

            self.metrics.load_state_dict(merge_state_dicts([saved[rank]["metrics"] for rank in sorted(saved)]))
        else:
            self.metrics.reset()


def move_loader(loader: Any, step: int) -> None:
    """Move a loader that computes its order to another step of its own schedule."""
    position = loader.schedule.delivered_before(step)
    epoch = loader.order.epoch_of(position)
    loader.restore_from_checkpoint(replace(loader.get_checkpoint(), step=step, position=position, epoch=epoch))


def _is_shared(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and shares_elements(value)


def _key(rank: int) -> str:
    return f"rank-{rank:05d}"


def _packed_sizes(entries: Mapping[str, Any]) -> dict[int, int]:
    """Return the size in bytes of each rank's own state in the checkpoint."""
    found: dict[int, int] = {}
    for name, entry in entries.items():
        prefix, _, rank = name.partition("run.rank-")
        if not prefix and rank.isdigit():
            found[int(rank)] = int(entry.size[0])
    return found
