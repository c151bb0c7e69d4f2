"""The figures of an evaluation are numbers, whatever they are given as."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from holdfast.errors import ConfigError
from holdfast.run.evaluation import Evaluation


@pytest.mark.parametrize(
    "given",
    [0.5, np.float32(0.5), torch.tensor(0.5), torch.tensor([0.5], requires_grad=True), torch.tensor(1.0) / 2],
)
def test_a_figure_may_be_any_number_even_one_that_has_a_gradient(given: Any) -> None:
    evaluation = Evaluation("held out")
    evaluation.record(loss=given)
    assert evaluation.figures == {"loss": 0.5}


@pytest.mark.parametrize("given", ["0.5", b"0.5", None, torch.ones(2), torch.ones(2, requires_grad=True), [0.5]])
def test_a_figure_that_is_not_a_number_is_refused_by_name(given: Any) -> None:
    with pytest.raises(ConfigError, match="must be a number") as caught:
        Evaluation("held out").record(accuracy=given)
    assert caught.value.where["figure"] == "accuracy"
