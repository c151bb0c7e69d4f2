"""How long the way of a batch through the code is."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import holdfast as hfast

PACKAGE = str(Path(hfast.__file__).parent)
MAX_FUNCTIONS = 49  # it once took 100


def functions_called(loader: hfast.StreamingShardLoader, step: int) -> set[tuple[str, int]]:
    found: set[tuple[str, int]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            found.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        loader.batch_at(step)
    finally:
        sys.setprofile(before)
    return found


def test_a_batch_passes_through_few_functions() -> None:
    tokens = np.arange(8_000).reshape(1_000, 8)
    dataset = hfast.StreamDataset(hfast.ArraySource({"tokens": tokens}), name="wiki", seed=7)
    loader = hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=16, epochs=1))
    called = functions_called(loader, 3)
    assert any("read_batches" in name for name, _ in called)
    assert len(called) <= MAX_FUNCTIONS, sorted(called)
