"""The random generators of a process: Python's, NumPy's, torch's, and one per accelerator."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from holdfast.errors import RunMismatchError

__all__ = ["begin_pass", "generator_states", "restore_generators"]

_TWISTER = "MT19937"
_DTYPE = "dtype"


def generator_states() -> dict[str, Any]:
    """Return the state of every global generator of this process, as plain values and tensors."""
    version, words, gauss = random.getstate()
    states: dict[str, Any] = {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "torch": torch.get_rng_state(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = _numpy_state(numpy)
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

        _restore_numpy(numpy, states["numpy"])
    devices = states.get("cuda")
    if devices is not None and torch.cuda.is_available():
        count = min(len(devices), torch.cuda.device_count())
        for number in range(count):
            torch.cuda.set_rng_state(devices[number], number)


def _numpy_state(numpy: Any) -> dict[str, Any]:
    """Return the state of NumPy's global generator: a Mersenne twister, unless the program chose another."""
    state = numpy.random.get_state(legacy=False)
    kind = state["bit_generator"]
    if kind != _TWISTER:
        return {"kind": kind, "state": _without_arrays(numpy, state)}
    return {
        "kind": kind,
        "keys": torch.from_numpy(state["state"]["key"].astype("int64")),
        "position": int(state["state"]["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "cached": float(state["gauss"]),
    }


def _restore_numpy(numpy: Any, saved: dict[str, Any]) -> None:
    kind = saved["kind"]
    if numpy.random.get_state(legacy=False)["bit_generator"] != kind:
        make = getattr(numpy.random, kind, None)
        if make is None:
            raise RunMismatchError(
                "the run was saved with a bit generator that NumPy does not provide",
                found=numpy.random.get_state(legacy=False)["bit_generator"],
                expected=kind,
                hint="call numpy.random.set_bit_generator as in the program that started the run",
            )
        numpy.random.set_bit_generator(make())
    if "state" in saved:
        numpy.random.set_state(_with_arrays(numpy, saved["state"]))
        return
    keys = saved["keys"].numpy().astype("uint32")
    numpy.random.set_state((kind, keys, saved["position"], saved["has_gauss"], saved["cached"]))


def _without_arrays(numpy: Any, value: Any) -> Any:
    """Return a nested state with plain numbers only: arrays become their element type and values."""
    if isinstance(value, dict):
        return {name: _without_arrays(numpy, each) for name, each in value.items()}
    if isinstance(value, numpy.ndarray):
        return {_DTYPE: value.dtype.str, "values": value.tolist()}
    return value.item() if isinstance(value, numpy.generic) else value


def _with_arrays(numpy: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if _DTYPE in value:
        return numpy.array(value["values"], dtype=value[_DTYPE])
    return {name: _with_arrays(numpy, each) for name, each in value.items()}


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
