from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from holdfast.debug.signals import DistributionSignalExtractor, GradientSignalExtractor, NumericalSignalExtractor
from holdfast.debug.signals.distributions import kl_divergence, ks_statistic, population_stability_index
from holdfast.debug.types import Signal
from holdfast.errors import ConfigError

FINITE = arrays(np.float64, st.integers(2, 40), elements=st.floats(-1e6, 1e6))


def value(signals: list[Signal], name: str, layer: str | None = None) -> float:
    (signal,) = [s for s in signals if s.name == name and s.layer == layer]
    return float(signal.values[0])


def test_gradients_of_a_module_give_a_norm_a_layer_and_one_over_all() -> None:
    module = torch.nn.Linear(3, 2)
    module(torch.ones(4, 3)).sum().backward()
    signals = GradientSignalExtractor(step=7, replica=1).extract(module)
    expected = torch.nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
    assert value(signals, "grad_norm") == pytest.approx(float(expected))
    assert module.weight.grad is not None
    assert value(signals, "grad_norm", "weight") == pytest.approx(float(module.weight.grad.norm()))
    assert all(signal.steps.tolist() == [7] and signal.replica == 1 for signal in signals)


def test_a_parameter_without_gradient_gives_no_gradient_signal() -> None:
    assert GradientSignalExtractor().extract(torch.nn.Linear(2, 2)) == []


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor, lambda a: torch.as_tensor(a).to(torch.bfloat16)])
def test_arrays_of_any_framework_count_their_lost_values(convert: object) -> None:
    raw = np.array([1.0, np.nan, np.inf, -np.inf, 0.0], dtype=np.float32)
    signals = NumericalSignalExtractor().extract({"fc": convert(raw)})  # type: ignore[operator]
    assert (value(signals, "nan_count", "fc"), value(signals, "inf_count", "fc")) == (1, 2)
    assert np.isnan(value(signals, "weight_norm", "fc"))


def test_values_at_the_edge_of_half_precision_are_seen_before_they_overflow() -> None:
    tensor = torch.tensor([60000.0, 1.0, 1e-6, 0.0], dtype=torch.float16)
    signals = NumericalSignalExtractor(what="activation").extract({"fc": tensor})
    assert value(signals, "overflow_share", "fc") == 0.25
    assert value(signals, "underflow_share", "fc") == 0.25
    assert value(signals, "zero_share", "fc") == 0.25
    single = NumericalSignalExtractor().extract({"fc": tensor.float()})
    assert value(single, "overflow_share", "fc") == 0


def test_a_list_of_dicts_is_a_series_over_steps() -> None:
    signals = GradientSignalExtractor().extract([{"step": s, "w": np.full(4, float(s))} for s in (10, 20, 30)])
    (norm,) = [s for s in signals if s.name == "grad_norm" and s.layer == "w"]
    assert norm.steps.tolist() == [10, 20, 30]
    assert norm.values.tolist() == [20, 40, 60]


def test_a_shifted_feature_is_far_from_its_reference_and_the_same_one_is_not() -> None:
    generator = np.random.default_rng(0)
    extractor = DistributionSignalExtractor(reference={"age": generator.normal(0, 1, 4000)})
    same = extractor.extract({"age": generator.normal(0, 1, 4000)})
    moved = extractor.extract({"age": generator.normal(1.5, 1, 4000)})
    assert value(same, "psi", "age") < 0.05
    assert value(moved, "psi", "age") > 0.25
    assert value(moved, "ks", "age") > 0.4
    assert {s.kind for s in moved if s.name in ("kl", "psi", "ks")} == {"distribution"}


def test_reference_and_current_may_come_together() -> None:
    raw = {"reference": {"x": np.arange(50.0)}, "current": {"x": np.arange(50.0) + 100}}
    assert value(DistributionSignalExtractor().extract(raw), "ks", "x") == 1.0


def test_one_bin_is_refused() -> None:
    with pytest.raises(ConfigError):
        DistributionSignalExtractor(bins=1)


@given(FINITE, FINITE)
def test_distances_are_never_negative_and_zero_from_a_sample_to_itself(first: np.ndarray, second: np.ndarray) -> None:
    for distance in (kl_divergence, population_stability_index, ks_statistic):
        assert distance(first, second) >= -1e-12
        assert distance(first, first) == pytest.approx(0.0, abs=1e-12)
    assert 0 <= ks_statistic(first, second) <= 1
    assert ks_statistic(first, second) == pytest.approx(ks_statistic(second, first))


@given(FINITE)
def test_the_gradient_norm_is_the_norm_for_any_finite_array(array: np.ndarray) -> None:
    assert value(GradientSignalExtractor().extract({"w": array}), "grad_norm", "w") == pytest.approx(
        float(np.linalg.norm(array))
    )


@pytest.mark.parametrize(
    "module", [torch.nn.Linear(64, 32), torch.nn.Conv2d(8, 16, 3), torch.nn.LSTM(24, 48), torch.nn.GRU(24, 48)]
)
def test_every_usual_initialisation_has_a_gain_near_one(module: torch.nn.Module) -> None:
    gains = [s for s in NumericalSignalExtractor().extract(module) if s.name == "weight_gain"]
    assert gains
    assert all(s.kind == "weight_gain" and 0.4 < float(s.values[0]) < 1.5 for s in gains)


@given(scale=st.floats(1e-3, 1e3), rows=st.integers(2, 8), columns=st.integers(2, 8))
def test_the_gain_is_the_root_mean_square_times_the_root_of_the_fan_in(scale: float, rows: int, columns: int) -> None:
    signals = NumericalSignalExtractor().extract({"fc": np.full((rows, columns), scale)})
    assert value(signals, "weight_gain", "fc") == pytest.approx(scale * np.sqrt(columns))


def test_a_bias_has_no_gain_and_activations_say_which_statistic_they_are() -> None:
    assert [s for s in NumericalSignalExtractor().extract({"bias": np.ones(4)}) if s.name == "weight_gain"] == []
    (spread,) = [
        s for s in NumericalSignalExtractor(what="activation").extract({"fc": np.ones((2, 2))}) if "std" in s.name
    ]
    assert (spread.kind, spread.metadata["statistic"]) == ("activation", "std")
