"""One of two ranks that load FSDP checkpoints by Accelerate's and Lightning's own code, inside ``installed()``.

``Accelerator`` turns FSDP on for accelerators only, so its functions for FSDP are called as ``load_state`` calls them.
Lightning's ``FSDPStrategy`` wraps torch's first FSDP, which refuses to run on the CPU; ``ModelParallelStrategy`` uses
the second and loads by the same function. Each rank writes what it found to ``FOLDER/RANK.json``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import load_fsdp_model, load_fsdp_optimizer, save_fsdp_model, save_fsdp_optimizer
from lightning.fabric import Fabric
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from holdfast.checkpoint import LoadProgress, installed

torch.set_num_threads(1)


def model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(24, 50), torch.nn.Tanh(), torch.nn.Linear(50, 6))


def train(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(11)
    module(torch.randn(8, 24)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def local(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def tensors(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """This rank's part of the parameters and of both moments."""
    found: list[torch.Tensor] = [*module.parameters()]
    for state in optimizer.state_dict()["state"].values():
        found += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return [local(value.detach()).clone() for value in found]


def damage(folder: Path) -> None:
    """Flip a bit in the largest file of every checkpoint in the folder, on one rank."""
    dist.barrier()
    if dist.get_rank() == 0:
        for metadata in folder.rglob(".metadata"):
            path = max(metadata.parent.glob("*.distcp"), key=lambda path: path.stat().st_size)
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    dist.barrier()


def holds(
    folder: Path,
    saved: tuple[torch.nn.Module, torch.optim.Optimizer],
    fresh: tuple[torch.nn.Module, torch.optim.Optimizer],
    load: Callable[[], object],
) -> dict[str, Any]:
    """Load through the installed reader, compare, and damage the files to see that it is ours."""
    seen: list[LoadProgress] = []
    with installed(verify="full", progress=seen.append):
        load()
    same = zip(tensors(*saved), tensors(*fresh), strict=True)
    found: dict[str, Any] = {"equal": all(torch.equal(one, other) for one, other in same), "items": len(seen)}
    damage(folder)
    try:
        with installed(verify="full"):
            load()
    except CheckpointException as error:
        found["refused"] = sorted({type(cause).__name__ for cause, _ in error.failures.values()})
    return found


def with_accelerate(folder: Path) -> dict[str, Any]:
    accelerator = Accelerator(cpu=True)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")

    def build(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        module = model(seed)
        fully_shard(module)
        return module, torch.optim.AdamW(module.parameters())

    saved, fresh = build(1), build(2)
    train(*saved)
    save_fsdp_model(plugin, accelerator, saved[0], str(folder))
    save_fsdp_optimizer(plugin, accelerator, saved[1], saved[0], str(folder))

    def load() -> None:
        load_fsdp_model(plugin, accelerator, fresh[0], str(folder))
        load_fsdp_optimizer(plugin, accelerator, fresh[1], fresh[0], str(folder))

    return holds(folder, saved, fresh, load)


def with_lightning(folder: Path) -> dict[str, Any]:
    strategy = ModelParallelStrategy(shard, data_parallel_size=2, tensor_parallel_size=1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()

    def build(seed: int) -> tuple[Any, Any]:
        module = fabric.setup_module(model(seed))
        return module, fabric.setup_optimizers(torch.optim.AdamW(module.parameters()))

    saved, fresh = build(1), build(2)
    torch.manual_seed(11)
    fabric.backward(saved[0](torch.randn(8, 24)).square().sum())
    saved[1].step()
    saved[1].zero_grad()
    fabric.save(folder, {"model": saved[0], "optimizer": saved[1]})

    def load() -> None:
        fabric.load(folder, {"model": fresh[0], "optimizer": fresh[1]})

    return holds(folder, saved, fresh, load)


def shard(module: torch.nn.Module, mesh: Any) -> torch.nn.Module:
    fully_shard(module, mesh=mesh["data_parallel"])
    return module


def main(given: str) -> None:
    folder = Path(given)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    found = {
        "accelerate": with_accelerate(folder / "accelerate"),
        "lightning": with_lightning(folder / "lightning"),
    }
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
