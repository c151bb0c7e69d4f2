"""Ranks that share what they read: under torchrun, four of them; or three, of which one dies or stops while reading.

Each rank writes what it found to ``FOLDER/RANK.json``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from holdfast import checkpoint
from holdfast.checkpoint.files import LocalFiles
from holdfast.errors import ConfigError, HoldfastError

torch.set_num_threads(1)


def values(*, filled: bool) -> dict[str, torch.Tensor]:
    """Whole tensors; a replicated one of several blocks, and many small ones."""
    torch.manual_seed(7)
    found = {
        "large": torch.randn(1500, 1001),
        "halves": torch.randn(64, 5000).to(torch.bfloat16),
        "rows": torch.randn(403, 700),
        "turned": torch.randn(300, 200).t(),
        "empty": torch.zeros(0, 4),
    } | {f"norm{number}": torch.randn(64) for number in range(300)}
    return found if filled else {name: torch.zeros_like(value) for name, value in found.items()}


def build(flat: DeviceMesh, mesh: DeviceMesh, *, filled: bool) -> dict[str, Any]:
    state: dict[str, Any] = dict(values(filled=filled))
    state["halves"] = distribute_tensor(state["halves"], mesh, [Replicate(), Shard(0)])
    state["rows"] = distribute_tensor(state["rows"], flat, [Shard(0)])
    state["step"] = 3 if filled else 0
    return state


def is_equal(state: dict[str, Any]) -> bool:
    expected = values(filled=True)
    whole = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}
    return bool(whole.pop("step") == 3) and all(torch.equal(whole[name], value) for name, value in expected.items())


def told(report: checkpoint.LoadReport, state: dict[str, Any]) -> dict[str, Any]:
    return {
        "read": report.bytes_read,
        "received": report.bytes_received,
        "needed": report.bytes_needed,
        "unverified": len(report.unverified),
        "equal": is_equal(state),
    }


class Doubling(DefaultLoadPlanner):
    """Changes what was loaded, in place, when it is told that it is there."""

    commits_in_any_order = True

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        tensor.mul_(2)


def failure(state: dict[str, Any], folder: Path, **options: Any) -> list[Any]:
    try:
        checkpoint.load(state, folder, **options)
    except HoldfastError as error:
        return [type(error).__name__, error.where.get("tensor")]
    except KeyboardInterrupt:
        return ["KeyboardInterrupt", None]
    return []


def main(given: str) -> None:
    folder = Path(given)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    flat = init_device_mesh("cpu", (4,))
    mesh = init_device_mesh("cpu", (2, 2))
    path = folder / "step-1"
    checkpoint.save(build(flat, mesh, filled=True), path, step=1)
    found: dict[str, Any] = {}
    node = checkpoint.node_group()
    pairs = [dist.new_group([0, 1], backend="gloo"), dist.new_group([2, 3], backend="gloo")]

    def blank() -> dict[str, Any]:
        return build(flat, mesh, filled=False)

    for name, group in (("alone", None), ("node", node), ("pairs", pairs[rank // 2])):
        state = blank()
        found[name] = told(checkpoint.load(state, path, share_within=group, verify="full"), state)
    state = blank()
    with checkpoint.installed(share_within=node):
        dcp_load(state, checkpoint_id=path)
    found["installed"] = is_equal(state)
    doubled = {"large": torch.zeros(1500, 1001)}
    checkpoint.load(doubled, path, planner=Doubling(), share_within=node, warn_not_loaded=False)
    found["doubled"] = torch.equal(doubled["large"], 2 * values(filled=True)["large"])
    # One rank wants another dtype: it reads for itself, and the rest share.
    mixed = {"large": torch.zeros(1500, 1001, dtype=torch.float64 if rank == 1 else torch.float32)}
    report = checkpoint.load(mixed, path, cast=True, share_within=node, warn_not_loaded=False)
    found["mixed"] = torch.equal(mixed["large"].float(), values(filled=True)["large"])
    found["mixed received"] = report.bytes_received
    found["interrupted"] = failure(blank(), path, share_within=node, progress=_interrupt if rank == 1 else None)
    found["stranger"] = _refuses_group(path, pairs[1 - rank // 2])
    dist.barrier()
    if rank == 0:
        _damage(path)
    dist.barrier()
    found["damaged"] = failure(blank(), path, share_within=node)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()


def _interrupt(_: object) -> None:
    raise KeyboardInterrupt


def _refuses_group(path: Path, group: Any) -> bool:
    try:
        checkpoint.ParallelFileSystemReader(path, share_within=group)
    except ConfigError:
        return True
    return False


def _damage(path: Path) -> None:
    """Flip a bit in the middle of what the tensor ``large`` holds."""
    large = values(filled=True)["large"].numpy().tobytes()
    for file in path.glob("*.distcp"):
        data = bytearray(file.read_bytes())
        if (place := data.find(large)) >= 0:
            data[place + len(large) // 2] ^= 1
            file.write_bytes(data)
            return
    raise AssertionError("not found")


class Dying(LocalFiles):
    """Ends the process at the first read of tensors."""

    def read_into(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".distcp"):
            os._exit(17)
        return super().read_into(descriptor, buffers, offset)


class Stalling(LocalFiles):
    """Stops the process at the first read of tensors."""

    def read_into(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".distcp"):
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().read_into(descriptor, buffers, offset)


def one_fails(folder: Path, layer: LocalFiles, timeout: timedelta) -> None:
    """Three processes; the second dies or stops while it reads for all."""
    path = folder / "c"
    warnings.simplefilter("ignore")
    checkpoint.save({"a": torch.ones(500, 500), "b": torch.ones(500, 500), "c": torch.ones(500, 500)}, path, step=1)
    children = []
    for rank in range(3):
        child = os.fork()
        if child == 0:
            _load_or_fail(folder, path, rank, layer, timeout)
        children.append(child)
    statuses = []
    for rank in (0, 2, 1):
        if rank == 1:
            os.kill(children[rank], signal.SIGKILL)  # it may have stopped
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(children[rank], 0)[1]))
    (folder / "statuses.json").write_text(json.dumps(statuses))


def _load_or_fail(folder: Path, path: Path, rank: int, layer: LocalFiles, timeout: timedelta) -> None:
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=3)
        group = checkpoint.node_group(timeout=timeout)
        state = {name: torch.zeros(500, 500) for name in "abc"}
        while_reading = failure(state, path, share_within=group, file_layer=layer if rank == 1 else None)
        gone_before = failure(state, path, share_within=group)
        (folder / f"{rank}.json").write_text(json.dumps([while_reading, gone_before]))
        os._exit(0)
    except BaseException as error:
        sys.stderr.write(repr(error))
        os._exit(1)
