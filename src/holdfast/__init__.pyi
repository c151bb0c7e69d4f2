# The public names of holdfast and where each lives: one list, read by type checkers and, on first use of a name, by
# the running program. One line per name, sorted within its package. Everything else is imported from its package.
from holdfast import checkpoint as checkpoint
from holdfast import coordinate as coordinate
from holdfast import debug as debug
from holdfast import errors as errors
from holdfast import metrics as metrics
from holdfast import order as order
from holdfast import run as run
from holdfast import sources as sources
from holdfast import stream as stream
from holdfast import testing as testing
from holdfast.checkpoint import ParallelFileSystemReader as ParallelFileSystemReader
from holdfast.checkpoint import verify_checkpoint as verify_checkpoint
from holdfast.coordinate import StreamCoordinator as StreamCoordinator
from holdfast.coordinate import open_store as open_store
from holdfast.debug import DebugReport as DebugReport
from holdfast.debug import MLSystemsDebugger as MLSystemsDebugger
from holdfast.debug import OnlineDebugger as OnlineDebugger
from holdfast.debug import Reporter as Reporter
from holdfast.debug import ReportFormat as ReportFormat
from holdfast.metrics import AggregationType as AggregationType
from holdfast.metrics import Metric as Metric
from holdfast.metrics import MetricsAggregator as MetricsAggregator
from holdfast.metrics import MetricTransform as MetricTransform
from holdfast.metrics import StandardMetricTransform as StandardMetricTransform
from holdfast.metrics import collate_with_metrics as collate_with_metrics
from holdfast.metrics import merge_state_dicts as merge_state_dicts
from holdfast.order import Adaptive as Adaptive
from holdfast.order import Contiguous as Contiguous
from holdfast.order import HashBased as HashBased
from holdfast.order import Partition as Partition
from holdfast.order import RangeBased as RangeBased
from holdfast.order import RoundRobin as RoundRobin
from holdfast.order import Stratified as Stratified
from holdfast.order import WindowShuffle as WindowShuffle
from holdfast.run import Run as Run
from holdfast.run import RunOptions as RunOptions
from holdfast.sources import ArraySource as ArraySource
from holdfast.sources import HFSource as HFSource
from holdfast.sources import JsonlSource as JsonlSource
from holdfast.sources import ParquetSource as ParquetSource
from holdfast.sources import Source as Source
from holdfast.sources import TarSource as TarSource
from holdfast.sources import TokenFileSource as TokenFileSource
from holdfast.stream import ForwardMixture as ForwardMixture
from holdfast.stream import HFIterableDataset as HFIterableDataset
from holdfast.stream import HFStreamingDataset as HFStreamingDataset
from holdfast.stream import InterleavedDataset as InterleavedDataset
from holdfast.stream import StreamDataset as StreamDataset
from holdfast.stream import StreamingConfig as StreamingConfig
from holdfast.stream import StreamingShardLoader as StreamingShardLoader
from holdfast.stream import load_state as load_state
from holdfast.stream import save_state as save_state

__version__: str
__all__: list[str]
