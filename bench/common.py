"""What every benchmark shares: its two options, alternating rounds, and one JSON object at the end."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any

_spreads: list[float] = []  # of every side that ``alternate`` has timed: its interquartile range over its median


def arguments(description: str, *, parts: Sequence[str] = (), stores: bool = False) -> argparse.Namespace:
    """Parse ``--quick`` and ``--json``.

    Args:
        description: of the benchmark.
        parts: names of parts to which it can be limited.
        stores: also ``--store``, for one that can be made in turns.
    """
    parser = argparse.ArgumentParser(description=description)
    if parts:
        parser.add_argument("parts", nargs="*", default=list(parts), help=f"any of {', '.join(parts)}; default: all")
    if stores:
        parser.add_argument("--store", metavar="FILE", help="keep what is measured there, and measure only what is not")
        parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time of this turn")
    parser.add_argument("--quick", action="store_true", help="smaller inputs and fewer rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    return parser.parse_args()


def alternate(
    sides: Mapping[str, Callable[[], object]], rounds: int = 5, *, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The median seconds of each side, the sides taking turns so that a slow moment of the machine hits them all.

    Pure computation on one thread may pass ``clock=time.process_time``: seconds of CPU, which other work on the machine
    does not lengthen.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            start = clock()
            side()
            taken[name].append(clock() - start)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    if rounds > 1:
        for name, times in taken.items():
            low, _, high = statistics.quantiles(times, n=4, method="inclusive")
            _spreads.append((high - low) / medians[name] if medians[name] else 0.0)
    return medians


def publish(figures: Mapping[str, float], about: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the figures as a table, or as the one JSON object that `make bench` reads."""
    if _spreads:
        middle, most = statistics.median(_spreads), max(_spreads)
        about = {
            **about,
            "spread": f"interquartile range over median {middle:.1%} (maximum {most:.1%}) of what was timed",
        }
    if as_json:
        print(json.dumps({"figures": dict(figures), "about": dict(about)}))
        return
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:>16,.4g}" if abs(value) < 1000 else f"{name:<{width}}  {value:>16,.0f}")
    for name, text in about.items():
        print(f"{name}: {text}")


def let_mosaic_import() -> None:
    """Import MosaicML streaming with empty modules in torchvision's place where that is missing.

    It imports torchvision for datasets of images that no bench reads; everything measured is its own code.
    """
    if find_spec("streaming") is None or find_spec("torchvision") is not None:
        return
    names = ("", ".datasets", ".transforms", ".transforms.functional")
    made = {f"torchvision{name}": types.ModuleType(f"torchvision{name}") for name in names}
    for name, module in made.items():
        module.__spec__ = ModuleSpec(name, None)
    vars(made["torchvision.datasets"])["VisionDataset"] = object
    vars(made["torchvision.transforms.functional"])["to_tensor"] = None
    sys.modules.update(made)
    try:
        import streaming  # noqa: F401
    finally:
        for name in made:
            del sys.modules[name]
