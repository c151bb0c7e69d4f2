"""Run every benchmark of this folder in sequence and write RESULTS.md: one table per benchmark, the headlines as plots.

A benchmark that fails becomes a line that says so; the others still run, and the exit code tells.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from charts import draw_bars

HERE = Path(__file__).resolve().parent
TIMEOUT = 3_600.0
# In full, each of these takes longer than all the others together; ``--whole`` runs them in full.
LONG = frozenset(("blame", "coordinate_scale", "trainers"))
COMPARED = ("torch", "numpy", "pyarrow", "torchdata", "grain", "litdata", "mosaicml-streaming", "webdataset")


@dataclass(frozen=True, slots=True)
class Headline:
    """A comparison of which RESULTS.md shows a plot.

    Attributes:
        title: what is compared, and in which unit.
        benchmark: whose figures.
        pattern: of the figures' names; its group is the label of the bar.
        names: labels that are not the group itself.
        log: draw it on a logarithmic scale.
    """

    title: str
    benchmark: str
    pattern: str
    names: dict[str, str] = field(default_factory=dict)
    log: bool = False

    def values(self, figures: dict[str, float]) -> dict[str, float]:
        """Return the bars that the figures have, by label, holdfast's first."""
        found = ((re.fullmatch(self.pattern, name), value) for name, value in figures.items())
        bars = {self.names.get(match[1], match[1]): value for match, value in found if match is not None and value > 0}
        return dict(sorted(bars.items(), key=lambda bar: not bar[0].startswith("holdfast")))


HEADLINES = (
    Headline(
        "first batch after resuming halfway through 10⁷ samples, ms: lower is better",
        "resume",
        r"(.*): first batch at half of N=1e7, ms",
        log=True,
    ),
    Headline("shuffled token batches, samples/s: higher is better", "stream", r"tokens: (.*), samples/s", log=True),
    Headline(
        "restore of a distributed checkpoint in 8 files, GB/s: higher is better",
        "checkpoint_load",
        r"8 files, (stock|off|crc|raw): GB/s",
        {
            "stock": "torch's reader",
            "off": "holdfast, not verified",
            "crc": "holdfast, every CRC checked",
            "raw": "plain reads",
        },
    ),
    Headline(
        "metric updates of all six types, per second: higher is better",
        "metrics",
        r"all_six_types_(.*)_updates_per_second",
        {
            "columnar": "holdfast, by column",
            "per_sample": "holdfast, per sample",
            "deque": "a dict and a deque per sample",
        },
        log=True,
    ),
    Headline(
        "runs of the fault lab, share: failures named, true cause first, false alarms",
        "debug",
        r"report_(recall|cause_top1|false_alarms)",
        {"recall": "holdfast: failures named", "cause_top1": "true cause first", "false_alarms": "false alarms"},
    ),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one benchmark."""

    name: str
    title: str
    seconds: float
    quick: bool = False
    figures: dict[str, float] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None


def is_benchmark(script: Path) -> bool:
    """Return whether a script publishes figures; the others draw pictures or are parts of benchmarks."""
    imports = (
        node for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    )
    return any(node.module == "common" and any(name.name == "publish" for name in node.names) for node in imports)


def title_of(script: Path) -> str:
    """Return the first line of the script's docstring."""
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or script.stem
    return text.splitlines()[0]


def run_one(script: Path, *, quick: bool, timeout: float) -> Outcome:
    """Run one benchmark in its own process and read the object it prints last."""
    command = [sys.executable, str(script), "--json", *(["--quick"] if quick else [])]
    start = time.perf_counter()

    def outcome(**what: Any) -> Outcome:
        return Outcome(script.stem, title_of(script), time.perf_counter() - start, quick, **what)

    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return outcome(failure=f"not finished after {timeout:.0f} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return outcome(failure=f"exit code {done.returncode}: {lines[-1]}")
    try:
        found = json.loads(done.stdout.strip().splitlines()[-1])
        return outcome(figures=found["figures"], about=found.get("about", {}))
    except (json.JSONDecodeError, IndexError, KeyError, TypeError):
        return outcome(failure="its last line is not a JSON object with figures")


def shown(value: object) -> str:
    """Return a figure with as many digits as it deserves."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def machine() -> str:
    """Return what the figures were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB, "
        f"Python {platform.python_version()}"
    )


def versions() -> str:
    """Return the versions of what is compared, where it is installed."""
    found = []
    for name in ("holdfast", *COMPARED):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:  # noqa: PERF203
            found.append(f"{name} not installed")
    return ", ".join(found)


def draw_headlines(outcomes: list[Outcome], folder: Path) -> list[str]:
    """Draw every headline that was measured; returns the lines that show them."""
    figures = {one.name: one.figures for one in outcomes}
    lines = []
    for number, headline in enumerate(HEADLINES, 1):
        values = headline.values(figures.get(headline.benchmark, {}))
        if values:
            folder.mkdir(exist_ok=True)
            name = f"{number}-{headline.benchmark}.svg"
            (folder / name).write_text(draw_bars(values, title=headline.title, log=headline.log), encoding="utf-8")
            lines += [f"![{headline.title}]({folder.name}/{name})", ""]
    return lines


def report(outcomes: list[Outcome], *, plots: list[str]) -> str:
    """Return RESULTS.md."""
    minutes = sum(one.seconds for one in outcomes) / 60
    quick = [one.name for one in outcomes if one.quick]
    lines = [
        "# Results",
        "",
        f"Written by `make bench` on {time.strftime('%Y-%m-%d', time.gmtime())} in {minutes:.0f} minutes: {machine()}."
        + (f" Smaller inputs and fewer rounds (`--quick`): {', '.join(quick)}." if quick else ""),
        f"Versions: {versions()}.",
        "Both sides of every comparison ran in the same run, taking turns; figures are medians.",
        "",
        *plots,
    ]
    for one in outcomes:
        lines += [f"## {one.name}", "", one.title, "", "| figure | value |", "| --- | ---: |"]
        if one.failure is not None:
            lines.append(f"| failed | {one.failure.replace('|', '/')} |")
        lines += [f"| {name.replace('_', ' ')} | {shown(value)} |" for name, value in one.figures.items()]
        lines.append("")
        for name, value in one.about.items():
            lines.append(f"- {name.replace('_', ' ')}: {value}")
        lines += [f"- took: {one.seconds:.0f} s", ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller inputs and fewer rounds")
    parser.add_argument("--whole", action="store_true", help=f"run {', '.join(sorted(LONG))} in full too")
    parser.add_argument("--only", nargs="*", default=None, metavar="NAME", help="run these benchmarks only")
    parser.add_argument("--output", type=Path, default=HERE / "RESULTS.md")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds for each benchmark")
    options = parser.parse_args()
    scripts = [script for script in sorted(HERE.glob("*.py")) if is_benchmark(script)]
    if options.only is not None:
        unknown = set(options.only) - {script.stem for script in scripts}
        if unknown:
            parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
        scripts = [script for script in scripts if script.stem in options.only]
    outcomes = []
    for script in scripts:
        print(f"{script.stem} …", flush=True)
        quick = options.quick or (script.stem in LONG and not options.whole)
        outcome = run_one(script, quick=quick, timeout=options.timeout)
        print(f"  {outcome.failure or f'{len(outcome.figures)} figures'}, {outcome.seconds:.0f} s", flush=True)
        outcomes.append(outcome)
    plots = draw_headlines(outcomes, options.output.parent / "results")
    options.output.write_text(report(outcomes, plots=plots), encoding="utf-8")
    print(f"written to {options.output}")
    return 1 if any(outcome.failure for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
