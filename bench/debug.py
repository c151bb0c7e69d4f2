"""How fast the debugger is: from a file to a report, points per second through the detectors, memory, a live step.

The peers are what people write by hand: pandas to read the file, a rolling mean and standard deviation, and an alarm
beyond six of them. That sees one thing where the detectors see fifteen; it is here for scale. Where the fault lab's
runs are cached, their figures are published too (``python -m bench.faultlab generate`` makes them).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

from common import alternate, arguments, publish
from holdfast.debug import MLSystemsDebugger, Reporter
from holdfast.debug.detectors import default_detectors
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.online import OnlineDebugger
from holdfast.debug.types import DetectionContext, Signal

KINDS = (
    ("loss", "loss"),
    ("eval_loss", "eval_loss"),
    ("grad_norm", "grad_norm"),
    ("lr", "lr"),
    ("loss_scale", "loss_scale"),
    ("skipped", "skipped"),
    ("step_time", "step_time"),
    ("data_time", "data_time"),
    ("throughput", "throughput"),
    ("weight_norm", "weight_norm"),
    ("update_norm", "update_norm"),
    ("accuracy", "metric"),
)


def make_signals(steps: int) -> list[Signal]:
    """Twenty series of a healthy run."""
    generator = np.random.default_rng(0)
    places = np.arange(steps, dtype=np.float64)
    descent = np.exp(-places / steps * 5)
    names = [*KINDS, *((f"grad_norm/layer{n}", "grad_norm") for n in range(20 - len(KINDS)))]
    signals = []
    for name, kind in names:
        if kind in ("loss", "eval_loss"):
            values = 1.5 + 3 * descent + 0.05 * generator.standard_normal(steps)
        elif kind == "metric":
            values = 1 - descent + 0.01 * generator.standard_normal(steps)
        elif kind == "loss_scale":
            values = np.full(steps, 65536.0)
        elif kind == "skipped":
            values = np.zeros(steps)
        else:
            values = (0.05 if kind == "data_time" else 1.0) * np.exp(0.1 * generator.standard_normal(steps))
        layer = name.split("/")[1] if "/" in name else None
        signals.append(Signal(name, places, values, layer=layer, metadata={"kind": kind}))
    return signals


def rolling_alarms(signals: list[Signal]) -> int:
    """The peer: rolling mean and deviation of every series."""
    import pandas as pd

    alarms = 0
    for signal in signals:
        series = pd.Series(signal.values)
        rolling = series.rolling(200, min_periods=50)
        alarms += int(((series - rolling.mean()).abs() > 6 * rolling.std()).sum())
    return alarms


def detect(signals: list[Signal]) -> int:
    """Every detector over what it reads."""
    found = 0
    for detector in default_detectors():
        own = [signal for signal in signals if signal.kind in detector.get_required_signals()]
        found += len(detector.detect(own, DetectionContext()).detections)
    return found


def peak_bytes(call: Callable[[], object]) -> int:
    """The largest amount of memory a call had allocated at once."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def online_seconds(steps: int) -> tuple[float, float]:
    """Wall and CPU seconds per step of feeding twenty signals, looks included."""
    rows = [
        dict(zip((s.name for s in signals), (float(s.values[n]) for s in signals), strict=True))
        for signals in [make_signals(steps)]
        for n in range(steps)
    ]
    online = OnlineDebugger()
    wall, work = time.perf_counter(), time.process_time()
    for step, row in enumerate(rows):
        online.update(step, row)
    return (time.perf_counter() - wall) / steps, (time.process_time() - work) / steps


def write_logs(folder: Path, signals: list[Signal], name: str = "log") -> tuple[Path, Path]:
    """The same run as JSON lines and as CSV."""
    lines, table = folder / f"{name}.jsonl", folder / f"{name}.csv"
    names = [signal.name for signal in signals]
    form = '{"step": %d, ' + ", ".join(f'"{name}": %r' for name in names) + "}\n"
    row = "%d" + ",%r" * len(names) + "\n"
    columns = [signal.values.tolist() for signal in signals]
    with lines.open("w") as json_file, table.open("w") as csv_file:
        csv_file.write(",".join(["step", *names]) + "\n")
        for step, values in enumerate(zip(*columns, strict=True)):
            json_file.write(form % (step, *values))
            csv_file.write(row % (step, *values))
    return lines, table


def to_report(path: Path) -> str:
    """What `holdfast debug --format json` does."""
    report = MLSystemsDebugger(plugins=False).debug(path)
    assert report.verdict.value == "healthy", "the benchmark's run is healthy"
    return Reporter().render(report, "json")


def by_hand(path: Path) -> int:
    """The peer: read with pandas, then look for what stands out."""
    import pandas as pd

    frame = pd.read_json(path, lines=True) if path.suffix == ".jsonl" else pd.read_csv(path)
    rolling = frame.rolling(200, min_periods=50)
    return int(((frame - rolling.mean()).abs() > 6 * rolling.std()).to_numpy().sum())


_MEMORY = """
import json, re, sys
from pathlib import Path
from holdfast.debug import MLSystemsDebugger
debugger = MLSystemsDebugger(plugins=False)
peaks = []
for path in sys.argv[1:]:
    debugger.debug(Path(path))
    status = Path("/proc/self/status").read_text()
    peaks.append(int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) * 1024)
print(json.dumps(peaks))
"""


def peak_growth(small: Path, large: Path) -> float:
    """Bytes of memory a process grows by when it reads the large file after the small one."""
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(small), str(large)], capture_output=True, text=True, check=True, timeout=300
    )
    before, after = json.loads(done.stdout)
    return float(after - before)


TEXT_LINE = "step %7d | loss: %.6f | grad_norm: %.4f | lr: %.3e | tok/s: %9.1f | dt: %6.2f ms\n"
_READ_TEXT = """
import json, re, sys, time
from pathlib import Path
from holdfast.debug import MLSystemsDebugger
told = []
debugger = MLSystemsDebugger(plugins=False)
wall, work = time.perf_counter(), time.process_time()
(log,) = debugger.read(sys.argv[1], progress=told.append)
read = time.process_time() - work
verdict = debugger.diagnose(log).verdict.value
status = Path("/proc/self/status").read_text()
print(json.dumps({
    "points": len(log.signals[0].values), "verdict": verdict, "bytes_told": sum(told), "times_told": len(told),
    "wall": time.perf_counter() - wall, "read": read, "work": time.process_time() - work,
    "peak": int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) * 1024,
}))
"""


def plain_text(megabytes: int) -> dict[str, float]:
    """A long log of plain text lines: how fast it is read and judged, the memory it takes, the progress it tells."""
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        path, step, written = Path(name) / "train.log", 0, 0
        with path.open("w") as stream:
            while written < megabytes * 1_000_000:
                noise = generator.standard_normal((20_000, 2))
                lines = [
                    TEXT_LINE % (step + n, 2.0 + 8.0 / (1 + (step + n) / 1e4) + 0.05 * a, 1 + 0.1 * b, 3e-4, 1e5, 12.5)
                    for n, (a, b) in enumerate(noise.tolist())
                ]
                written += stream.write("".join(lines))
                step += len(lines)
        command = [sys.executable, "-c", _READ_TEXT, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=800)
        size = path.stat().st_size
    found = json.loads(done.stdout)
    assert found["verdict"] == "healthy"
    assert found["points"] == step, "every line is read"
    assert found["bytes_told"] == size, "the progress bar reaches the end"
    return {
        "text_megabytes": size / 1e6,
        "text_steps": float(step),
        "text_megabytes_per_second": size / 1e6 / found["wall"],
        "text_megabytes_per_cpu_second": size / 1e6 / found["work"],
        "text_read_megabytes_per_cpu_second": size / 1e6 / found["read"],
        "text_peak_megabytes": found["peak"] / 1e6,
        "text_progress_steps": float(found["times_told"]),
    }


def watching(folder: Path, signals: list[Signal]) -> dict[str, float]:
    """What a look at a growing log costs after a long run: seconds of CPU, and bytes read of those that were new."""
    rows = 30_000
    lines, _ = write_logs(folder, [Signal(s.name, s.steps[:rows], s.values[:rows]) for s in signals], "grown")
    text = lines.read_bytes().splitlines(keepends=True)
    growing = folder / "growing.jsonl"
    growing.write_bytes(b"".join(text[: len(text) - 500]))
    follower = OnlineDebugger(MLSystemsDebugger(plugins=False), paths=[growing])
    follower.look()
    costs, ratios = [], []
    with growing.open("ab", buffering=0) as stream:
        for start in range(len(text) - 500, len(text), 50):
            new = stream.write(b"".join(text[start : start + 50]))
            before, clock = follower.bytes_read, time.process_time()
            follower.look()
            costs.append(time.process_time() - clock)
            ratios.append((follower.bytes_read - before) / new)
    return {
        "watch_look_cpu_milliseconds": 1e3 * statistics.median(costs),
        "watch_bytes_read_per_new_byte": statistics.median(ratios),
    }


def from_files(signals: list[Signal], steps: int, rounds: int) -> dict[str, float]:
    """From a file on disk to a rendered report, beside pandas on a tenth of the rows, and the memory it takes."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        lines, table = write_logs(folder, signals)
        tenth = [Signal(s.name, s.steps[: steps // 10], s.values[: steps // 10]) for s in signals]
        short_lines, short_table = write_logs(folder, tenth, "tenth")
        few = [Signal(s.name, s.steps[:1000], s.values[:1000]) for s in signals]
        few_lines, few_table = write_logs(folder, few, "few")
        sides: dict[str, Callable[[], object]] = {
            "jsonl": lambda: to_report(lines),
            "csv": lambda: to_report(table),
            "jsonl_tenth": lambda: to_report(short_lines),
            "csv_tenth": lambda: to_report(short_table),
        }
        try:
            import pandas  # noqa: F401

            sides |= {"jsonl_by_hand": lambda: by_hand(short_lines), "csv_by_hand": lambda: by_hand(short_table)}
        except ImportError:
            pass
        seconds = alternate(sides, rounds)
        for form, path in (("jsonl", lines), ("csv", table)):
            clock = time.process_time()
            to_report(path)
            figures[f"million_step_{form}_to_report_seconds"] = seconds[form] * 1_000_000 / steps
            figures[f"million_step_{form}_to_report_cpu_seconds"] = (time.process_time() - clock) * 1_000_000 / steps
            figures[f"{form}_megabytes_per_second"] = path.stat().st_size / 1e6 / seconds[form]
            if f"{form}_by_hand" in seconds:
                figures[f"{form}_to_report_over_by_hand"] = seconds[f"{form}_by_hand"] / seconds[f"{form}_tenth"]
        for form, small, middle, large in (
            ("jsonl", few_lines, short_lines, lines),
            ("csv", few_table, short_table, table),
        ):
            for path, rows in ((middle, steps // 10), (large, steps)):
                growth = peak_growth(small, path) / path.stat().st_size
                figures[f"peak_memory_per_{form}_byte_{rows}_steps"] = growth
        figures |= watching(folder, signals)
    return figures


PARTS = ("detectors", "files", "text", "online", "lab")


def detector_speed(steps: int, rounds: int) -> tuple[dict[str, float], str]:
    """Points per second through the detectors beside the peer, and the memory they take; the peer's name."""
    signals = make_signals(steps)
    points = float(sum(len(signal.values) for signal in signals))
    assert detect(signals) == 0, "the benchmark's run is healthy"
    debugger = MLSystemsDebugger(plugins=False)
    log = RunLog("memory", "signals", tuple(signals))
    sides: dict[str, Callable[[], object]] = {
        "detectors": lambda: detect(signals),
        "debugger": lambda: debugger.diagnose(log),
    }
    try:
        import pandas as pd

        peer = f"pandas {pd.__version__} rolling mean and deviation"
        sides["rolling"] = lambda: rolling_alarms(signals)
    except ImportError:
        peer = "pandas is not installed: no peer measured"
    seconds = alternate(sides, rounds)
    work = time.process_time()
    detect(signals)
    work = time.process_time() - work
    figures = {
        "detector_points_per_second": points / seconds["detectors"],
        "detector_points_per_cpu_second": points / work,
        "million_steps_twenty_metrics_seconds": seconds["debugger"] * 1_000_000 / steps,
    }
    if "rolling" in seconds:
        figures["rolling_points_per_second"] = points / seconds["rolling"]
        figures["detectors_over_rolling"] = seconds["rolling"] / seconds["detectors"]
    for size in (steps // 100, steps // 10, steps):
        part = make_signals(size)
        held = float(sum(signal.values.nbytes for signal in part))
        figures[f"peak_bytes_per_input_byte_{size}_steps"] = peak_bytes(lambda part=part: detect(part)) / held  # type: ignore[misc]
    return figures, peer


def online_cost(steps: int, rounds: int) -> dict[str, float]:
    """What one step of a live run costs."""
    costs = [online_seconds(steps) for _ in range(rounds)]
    return {
        "online_microseconds_per_step": 1e6 * sorted(wall for wall, _ in costs)[len(costs) // 2],
        "online_cpu_microseconds_per_step": 1e6 * sorted(work for _, work in costs)[len(costs) // 2],
    }


def fault_lab() -> tuple[dict[str, float], str]:
    """The figures of the fault lab, where its runs are cached, and what they are of."""
    # The fault lab is a package run as `python -m bench.faultlab`: its imports begin at the project's root.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from bench.faultlab.generate import default_folder

    if len(list(default_folder().glob("*/label.json"))) < 400:
        return {}, "not cached: run `python -m bench.faultlab generate`"
    from bench.faultlab.score import lab_figures

    about = "the reporting half: other model families and other data than rules, thresholds and tables were fitted on"
    return lab_figures(default_folder(), "report"), about


def main() -> None:
    options = arguments(__doc__ or "", parts=PARTS)
    steps = 100_000 if options.quick else 1_000_000
    rounds = 3 if options.quick else 5
    figures: dict[str, float] = {}
    about: dict[str, object] = {"steps": steps, "signals": 20}
    if "detectors" in options.parts:
        speed, about["peer"] = detector_speed(steps, rounds)
        figures |= speed
    if "files" in options.parts:
        figures |= from_files(make_signals(steps), steps, rounds)
    if "text" in options.parts:
        figures |= plain_text(20 if options.quick else 500)
    if "online" in options.parts:
        figures |= online_cost(2_000 if options.quick else 20_000, rounds)
    if "lab" in options.parts and not options.quick:
        lab, about["fault_lab"] = fault_lab()
        figures |= lab
    publish(figures, about, as_json=options.json)


if __name__ == "__main__":
    main()
