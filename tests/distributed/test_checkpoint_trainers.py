"""FSDP checkpoints of two ranks, loaded by Accelerate's and Lightning's own code through the reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.forking import torchrun

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300), pytest.mark.soak]

PARTS = 28
"""What each rank reads: its parts of the parameters and moments, and the steps and options of the optimizer."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("trainers")
    torchrun(2, "tests.distributed.checkpoint_trainers_worker", str(folder))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_model_and_optimizer_are_restored_on_every_rank_through_the_reader(
    found: list[dict[str, Any]], library: str
) -> None:
    assert [rank[library]["equal"] for rank in found] == [True, True]
    assert [rank[library]["items"] for rank in found] == [PARTS, PARTS]


@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_damage_is_refused_on_every_rank(found: list[dict[str, Any]], library: str) -> None:
    assert [rank[library]["refused"] for rank in found] == [["CorruptRecordError"]] * 2
