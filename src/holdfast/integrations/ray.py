"""holdfast on Ray: Ray schedules, retries and scales; holdfast decides the order, and ensures that work is done once.

``leased_map`` has Ray actors process a dataset's chunks under lease: if an actor or its node dies, Ray restarts the
actor wherever there is room, and its chunks are taken over in the meantime. ``HoldfastDatasource`` reads any ordered
dataset into Ray Data, each block a run of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.coordinate import Dead, Done, LeasedChunk, LeasedReader, StreamCoordinator, open_store
from holdfast.errors import ConfigError, DeadLetterError, MissingDependencyError
from holdfast.order.numbers import Positions
from holdfast.order.step_rows import Cut
from holdfast.stream.read_batches import read_batches

try:
    import ray
    from ray.data import Datasource
    from ray.data.block import BlockAccessor, BlockMetadata
    from ray.data.datasource import ReadTask
except ImportError as error:
    raise MissingDependencyError("this needs Ray", hint="pip install 'holdfast[ray]'") from error

if TYPE_CHECKING:
    from holdfast.stream import OrderedDataset

__all__ = ["HoldfastDatasource", "leased_map"]

Work = Callable[[LeasedChunk], "str | None"]


def leased_map(
    dataset: OrderedDataset,
    work: Work,
    *,
    store: str,
    workers: int,
    actor_options: Mapping[str, Any] | None = None,
    ttl: float = 15.0,
    heartbeat: float = 5.0,
    **options: Any,
) -> list[Done]:
    """Have Ray actors call a function for each chunk of a dataset, exactly once; return every commit.

    Call it again after any failure, including the driver's: with a durable store or a ``folder`` the job continues
    where it stopped.

    Args:
        dataset: the dataset to read.
        work: takes a leased chunk and returns its payload; holdfast makes the commits.
        store: the address of a store that every node can reach, see ``open_store``.
        workers: number of actors.
        actor_options: the resources that each actor requests from Ray: ``{"num_cpus": 1, "num_gpus": 1}``.
        ttl: seconds of silence after which an actor's chunks are taken over.
        heartbeat: seconds between an actor's signs of life.
        **options: options of ``StreamCoordinator.lease``: ``name``, ``batch_size``, ``chunk_size``, ``folder``, ….

    Raises:
        DeadLetterError: some chunks were given up, unless ``on_error="skip"``.
    """
    if workers < 1:
        raise ConfigError("workers must be at least 1", workers=workers)
    on_error = options.pop("on_error", "raise")
    if on_error not in ("raise", "skip"):
        raise ConfigError("on_error must be 'raise' or 'skip'", on_error=on_error)
    plan = {"store": store, "workers": workers, "ttl": ttl, "heartbeat": heartbeat, "lease": options}
    # Ray restarts an actor, and repeats its call, as often as needed; holdfast knows what is done.
    remote = ray.remote(max_restarts=-1, max_task_retries=-1, **(actor_options or {}))(_Worker)
    shared = ray.put(dataset)
    actors: list[Any] = [remote.remote(shared, work, plan) for _ in range(workers)]
    try:
        ray.get([actor.work.remote() for actor in actors])
    finally:
        for actor in actors:
            ray.kill(actor)
    ends = _ends(dataset, plan)
    dead = [end for end in ends if isinstance(end, Dead)]
    if dead and on_error == "raise":
        raise DeadLetterError(
            f"{len(dead)} chunks were given up, all others are committed; chunk {dead[0].chunk}: "
            f"{dead[0].error.strip().rpartition(chr(10))[2]}",
            chunks=[end.chunk for end in dead[:20]],
            hint="fix the cause; then, for a job with a folder, run `holdfast job retry FOLDER`",
        )
    return [end for end in ends if isinstance(end, Done)]


class _Worker:
    """An actor: one worker of the job."""

    def __init__(self, dataset: OrderedDataset, work: Work, plan: Mapping[str, Any]) -> None:
        self._dataset = dataset
        self._work = work
        self._plan = plan

    def work(self) -> int:
        """Work until every chunk has ended; return how many this actor committed."""
        with _coordinator(self._plan) as coordinator:
            return _reader(coordinator, self._dataset, self._plan).process(self._work)


def _coordinator(plan: Mapping[str, Any]) -> StreamCoordinator:
    coordinator = StreamCoordinator(
        open_store(plan["store"]), plan["workers"], ttl=plan["ttl"], heartbeat=plan["heartbeat"]
    )
    coordinator.register_worker(coordinator.join())
    return coordinator


def _reader(coordinator: StreamCoordinator, dataset: OrderedDataset, plan: Mapping[str, Any]) -> LeasedReader:
    return coordinator.lease(dataset, on_error="skip", **plan["lease"])


def _ends(dataset: OrderedDataset, plan: Mapping[str, Any]) -> list[Done | Dead]:
    with _coordinator(plan) as coordinator:
        reader = _reader(coordinator, dataset, plan)
        return [*reader.results(), *reader.dead_letters()]


class HoldfastDatasource(Datasource):
    """An ordered dataset for ``ray.data.read_datasource``: rows in the dataset's order, with their positions.

    Ray Data may return blocks in any order; if the dataset's order matters, set
    ``ray.data.DataContext.get_current().execution_options.preserve_order = True``, or sort by ``position``.

    Args:
        dataset: the dataset to read; sent to the tasks, so it must be small: paths, not arrays.
        batch_size: rows that are read together.
        positions: the positions of its order to read; None for one epoch.
        position_column: the name of the column that holds each row's position; empty for none.
    """

    def __init__(
        self,
        dataset: OrderedDataset,
        *,
        batch_size: int = 256,
        positions: range | None = None,
        position_column: str = "position",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        chosen = range(dataset.order().epoch_length(0)) if positions is None else positions
        if chosen.step != 1 or not len(chosen) or chosen.start < 0 or batch_size < 1:
            raise ConfigError(
                "positions must be a non-empty range of step 1, batch_size at least 1", positions=str(chosen)
            )
        self._dataset = dataset
        self._batch_size = batch_size
        self._positions = chosen
        self._position_column = position_column
        first = next(_blocks(dataset, range(chosen.start, chosen.start + 1), 1, position_column))
        self._row_bytes = max(1, BlockAccessor.for_block(first).size_bytes())

    def estimate_inmemory_data_size(self) -> int:
        """Return the size of all rows, estimated from one of them."""
        return self._row_bytes * len(self._positions)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return one task per run of positions, in order."""
        count = max(1, min(parallelism, len(self._positions)))
        edges = np.linspace(self._positions.start, self._positions.stop, count + 1).astype(np.int64).tolist()
        tasks = []
        for start, stop in pairwise(edges):
            metadata = BlockMetadata(stop - start, self._row_bytes * (stop - start), None, None)
            arguments = (self._dataset, range(start, stop), self._batch_size, self._position_column)
            tasks.append(ReadTask(_Read(arguments), metadata, per_task_row_limit=per_task_row_limit))
        return tasks


class _Read:
    """What a task runs."""

    def __init__(self, arguments: tuple[OrderedDataset, range, int, str]) -> None:
        self._arguments = arguments

    def __call__(self) -> Iterator[Any]:
        return _blocks(*self._arguments)


def _blocks(dataset: OrderedDataset, positions: range, batch_size: int, position_column: str) -> Iterator[Any]:
    order = dataset.order()
    for first in range(positions.start, positions.stop, batch_size):
        numbers = Positions(np.arange(first, min(first + batch_size, positions.stop), dtype=np.int64))
        (batch,) = read_batches(dataset, Cut(order, numbers, np.array([0, len(numbers)])), range(1), 0)
        columns = {name: _plain(value) for name, value in batch.make().items() if name not in ("metrics", "__valid__")}
        if position_column:
            columns[position_column] = numbers
        yield BlockAccessor.batch_to_block(columns)


def _plain(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value
