"""Differences between what two runs gave: none is missed, and each is named by its path and element."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing.differences import first_difference


@dataclass
class Batch:
    tokens: torch.Tensor
    name: str = "a"


class Pair(NamedTuple):
    left: int
    right: int


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ({"a": 1}, {"b": 1}, "value has the fields ['a'], but ['b']"),
        ({"a": 1, 2: 3}, {"a": 1}, "value has the fields ['a', 2], but ['a']"),
        ({"a": [1, 2]}, {"a": [1]}, "['a'] has 2 items, but 1"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "['a'][1] is 2, but 3"),
        ({"a": 1}, {"a": 1.0}, "['a'] is a int, but a float"),
        ({"a": 0.0}, {"a": -0.0}, "['a'] is 0.0, but -0.0"),
        (
            torch.zeros(2),
            torch.zeros(2, dtype=torch.float64),
            "value is torch.float32 of shape (2,), but torch.float64",
        ),
        (torch.zeros(2), torch.zeros(3), "value is torch.float32 of shape (2,), but torch.float32 of shape (3,)"),
        (torch.zeros(2), torch.tensor([0.0, -0.0]), "[1] is 0.0, but -0.0 after resuming (1 of 2 values differ)"),
        (torch.tensor(1), torch.tensor(2), "value is 1, but 2 after resuming"),
        (torch.zeros(2, dtype=torch.bfloat16), torch.tensor([0, 1e-3]).bfloat16(), "[1] is 0.0, but 0.00099"),
        (torch.zeros(2, 3), torch.eye(2, 3), "[0, 0] is 0.0, but 1.0 after resuming (2 of 6 values differ)"),
        (torch.zeros(2).to_sparse(), torch.ones(2).to_sparse(), "[0] is 0.0, but 1.0"),
        (np.zeros(2), np.ones(2), "[0] is 0.0, but 1.0"),
        (np.zeros(2), np.array([0.0, -0.0]), "[1] is 0.0, but -0.0"),
        (np.zeros(2), np.zeros(2, dtype=np.float32), "value is float64 of shape (2,), but float32"),
        (np.array(["a", None]), np.array(["a", "b"], dtype=object), "[1] is a NoneType, but a str"),
        (np.float32(1), np.float32(2), "value is 1.0, but 2.0"),
        (Batch(torch.zeros(2)), Batch(torch.ones(2)), ".tokens[0] is 0.0, but 1.0"),
        (Pair(1, 2), Pair(1, 3), "[1] is 2, but 3"),
        ("a", "b", "value is 'a', but 'b'"),
    ],
)
def test_a_difference_is_named_by_its_path_and_element(one: Any, other: Any, text: str) -> None:
    found = first_difference(one, other)
    assert found is not None
    assert found.startswith(text)


def test_one_element_of_a_large_tensor_is_named_and_the_rest_not_printed() -> None:
    one = torch.zeros(100, 100, 100)
    other = one.clone()
    other[42, 7, 99] = 1
    assert first_difference({"x": one}, {"x": other}) == (
        "['x'][42, 7, 99] is 0.0, but 1.0 after resuming (1 of 1000000 values differ)"
    )


def everything() -> dict[str, Any]:
    return {
        "plain": [float("nan"), "text", None, b"x", 1 + 2j, {1, 2}],
        "tensors": [torch.tensor([float("nan"), 1.0]), torch.zeros(0), torch.tensor(True), torch.ones(2).to_sparse()],
        "narrow": [torch.ones(3).to(torch.float8_e4m3fn), torch.ones(2, dtype=torch.complex64)],
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "arrays": [np.array([np.nan]), np.array(["a"]), np.zeros(0), np.array([1, "a"], dtype=object)],
        "others": [Batch(torch.ones(2)), Pair(1, 2), np.datetime64("2020-01-01")],
    }


def test_nan_is_nan_and_equal_values_of_every_kind_have_no_difference() -> None:
    assert first_difference(everything(), everything()) is None


@given(st.integers(0, 11), st.sampled_from(["int8", "int64", "float16", "bfloat16", "float32", "float64", "uint8"]))
def test_no_single_changed_element_is_missed_whatever_its_type(place: int, dtype: str) -> None:
    one = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype))
    other = copy.deepcopy(one)
    other[place // 4, place % 4] += 1
    found = first_difference(one, other)
    assert found is not None
    assert found.startswith(f"[{place // 4}, {place % 4}] is ")
    if dtype != "bfloat16":
        assert first_difference(one.numpy(), other.numpy()) == found
