"""``StreamCoordinator``: health, takeover and rebalancing over any store, with no server of its own.

The coordinator itself holds no state that matters: who is alive and who works on what is in the store, and the position
of a stream is in the checkpoint. One background thread, with its own connection, sends heartbeats, renews leases and
watches other workers. It ends with ``close()`` or when the store is lost.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.coordinate.balance import agreed_shares, balanced_shares, propose_shares, stray
from holdfast.coordinate.health import HealthBoard, WorkerHealth, WorkerStatus
from holdfast.coordinate.home import Home
from holdfast.coordinate.leased import LeasedReader
from holdfast.coordinate.living import Living
from holdfast.coordinate.presence import Presence
from holdfast.coordinate.roster import read_roster
from holdfast.coordinate.store import PATIENCE, StoreClient
from holdfast.coordinate.throughput import Throughput
from holdfast.errors import ConfigError, CoordinationError, CoordinatorLost
from holdfast.order import Adaptive

if TYPE_CHECKING:
    import torch.distributed as dist

    from holdfast.coordinate.stores.contract import Store
    from holdfast.stream import CheckpointState, OrderedDataset

__all__ = ["StreamCoordinator"]

_log = logging.getLogger(__name__)

MAX_SECONDS = 86_400.0  # maximum TTL: the operating system limits how long a wait may be


class StreamCoordinator:
    """The workers of one job, as one process sees them.

    Args:
        store: a ``RedisStore`` or ``EtcdStore``, whose data survives a crash of the server; your own (see
            ``check_store``); or any ``torch.distributed`` store with ``compare_set``. A TCPStore lives in one process's
            memory: when that process dies, only what the job saved to its ``folder`` remains.
        world_size: number of workers expected; more may join a leased job.
        heartbeat: seconds between signs of life.
        ttl: seconds of silence after which a worker counts as failed and its leases may be taken over.
        replication: how many standby workers watch each leased chunk. They read its samples ahead while they are idle,
            and are the first to take it over.
        balance_interval: steps between decisions about shares.
        prefix: keeps several jobs in one store apart.
        patience: seconds for which a durable store may be unreachable before it counts as lost; workers wait, then
            continue.
    """

    def __init__(
        self,
        store: Store | dist.Store,  # type: ignore[name-defined]
        world_size: int,
        *,
        heartbeat: float = 5.0,
        ttl: float = 15.0,
        replication: int = 1,
        balance_interval: int = 20,
        prefix: str = "holdfast",
        patience: float = PATIENCE,
    ) -> None:
        if world_size < 1 or replication < 0 or balance_interval < 2:
            raise ConfigError(
                "world_size must be at least 1, replication 0 or more, balance_interval at least 2",
                world_size=world_size,
                replication=replication,
                balance_interval=balance_interval,
            )
        if not all(isinstance(seconds, (int, float)) and seconds < MAX_SECONDS for seconds in (heartbeat, ttl)):
            raise ConfigError("heartbeat and ttl must be seconds, less than a day", heartbeat=heartbeat, ttl=ttl)
        if not 0 < heartbeat <= ttl / 2:
            raise ConfigError(
                "a worker must be able to miss a heartbeat: heartbeat must be at most half the ttl",
                heartbeat=heartbeat,
                ttl=ttl,
            )
        self.home = Home()
        """The process that created the coordinator."""
        self.world_size = world_size
        self.heartbeat = heartbeat
        self.ttl = ttl
        self.replication = replication
        self.balance_interval = balance_interval
        # The store is asked at least once per heartbeat, so a store that is gone is noticed within the TTL.
        self._client = StoreClient(store, prefix=prefix, timeout=ttl - heartbeat, patience=patience)
        self._beating: StoreClient | None = None
        self._board = HealthBoard(self._client, ttl=ttl)
        self._presence = Presence(world_size, ttl=ttl, heartbeat=heartbeat)
        self._speed: dict[int, Throughput] = {}
        self._readers: weakref.WeakSet[LeasedReader] = weakref.WeakSet()
        self._living = Living(world_size)  # all expected workers, until the first look around
        self._batch_size: int | None = None
        self._threshold = Adaptive().rebalance_threshold
        self._shares: tuple[float, ...] | None = None
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: CoordinationError | None = None

    def __repr__(self) -> str:
        return f"holdfast.StreamCoordinator(world_size={self.world_size}, ttl={self.ttl})"

    # --- workers ---------------------------------------------------------------------------------------------------

    def join(self) -> int:
        """Return a rank for a worker that joins a leased job late: 100,000 or above, not used by any living worker."""
        self._check()
        return self._presence.join(self._client)

    def register_worker(self, rank: int, indices: Sequence[int] = ()) -> None:
        """Register a worker of this process and start sending its heartbeats.

        A restarted worker registers its rank again; the process that had the rank before fails at its next heartbeat.

        Args:
            rank: the worker's rank.
            indices: the samples assigned to it, if known (only their number is published).
        """
        if rank < 0:
            raise ConfigError("a rank cannot be negative", rank=rank)
        self._check()
        self._presence.register(self._client, rank, indices=len(indices))
        self._speed[rank] = Throughput()
        self._start()

    def update_worker_health(self, rank: int, samples: int, throughput: float) -> None:
        """Report how many samples a worker of this process has processed and how fast; sent with the next heartbeat."""
        self._check()
        self._presence.change(rank, samples=int(samples), throughput=float(throughput))

    def get_worker_health(self, rank: int) -> WorkerHealth:
        """Return a worker's health, judged by this process's clock and the worker's newest record."""
        self._check()
        now = time.monotonic()
        with self._lock:
            self._board.look([rank], now)
            health = self._board.health(rank, now)
        if rank in self._presence.ranks:
            own = self._presence.record(rank)
            health = replace(health, samples_processed=own.samples, average_throughput=own.throughput)
        return health

    def workers(self) -> list[WorkerHealth]:
        """Return the health of every worker, as this process sees it, except those that left in good order."""
        self._check()
        roster = read_roster(self._client)
        ranks = list(roster.living.ever())
        now = time.monotonic()
        with self._lock:
            self._board.look(ranks, now)
            found = [self._board.health(rank, now) for rank in ranks]
        gone = set(roster.gone)  # others have watched longer than this process
        found = [
            replace(health, status=WorkerStatus.FAILED)
            if health.rank in gone and health.status is not WorkerStatus.UNKNOWN
            else health
            for health in found
        ]
        return [health for health in found if health.status is not WorkerStatus.UNKNOWN]

    @contextmanager
    def working(self, samples: int, rank: int | None = None) -> Iterator[None]:
        """Measure a worker's own speed: put it around the work on a batch, without waiting for other ranks.

        Args:
            samples: number of samples in the batch.
            rank: the worker's rank; by default the one worker registered here.
        """
        chosen = self._presence.only_rank() if rank is None else rank
        self._presence.record(chosen)
        began = time.perf_counter()
        yield
        speed = self._speed[chosen]
        speed.add(samples, time.perf_counter() - began)
        self._presence.change(chosen, throughput=speed.rate, samples=self._presence.record(chosen).samples + samples)

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def register_checkpoint(self, rank: int, checkpoint: CheckpointState | Mapping[str, Any]) -> None:
        """Publish a worker's stream state for others to see. The state saved with the model is the one that counts."""
        self._check()
        value = dict(checkpoint) if isinstance(checkpoint, Mapping) else checkpoint.to_json()
        self._client.set(f"checkpoint/{rank}", json.dumps(value, separators=(",", ":")).encode())

    def get_checkpoint(self, rank: int) -> dict[str, Any] | None:
        """Return the stream state that a worker published last; None if there is none."""
        self._check()
        found = self._client.get(f"checkpoint/{rank}")
        state: dict[str, Any] | None = None if found is None else json.loads(found)
        return state

    # --- shares of a step (synchronous reading) --------------------------------------------------------------------

    def rebalance_if_needed(self, step: int | None = None) -> bool:
        """Return whether the workers' speeds no longer match their shares; with ``step``, propose better shares.

        Args:
            step: a future decision step (a multiple of ``balance_interval``); None proposes nothing.
        """
        self._check()
        ranks = range(self.world_size)
        now = time.monotonic()
        with self._lock:
            self._board.look(ranks, now)
            speeds = self._board.throughputs(ranks, now)
            shares = self._shares or (1 / self.world_size,) * self.world_size
        if speeds is None or stray(speeds, shares) <= self._threshold:
            return False
        if self._batch_size is not None:
            better = balanced_shares(speeds, self._batch_size)
            if stray(speeds, shares) - stray(speeds, better) <= self._threshold / 2:
                return False  # whole samples cannot be distributed any better
            if step is not None:
                return propose_shares(self._client, step, better)
        return True

    def shares_at(
        self, step: int, *, rank: int, global_batch_size: int, shares: Sequence[float] | None, threshold: float
    ) -> tuple[float, ...] | None:
        """Return the shares all ranks adopt at this step, None for no change; called by the loader at each step."""
        if step == 0:
            return None
        with self._lock:
            self._batch_size, self._threshold = global_batch_size, threshold
            self._shares = None if shares is None else tuple(shares)
        since = step % self.balance_interval
        if since == 0:
            self._check()
            return agreed_shares(self._client, step, self.world_size)
        if since == self.balance_interval // 2 and rank == 0:
            self.rebalance_if_needed(step - since + self.balance_interval)
        return None

    def delivered(self, rank: int, *, step: int, samples: int, seconds: float, share: float) -> None:
        """Count a batch that the loader delivered and that took ``seconds`` to process; called by the loader.

        Raises ``CoordinatorLost`` if the store is gone.
        """
        self._check()
        record, speed = self._presence.record(rank), self._speed[rank]
        if speed.measured:  # the training loop measures its own work, which is better than the time between batches
            self._presence.change(rank, step=step, share=share)
            return
        speed.add_wall(samples, seconds)
        self._presence.change(rank, step=step, share=share, samples=record.samples + samples, throughput=speed.rate)

    # --- leased reading --------------------------------------------------------------------------------------------

    def lease(self, dataset: OrderedDataset, *, rank: int | None = None, **options: Any) -> LeasedReader:
        """Return a reader that leases chunks of a dataset's positions; see ``LeasedReader`` for the options."""
        self._check()
        chosen = self._presence.only_rank() if rank is None else rank
        owner = self._presence.record(chosen).owner
        reader = LeasedReader(self, dataset, rank=chosen, owner=owner, client=self._client.clone(), **options)
        self._readers.add(reader)
        return reader

    def announce_job(self, name: str) -> None:
        """Add a job's name to the list that ``holdfast watch`` reads; called by the reader."""
        found = self._client.get("jobs") or b""
        while name not in (names := json.loads(found or b"[]")):
            wanted = json.dumps([*names, name]).encode()
            seen = self._client.compare_set("jobs", found, wanted)
            if seen == wanted:
                break
            found = seen

    @property
    def living(self) -> Living:
        """The workers that are alive, as far as this process can tell; updated at every heartbeat."""
        return self._living

    def report(self, rank: int, *, samples: int, throughput: float, leases: int, idle: bool) -> None:
        """Record what a leased reader is doing, for the next heartbeat; called by the reader."""
        state = "idle" if idle else "working"
        self._presence.change(rank, samples=samples, throughput=throughput, leases=leases, state=state)

    # --- the background --------------------------------------------------------------------------------------------

    @property
    def operations(self) -> int:
        """Number of store operations this process has made for coordination."""
        clients = [self._client, self._beating, *(client for reader in self._readers for client in reader.clients)]
        return sum(client.operations for client in clients if client is not None)

    def close(self) -> None:
        """Leave in good order: give leases back, mark the worker as gone and end the threads.

        A forked child leaves all that to its parent.
        """
        if not self.home.here:
            return
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=self.ttl)
        with suppress(CoordinationError):
            for reader in list(self._readers):
                reader.close()
            if self._failure is None:
                self._presence.leave(self._client)
        self._client.close()
        if self._beating is not None:
            self._beating.close()

    def __enter__(self) -> StreamCoordinator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check(self) -> None:
        self.home.check()
        if self._failure is not None:
            raise self._failure
        if self._stop.is_set():
            raise CoordinationError("the coordinator is closed", hint="create a new StreamCoordinator")

    def check(self) -> None:
        """Raise ``CoordinatorLost`` if the store is gone (or another error that ended the heartbeats)."""
        self._check()

    def wait(self, seconds: float) -> None:
        """Wait for some seconds; raise as soon as the store is lost or the coordinator is closed."""
        self._stop.wait(seconds)
        self._check()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._beating = self._client.clone()
                self._thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        assert self._beating is not None
        client = self._beating
        board = HealthBoard(client, ttl=self.ttl)
        due = time.monotonic()
        try:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                late = time.monotonic() - due
                if late > self.ttl - self.heartbeat:
                    _log.warning(
                        "the heartbeat came %.1f s late, and leases last %.1f s: code that held the interpreter lock, "
                        "or a pause of the process, has cost this worker its leases; raise ttl",
                        late,
                        self.ttl,
                    )
                due = time.monotonic() + self.heartbeat
                for rank in self._presence.ranks:
                    self._presence.beat(client, rank)
                self._living = self._presence.look_around(client, board, time.monotonic())
                for reader in list(self._readers):
                    reader.tick()
        except CoordinationError as error:
            self._failure = error
        except Exception as error:  # a bug in here must not look like a healthy worker
            self._failure = CoordinatorLost(f"the heartbeat thread failed: {error!r}")
            self._failure.__cause__ = error
        finally:
            self._stop.set()
