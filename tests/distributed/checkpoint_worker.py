"""One rank of jobs that load a checkpoint another number of ranks saved, and save it again for the next.

``checkpoint_worker.py FOLDER SIZE…``: for every size, the first ranks of the launch form a group of their own, load the
checkpoint of the group before (the first makes the state), hold torch's reader against ours, and save. Each rank writes
what it found to ``FOLDER/hop<number>.<rank>.json``. At last two ranks load a checkpoint with a damaged shard that only
one of them reads. One launch serves all: starting torch costs far more than the work.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from holdfast.checkpoint import ParallelFileSystemReader

WHOLE = {
    "rows": (torch.arange(1001 * 700, dtype=torch.float32).reshape(1001, 700), Shard(0)),
    "columns": (torch.arange(130 * 911, dtype=torch.int64).reshape(130, 911), Shard(1)),
    "copies": (torch.arange(5000, dtype=torch.float64).to(torch.bfloat16), Replicate()),
    "few": (torch.arange(2 * 3, dtype=torch.float32).reshape(2, 3), Shard(0)),
}


def build(mesh: DeviceMesh, *, filled: bool) -> tuple[dict[str, Any], torch.nn.Module, torch.optim.Optimizer]:
    tensors = {
        name: distribute_tensor(whole if filled else torch.zeros_like(whole), mesh, [placement])
        for name, (whole, placement) in WHOLE.items()
    }
    torch.manual_seed(3 if filled else 4)
    model = torch.nn.Sequential(torch.nn.Linear(37, 53), torch.nn.LayerNorm(53), torch.nn.Linear(53, 11))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2 if filled else 1.0)
    if filled:
        torch.manual_seed(5)
        model(torch.randn(4, 37)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"tensors": tensors, "model": model_state, "optimizer": optimizer_state, "step": 17 if filled else 0}
    return state, model, optimizer


def flatten(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {key: leaf for part, inner in value.items() for key, leaf in flatten(inner, f"{name}/{part}").items()}
    return {name: value}


def local_bits(value: Any) -> Any:
    if isinstance(value, DTensor):
        value = value.to_local()
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    return value


def whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


def hop(folder: Path, load_from: str | None, save_to: str) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found: dict[str, Any] = {"world_size": dist.get_world_size()}
    if load_from is None:
        state, _, _ = build(mesh, filled=True)
        expected = {name: whole(value) for name, value in flatten(state).items()}
        if dist.get_rank() == 0:
            torch.save(expected, folder / "expected.pt")
    else:
        expected = torch.load(folder / "expected.pt")
        stock, _, _ = build(mesh, filled=False)
        load(stock, storage_reader=FileSystemReader(folder / load_from))
        state, model, optimizer = build(mesh, filled=False)
        reader = ParallelFileSystemReader(folder / load_from, verify="full")
        load(state, storage_reader=reader)
        assert reader.report is not None
        found["unverified"] = len(reader.report.unverified)
        ours_flat, stock_flat = flatten(state), flatten(stock)
        found["differs_from_stock"] = [
            name for name in stock_flat if local_bits(ours_flat[name]) != local_bits(stock_flat[name])
        ]
        found["differs_from_saved"] = [
            name
            for name, value in expected.items()
            if not (
                torch.equal(now, value) if isinstance(now := whole(ours_flat[name]), torch.Tensor) else now == value
            )
        ]
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        rows = {"tensors": {"rows": build(mesh, filled=False)[0]["tensors"]["rows"]}}
        reader = ParallelFileSystemReader(folder / load_from)
        load(rows, storage_reader=reader)
        assert reader.report is not None
        found["bytes_read"], found["bytes_needed"] = reader.report.bytes_read, reader.report.bytes_needed
    save(state, storage_writer=FileSystemWriter(folder / save_to, sync_files=False))
    (folder / f"{save_to}.{dist.get_rank()}.json").write_text(json.dumps(found))


def damaged(folder: Path) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    place = folder / "damaged"
    state = {"w": distribute_tensor(torch.ones(100, 3000), mesh, [Shard(0)])}
    save(state, storage_writer=FileSystemWriter(place, sync_files=False))
    if dist.get_rank() == 0:
        path = place / "__1_0.distcp"  # what the second rank saved, and will load
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    dist.barrier()
    found = {}
    try:
        load(state, storage_reader=ParallelFileSystemReader(place, num_workers=2))
    except CheckpointException as wrapped:
        found = {
            rank: [type(error).__name__, getattr(error, "tensor", None), getattr(error, "file", None)]
            for rank, (error, _) in wrapped.failures.items()
        }
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")]
    (folder / f"damaged.{dist.get_rank()}.json").write_text(json.dumps({"failures": found, "threads": left}))


def main(given: str, *groups: str) -> None:
    folder, sizes = Path(given), [int(size) for size in groups]
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank, everyone = dist.get_rank(), dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    scenarios: list[tuple[int, Callable[[], None]]] = [
        (size, partial(hop, folder, f"hop{number - 1}" if number else None, f"hop{number}"))
        for number, size in enumerate(sizes)
    ]
    scenarios.append((2, partial(damaged, folder)))
    for number, (size, scenario) in enumerate(scenarios):
        if rank < size:  # a job of that size: its default process group holds these ranks and no others
            store = dist.PrefixStore(f"scenario-{number}", everyone)  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
            scenario()
            dist.barrier()
            dist.destroy_process_group()
        everyone.add(f"left-{number}", 1)  # a larger group reads what this one wrote
        while everyone.add(f"left-{number}", 0) < max(sizes):
            time.sleep(0.01)
