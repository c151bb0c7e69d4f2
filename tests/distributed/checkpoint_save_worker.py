"""One rank of a job that saves together, in the foreground and in the background, and loads what it saved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from threading import Lock
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from holdfast import checkpoint
from holdfast.checkpoint.files import LocalFiles
from holdfast.errors import CheckpointWriteError, ConfigError, HoldfastError


def state(mesh: Any, step: int) -> dict[str, Any]:
    whole = torch.arange(7 * 5, dtype=torch.float32).reshape(7, 5) + step
    return {
        "sharded": distribute_tensor(whole, mesh, [Shard(0)]),
        "replicated": torch.full((40,), float(step)),
        "step": step,
    }


def is_refused(what: dict[str, Any], path: Path, step: int) -> bool:
    try:
        checkpoint.save(what, path, step=step)
    except ConfigError:
        return True
    return False


class Interrupted(DefaultSavePlanner):
    def resolve_data(self, write_item: WriteItem) -> Any:
        if dist.get_rank() == 1:
            raise KeyboardInterrupt
        return super().resolve_data(write_item)


class Broken:
    """Something with a state that cannot tell it."""

    def state_dict(self) -> dict[str, Any]:
        raise KeyError("broken")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise NotImplementedError


class Reluctant:
    """Something that does not take the state it is given."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise RuntimeError("reluctant")


def error_of_save(what: dict[str, Any], path: Path, **options: Any) -> str:
    try:
        checkpoint.save(what, path, step=4, **options)
    except HoldfastError as error:
        return f"{type(error).__name__}: {error.message}"
    return "none"


def error_of_background_save(what: dict[str, Any], path: Path, **options: Any) -> tuple[str, str]:
    """The error of a background save, and where it was raised."""
    where = "at the call"
    try:
        pending = checkpoint.async_save(what, path, step=4, **options)
        where = "with the result"
        pending.result(60)
    except HoldfastError as error:
        return f"{type(error).__name__}: {error.message}", where
    return "none", where


def end_of_interrupted_save(what: dict[str, Any], path: Path) -> str:
    try:
        checkpoint.save(what, path, step=9, planner=Interrupted())
    except (KeyboardInterrupt, CheckpointWriteError) as error:
        return f"{type(error).__name__}: {getattr(error, 'message', '')}"
    return "none"


class Replacing(LocalFiles):
    """Puts another checkpoint in the place of one between reading its metadata and its data."""

    def __init__(self, path: Path, other: Path) -> None:
        self.path, self.other = path, other

    def open(self, path: Path) -> int:
        if path.suffix == ".distcp" and self.other.exists():
            self.path.rename(self.path.with_name(".old"))
            self.other.rename(self.path)
        return super().open(path)


def failure_of(what: dict[str, Any], path: Path, **options: Any) -> str:
    try:
        checkpoint.load(what, path, **options)
    except Exception as error:
        return type(error).__name__
    return "none"


def main(given: str) -> None:
    folder = Path(given)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    background = dist.new_group(backend="gloo")
    found: dict[str, Any] = {}
    no_path: Any = None
    report = checkpoint.save(state(mesh, 1), folder / "step-1", step=1, run_id="job")
    found["items"] = report.items
    try:
        checkpoint.async_save(state(mesh, 2), folder / "step-2", step=2)
    except ConfigError:
        found["wants_group"] = True
    live = state(mesh, 2)
    pending = checkpoint.async_save(live, folder / "step-2", step=2, keep=2, process_group=background)
    live["replicated"].zero_()
    pending.result(120)
    wanted = state(mesh, 9)
    loaded = checkpoint.load(wanted, folder / "step-2", require_manifest=True)
    expected = state(mesh, 2)
    sharded = wanted["sharded"]
    assert isinstance(sharded, DTensor)
    found["equal"] = (
        torch.equal(sharded.to_local(), expected["sharded"].to_local())
        and torch.equal(wanted["replicated"], expected["replicated"])
        and wanted["step"] == 2
    )
    found["not_loaded"] = list(loaded.not_loaded)
    # A name that is taken by a file: it fails on the coordinator, and every rank hears of it.
    if rank == 0:
        (folder / "taken").write_text("")
    dist.barrier()
    try:
        checkpoint.save(state(mesh, 3), folder / "taken" / "step-3", step=3, keep=1)
    except CheckpointWriteError as error:
        found["error"] = type(error).__name__
    found["disagreements"] = sum(
        is_refused(state(mesh, 4), folder / name, step) for name, step in ((f"other-{rank}", 4), ("other", 4 + rank))
    )
    # What one rank cannot begin with is the same error on all, at once.
    found["unable"] = [
        error_of_save({"broken": Broken()} if rank else {"broken": 1}, folder / "unable"),
        error_of_save(state(mesh, 4), folder / "unable", keep=1 - rank),
        error_of_save(state(mesh, 4), no_path if rank else folder / "unable"),
    ]
    # In the background too, behind the saves that were begun before, and the next ones work.
    before = checkpoint.async_save(state(mesh, 4), folder / "last", step=4, process_group=background)
    found["unable_later"] = [
        error_of_background_save({"x": Broken()} if rank else {"x": 1}, folder / "unable", process_group=background),
        error_of_background_save({"x": Lock()} if rank else {"x": 1}, folder / "unable", process_group=background),
        error_of_background_save({"x": 1}, folder / "unable", keep=1 - rank, process_group=background),
        error_of_background_save({"x": 1}, no_path if rank else folder / "unable", process_group=background),
    ]
    found["before"] = before.result(120).step
    # Faster than the disk: they are made one after the other, on the one group.
    several = [
        checkpoint.async_save(state(mesh, step), folder / "last", step=step, process_group=background)
        for step in (5, 6, 7, 8)
    ]
    found["last"] = [each.result(120).step for each in several]
    wanted = state(mesh, 0)
    checkpoint.load(wanted, folder / "last")
    found["stands"] = wanted["step"]
    # What one rank alone cannot do is the same error on all.
    found["told"] = [
        failure_of(state(mesh, 0), folder / ("last" if rank == 0 else "nothing")),
        failure_of(state(mesh, 0), folder / "last", num_workers=-rank),
        failure_of(state(mesh, 0), no_path if rank else folder / "last"),
        failure_of(state(mesh, 0), folder / "last", **({"misspelt": 1} if rank else {})),
        failure_of({**state(mesh, 0), "x": Broken() if rank else {}}, folder / "last"),
        failure_of({**state(mesh, 0), "x": Reluctant() if rank else {}}, folder / "last"),
    ]
    found["interrupted"] = end_of_interrupted_save(state(mesh, 9), folder / "other")
    # One rank begins with one checkpoint and continues with another: all hear of it, and none waits for another.
    one, other = folder.parent / "one", folder.parent / "other"
    if rank == 0:
        shutil.copytree(folder / "step-1", one)
        shutil.copytree(folder / "last", other)
    dist.barrier()
    layer = Replacing(one, other) if rank == 0 else None
    found["replaced"] = failure_of(state(mesh, 0), one, file_layer=layer)
    found["again"] = failure_of(state(mesh, 0), one)
    (folder.parent / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
