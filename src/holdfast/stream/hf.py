"""``HFIterableDataset``: Hugging Face datasets and data files, with the transforms of a fine-tuning recipe.

Transforms run while samples are read, never by ``Dataset.map``: nothing is written to a cache, changing a transform
costs nothing, and the state stays one position. The data must be random access; for data that can only be streamed use
``HFStreamingDataset``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from holdfast.errors import ConfigError
from holdfast.metrics import MetricTransform
from holdfast.optional import require
from holdfast.order import Shuffle
from holdfast.order.order import StopPolicy
from holdfast.sources import HFSource, JsonlSource, ParquetSource, Source
from holdfast.sources.filtered import Filter, FilteredSource
from holdfast.stream.dataset import DatasetInfo, OrderedDataset
from holdfast.stream.named_source import NamedSource, Stages, Transform, named_copy

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from holdfast.sources.files import Paths

__all__ = ["FileOptions", "HFIterableDataset", "HFOptions", "hf_datasets"]

_JSON, _PARQUET = (".jsonl", ".ndjson", ".json"), (".parquet", ".pq")


class HFOptions(TypedDict, total=False):
    """The options of every constructor of ``HFIterableDataset``; see the class."""

    seed: int
    shuffle: Shuffle | str | None
    message_transform: Transform | None
    model_transform: Transform | None
    output_transform: Transform | None
    metric_transform: MetricTransform | None
    filter_fn: Filter | None
    weight: float
    stop: StopPolicy


class FileOptions(HFOptions, total=False):
    """The same options plus, for files, which columns are read and what replaces their nulls."""

    columns: list[str] | None
    fill_null: Mapping[str, Any] | None


class HFIterableDataset(OrderedDataset):
    """A random-access dataset with the four transforms of a fine-tuning recipe.

    Args:
        dataset: a map-style ``datasets.Dataset`` or a holdfast ``Source``. Columns are read as stored: the dataset's
            own format and transform are not applied.
        name: the name under which its samples and metrics are counted.
        message_transform: makes messages from a row.
        model_transform: makes tokens from messages.
        output_transform: makes the training step's input from tokens.
        metric_transform: makes metrics from the final sample; given this dataset's name.
        filter_fn: returns whether to keep a row, as stored. It runs over all rows once, when the dataset is created.
        shuffle: ``"full"``, ``"window"`` (uses the data's own shards), ``"none"`` or a ``WindowShuffle``. By default
            ``full``, or windows if the data is remote.
        seed: the seed of its shuffles.
        weight: its weight in a mixture that gives none.
        stop: ``cycle_forever``, or ``first_exhausted`` to end after one pass.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        name: str,
        seed: int = 0,
        shuffle: Shuffle | str | None = "auto",
        message_transform: Transform | None = None,
        model_transform: Transform | None = None,
        output_transform: Transform | None = None,
        metric_transform: MetricTransform | None = None,
        filter_fn: Filter | None = None,
        weight: float = 1.0,
        stop: StopPolicy = "cycle_forever",
    ) -> None:
        source = dataset if isinstance(dataset, Source) else _hf_source(dataset, name)
        if filter_fn is not None:
            source = FilteredSource(source, filter_fn, name=name)
        self.message_transform = message_transform
        self.model_transform = model_transform
        self.output_transform = output_transform
        self.metric_transform = named_copy(metric_transform, name)
        transform = Stages.of((message_transform, model_transform, output_transform))
        named = NamedSource(name, source, seed, shuffle, transform, None, self.metric_transform)
        super().__init__([named], [(0, {name: 1.0})], info=DatasetInfo(name, len(source), weight), seed=seed, stop=stop)

    @classmethod
    def from_dataset(cls, dataset: Any, *, name: str, **options: Unpack[HFOptions]) -> Self:
        """Read a map-style ``datasets.Dataset`` that is already loaded."""
        return cls(dataset, name=name, **options)

    @classmethod
    def from_json(cls, paths: Paths, *, name: str, **options: Unpack[FileOptions]) -> Self:
        """Read JSON-lines files: paths, globs, folders or URLs. They are indexed, not converted."""
        return cls._from_files(JsonlSource, paths, name, options)

    @classmethod
    def from_parquet(cls, paths: Paths, *, name: str, **options: Unpack[FileOptions]) -> Self:
        """Read Parquet files: paths, globs, folders or URLs. ``shuffle="window"`` decodes each row group once."""
        return cls._from_files(ParquetSource, paths, name, options)

    @classmethod
    def _from_files(cls, kind: Callable[..., Source], paths: Paths, name: str, options: FileOptions) -> Self:
        columns, fill_null = options.pop("columns", None), options.pop("fill_null", None)
        own: Any = options  # the options that are left
        return cls(kind(paths, columns=columns, fill_null=fill_null), name=name, **own)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str], *, name: str, **options: Unpack[HFOptions]) -> Self:
        """Read a folder of JSON-lines files, of Parquet files, or one that ``Dataset.save_to_disk`` wrote."""
        path = Path(folder).expanduser()
        if not path.is_dir():
            raise ConfigError("there is no such folder", folder=str(path))
        if (path / "state.json").is_file() and (path / "dataset_info.json").is_file():
            return cls(hf_datasets().load_from_disk(str(path)), name=name, **options)
        names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
        kinds = {
            kind: [str(path / entry) for entry in names if entry.endswith(kind)]
            for kind in (_JSON, _PARQUET)
            if any(entry.endswith(kind) for entry in names)
        }
        if len(kinds) != 1:
            raise ConfigError(
                "a folder must contain JSON-lines files or Parquet files, not both",
                folder=str(path),
                files=names[:8],
                hint="name the files: from_json([...]) or from_parquet([...])",
            )
        ((kind, files),) = kinds.items()
        return cls(JsonlSource(files) if kind is _JSON else ParquetSource(files), name=name, **options)

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], *, name: str, **options: Unpack[HFOptions]) -> Self:
        """Read a folder, or a JSON-lines or Parquet file, recognised by its extension."""
        text = os.fspath(path)
        if text.endswith(_PARQUET):
            return cls.from_parquet(text, name=name, **options)
        if text.endswith(_JSON):
            return cls.from_json(text, name=name, **options)
        if Path(text).expanduser().is_dir():
            return cls.from_folder(text, name=name, **options)
        raise ConfigError(
            "the path is not a folder, and has no known file extension",
            path=text,
            known=[*_JSON, *_PARQUET],
            hint="use from_json, from_parquet or from_load_dataset",
        )

    @classmethod
    def from_load_dataset(
        cls,
        path: str,
        *,
        name: str,
        load: Mapping[str, Any] | None = None,
        **options: Unpack[HFOptions],
    ) -> Self:
        """Read what ``datasets.load_dataset`` loads.

        Args:
            path: its first argument.
            name: the name under which samples and metrics are counted.
            load: its other arguments, e.g. ``{"name": "main", "split": "train"}``.
            **options: as for the class.
        """
        return cls(hf_datasets().load_dataset(path, **(load or {})), name=name, **options)


def _hf_source(dataset: Any, name: str) -> Source:
    if hasattr(dataset, "num_shards") and not hasattr(dataset, "data"):
        raise ConfigError(
            "a datasets.IterableDataset can only be streamed",
            dataset=name,
            hint="load it without streaming=True, or use HFStreamingDataset",
        )
    return HFSource(dataset)


def hf_datasets() -> Any:
    """Return the package ``datasets``."""
    return require("datasets", needed_by="reading Hugging Face datasets", extra="hf")
