"""The numbers a step leaves behind are that step's own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from holdfast.run.gauge import Gauge, on_host, total_norm


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
