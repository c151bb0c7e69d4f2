"""Datasets and the loader: batches as a pure function of their step.

Read the modules in this order: ``dataset``, ``interleaved``, ``hf`` and ``hf_streaming`` (what is read), ``config``
(how), ``reader`` and ``collate`` (from positions to batches), ``steps``, ``engines`` and ``worker_processes`` (reading
ahead), ``loader`` (all of it), ``state``, ``state_files`` and ``adopt`` (stopping and going on), ``provenance`` (which
sample was where), ``extent`` (how much there is).

The names load on first use: what looks at a saved state needs NumPy, and torch only those who read batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy_names import lazy_names

if TYPE_CHECKING:
    from holdfast.stream.config import StreamingConfig as StreamingConfig
    from holdfast.stream.dataset import DatasetInfo as DatasetInfo
    from holdfast.stream.dataset import OrderedDataset as OrderedDataset
    from holdfast.stream.dataset import StreamDataset as StreamDataset
    from holdfast.stream.dataset import TuneIterableDataset as TuneIterableDataset
    from holdfast.stream.hf import HFIterableDataset as HFIterableDataset
    from holdfast.stream.hf_streaming import HFStreamingDataset as HFStreamingDataset
    from holdfast.stream.interleaved import InterleavedDataset as InterleavedDataset
    from holdfast.stream.loader import StreamingShardLoader as StreamingShardLoader
    from holdfast.stream.provenance import SampleRef as SampleRef
    from holdfast.stream.provenance import Seen as Seen
    from holdfast.stream.state import CheckpointState as CheckpointState
    from holdfast.stream.state_files import load_state as load_state
    from holdfast.stream.state_files import save_state as save_state
    from holdfast.stream.stats import StreamStats as StreamStats

_HOME = {
    "CheckpointState": "state",
    "DatasetInfo": "dataset",
    "HFIterableDataset": "hf",
    "HFStreamingDataset": "hf_streaming",
    "InterleavedDataset": "interleaved",
    "OrderedDataset": "dataset",
    "SampleRef": "provenance",
    "Seen": "provenance",
    "StreamDataset": "dataset",
    "StreamStats": "stats",
    "StreamingConfig": "config",
    "StreamingShardLoader": "loader",
    "TuneIterableDataset": "dataset",
    "load_state": "state_files",
    "save_state": "state_files",
}

__all__ = sorted(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
