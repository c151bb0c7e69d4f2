"""Ray Train on a local cluster, one node of which is killed: the stream resumes exactly on fewer workers."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import holdfast as hfast

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'holdfast[ray]')")
pytest.importorskip("ray.train.torch", reason="Ray Train is not installed (pip install 'ray[train]')")

# Ray warns of its own; a busy machine starts its nodes slowly.
pytestmark = [
    pytest.mark.soak,  # about two minutes of cluster
    pytest.mark.distributed,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(900),
]
MAX_STARTS = 3
SAMPLES, GLOBAL_BATCH, STEPS, SAVE_EVERY, DOOMED_STEP = 52, 8, 14, 3, 7


def make_loader(world: int) -> hfast.StreamingShardLoader:
    source = hfast.ArraySource({"index": np.arange(SAMPLES)})
    dataset = hfast.StreamDataset(source, name="numbers", seed=3)
    return hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=GLOBAL_BATCH // world))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}
    for attempts_left in reversed(range(MAX_STARTS)):
        try:
            cluster = Cluster(initialize_head=True, head_node_args=head)
            break
        except Exception:  # Ray gives its own processes 30 seconds to start, which a busy machine does not always keep
            if not attempts_left:
                raise
    paths = {"PYTHONPATH": os.pathsep.join([os.path.abspath("src"), os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    # After the loss Ray first asks for two workers again, and waits this long for a place for the second.
    options = {**paths, "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "5", "OMP_NUM_THREADS": "1"}
    ray.init(address=cluster.address, log_to_driver=False, runtime_env={"env_vars": options})
    yield cluster
    ray.shutdown()
    cluster.shutdown()  # type: ignore[no-untyped-call]


def train(config: dict[str, Any]) -> None:
    """Train in a worker: every batch is written down; in the first life step 7 waits for the node to be killed."""
    import ray.train

    from holdfast.integrations.ray_train import checkpoint, prepare

    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    notes = Path(config["notes"])
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    metrics = hfast.MetricsAggregator()
    stream = prepare(make_loader(world), folder=config["folder"], model=model, optimizer=optimizer, metrics=metrics)
    found = ray.train.get_checkpoint()
    if found is not None:
        with found.as_directory() as folder:
            model.load_state_dict(torch.load(Path(folder) / "model.pt"))
    with stream, open(notes / f"seen-{stream.step_number}-{world}-{rank}", "a", buffering=1) as file:
        for batch in stream:
            step, index = stream.step_number, batch["index"]
            file.write(json.dumps([step, index.tolist()]) + "\n")
            if world > 1 and step == DOOMED_STEP:
                (notes / "doomed").touch()
                time.sleep(600)  # until the node is gone
            loss = ((model(index.float()[:, None] / SAMPLES) - 1) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            metrics.update([hfast.Metric("numbers", "samples", len(index), hfast.AggregationType.SUM)])
            stream.step(loss)
            if stream.step_number % SAVE_EVERY == 0 or stream.step_number == STEPS:
                with tempfile.TemporaryDirectory() as name:
                    if rank == 0:
                        torch.save(model.state_dict(), Path(name) / "model.pt")
                    figures = {"samples": float(metrics.get_metrics()["numbers"]["samples"])}
                    ray.train.report(figures, checkpoint=checkpoint(stream, name))
            if stream.step_number == STEPS:
                break


def test_a_lost_node_costs_no_sample_and_repeats_none(cluster: Any, tmp_path: Path) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from holdfast.run import RunLog

    doomed = cluster.add_node(num_cpus=1, object_store_memory=80 << 20, wait=False)
    cluster.wait_for_nodes(timeout=300)
    notes = tmp_path / "notes"
    notes.mkdir()

    def kill_the_node() -> None:
        while not (notes / "doomed").exists():
            time.sleep(0.05)
        cluster.remove_node(doomed, allow_graceful=False)

    killer = threading.Thread(target=kill_the_node, daemon=True)
    killer.start()
    result = TorchTrainer(
        train,
        train_loop_config={"notes": str(notes), "folder": str(tmp_path / "exp7")},
        scaling_config=ScalingConfig(num_workers=(1, 2), resources_per_worker={"CPU": 1}),  # type: ignore[arg-type]
        run_config=RunConfig(
            name="exp7", storage_path=str(tmp_path / "storage"), failure_config=FailureConfig(max_failures=3)
        ),
    ).fit()
    lives: dict[tuple[int, int], list[dict[int, list[int]]]] = {}
    for path in sorted(notes.glob("seen-*")):
        first, world, _ = map(int, path.name.split("-")[1:])
        seen: dict[int, list[int]] = dict(map(json.loads, path.read_text().splitlines()))
        lives.setdefault((first, world), []).append(seen)
    (began, one_worker), second = sorted(lives)[-1], sorted(lives)[0]
    assert (second, one_worker) == ((0, 2), 1), "two workers until the node was lost, then one"
    assert began in (3, 6), "from the newest checkpoint that Ray knew of"
    trained = {step: sorted(chain(*(part[step] for part in lives[0, 2]))) for step in range(began)}
    trained |= {step: sorted(index) for step, index in lives[began, 1][0].items()}
    reference = make_loader(1)
    assert trained == {step: sorted(reference.batch_at(step)["index"].tolist()) for step in range(STEPS)}
    assert result.metrics is not None
    assert result.metrics["samples"] == STEPS * GLOBAL_BATCH, "the metrics travel in the checkpoint"
    log = RunLog(tmp_path / "exp7")
    assert [record["step"] for record in log.steps()] == list(range(STEPS))
    assert log.verify() == []
