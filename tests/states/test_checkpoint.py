"""A frozen checkpoint with its manifest: whatever a release saved, every later one verifies and loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast import checkpoint

FROZEN = Path(__file__).parent / "v1" / "checkpoint"


def test_the_frozen_checkpoint_verifies_against_its_manifest_and_loads() -> None:
    assert checkpoint.verify_checkpoint(FROZEN, require_manifest=True).sound
    state: dict[str, Any] = {
        "model": {"weight": torch.zeros(2, 3), "large": torch.zeros(5000, dtype=torch.int32)},
        "step": None,
        "rng": None,
    }
    checkpoint.load(state, FROZEN, require_manifest=True)
    assert torch.equal(state["model"]["weight"], torch.arange(6.0).reshape(2, 3))
    assert torch.equal(state["model"]["large"], torch.arange(5000, dtype=torch.int32))
    assert state["step"] == 7
    assert np.array_equal(state["rng"], np.arange(4))


def test_the_frozen_checkpoint_is_found_with_its_step() -> None:
    found = checkpoint.latest_verified(FROZEN.parent)
    assert found is not None
    assert (found.path, found.step) == (FROZEN, 7)
