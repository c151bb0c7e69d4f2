"""Ray: a local cluster of several nodes, one of which is killed under a leased map; and our order in Ray Data."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.coordinate_servers import Server, why_not

from holdfast.errors import ConfigError, DeadLetterError
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'holdfast[ray]')")
from ray.data.block import BlockAccessor  # noqa: E402 (both need Ray)

from holdfast.integrations.ray import HoldfastDatasource, leased_map  # noqa: E402

CHUNKS, SIZE = 24, 8

# Ray warns of its own; a busy machine starts its nodes slowly.
pytestmark = [pytest.mark.distributed, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]


def dataset() -> StreamDataset:
    return StreamDataset(ArraySource({"value": np.arange(CHUNKS * SIZE)}), name="data", seed=5)


def add_node(cluster: Any, **options: Any) -> Any:
    """Start a node; Ray gives up after seconds that a busy machine may need, so try again."""
    for attempts_left in (2, 1, 0):
        try:
            return cluster.add_node(**options)
        except Exception:  # noqa: PERF203 (a loop of retries; Ray raises no other type)
            if not attempts_left:
                raise
    return None


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (Ray's own spelling; nice ones starve on a busy machine)
    options: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=False)
    add_node(cluster, **options, include_dashboard=False)
    paths = {"PYTHONPATH": os.pathsep.join(["src", os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    ray.init(address=cluster.address, log_to_driver=False, runtime_env={"env_vars": paths})
    cluster.doomed = add_node(cluster, **options)  # type: ignore[attr-defined] # after init: the driver is on the head
    yield cluster
    ray.shutdown()
    cluster.shutdown()  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    reason = why_not("redis")
    if reason is not None:
        pytest.skip(reason)
    server = Server("redis", tmp_path_factory.mktemp("redis") / "server")
    yield server
    server.kill()


def check_rows(rows: list[dict[str, Any]]) -> None:
    rows = sorted(rows, key=lambda row: int(row["position"]))
    assert [row["position"] for row in rows] == list(range(CHUNKS * SIZE))
    expected = dataset().order().locate(np.arange(CHUNKS * SIZE)).index.tolist()
    assert [row["value"] for row in rows] == expected


def test_a_datasource_gives_every_sample_once_in_the_datasets_order() -> None:
    """By calling the tasks that Ray Data would send to its workers."""
    tasks = HoldfastDatasource(dataset(), batch_size=10).get_read_tasks(4)
    assert len(tasks) > 1
    rows: list[Any] = []
    for task in tasks:
        for block in task():
            rows.extend(BlockAccessor.for_block(block).iter_rows(public_row_format=True))
    check_rows(rows)


@pytest.mark.soak  # Ray Data takes most of a minute to start its workers
def test_ray_data_reads_every_sample_once(cluster: Any) -> None:
    check_rows(ray.data.read_datasource(HoldfastDatasource(dataset(), batch_size=10), override_num_blocks=4).take_all())


def test_a_killed_node_costs_a_leased_map_nothing_but_time(cluster: Any, server: Server, tmp_path: Path) -> None:
    import threading

    seen = tmp_path / "seen"
    seen.mkdir()

    def work(chunk: Any) -> str:
        (seen / f"{chunk.chunk}-{chunk.token}").touch()
        time.sleep(0.1)  # the work
        return json.dumps(sorted(value for batch in chunk for value in batch["value"].tolist()))

    def kill_the_node() -> None:
        while len(list(seen.iterdir())) < 6:
            time.sleep(0.02)
        cluster.remove_node(cluster.doomed, allow_graceful=False)

    killer = threading.Thread(target=kill_the_node)
    killer.start()
    done = leased_map(
        dataset(),
        work,
        store=server.address,
        workers=2,
        actor_options={"num_cpus": 1, "scheduling_strategy": "SPREAD"},
        ttl=3.0,
        heartbeat=0.5,
        batch_size=4,
        chunk_size=SIZE,
        folder=tmp_path / "job",
    )
    killer.join()
    assert [end.chunk for end in done] == list(range(CHUNKS))
    assert sorted(value for end in done for value in json.loads(end.payload)) == list(range(CHUNKS * SIZE))
    # By the folder's own files, and by none of the package's code: one record per chunk.
    lines = {line for file in tmp_path.glob("job/generation-*/*.json*") for line in file.read_text().splitlines()}
    records = [json.loads(line) for line in lines if line.startswith("[")]
    assert sorted(record[0] for record in records) == list(range(CHUNKS))


def test_a_poison_chunk_is_reported_when_all_else_is_done(cluster: Any, server: Server) -> None:
    def work(chunk: Any) -> str:
        if chunk.chunk == 3:
            raise ValueError("poison")
        return ""

    with pytest.raises(DeadLetterError, match="poison"):
        leased_map(
            dataset(),
            work,
            store=server.address,
            workers=1,
            name="poisoned",
            batch_size=4,
            chunk_size=SIZE,
            max_attempts=2,
            backoff=0.0,
        )


@pytest.mark.parametrize("options", [{"on_error": "ignore"}, {"workers": 0}])
def test_options_of_a_leased_map_that_cannot_be_are_refused_before_an_actor_starts(options: dict[str, Any]) -> None:
    wrong: dict[str, Any] = {"store": "nowhere", "workers": 1, **options}
    with pytest.raises(ConfigError, match=next(iter(options))):
        leased_map(dataset(), str, **wrong)
