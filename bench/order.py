"""How fast the order is, near and far out, how even its mixtures are, and how it compares with the usual shuffles.

Peers, in the same run and taking turns: grain's ``index_shuffle`` (called once an index, as its map-style datasets do),
and a NumPy permutation table (fast to read, but it must be made, held and made again each epoch).
"""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from common import alternate, arguments, publish
from holdfast.order import Contiguous, Order, Schedule, SourceSpec

WINDOW = 8_192
WINDOWS = 4  # that a side reads when it is its turn


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


def mixture(length: int, arrangement: Literal["even", "blocks"] = "even") -> Order:
    return Order(
        [SourceSpec(f"s{number}", length + number, seed=number) for number in range(8)],
        weights={f"s{number}": 1 + number for number in range(8)},
        arrangement=arrangement,
    )


def largest_deviation(order: Order, count: int) -> float:
    """Return how far, after any of the first positions, a source of the mixture stands from its weight."""
    source = order.locate(np.arange(count)).source
    places = np.arange(1, count + 1)
    ahead = [np.cumsum(source == number) - places * (1 + number) / 36 for number in range(8)]
    return float(np.abs(ahead).max())


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
    for _ in range(5 * rounds):
        start = time.process_time()
        share()
        times.append(time.process_time() - start)
    tracemalloc.start()
    share()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return float(np.median(times)) * 1e6, peak / 1024


def one_epoch(length: int, rounds: int) -> dict[str, float]:
    """Return the seconds of a whole epoch in windows: computed by the order, or drawn as a table and read from it."""
    order = Order([SourceSpec("a", length, seed=7)])
    generator = np.random.default_rng(7)

    def computed() -> None:
        for start in range(0, length, WINDOW):
            order.locate(np.arange(start, min(start + WINDOW, length), dtype=np.int64))

    def drawn() -> None:
        table = generator.permutation(length)
        for start in range(0, length, WINDOW):
            table[np.arange(start, min(start + WINDOW, length), dtype=np.int64)]

    return alternate({"order": computed, "table": drawn}, rounds, clock=time.process_time)


def main() -> None:
    options = arguments(__doc__ or "")
    rounds = 15 if options.quick else 101
    figures: dict[str, float] = {}
    about: dict[str, Any] = {"window": WINDOW, "rounds": rounds, "numpy": np.__version__}
    about["clock"] = "seconds of CPU of one thread (imports: wall clock)"

    # Sides are short and take turns often, so that a busy moment of the machine falls on all of them.
    sides: dict[str, Callable[[], object]] = {
        "1e5": Windows(Order([SourceSpec("a", 10**5, seed=7)]), 0, WINDOWS),
        "1e9": Windows(Order([SourceSpec("a", 10**9, seed=7)]), 0, WINDOWS),
        "1e12": Windows(Order([SourceSpec("a", 10**12, seed=7)]), 0, WINDOWS),
        "far_1e12": Windows(Order([SourceSpec("a", 10**9, seed=7)]), 10**12, WINDOWS),
        "mixture_of_8": Windows(mixture(10**9), 0, WINDOWS),
        "mixture_far_1e12": Windows(mixture(10**9), 10**12, WINDOWS),
        "mixture_of_8_in_blocks": Windows(mixture(10**9, "blocks"), 0, WINDOWS),
    }
    grain, version = grain_side(10**9, WINDOW)
    about["grain"] = version
    if grain is not None:
        sides["grain"] = grain
    for side in sides.values():
        side()  # warm caches and code alike
    seconds = alternate(sides, rounds, clock=time.process_time)

    for name in ("1e5", "1e9", "1e12", "mixture_of_8"):
        figures[f"positions_per_second_{name}"] = WINDOWS * WINDOW / seconds[name]
    figures["cost_at_1e12_over_cost_at_0"] = seconds["far_1e12"] / seconds["1e9"]
    figures["mixture_cost_over_cost_in_blocks"] = seconds["mixture_of_8"] / seconds["mixture_of_8_in_blocks"]
    figures["mixture_largest_deviation"] = largest_deviation(mixture(10**9), 10**6)
    figures["mixture_largest_deviation_in_blocks"] = largest_deviation(mixture(10**9, "blocks"), 10**6)
    about["mixture"] = "8 sources with weights 1 … 8; deviation in samples after any of the first 10^6 positions"
    figures["mixture_cost_at_1e12_over_cost_at_0"] = seconds["mixture_far_1e12"] / seconds["mixture_of_8"]
    if grain is not None:
        figures["grain_indices_per_second_1e9"] = WINDOW / seconds["grain"]
        figures["times_grain"] = figures["positions_per_second_1e9"] / figures["grain_indices_per_second_1e9"]
    length = 10**6 if options.quick else 10**7
    epoch = one_epoch(length, 5)
    about["epoch"] = f"{length:,} samples in windows; the table is drawn by numpy and takes {8 * length:,} bytes"
    figures["epoch_computed_seconds"] = epoch["order"]
    figures["epoch_from_numpy_table_seconds"] = epoch["table"]
    figures["times_numpy_table"] = epoch["table"] / epoch["order"]
    figures["share_of_a_step_microseconds"], figures["share_of_a_step_kilobytes"] = share_of_a_step(rounds)
    about["share_of_a_step"] = "one rank of 100,000, Contiguous, 10^12 samples"
    figures["import_holdfast_milliseconds"] = import_milliseconds("import holdfast", 7)
    figures["import_holdfast_order_milliseconds"] = import_milliseconds("import holdfast.order", 7)
    publish(figures, about, as_json=options.json)


if __name__ == "__main__":
    main()
