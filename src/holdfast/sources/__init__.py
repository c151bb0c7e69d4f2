"""Where samples come from: arrays, and files and folders in common formats, read in place.

Every source has ``len(source)`` and ``source.read(indices)``. The names load on first use: reading arrays needs only
NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy_names import lazy_names

if TYPE_CHECKING:
    from holdfast.sources.array_record import ArrayRecordSource as ArrayRecordSource
    from holdfast.sources.arrays import ArraySource as ArraySource
    from holdfast.sources.arrow_ipc import ArrowSource as ArrowSource
    from holdfast.sources.base import Columns as Columns
    from holdfast.sources.base import ReadCounters as ReadCounters
    from holdfast.sources.base import ReadCounts as ReadCounts
    from holdfast.sources.base import Source as Source
    from holdfast.sources.base import check_indices as check_indices
    from holdfast.sources.batched import BatchSource as BatchSource
    from holdfast.sources.batched import padded_batch as padded_batch
    from holdfast.sources.concat import ConcatSource as ConcatSource
    from holdfast.sources.hf import HFSource as HFSource
    from holdfast.sources.hf_folder import HFFolderSource as HFFolderSource
    from holdfast.sources.jsonl import JsonlSource as JsonlSource
    from holdfast.sources.lance import LanceSource as LanceSource
    from holdfast.sources.litdata import LitDataSource as LitDataSource
    from holdfast.sources.mds import MDSSource as MDSSource
    from holdfast.sources.megatron import MegatronSource as MegatronSource
    from holdfast.sources.packed import PackedSource as PackedSource
    from holdfast.sources.parquet import ParquetSource as ParquetSource
    from holdfast.sources.ragged import Ragged as Ragged
    from holdfast.sources.remote import RemoteOptions as RemoteOptions
    from holdfast.sources.tar import TarSource as TarSource
    from holdfast.sources.tfrecord import TFRecordSource as TFRecordSource
    from holdfast.sources.tokens import TokenFileSource as TokenFileSource
    from holdfast.sources.transformed import TransformedSource as TransformedSource

_HOME = {
    "ArrayRecordSource": "array_record",
    "ArraySource": "arrays",
    "ArrowSource": "arrow_ipc",
    "BatchSource": "batched",
    "Columns": "base",
    "ConcatSource": "concat",
    "HFFolderSource": "hf_folder",
    "HFSource": "hf",
    "JsonlSource": "jsonl",
    "LanceSource": "lance",
    "LitDataSource": "litdata",
    "MDSSource": "mds",
    "MegatronSource": "megatron",
    "PackedSource": "packed",
    "ParquetSource": "parquet",
    "Ragged": "ragged",
    "ReadCounters": "base",
    "ReadCounts": "base",
    "RemoteOptions": "remote",
    "Source": "base",
    "TFRecordSource": "tfrecord",
    "TarSource": "tar",
    "TokenFileSource": "tokens",
    "TransformedSource": "transformed",
    "check_indices": "base",
    "padded_batch": "batched",
}

__all__ = sorted(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
