"""holdfast keeps a PyTorch training run true.

Data streams whose every batch is a pure function of its step, metrics that merge exactly over ranks and restarts,
checkpoint restore at the speed of the disk, and a debugger that reads any training log.

The names below load on first use, so that ``import holdfast`` costs milliseconds and needs neither torch nor pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast import errors as errors
    from holdfast.checkpoint import LoadProgress as LoadProgress
    from holdfast.checkpoint import LoadReport as LoadReport
    from holdfast.checkpoint import ParallelFileSystemReader as ParallelFileSystemReader
    from holdfast.checkpoint import VerifyReport as VerifyReport
    from holdfast.checkpoint import verify_checkpoint as verify_checkpoint
    from holdfast.coordinate import Dead as Dead
    from holdfast.coordinate import Done as Done
    from holdfast.coordinate import EtcdStore as EtcdStore
    from holdfast.coordinate import FolderSink as FolderSink
    from holdfast.coordinate import LeasedChunk as LeasedChunk
    from holdfast.coordinate import LeasedReader as LeasedReader
    from holdfast.coordinate import RedisStore as RedisStore
    from holdfast.coordinate import Store as Store
    from holdfast.coordinate import StreamCoordinator as StreamCoordinator
    from holdfast.coordinate import WorkerHealth as WorkerHealth
    from holdfast.coordinate import WorkerStatus as WorkerStatus
    from holdfast.coordinate import open_store as open_store
    from holdfast.debug import AttributionEngine as AttributionEngine
    from holdfast.debug import BaseDetector as BaseDetector
    from holdfast.debug import BaseIngestor as BaseIngestor
    from holdfast.debug import BaseSignalExtractor as BaseSignalExtractor
    from holdfast.debug import DebugReport as DebugReport
    from holdfast.debug import DistributionSignalExtractor as DistributionSignalExtractor
    from holdfast.debug import GradientSignalExtractor as GradientSignalExtractor
    from holdfast.debug import LogIngestor as LogIngestor
    from holdfast.debug import MetricIngestor as MetricIngestor
    from holdfast.debug import MLSystemsDebugger as MLSystemsDebugger
    from holdfast.debug import NumericalSignalExtractor as NumericalSignalExtractor
    from holdfast.debug import Reporter as Reporter
    from holdfast.debug import ReportFormat as ReportFormat
    from holdfast.debug import SchemaValidator as SchemaValidator
    from holdfast.debug import Signal as Signal
    from holdfast.metrics import AggregationType as AggregationType
    from holdfast.metrics import CategoricalCountHandler as CategoricalCountHandler
    from holdfast.metrics import DistributionHandler as DistributionHandler
    from holdfast.metrics import JsonlSink as JsonlSink
    from holdfast.metrics import KllDistributionHandler as KllDistributionHandler
    from holdfast.metrics import Metric as Metric
    from holdfast.metrics import MetricBatch as MetricBatch
    from holdfast.metrics import MetricHandler as MetricHandler
    from holdfast.metrics import MetricsAggregator as MetricsAggregator
    from holdfast.metrics import MetricSink as MetricSink
    from holdfast.metrics import MetricTransform as MetricTransform
    from holdfast.metrics import MlflowSink as MlflowSink
    from holdfast.metrics import StandardMetricTransform as StandardMetricTransform
    from holdfast.metrics import TensorBoardSink as TensorBoardSink
    from holdfast.metrics import WandbSink as WandbSink
    from holdfast.metrics import collate_with_metrics as collate_with_metrics
    from holdfast.metrics import merge_state_dicts as merge_state_dicts
    from holdfast.metrics import register_handler as register_handler
    from holdfast.order import Adaptive as Adaptive
    from holdfast.order import Contiguous as Contiguous
    from holdfast.order import HashBased as HashBased
    from holdfast.order import Mixture as Mixture
    from holdfast.order import Order as Order
    from holdfast.order import Partition as Partition
    from holdfast.order import Permutation as Permutation
    from holdfast.order import RangeBased as RangeBased
    from holdfast.order import RoundRobin as RoundRobin
    from holdfast.order import Schedule as Schedule
    from holdfast.order import Skips as Skips
    from holdfast.order import SourceSpec as SourceSpec
    from holdfast.order import Stratified as Stratified
    from holdfast.order import WindowShuffle as WindowShuffle
    from holdfast.run import Cure as Cure
    from holdfast.run import Goodput as Goodput
    from holdfast.run import OpenTelemetryAlert as OpenTelemetryAlert
    from holdfast.run import RollbackOptions as RollbackOptions
    from holdfast.run import Run as Run
    from holdfast.run import RunLog as RunLog
    from holdfast.run import RunOptions as RunOptions
    from holdfast.run import WebhookAlert as WebhookAlert
    from holdfast.sources import ArraySource as ArraySource
    from holdfast.sources import ConcatSource as ConcatSource
    from holdfast.sources import HFSource as HFSource
    from holdfast.sources import JsonlSource as JsonlSource
    from holdfast.sources import ParquetSource as ParquetSource
    from holdfast.sources import Ragged as Ragged
    from holdfast.sources import RemoteOptions as RemoteOptions
    from holdfast.sources import Source as Source
    from holdfast.sources import TarSource as TarSource
    from holdfast.sources import TokenFileSource as TokenFileSource
    from holdfast.stream import CheckpointState as CheckpointState
    from holdfast.stream import DatasetInfo as DatasetInfo
    from holdfast.stream import ForwardMixture as ForwardMixture
    from holdfast.stream import HFIterableDataset as HFIterableDataset
    from holdfast.stream import HFStreamingDataset as HFStreamingDataset
    from holdfast.stream import InterleavedDataset as InterleavedDataset
    from holdfast.stream import OrderedDataset as OrderedDataset
    from holdfast.stream import SampleRef as SampleRef
    from holdfast.stream import Seen as Seen
    from holdfast.stream import StreamDataset as StreamDataset
    from holdfast.stream import StreamingConfig as StreamingConfig
    from holdfast.stream import StreamingShardLoader as StreamingShardLoader
    from holdfast.stream import StreamStats as StreamStats
    from holdfast.stream import TuneIterableDataset as TuneIterableDataset
    from holdfast.stream import load_state as load_state
    from holdfast.stream import save_state as save_state

# Where each public name lives. One line a name, sorted within its package.
_HOME: dict[str, str] = {
    "AttributionEngine": "holdfast.debug",
    "BaseDetector": "holdfast.debug",
    "BaseIngestor": "holdfast.debug",
    "BaseSignalExtractor": "holdfast.debug",
    "DebugReport": "holdfast.debug",
    "DistributionSignalExtractor": "holdfast.debug",
    "GradientSignalExtractor": "holdfast.debug",
    "LogIngestor": "holdfast.debug",
    "MLSystemsDebugger": "holdfast.debug",
    "MetricIngestor": "holdfast.debug",
    "NumericalSignalExtractor": "holdfast.debug",
    "ReportFormat": "holdfast.debug",
    "Reporter": "holdfast.debug",
    "SchemaValidator": "holdfast.debug",
    "Signal": "holdfast.debug",
    "AggregationType": "holdfast.metrics",
    "CategoricalCountHandler": "holdfast.metrics",
    "DistributionHandler": "holdfast.metrics",
    "JsonlSink": "holdfast.metrics",
    "KllDistributionHandler": "holdfast.metrics",
    "Metric": "holdfast.metrics",
    "MetricBatch": "holdfast.metrics",
    "MetricHandler": "holdfast.metrics",
    "MetricSink": "holdfast.metrics",
    "MetricTransform": "holdfast.metrics",
    "MetricsAggregator": "holdfast.metrics",
    "MlflowSink": "holdfast.metrics",
    "StandardMetricTransform": "holdfast.metrics",
    "TensorBoardSink": "holdfast.metrics",
    "WandbSink": "holdfast.metrics",
    "collate_with_metrics": "holdfast.metrics",
    "merge_state_dicts": "holdfast.metrics",
    "register_handler": "holdfast.metrics",
    "Adaptive": "holdfast.order",
    "Contiguous": "holdfast.order",
    "HashBased": "holdfast.order",
    "Mixture": "holdfast.order",
    "Order": "holdfast.order",
    "Partition": "holdfast.order",
    "Permutation": "holdfast.order",
    "RangeBased": "holdfast.order",
    "RoundRobin": "holdfast.order",
    "Schedule": "holdfast.order",
    "Skips": "holdfast.order",
    "SourceSpec": "holdfast.order",
    "Stratified": "holdfast.order",
    "WindowShuffle": "holdfast.order",
    "LoadProgress": "holdfast.checkpoint",
    "LoadReport": "holdfast.checkpoint",
    "ParallelFileSystemReader": "holdfast.checkpoint",
    "VerifyReport": "holdfast.checkpoint",
    "verify_checkpoint": "holdfast.checkpoint",
    "Cure": "holdfast.run",
    "Goodput": "holdfast.run",
    "OpenTelemetryAlert": "holdfast.run",
    "RollbackOptions": "holdfast.run",
    "Run": "holdfast.run",
    "RunLog": "holdfast.run",
    "RunOptions": "holdfast.run",
    "WebhookAlert": "holdfast.run",
    "ArraySource": "holdfast.sources",
    "ConcatSource": "holdfast.sources",
    "HFSource": "holdfast.sources",
    "JsonlSource": "holdfast.sources",
    "ParquetSource": "holdfast.sources",
    "Ragged": "holdfast.sources",
    "RemoteOptions": "holdfast.sources",
    "Source": "holdfast.sources",
    "TarSource": "holdfast.sources",
    "TokenFileSource": "holdfast.sources",
    "CheckpointState": "holdfast.stream",
    "DatasetInfo": "holdfast.stream",
    "ForwardMixture": "holdfast.stream",
    "HFIterableDataset": "holdfast.stream",
    "HFStreamingDataset": "holdfast.stream",
    "InterleavedDataset": "holdfast.stream",
    "OrderedDataset": "holdfast.stream",
    "SampleRef": "holdfast.stream",
    "Seen": "holdfast.stream",
    "StreamDataset": "holdfast.stream",
    "StreamStats": "holdfast.stream",
    "StreamingConfig": "holdfast.stream",
    "StreamingShardLoader": "holdfast.stream",
    "TuneIterableDataset": "holdfast.stream",
    "load_state": "holdfast.stream",
    "save_state": "holdfast.stream",
    "Dead": "holdfast.coordinate",
    "Done": "holdfast.coordinate",
    "EtcdStore": "holdfast.coordinate",
    "FolderSink": "holdfast.coordinate",
    "LeasedChunk": "holdfast.coordinate",
    "LeasedReader": "holdfast.coordinate",
    "RedisStore": "holdfast.coordinate",
    "Store": "holdfast.coordinate",
    "StreamCoordinator": "holdfast.coordinate",
    "WorkerHealth": "holdfast.coordinate",
    "WorkerStatus": "holdfast.coordinate",
    "open_store": "holdfast.coordinate",
}

__all__ = sorted(["__version__", "errors", *_HOME])


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is not None:
        value = getattr(import_module(home), name)
    elif name in _PACKAGES:
        value = import_module(f"holdfast.{name}")
    else:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    globals()[name] = value
    return value


_PACKAGES = frozenset(
    ("checkpoint", "coordinate", "debug", "errors", "metrics", "order", "run", "sources", "stream", "testing")
)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_PACKAGES})
