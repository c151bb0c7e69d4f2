"""The numbers a step leaves behind are that step's own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from holdfast.run.gauge import Gauge, by_layer, on_host, total_norm


@pytest.mark.parametrize("closure", [False, True], ids=["plain", "closure"])
def test_the_gradient_norm_is_that_of_the_step_even_where_a_closure_makes_the_gradient(closure: bool) -> None:
    model = torch.nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    gauge = Gauge(model, [optimizer], grad_norm=True, stats_every=None)
    for scale in (1.0, 5.0, 2.0):

        def make_gradient(scale: float = scale) -> Any:
            optimizer.zero_grad()
            loss = scale * model(torch.ones(1, 3)).sum()
            loss.backward()
            return loss

        if closure:
            optimizer.step(make_gradient)
        else:
            make_gradient()
            optimizer.step()
        norms = gauge.take().norms
        assert norms is not None
        assert total_norm(on_host(norms)) == pytest.approx(scale * 3**0.5)
    gauge.close()


def test_a_norm_that_is_not_a_number_is_not_hidden_behind_an_infinite_one() -> None:
    assert math.isnan(total_norm([1.0, math.inf, math.nan]))
    assert total_norm([3.0, 4.0, math.inf]) == math.inf


def test_gradients_measured_before_clipping_are_not_measured_again_nor_kept_where_the_step_is_left_out() -> None:
    model = torch.nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    gauge = Gauge(model, [optimizer], grad_norm=True, stats_every=None)
    for scale, makes_step in ((1.0, True), (7.0, False), (3.0, True)):  # a gradient scaler leaves a step out
        optimizer.zero_grad()
        (scale * model(torch.ones(1, 3)).sum()).backward()
        gauge.measure_unclipped(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if makes_step:
            optimizer.step()
        norms = gauge.take().norms
        assert (norms is not None) == makes_step
        if norms is not None:
            assert total_norm(on_host(norms)) == pytest.approx(scale * 3**0.5)
    gauge.close()


def test_parameters_without_a_gradient_and_sparse_gradients_are_left_out_and_the_others_keep_their_layers() -> None:
    layers: dict[str, Any] = {
        "words": torch.nn.Embedding(5, 3, sparse=True),
        "frozen": torch.nn.Linear(3, 3).requires_grad_(False),
        "wide": torch.nn.Linear(3, 3, bias=False, dtype=torch.float64),
        "last": torch.nn.Linear(3, 1, bias=False),
    }
    model = torch.nn.ModuleDict(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    gauge = Gauge(model, [optimizer], grad_norm=True, stats_every=1)
    gauge.wants_layers = lambda: True
    hidden = layers["wide"](layers["frozen"](layers["words"](torch.tensor([1, 2]))).double())
    torch.autograd.backward(layers["last"](hidden.float()).sum())
    assert layers["words"].weight.grad.is_sparse
    optimizer.step()
    made = gauge.take()
    assert made.layers == ("wide", "last")
    assert made.norms is not None
    assert made.weights is not None
    measured = {"wide": layers["wide"].weight, "last": layers["last"].weight}
    assert by_layer(made.layers, on_host(made.norms)) == {name: w.grad.norm().item() for name, w in measured.items()}
    assert by_layer(made.layers, on_host(made.weights)) == {name: w.norm().item() for name, w in measured.items()}
    gauge.close()


def test_a_compiled_model_stays_one_graph_and_its_forward_pass_is_seen_all_the_same() -> None:
    model = torch.nn.Linear(3, 1)
    model.compile(backend="eager", fullgraph=True)
    gauge = Gauge(model, [], grad_norm=True, stats_every=None)
    model(torch.ones(1, 3))
    assert gauge.forward_ended > 0.0
    gauge.close()
    seen = gauge.forward_ended
    model(torch.ones(1, 3))
    assert gauge.forward_ended == seen
