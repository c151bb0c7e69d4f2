"""What really happened to a run, judged against its healthy twin by the full record and never by a detector.

A label names the cause that was injected, the failure a careful person would call it, and every name that would also be
right (a run whose loss shoots up and ends in NaN exploded *and* went NaN). A fault too weak to matter is labelled
``harmless`` and not scored; neither is a twin that failed for reasons of its own.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from bench.faultlab.plan import RunSpec
from bench.faultlab.train import Record

__all__ = ["Label", "label_fault", "label_twin"]

# Faults that show in series of their own, whatever the loss does.
_DIRECT = {
    "train_serve_skew": "skew",
    "data_starvation": "data_starvation",
    "rank_desync": "desync",
    "slow_rank": "straggler",
    "hung_rank": "hang",
}
_RUNAWAY = ("nan", "inf", "explosion", "divergence", "loss_scale_collapse")
_STUCK = ("plateau", "vanishing", "dead_layer")


@dataclass(frozen=True, slots=True)
class Label:
    """The truth about a run. ``failure`` is None for a healthy one; ``scored`` is false where none is honest."""

    failure: str | None
    accepted: tuple[str, ...]
    cause: str | None
    scored: bool
    why: str

    def as_json(self) -> dict[str, object]:
        """The label as it is written beside the log."""
        return asdict(self)


def _smooth(values: list[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    width = max(len(array) // 20, 1)
    return np.array([np.mean(array[max(0, i - width + 1) : i + 1]) for i in range(len(array))])


def label_twin(spec: RunSpec, record: Record) -> Label:
    """A twin is healthy when it learnt and stayed there; anything else is not scored."""
    if "loss" not in record.series:
        return Label(None, (), None, True, "no fault injected")
    loss = np.asarray(record.series["loss"].values)
    if not np.isfinite(loss).all():
        return Label(None, (), None, False, "the twin itself lost its numbers")
    smooth = _smooth(record.series["loss"].values)
    start, end = float(np.mean(loss[:3])), float(smooth[-1])
    if end > 0.8 * start:
        return Label(None, (), None, False, "the twin itself did not learn")
    if end > 1.3 * float(smooth[len(smooth) // 20 :].min()) + 0.1 * start:
        return Label(None, (), None, False, "the twin itself got worse again")
    evaluation = record.series["eval_loss"].values
    if evaluation[-1] > 1.1 * min(evaluation) + 0.02 * evaluation[0]:
        return Label(None, (), None, False, "the twin itself overfits")
    if max(loss) > 2.0 * start:
        return Label(None, (), None, False, "the twin itself spiked")
    return Label(None, (), None, True, "learnt and stayed there")


def label_fault(spec: RunSpec, record: Record, twin: Record) -> Label:
    """Name what the injected fault did, by comparing with the twin."""
    assert spec.cause is not None
    if spec.cause in _DIRECT:
        failure = _DIRECT[spec.cause]
        return Label(failure, (failure,), spec.cause, True, "seen in its own series")
    loss = np.asarray(record.series["loss"].values)
    if not np.isfinite(loss[-max(len(loss) // 20, 1) :]).all():
        failure = "loss_scale_collapse" if spec.cause == "low_precision_overflow" and spec.strength == 1.0 else "nan"
        return Label(failure, _RUNAWAY, spec.cause, True, "the loss ended non-finite")
    good = np.asarray(twin.series["loss"].values)
    if not np.isfinite(good).all():
        return Label(None, (), spec.cause, False, "no healthy twin to compare with")
    start, twin_end = float(np.mean(good[:3])), float(_smooth(list(good))[-1])
    smooth = _smooth(list(loss))
    end, peak, low = float(smooth[-1]), float(loss.max()), float(smooth[: max(int(np.argmax(smooth)), 1)].min())
    lost = (end - twin_end) / max(start - twin_end, 1e-9)
    gradients = np.asarray(record.series["grad_norm"].values)
    twin_gradients = np.asarray(twin.series["grad_norm"].values)
    finite = gradients[np.isfinite(gradients)]
    burst = (
        float(finite.max() / max(np.median(twin_gradients[np.isfinite(twin_gradients)]), 1e-12))
        if finite.size
        else math.inf
    )
    if spec.cause == "overfitting":
        evaluation = record.series["eval_loss"].values
        if evaluation[-1] > 1.15 * min(evaluation):
            return Label("overfitting", ("overfitting",), spec.cause, True, "evaluation loss turned upwards")
        return Label(None, (), spec.cause, False, "harmless")
    if spec.cause == "dead_activations":
        return Label("dead_layer", _STUCK, spec.cause, True, "a layer gives zeros only")
    grown = (
        float(np.median(finite[len(finite) // 2 :])) > 8 * float(np.median(twin_gradients[np.isfinite(twin_gradients)]))
        if finite.size
        else True
    )
    runaway = ("explosion",) if grown else ()
    if spec.cause == "bad_data_window":
        reference = float(np.median(good[int(len(good) * 0.3) : int(len(good) * 0.9)]))
        if peak > 1.5 * max(reference, 1e-9) and peak - reference > 4 * float(np.std(good[len(good) // 3 :])):
            return Label(
                "spike", ("spike", "explosion", "divergence"), spec.cause, True, "the loss jumped in the window"
            )
        return Label(None, (), spec.cause, False, "harmless")
    if spec.cause == "unshuffled_batches":
        if lost > 0.3 or float(np.std(np.diff(loss[len(loss) // 3 :]))) > 2.0 * float(
            np.std(np.diff(good[len(good) // 3 :]))
        ):
            return Label(
                "spike",
                ("spike", "divergence", "plateau", "overfitting", "explosion"),
                spec.cause,
                True,
                "the loss swings with the order",
            )
        return Label(None, (), spec.cause, False, "harmless")
    if peak > 5 * start or burst > 300:
        if end > start:
            return Label(
                "divergence",
                (*_RUNAWAY, "spike", *(_STUCK if lost > 0.8 else ())),
                spec.cause,
                True,
                "shot up and stayed above its start",
            )
        if peak > 2 * start or lost > 0.15:
            return Label(
                "explosion",
                (*_RUNAWAY, "spike", *(_STUCK if lost > 0.5 else ())),
                spec.cause,
                True,
                "shot up and came back",
            )
        return Label(None, (), spec.cause, False, "harmless")
    wobble = 4 * float(np.std(np.diff(loss))) / math.sqrt(2 * max(len(loss) // 20, 1))
    if end > 1.15 * low and end - low > wobble and end - low > 0.25 * max(start - low, 1e-9) and lost > 0.3:
        return Label(
            "divergence",
            (*_RUNAWAY, "spike", *(_STUCK if lost > 0.7 else ())),
            spec.cause,
            True,
            "got worse after it had learnt",
        )
    if lost > 0.6:
        return Label(
            "plateau",
            (*_STUCK, "divergence", *runaway, *(("overfitting",) if spec.cause == "label_noise" else ())),
            spec.cause,
            True,
            "hardly learnt",
        )
    early = np.convolve(loss[: max(len(loss) // 5, 5)], np.ones(3) / 3, mode="valid")
    if spec.cause == "no_warmup" and float(early.max()) > 2.0 * start:
        return Label(
            "spike", ("spike", "explosion", "divergence"), spec.cause, True, "an early jump that the warm-up avoids"
        )
    return Label(None, (), spec.cause, False, "harmless")
