"""The random generators of a process: Python's, NumPy's, torch's, and one per accelerator."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["begin_pass", "generator_states", "restore_generators"]


def generator_states() -> dict[str, Any]:
    """Return the state of every global generator of this process, as plain values and tensors."""
    version, words, gauss = random.getstate()
    states: dict[str, Any] = {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "torch": torch.get_rng_state(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        states["numpy"] = {
            "kind": kind,
            "keys": torch.from_numpy(keys.astype("int64")),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_generators(states: dict[str, Any]) -> None:
    """Restore every generator to a state returned by ``generator_states``."""
    python = states["python"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        import numpy

        saved = states["numpy"]
        keys = saved["keys"].numpy().astype("uint32")
        numpy.random.set_state((saved["kind"], keys, saved["position"], saved["has_gauss"], saved["cached"]))
    devices = states.get("cuda")
    if devices is not None and torch.cuda.is_available():
        count = min(len(devices), torch.cuda.device_count())
        for number in range(count):
            torch.cuda.set_rng_state(devices[number], number)


def begin_pass(loader: Any, *, begun: bool) -> Iterator[Any]:
    """Return a loader's batches.

    Args:
        loader: any iterable; torch's own loaders draw from the global generator when a pass begins.
        begun: the pass had begun before its state was restored, so the restored generators had already drawn for it:
            they are put back after this draw.
    """
    states = generator_states() if begun else None
    batches: Iterator[Any] = iter(loader)
    if states is not None:
        restore_generators(states)
    return batches
