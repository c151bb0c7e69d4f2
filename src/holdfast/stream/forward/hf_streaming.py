"""``HFStreamingDataset``: a ``datasets.IterableDataset``, resumed exactly with shuffling on.

Such data can only be read forwards, shard by shard. A shard is read in windows; a window's samples are delivered in an
order computed from (seed, name, epoch, shard, window). To resume, the shard is opened where the window began and that
one window is read again. There is no shuffle buffer to save or to lose.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, final

from holdfast.errors import (
    ConfigError,
    HoldfastError,
    MissingDependencyError,
    StateError,
    StateMismatchError,
    TransformError,
)
from holdfast.metrics import MetricTransform
from holdfast.order.numbers import whole_number
from holdfast.sources.filtered import Filter
from holdfast.stream.dataset import DatasetInfo, Sample
from holdfast.stream.forward.base import ForwardDataset
from holdfast.stream.forward.shard_queue import SHARD_QUEUE, ShardPart, ShardQueue, StreamIdentity
from holdfast.stream.hf import hf_datasets
from holdfast.stream.named_source import Stages, Transform, named_copy, wants_rng
from holdfast.stream.process import Process, check_enough, everything_left_out
from holdfast.stream.samples import sample_rng

__all__ = ["HFStreamingDataset"]

# Releases of datasets that lose rows when a filtered stream is resumed; 4.7.0 to 4.8.4 also lose rows of a mapped one.
LOSE_ROWS = ("2.", "3.", "4.", "5.0.0")


@final
class HFStreamingDataset(ForwardDataset):
    """A dataset over a ``datasets.IterableDataset``: endless, exact, split by whole shards.

    Iterate it, mix it, or pass it to a ``DataLoader``; each process (rank × worker) reads its own shards and has its
    own state. ``merge_states`` merges all processes' states into one that any number of processes can load.

    Args:
        dataset: the stream, as loaded: not shuffled and not split by node, since both happen here.
        name: the name under which its samples and metrics are counted.
        seed: the seed for the order of shards and of samples in their windows.
        shuffle: whether to shuffle both.
        window: how many samples are read and shuffled together; at most this many are read again on resuming.
        message_transform: makes messages from a row.
        model_transform: makes tokens from messages.
        output_transform: makes the training step's input from tokens.
        metric_transform: makes metrics from the final sample; given this dataset's name.
        filter_fn: returns whether to keep a row; called while reading.
        on_error: ``raise``, or ``skip`` to leave out a sample whose transform fails, counted in ``samples_failed``.
        weight: its weight in a mixture that gives none.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        name: str,
        seed: int = 0,
        shuffle: bool = True,
        window: int = 1024,
        message_transform: Transform | None = None,
        model_transform: Transform | None = None,
        output_transform: Transform | None = None,
        metric_transform: MetricTransform | None = None,
        filter_fn: Filter | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        weight: float = 1.0,
    ) -> None:
        if not name:
            raise ConfigError("a dataset needs a name")
        if window < 1:
            raise ConfigError("a window holds at least one sample", window=window)
        if on_error not in ("raise", "skip"):
            raise ConfigError("unknown on_error", on_error=on_error, known=["raise", "skip"])
        super().__init__(DatasetInfo(name, None, weight))
        self._dataset = dataset
        self.message_transform = message_transform
        self.model_transform = model_transform
        self.output_transform = output_transform
        self.metric_transform = named_copy(metric_transform, name)
        self.filter_fn = filter_fn
        self._on_error = on_error
        self._transform = Stages.of((message_transform, model_transform, output_transform))
        self._seeded = wants_rng(self._transform)
        identity = StreamIdentity(name, whole_number(seed, "a seed"), _count_shards(dataset, name), window, shuffle)
        self._queue = ShardQueue(identity)
        self._at: ShardPart | None = None  # the current part of the queue's first shard, without `_given`
        self._given = 0  # samples delivered of its window; a counter, as creating a queue per sample is expensive
        self._lost = 0  # samples left out since the last one delivered

    @classmethod
    def from_load_dataset(
        cls, path: str, *, name: str, load: Mapping[str, Any] | None = None, **options: Any
    ) -> HFStreamingDataset:
        """Stream what ``datasets.load_dataset`` finds.

        Args:
            path: its first argument.
            name: the name under which samples and metrics are counted.
            load: its other arguments, e.g. ``{"name": "main", "split": "train"}``.
            **options: as for the class.
        """
        return cls(hf_datasets().load_dataset(path, **{**(load or {}), "streaming": True}), name=name, **options)

    @property
    def num_shards(self) -> int:
        """The number of shards, and so the maximum number of processes that can read it."""
        return self._queue.identity.shards

    def state_dict(self) -> dict[str, Any]:
        """Return what this process has left to read, as plain JSON."""
        return SHARD_QUEUE.to_json(self._now())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state of the same process, or from one that ``merge_states`` made."""
        queue = SHARD_QUEUE.from_json(state_dict)
        if queue.identity != self._queue.identity:
            raise StateMismatchError(
                "the state was made with a different name, seed, window or number of shards",
                dataset=self.dataset_name,
                found=str(self._queue.identity),
                expected=str(queue.identity),
            )
        self._queue, self._at = queue, None
        self._jumps += 1
        self._lost = 0

    @staticmethod
    def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Merge the states of all processes into one, to load in each of any number of processes up to the shards.

        What is left of every shard, including those begun, is reassigned: no sample is lost and none comes twice.
        """
        return SHARD_QUEUE.to_json(ShardQueue.merge([SHARD_QUEUE.from_json(state) for state in states]))

    def __iter__(self) -> Iterator[Sample]:
        """Yield this process's samples from its state's position."""
        process = self.process()
        check_enough(process, self.num_shards, what="shards", dataset=self.dataset_name)
        return self._samples(process)

    def _samples(self, process: Process) -> Iterator[Sample]:
        fruitless = False  # whether the epoch now ending has yielded nothing
        while True:
            self._queue, self._at = self._now().assigned_to(process), None
            if not self._queue.parts:
                if fruitless:
                    raise everything_left_out(process, dataset=self.dataset_name, what="epoch")
                self._queue = self._queue.filled()
                fruitless = True
            jumps = self._jumps
            for sample in self._shard(self._queue.parts[0]):
                fruitless = False
                yield sample
                if self._jumps != jumps:  # a state was loaded in between
                    break
            else:
                self._queue, self._at = self._queue.without_first(), None

    def _now(self) -> ShardQueue:
        return self._queue if self._at is None else self._queue.with_first(self._at._replace(given=self._given))

    def _shard(self, part: ShardPart) -> Iterator[Sample]:
        for window in self._windows(part):
            order = self._queue.identity.window_order(part.epoch, part.shard, window.part.window, len(window.rows))
            for given in range(window.part.given, len(order)):
                sample = self._made(window.rows[order[given]], window.part, order[given])
                if sample is None:
                    continue
                self._at, self._given = window.part, given + 1
                if self.metric_transform is not None:
                    about = self.metric_transform.dataset_metrics(num_epochs=part.epoch, samples_failed=self._lost)
                    made = self.metric_transform.sample_metrics(sample)
                    sample = {**sample, "metrics": [*sample.get("metrics", ()), *made, about]}
                self._lost = 0
                yield sample

    def _windows(self, part: ShardPart) -> Iterator[_PartRows]:
        """Read the shard's windows from the part's current one."""
        size = self._queue.identity.window
        shard = self._dataset.shard(num_shards=self.num_shards, index=part.shard)
        if part.place is not None:
            shard.load_state_dict(part.place)
        place, number, given = part.place, part.window, part.given
        try:
            # iter(batch_size) and not iter(shard): the latter splits by DataLoader workers again.
            for columns in shard.iter(batch_size=size):
                yield _PartRows(
                    part._replace(window=number, given=given, place=place), _rows(columns, self.dataset_name)
                )
                place, number, given = shard.state_dict(), number + 1, 0
        except (KeyError, IndexError) as error:
            if part.place is None:
                raise
            raise StateError(
                f"the position in the shard cannot be opened: {error!r}",
                dataset=self.dataset_name,
                shard=part.shard,
                hint="resume with the release of 'datasets' that made the state",
            ) from error

    def _made(self, row: Sample, part: ShardPart, place: int) -> Sample | None:
        """Return the finished sample; None if it is left out, or fails and failures are skipped."""
        number = part.window * self._queue.identity.window + place
        try:
            if self.filter_fn is not None and not self.filter_fn(row):
                return None
            if self._transform is None or not self._seeded:
                return row if self._transform is None else self._transform(row)
            seed = self._queue.identity.seed
            return self._transform(row, rng=sample_rng(seed, self.dataset_name, part.epoch, part.shard, number))
        except Exception as cause:
            if self._on_error == "skip" and (isinstance(cause, TransformError) or not isinstance(cause, HoldfastError)):
                self._lost += 1
                return None
            if isinstance(cause, HoldfastError):
                raise
            raise TransformError(
                f"the transform raised {cause!r}", source=self.dataset_name, shard=part.shard, index=number
            ) from cause


class _PartRows(NamedTuple):
    part: ShardPart
    rows: list[Sample]


def _rows(columns: Any, name: str) -> list[Sample]:
    if not isinstance(columns, Mapping):
        given, hint = type(columns).__name__, "use with_format(None) or with_format('numpy')"
        raise ConfigError("the stream's format yields tables, not columns", dataset=name, format=given, hint=hint)
    length = len(next(iter(columns.values()))) if columns else 0
    return [{field: values[i] for field, values in columns.items()} for i in range(length)]


def _count_shards(dataset: Any, name: str) -> int:
    """Return the number of shards, or raise an error that says why the stream cannot be resumed exactly."""
    missing = [needed for needed in ("shard", "iter", "state_dict", "load_state_dict") if not hasattr(dataset, needed)]
    if missing or hasattr(dataset, "data"):
        wrong = f"this needs a datasets.IterableDataset, not {type(dataset).__name__}"
        raise ConfigError(wrong, dataset=name, hint="use HFIterableDataset for random-access data")
    release = str(getattr(sys.modules.get("datasets"), "__version__", ""))
    if release.startswith(LOSE_ROWS):
        lost = f"datasets {release} loses rows when a filtered or mapped stream is resumed"
        raise MissingDependencyError(lost, hint="pip install 'datasets>=5.0.1'")
    if getattr(dataset, "_distributed", None) is not None:
        raise ConfigError(
            "the stream is already split by node, but its shards are split here", dataset=name, hint="pass it unsplit"
        )
    if _is_buffer_shuffled(getattr(dataset, "_ex_iterable", None)):
        raise ConfigError(
            "the stream was shuffled with a buffer, whose content is not saved: it could not be resumed exactly",
            dataset=name,
            hint="pass it unshuffled; shuffle=True and window= shuffle it here",
        )
    try:
        return int(dataset.num_shards)
    except Exception as error:
        raise ConfigError(
            "the stream does not report its number of shards, so they cannot be split over processes",
            dataset=name,
            hint="make it from files, or with from_generator(gen_kwargs={'shards': [...]})",
        ) from error


def _is_buffer_shuffled(part: Any) -> bool:
    if part is None:
        return False
    if type(part).__name__ == "BufferShuffledExamplesIterable":
        return True
    inner = [getattr(part, "ex_iterable", None), *(getattr(part, "ex_iterables", None) or ())]
    return any(_is_buffer_shuffled(each) for each in inner)
