"""The loader's options, checked in one place before anything runs, and the interface of a coordinator."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import get_all_start_methods
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from holdfast.arguments import whole_number
from holdfast.errors import ConfigError
from holdfast.order import Partition, RoundRobin
from holdfast.order.extent import LastBatch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Coordinator", "LastBatch", "OnError", "StreamingConfig", "torch_rank"]

OnError = Literal["raise", "skip"]
_MAY_BE_NONE = ("batch_size", "epochs", "checkpoint_interval", "world_size")
_MOST = 1 << 32
"""The maximum of any count: a saved state can hold no larger batch size and no more ranks."""
_AT_LEAST_ONE = (*_MAY_BE_NONE, "prefetch_buffer_size", "prefetch_threads", "keep_checkpoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingConfig:
    """How a stream is read by one rank.

    Args:
        batch_size: samples per batch on this rank; None yields single samples without a batch dimension.
        world_size: number of data-parallel ranks; None takes it from ``torch.distributed`` when iteration starts.
        rank: this process's number among them; None takes it from there too.
        partition_strategy: which samples go to which rank.
        epochs: how many passes over the data; None for no end.
        per_epoch: whether each ``iter(loader)`` ends at the end of an epoch (the next call continues with the next
            epoch), as trainers that count epochs expect.
        last_batch: what happens when samples run out: ``pad`` (repeat samples, marked in ``batch["__valid__"]``, so
            that every rank takes the same steps), ``short`` or ``drop``. None: ``pad`` for several ranks, ``short``
            for one.
        prefetch_buffer_size: samples read ahead.
        prefetch_threads: threads that read ahead (with ``num_workers=0``).
        num_workers: worker processes for heavy Python transforms; 0 reads in threads.
        multiprocessing_context: how workers start (``fork``, ``spawn``, ``forkserver``); None for torch's default.
        on_error: ``raise``, or ``skip`` to leave a failing sample out of its batch, counted and recorded.
        checkpoint_interval: save the stream state after every this many samples (over all ranks).
        checkpoint_path: folder for those files; written by rank 0.
        keep_checkpoints: how many of them are kept.
        pin_memory: whether batches are placed in page-locked memory (if CUDA is available).
        device: where batches are moved to; None leaves them on the CPU.
        dynamic_balancing: whether a coordinator may change the ranks' shares (needs an ``Adaptive`` partition).
    """

    batch_size: int | None = 1
    world_size: int | None = None
    rank: int | None = None
    partition_strategy: Partition = field(default_factory=RoundRobin)
    epochs: int | None = None
    per_epoch: bool = False
    last_batch: LastBatch | None = None
    prefetch_buffer_size: int = 512
    prefetch_threads: int = 1
    num_workers: int = 0
    multiprocessing_context: str | None = None
    on_error: OnError = "raise"
    checkpoint_interval: int | None = None
    checkpoint_path: str | Path | None = None
    keep_checkpoints: int = 3
    pin_memory: bool = False
    device: Any = None
    dynamic_balancing: bool = False

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None or name not in _MAY_BE_NONE:
                whole_number(name, value, least=1, most=_MOST)
        if not isinstance(self.partition_strategy, Partition):
            raise ConfigError("partition_strategy must be a Partition", found=f"{self.partition_strategy!r}"[:80])
        whole_number("num_workers", self.num_workers, least=0, most=_MOST)
        if (
            self.rank is not None
            and self.world_size is not None
            and not (0 <= whole_number("rank", self.rank, least=-_MOST) < self.world_size)
        ):
            raise ConfigError("rank must be between 0 and world_size-1", rank=self.rank, world_size=self.world_size)
        if (self.rank is None) != (self.world_size is None):
            raise ConfigError(
                "rank and world_size go together",
                rank=self.rank,
                world_size=self.world_size,
                hint="pass both, or neither",
            )
        methods = get_all_start_methods()
        if self.multiprocessing_context is not None and self.multiprocessing_context not in methods:
            raise ConfigError("unknown multiprocessing_context", found=self.multiprocessing_context, known=methods)
        if self.last_batch is not None and self.last_batch not in get_args(LastBatch):
            raise ConfigError("unknown last_batch", last_batch=self.last_batch, known=list(get_args(LastBatch)))
        if self.on_error not in get_args(OnError):
            raise ConfigError("unknown on_error", on_error=self.on_error, known=list(get_args(OnError)))
        if self.checkpoint_interval is not None and self.checkpoint_path is None:
            raise ConfigError("checkpoint_interval needs a checkpoint_path to save to")
        if self.dynamic_balancing and self.partition_strategy.rebalance_threshold is None:
            raise ConfigError(
                "dynamic_balancing needs a partition whose shares can change",
                partition_strategy=type(self.partition_strategy).__name__,
                hint="use Adaptive(base)",
            )

    @classmethod
    def from_device_mesh(cls, mesh: DeviceMesh, dims: str | tuple[str, ...], **options: Any) -> StreamingConfig:
        """Take rank and world size from the data-parallel dimensions of a device mesh.

        Ranks that differ only in other dimensions (tensor, pipeline, context parallel) get identical batches.

        Args:
            mesh: the mesh of the whole job.
            dims: the dimension, or dimensions, over which data is split (outermost first).
            **options: any other option of ``StreamingConfig``.
        """
        names = (dims,) if isinstance(dims, str) else tuple(dims)
        known = mesh.mesh_dim_names or ()
        rank, world = 0, 1
        for name in names:
            if name not in known:
                raise ConfigError("the device mesh has no such dimension", dim=name, dims=list(known))
            size = mesh.size(known.index(name))
            rank, world = rank * size + mesh.get_local_rank(name), world * size
        return cls(rank=rank, world_size=world, **options)

    def resolved(self) -> StreamingConfig:
        """Return the options with rank, world size and last_batch filled in from the running job."""
        rank, world = self.rank, self.world_size
        if rank is None or world is None:
            rank, world = torch_rank()
        last = self.last_batch or ("pad" if world > 1 else "short")
        return replace(self, rank=rank, world_size=world, last_batch=last)


def torch_rank() -> tuple[int, int]:
    """Return this process's rank and the world size, (0, 1) if nothing is distributed."""
    # A process group can exist only if torch is already loaded.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


class Coordinator(Protocol):
    """Watches the ranks of a loader and decides about their shares; ``holdfast.coordinate`` has one."""

    def register_worker(self, rank: int, indices: Sequence[int] = ()) -> None:
        """Register a rank of this process."""

    def shares_at(
        self, step: int, *, rank: int, global_batch_size: int, shares: Sequence[float] | None, threshold: float
    ) -> tuple[float, ...] | None:
        """Return the shares that all ranks adopt at this step; None for no change."""

    def delivered(self, rank: int, *, step: int, samples: int, seconds: float, share: float) -> None:
        """Count a batch that the training loop has worked on."""
