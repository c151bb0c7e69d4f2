"""Run every benchmark of this folder in sequence and write RESULTS.md: one table per benchmark.

A benchmark that fails becomes a line that says so; the others still run, and the exit code tells.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NOT_BENCHMARKS = {"remote_server.py", "common.py", "run_all.py", "screenshots.py", "stream_peers.py", "trainers_ray.py"}
TIMEOUT = 3_600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one benchmark."""

    name: str
    title: str
    seconds: float
    figures: dict[str, float] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None


def title_of(script: Path) -> str:
    """Return the first line of the script's docstring."""
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or script.stem
    return text.splitlines()[0]


def run_one(script: Path, *, quick: bool, timeout: float) -> Outcome:
    """Run one benchmark in its own process and read the object it prints last."""
    command = [sys.executable, str(script), "--json", *(["--quick"] if quick else [])]
    start = time.perf_counter()

    def outcome(**what: Any) -> Outcome:
        return Outcome(script.stem, title_of(script), time.perf_counter() - start, **what)

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
        return outcome(failure="its last line is no object with figures")


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


def report(outcomes: list[Outcome], *, quick: bool) -> str:
    """Return RESULTS.md."""
    lines = [
        "# Results",
        "",
        f"Written by `make bench` on {time.strftime('%Y-%m-%d', time.gmtime())}: {machine()}."
        + (" Quick run: smaller inputs, fewer rounds." if quick else ""),
        "Both sides of every comparison ran in the same run, taking turns; figures are medians.",
        "",
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
    parser.add_argument("--only", nargs="*", default=None, metavar="NAME", help="run these benchmarks only")
    parser.add_argument("--output", type=Path, default=HERE / "RESULTS.md")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds for each benchmark")
    options = parser.parse_args()
    scripts = [script for script in sorted(HERE.glob("*.py")) if script.name not in NOT_BENCHMARKS]
    if options.only is not None:
        unknown = set(options.only) - {script.stem for script in scripts}
        if unknown:
            parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
        scripts = [script for script in scripts if script.stem in options.only]
    outcomes = []
    for script in scripts:
        print(f"{script.stem} …", flush=True)
        outcome = run_one(script, quick=options.quick, timeout=options.timeout)
        print(f"  {outcome.failure or f'{len(outcome.figures)} figures'}, {outcome.seconds:.0f} s", flush=True)
        outcomes.append(outcome)
    options.output.write_text(report(outcomes, quick=options.quick), encoding="utf-8")
    print(f"written to {options.output}")
    return 1 if any(outcome.failure for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
