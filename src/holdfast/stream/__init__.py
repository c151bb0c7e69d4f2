"""Datasets and the loader: batches as a pure function of their step.

Read the modules in this order: ``read_batches``, the centre, with ``batch``, ``samples`` and ``collate`` (from steps to
batches); ``named_source``, ``dataset``, ``interleaved`` and ``hf`` (what is read); ``config`` (how); ``reading``,
``read_ahead`` and ``worker_processes`` (ahead of time); ``loader`` (a cursor and something that reads ahead of it);
``state``, ``state_files`` and ``adopt`` (stopping and continuing); ``provenance`` and ``extent`` (which sample is
where, and how much there is). ``forward`` holds what can only be read forwards.

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
    from holdfast.stream.forward.hf_streaming import HFStreamingDataset as HFStreamingDataset
    from holdfast.stream.forward.mixture import ForwardMixture as ForwardMixture
    from holdfast.stream.hf import HFIterableDataset as HFIterableDataset
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
    "ForwardMixture": "forward.mixture",
    "HFIterableDataset": "hf",
    "HFStreamingDataset": "forward.hf_streaming",
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
