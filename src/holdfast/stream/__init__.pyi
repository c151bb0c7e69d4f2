# The names of the package and where each lives: one list, read by type checkers and, on first use, by the program.
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
