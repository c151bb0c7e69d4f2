"""The contracts between the layers of the debugger, and the conventions its signals and events follow.

A plug-in subclasses one of the three classes here; nothing else in holdfast needs to know about it.

**Kinds.** ``Signal.metadata["kind"]`` is one of ``KINDS``, or absent for a series whose meaning is not known; such
a series counts as ``"other"``. A detector declares the kinds it reads, and the debugger routes by them; a detector that
declares none reads only events and is always run.

**Events.** Facts in a log that are not a number at a step reach detectors as ``DetectionContext.events``, mappings with
a ``"type"``:

======================= ============================================================================================
``collective``          one entry of an NCCL flight recorder: ``replica``, ``group``, ``group_description``,
                        ``group_ranks`` (tuple of int), ``sequence``, ``operation``, ``state`` (``scheduled``,
                        ``started``, ``completed``), ``point_to_point``, ``sizes``, ``time_created_ns``, ``timeout_ms``
``collective_status``   one rank's progress in one group: ``replica``, ``group``, ``group_description``,
                        ``group_ranks``, ``last_enqueued``, ``last_started``, ``last_completed`` (-1: none, None:
                        unknown)
``overflow_skip``       an fp16 step that was skipped: ``step`` (or None), ``loss_scale`` after it (or None) ``crash``
the run ended in an error: ``kind`` (``traceback``, ``out_of_memory``, ``exit_code``,
                        ``killed``, ``collective_timeout``, ``device_error``, ``interrupted``), ``message``, ``line``
                        (its number, from 1), ``lines`` (what to quote) and, where another run follows in the same file,
                        ``started_again`` and whether that one takes it up and gets beyond it, ``resumed``
``restart``             the step counter went back and the steps before it were written again: ``step``, ``from_step``
======================= ============================================================================================

Flight-recorder entries are also signals of kind ``"collective"`` (one per rank and group: steps are sequence numbers,
values 0 scheduled, 1 started, 2 completed), so that they are routed to the detector that needs them. Parameter hashes
are signals of kind ``"param_hash"`` with ``layer`` the parameter and ``replica`` the rank; equal values mean equal
hashes, and ``metadata["sharded"]`` is true if ranks may legitimately differ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from holdfast.debug.types import DetectionContext, DetectionResult, Failure, Signal

__all__ = ["KINDS", "BaseDetector", "BaseIngestor", "BaseSignalExtractor"]

KINDS: frozenset[str] = frozenset(
    (
        "activation",
        "collective",
        "data_time",
        "distribution",
        "entropy",
        "eval_loss",
        "grad_norm",
        "inf_count",
        "kl",
        "loss",
        "loss_scale",
        "lr",
        "memory",
        "metric",
        "nan_count",
        "other",
        "param_hash",
        "perplexity",
        "range_share",
        "reward",
        "skipped",
        "step_time",
        "throughput",
        "update_norm",
        "value_loss",
        "weight_gain",
        "weight_norm",
    )
)
"""Every canonical kind of signal. A detector asks for ``"other"`` to get series of unknown kind (None)."""


class BaseIngestor(ABC):
    """Turns one kind of source (a file format, an in-memory table) into signals."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The short name of the format, as shown in reports."""

    @abstractmethod
    def can_ingest(self, source: Any) -> float:
        """Return the confidence, from 0 to 1, that this ingestor can read ``source``."""

    @abstractmethod
    def ingest(self, source: Any) -> list[Signal]:
        """Read the source.

        Raises:
            UnreadableLogError: nothing in it could be read.
        """


class BaseSignalExtractor(ABC):
    """Derives signals from raw objects: modules, tensors, arrays, dicts."""

    @property
    @abstractmethod
    def name(self) -> str:
        """A short name for reports."""

    @abstractmethod
    def extract(self, raw_data: Any) -> list[Signal]:
        """Compute the signals in ``raw_data``; return an empty list if there are none for this extractor."""


class BaseDetector(ABC):
    """Detects one failure in a window of signals. Stateless: the same signals give the same result on any thread.

    ``failure`` is the failure it detects, with title, rank and advice; reports list it even if it was not found.
    """

    failure: ClassVar[Failure | None] = None

    @property
    @abstractmethod
    def name(self) -> str:
        """A short name, unique among the detectors of a debugger."""

    @abstractmethod
    def get_required_signals(self) -> frozenset[str]:
        """Return the kinds of signal that this detector reads; it is run only if there are any, and gets only those.

        A detector that reads only events returns an empty set and is always run.
        """

    @abstractmethod
    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Examine the signals; an empty result means that nothing was found."""
