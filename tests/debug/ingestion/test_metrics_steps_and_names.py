from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.debug.base import KINDS
from holdfast.debug.ingestion import MetricIngestor, SchemaValidator
from holdfast.debug.ingestion.names import meaning_of, plain
from holdfast.debug.ingestion.steps import repair_steps
from holdfast.errors import UnreadableLogError

RECORDS = [{"step": n, "loss": 3 - n / 10, "val_loss": 3.0} for n in range(8)]


@pytest.mark.parametrize(
    "source",
    [
        RECORDS,
        {"step": list(range(8)), "loss": [3 - n / 10 for n in range(8)], "val_loss": [3.0] * 8},
        {"step": np.arange(8), "loss": 3 - np.arange(8) / 10, "val_loss": np.full(8, 3.0)},
        pd.DataFrame(RECORDS),
        pd.DataFrame(RECORDS).set_index("step"),
        pa.Table.from_pylist(RECORDS),
        {"loss": {str(r["step"]): r["loss"] for r in RECORDS}, "val_loss": [(r["step"], 3.0) for r in RECORDS]},
    ],
    ids=["records", "lists", "arrays", "pandas", "pandas-index", "arrow", "series"],
)
def test_the_same_metrics_in_any_container_give_the_same_signals(source: object) -> None:
    signals = {signal.name: signal for signal in MetricIngestor().ingest(source)}
    assert set(signals) == {"loss", "val_loss"}
    assert signals["loss"].steps.tolist() == list(range(8))
    assert signals["loss"].values.tolist() == [3 - n / 10 for n in range(8)]


def test_an_array_alone_is_a_loss_and_a_matrix_takes_names() -> None:
    (loss,) = MetricIngestor().ingest(np.linspace(3, 1, 20))
    assert loss.kind == "loss"
    matrix = np.stack([np.arange(5.0), np.linspace(3, 1, 5)], axis=1)
    (loss,) = MetricIngestor(names=["step", "loss"]).ingest(matrix)
    assert loss.steps.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("source", [[], {}, [1, "x"], ["a", "b"], {"loss": "words"}, object(), [{"loss": "high"}]])
def test_what_holds_no_metrics_is_refused(source: object) -> None:
    with pytest.raises(UnreadableLogError):
        MetricIngestor().ingest(source)


def test_the_schema_validator_names_row_and_field() -> None:
    validator = SchemaValidator(required=["loss", "lr"], numeric=["loss"])
    problems = validator.validate([{"loss": 1.0}, {"loss": "high"}, {"loss": None}, 5])
    assert [problem.where for problem in problems] == ["field 'loss' in row 1", "row 3", "field 'lr'"]
    assert SchemaValidator(required=["train/loss"]).validate({"train_loss": [1.0]}) == ()


def test_a_counter_that_starts_again_each_epoch_is_counted_on() -> None:
    raw = np.array([50.0, 100, 150, 50, 100, 150, 50, 100, 150])
    axis = repair_steps(raw, np.array([1.0, 1, 1, 2, 2, 2, 3, 3, 3]))
    assert axis.steps.tolist() == [50, 100, 150, 200, 250, 300, 350, 400, 450]


def test_a_run_that_resumed_from_a_checkpoint_uses_the_later_writing() -> None:
    raw = np.concatenate([np.arange(100.0), np.arange(80.0, 200.0)])
    axis = repair_steps(raw)
    assert axis.order is not None
    assert axis.steps[axis.order].tolist() == list(range(200))
    assert axis.order[80] == 100
    assert axis.events[0]["type"] == "restart"


@given(st.lists(st.one_of(st.just(math.nan), st.floats(-1e9, 1e9)), min_size=1, max_size=60))
def test_whatever_the_counter_does_steps_never_go_back(raw: list[float]) -> None:
    axis = repair_steps(np.array(raw))
    ordered = axis.steps if axis.order is None else axis.steps[axis.order]
    assert np.all(np.diff(ordered) >= 0)
    assert len(ordered) <= len(raw)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("train/loss", "loss"), ("lm loss", "loss"), ("loss_cls", "loss"), ("train/CrossEntropyLoss", "loss"),
        ("val_loss", "eval_loss"), ("eval/c4/CrossEntropyLoss", "eval_loss"), ("valid_nll_loss", "eval_loss"),
        ("gnorm", "grad_norm"), ("optim/total_grad_norm", "grad_norm"), ("grad norm", "grad_norm"), ("lr-Adam", "lr"),
        ("loss scale", "loss_scale"), ("number of nan iterations", "nan_count"), ("Acc@1", "metric"),
        ("number of skipped iterations", "skipped"), ("elapsed time per iteration (ms)", "step_time"),
        ("data_time", "data_time"), ("tok/s", "throughput"), ("params norm", "weight_norm"), ("ppl", "perplexity"),
        ("rewards/chosen", None), ("best_val_loss", None), ("kl_coef", None), ("cosine_similarity", None),
        ("loss_weight", None), ("epoch", None),
    ],
)  # fmt: skip
def test_frameworks_own_names_have_common_kinds(name: str, kind: str | None) -> None:
    assert meaning_of(name).kind == kind


def test_layers_and_replicas_are_read_out_of_names() -> None:
    assert (meaning_of("grad_2.0_norm/fc1.weight").kind, meaning_of("grad_2.0_norm/fc1.weight").layer) == (
        "grad_norm",
        "fc1.weight",
    )
    assert (meaning_of("rank3/loss").kind, meaning_of("rank3/loss").replica) == ("loss", 3)
    assert meaning_of("val_accuracy").metadata["higher_is_better"] is True
    assert meaning_of("val_error_rate").metadata["higher_is_better"] is False


@given(st.text(max_size=80))
def test_every_name_has_a_known_kind_or_none(name: str) -> None:
    kind = meaning_of(name).kind
    assert kind is None or kind in KINDS
    assert plain(plain(name)) == plain(name)


VALUES = st.one_of(st.none(), st.floats(allow_nan=True), st.just(0.0))


@given(
    st.lists(
        st.fixed_dictionaries({"step": st.integers(0, 10**6)}, optional={"loss": VALUES, "lr": VALUES}),
        min_size=1,
        max_size=40,
    )
)
def test_no_value_is_invented_and_none_that_counts_is_lost(records: list[dict[str, float | None]]) -> None:
    try:
        signals = MetricIngestor().ingest(records)
    except UnreadableLogError:
        return
    for name in ("loss", "lr"):
        given_values = [r[name] for r in records if r.get(name) is not None]
        finite = sorted(v for v in given_values if v is not None and math.isfinite(v))
        found = [signal for signal in signals if signal.name == name]
        values = found[0].values[np.isfinite(found[0].values)] if found else np.empty(0)
        assert set(values.tolist()) <= set(finite)


def test_a_frame_keeps_nan_that_was_measured_and_drops_nan_that_fills_gaps() -> None:
    loss = [3 - n / 20 if n < 20 else math.nan for n in range(40)]
    val = [2.0 if n % 5 == 0 else math.nan for n in range(40)]
    frame = pd.DataFrame({"step": range(40), "loss": loss, "val_loss": val, "note": ["x"] * 40})
    signals = {signal.name: signal for signal in MetricIngestor().ingest(frame)}
    assert int(np.isnan(signals["loss"].values).sum()) == 20
    assert signals["val_loss"].steps.tolist() == list(range(0, 40, 5))


def test_absent_values_of_nullable_pandas_columns_are_absent() -> None:
    frame = pd.DataFrame({"step": range(6), "loss": pd.array([3.0, 2.9, None, 2.7, 2.6, 2.5], dtype="Float64")})
    (loss,) = MetricIngestor().ingest(frame)
    assert loss.steps.tolist() == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize(
    "made",
    [
        lambda values: {"step": np.arange(len(values)), "loss": values},
        lambda values: {"step": list(range(len(values))), "loss": list(values)},
        lambda values: [{"step": n, "loss": value} for n, value in enumerate(values)],
        lambda values: list(values),
        lambda values: values,
    ],
    ids=["arrays", "lists of scalars", "rows of scalars", "one list", "one array"],
)
def test_numbers_of_any_width_are_numbers(made: Callable[[Any], Any], dtype: str) -> None:
    values = np.arange(30, 0, -1).astype(dtype)
    (loss,) = [signal for signal in MetricIngestor().ingest(made(values)) if signal.kind == "loss"]
    assert loss.values.tolist() == list(range(30, 0, -1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_of_any_width_are_numbers(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    values = torch.arange(30, 0, -1, dtype=getattr(torch, dtype))
    signals = MetricIngestor().ingest({"step": torch.arange(30), "loss": values})
    assert next(signal for signal in signals if signal.kind == "loss").values.tolist() == list(range(30, 0, -1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_jax_arrays_of_any_width_are_numbers(dtype: str) -> None:
    jax = pytest.importorskip("jax.numpy", reason="jax is not installed")
    values = jax.arange(30, 0, -1).astype(dtype)
    signals = MetricIngestor().ingest({"step": jax.arange(30), "loss": values})
    assert next(signal for signal in signals if signal.kind == "loss").values.tolist() == list(range(30, 0, -1))
