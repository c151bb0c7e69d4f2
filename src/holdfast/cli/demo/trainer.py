"""A small character-level language model trained under torchrun: the demo's real job.

Run by the demo as ``torchrun -m holdfast.cli.demo.trainer``. Every rank logs the samples it got at each step; every few
steps, model, optimizer, stream state and metrics are saved together in one distributed checkpoint.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel

from holdfast.checkpoint import ParallelFileSystemReader
from holdfast.cli.demo.corpus import build_mixture
from holdfast.metrics import MetricsAggregator
from holdfast.stream import StreamingConfig, StreamingShardLoader

__all__ = ["CharacterModel", "main", "training_state"]

PAIRS = 1 << 15
WIDTH = 96


class CharacterModel(nn.Module):
    """A model of the next byte: embeddings of bytes and of hashed byte pairs, and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(256, WIDTH)
        self.pairs = nn.Embedding(PAIRS, WIDTH)
        self.memory = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.output = nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next byte at every position of the sequence."""
        before = torch.nn.functional.pad(tokens[:, :-1], (1, 0))
        hidden, _ = self.memory(self.letters(tokens) + self.pairs((tokens * 257 + before * 7919) % PAIRS))
        scores: torch.Tensor = self.output(hidden)
        return scores


def training_state(model: nn.Module, optimizer: torch.optim.Optimizer, record: str) -> dict[str, Any]:
    """Return the content of a checkpoint; ``record`` is the state of the stream and the metrics as one JSON text."""
    return {"model": model.state_dict(), "optimizer": _optimizer_tensors(optimizer), "record": record}


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for number, parameter in enumerate(optimizer.param_groups[0]["params"]):
        state = optimizer.state[parameter]
        if not state:  # before the first step: create the tensors
            state.update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(parameter))
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        named[str(number)] = {name: state[name] for name in ("step", "exp_avg", "exp_avg_sq")}
    return named


def main() -> None:
    """Train for a given number of steps, from the newest checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    model = CharacterModel()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    config = StreamingConfig(batch_size=options.global_batch // world)
    loader = StreamingShardLoader(build_mixture(options.folder), config)
    metrics = MetricsAggregator()
    checkpoints = options.folder / options.name
    saved = sorted(checkpoints.glob("step-*/.metadata"))
    if saved:
        state = training_state(model, optimizer, "")
        load(state, storage_reader=ParallelFileSystemReader(saved[-1].parent))
        model.load_state_dict(state["model"])
        record = json.loads(state["record"])
        loader.load_state_dict(record["stream"])
        metrics.load_state_dict(record["metrics"])
    trace = open(options.folder / f"{options.name}-from-{loader.step}-rank-{rank}.jsonl", "w", encoding="utf-8")  # noqa: SIM115
    loss = torch.zeros(())
    for batch in loader:
        step = loader.step - 1
        scores = wrapped(batch["tokens"])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch["targets"].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        metrics.update(batch["metrics"])
        seen = [(ref.position, ref.source, ref.index) for ref in loader.samples_in(step, rank)]
        trace.write(json.dumps({"step": step, "loss": loss.item(), "seen": seen}) + "\n")
        trace.flush()
        if loader.step % options.save_every == 0 or loader.step == options.steps:
            record_text = json.dumps({"stream": loader.state_dict(), "metrics": metrics.run_state_dict()})
            save(training_state(model, optimizer, record_text), checkpoint_id=checkpoints / f"step-{loader.step:05d}")
        if loader.step >= options.steps:
            break
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    final = metrics.get_metrics()
    if rank == 0:
        result = {"metrics": final, "loss": float(mean) / world, "world_size": world}
        (options.folder / f"{options.name}.json").write_text(json.dumps(result))
    loader.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
