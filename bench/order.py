"""How fast the order is: positions a second, the cost of being far out, and beside the usual ways to shuffle.

Peers, in the same run and taking turns: grain's ``index_shuffle`` (called once an index, as its map-style datasets do),
and a NumPy permutation table (fast to read, but it must be made, held and made anew each epoch).
"""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from common import alternate, arguments, publish
from holdfast.order import Contiguous, Order, Schedule, SourceSpec

WINDOW = 8_192
TABLE = 10**7  # the largest permutation table worth the memory in a benchmark


class Windows:
    """Reads one window after another from an order, as a loader does, and never the same one twice."""

    def __init__(self, order: Order, start: int, count: int) -> None:
        self.order = order
        self.start = start
        self.count = count

    def __call__(self) -> None:
        """Read the next windows."""
        for _ in range(self.count):
            self.order.locate(np.arange(self.start, self.start + WINDOW, dtype=np.int64))
            self.start += WINDOW


def mixture(length: int) -> Order:
    return Order(
        [SourceSpec(f"s{number}", length + number, seed=number) for number in range(8)],
        weights={f"s{number}": 1 + number for number in range(8)},
    )


def grain_side(length: int, count: int) -> tuple[Callable[[], None] | None, str]:
    try:
        import importlib.metadata

        from grain._src.python.experimental.index_shuffle.python import index_shuffle_module as module
    except ImportError as error:
        return None, f"not installed ({error})"
    shuffle = module.index_shuffle

    def side() -> None:
        for index in range(count):
            shuffle(index, max_index=length - 1, seed=7, rounds=4)

    return side, importlib.metadata.version("grain")


def import_milliseconds(statement: str, rounds: int) -> float:
    """Return the median time of an import in a fresh interpreter, by its own clock, without starting Python."""
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    times = []
    for _ in range(rounds):
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        times.append(float(shown) * 1e3)
    return float(np.median(times))


def share_of_a_step(rounds: int) -> tuple[float, float]:
    """Return microseconds and kilobytes of one rank's share of a step at 10^12 samples and 100,000 ranks."""
    order = Order([SourceSpec("a", 10**12)], partition=Contiguous())
    schedule = Schedule.start(order, world_size=100_000, global_batch_size=800_000)
    steps = iter(range(1_000, 10**6))

    def share() -> None:
        order.locate(schedule.positions(next(steps), 77_777))

    share()
    times = []
    for _ in range(20 * rounds):
        start = time.perf_counter()
        share()
        times.append(time.perf_counter() - start)
    tracemalloc.start()
    share()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return float(np.median(times)) * 1e6, peak / 1024


def main() -> None:
    options = arguments(__doc__ or "")
    rounds = 5 if options.quick else 15
    count = 8 if options.quick else 40
    figures: dict[str, float] = {}
    about: dict[str, Any] = {"window": WINDOW, "rounds": rounds, "numpy": np.__version__}

    sides: dict[str, Callable[[], object]] = {
        "1e5": Windows(Order([SourceSpec("a", 10**5, seed=7)]), 0, count),
        "1e9": Windows(Order([SourceSpec("a", 10**9, seed=7)]), 0, count),
        "1e12": Windows(Order([SourceSpec("a", 10**12, seed=7)]), 0, count),
        "mixture_of_8": Windows(mixture(10**9), 0, count),
        "far_1e12": Windows(Order([SourceSpec("a", 10**9, seed=7)]), 10**12, count),
        "mixture_far_1e12": Windows(mixture(10**9), 10**12, count),
    }
    grain, version = grain_side(10**9, WINDOW)
    about["grain"] = version
    if grain is not None:
        sides["grain"] = grain
    generator = np.random.default_rng(7)
    made = time.perf_counter()
    table = generator.permutation(TABLE)
    made = time.perf_counter() - made
    places = np.arange(WINDOW)

    def read_table() -> None:
        for number in range(count):
            table[places + number * WINDOW]

    sides["numpy_table"] = read_table
    for side in sides.values():
        side()  # warm caches and code alike
    seconds = alternate(sides, rounds)

    def rate(name: str, windows: int = count) -> float:
        return windows * WINDOW / seconds[name]

    for name in ("1e5", "1e9", "1e12", "mixture_of_8"):
        figures[f"positions_per_second_{name}"] = rate(name)
    figures["cost_at_1e12_over_cost_at_0"] = seconds["far_1e12"] / seconds["1e9"]
    figures["mixture_cost_at_1e12_over_cost_at_0"] = seconds["mixture_far_1e12"] / seconds["mixture_of_8"]
    if grain is not None:
        figures["grain_indices_per_second_1e9"] = rate("grain", 1)
        figures["times_grain"] = rate("1e9") / rate("grain", 1)
    figures["numpy_table_reads_per_second"] = rate("numpy_table")
    figures["numpy_table_bytes_per_sample"] = float(table.itemsize)
    # What an epoch of a table really costs: drawing it, then reading it once.
    whole = made + TABLE / rate("numpy_table")
    figures["numpy_table_samples_per_second_made_and_read"] = TABLE / whole
    figures["times_numpy_table_made_and_read"] = rate("1e9") / (TABLE / whole)
    about["numpy_table"] = f"{TABLE:,} samples, drawn once in {made:.2f} s"
    figures["share_of_a_step_microseconds"], figures["share_of_a_step_kilobytes"] = share_of_a_step(rounds)
    about["share_of_a_step"] = "one rank of 100,000, Contiguous, 10^12 samples"
    figures["import_holdfast_milliseconds"] = import_milliseconds("import holdfast", rounds)
    figures["import_holdfast_order_milliseconds"] = import_milliseconds("import holdfast.order", rounds)
    publish(figures, about, as_json=options.json)


if __name__ == "__main__":
    main()
