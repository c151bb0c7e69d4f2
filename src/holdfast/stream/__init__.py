"""Datasets and the loader: batches as a pure function of their step.

Read the modules in this order: ``dataset``, ``interleaved``, ``hf`` and ``hf_streaming`` (what is read), ``config``
(how), ``reader`` and ``collate`` (from positions to batches), ``steps``, ``engines`` and ``worker_processes`` (reading
ahead), ``loader`` (all of it), ``state``, ``state_files`` and ``adopt`` (stopping and going on), ``provenance`` (which
sample was where), ``extent`` (how much there is).
"""

from __future__ import annotations

from holdfast.stream.config import StreamingConfig
from holdfast.stream.dataset import DatasetInfo, OrderedDataset, StreamDataset, TuneIterableDataset
from holdfast.stream.hf import HFIterableDataset
from holdfast.stream.hf_streaming import HFStreamingDataset
from holdfast.stream.interleaved import InterleavedDataset
from holdfast.stream.loader import StreamingShardLoader
from holdfast.stream.provenance import SampleRef, Seen
from holdfast.stream.state import CheckpointState
from holdfast.stream.state_files import load_state, save_state
from holdfast.stream.stats import StreamStats

__all__ = [
    "CheckpointState",
    "DatasetInfo",
    "HFIterableDataset",
    "HFStreamingDataset",
    "InterleavedDataset",
    "OrderedDataset",
    "SampleRef",
    "Seen",
    "StreamDataset",
    "StreamStats",
    "StreamingConfig",
    "StreamingShardLoader",
    "TuneIterableDataset",
    "load_state",
    "save_state",
]
