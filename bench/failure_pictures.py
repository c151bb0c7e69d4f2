"""Draw every failure of docs/failures.md: a run that has it, its healthy twin, and what was found when.

``python -m bench.failure_pictures [FAILURE …]`` trains the runs, writes docs/images/failures/FAILURE.svg, and puts what
``holdfast debug`` prints of that very run into docs/failures/FAILURE.md. The same runs give the same files, but for
``straggler`` and ``data_starvation``, which measure time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bench.charts import Curve, Panel, draw
from bench.failure_runs import crashing_run, divergence_run, infinite_run, policy_run, vanishing_run
from bench.faultlab.plan import DISTRIBUTED, RunSpec, make_plan
from bench.faultlab.replicas import run_replicas
from bench.faultlab.train import train_run
from bench.faultlab.write import write_log

from holdfast.debug import MLSystemsDebugger
from holdfast.debug.types import Detection

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = re.compile(r"```console\n\$ holdfast debug .*?^```", re.MULTILINE | re.DOTALL)
Columns = Mapping[str, Curve]


@dataclass(frozen=True, slots=True)
class Shown:
    """One panel: its label, the series of the faulty run to draw, and those of the twin."""

    label: str
    faulty: tuple[str, ...]
    twin: tuple[str, ...] = ()
    log: bool = False
    zero: bool = True


@dataclass(frozen=True, slots=True)
class Picture:
    """Where a failure's run comes from (the fault lab's plan, or a function of ``failure_runs``) and what is drawn."""

    run: str | Callable[..., Any]
    panels: tuple[Shown, ...]
    axis: str = "step"


def _loss(*, log: bool = False) -> Shown:
    return Shown("loss", ("loss",), ("loss",), log=log)


NORM = Shown("gradient norm", ("grad_norm",), ("grad_norm",), log=True)
PICTURES: Mapping[str, Picture] = {
    "nan": Picture("tune-learning_rate_too_high-0", (_loss(log=True),)),
    "inf": Picture(infinite_run, (_loss(log=True),)),
    "explosion": Picture("tune-missing_zero_grad-1", (_loss(log=True), NORM)),
    "vanishing": Picture(
        vanishing_run,
        (
            _loss(),
            Shown("gradient norm by layer", ("grad_norm/first", "grad_norm/last"), ("grad_norm/first",), log=True),
        ),
    ),
    "plateau": Picture("tune-learning_rate_too_low-0", (_loss(),)),
    "divergence": Picture(divergence_run, (_loss(log=True),)),
    "policy_collapse": Picture(
        policy_run,
        (
            Shown("mean reward", ("episode_reward_mean",), ("episode_reward_mean",)),
            Shown("entropy", ("entropy",), ("entropy",)),
        ),
    ),
    "crash": Picture(crashing_run, (_loss(log=True),)),
    "spike": Picture("tune-bad_data_window-1", (_loss(),)),
    "loss_scale_collapse": Picture(
        "tune-low_precision_overflow-0",
        (_loss(log=True), Shown("loss scale", ("loss_scale",), ("loss_scale",), log=True)),
    ),
    "overfitting": Picture(
        "tune-overfitting-0",
        (Shown("held-out loss", ("eval_loss",), ("eval_loss",)), Shown("training loss", ("loss",), ("loss",))),
    ),
    "desync": Picture(
        "tune-rank_desync-0", (Shown("parameters that differ between ranks", ("differing",), ("differing",)),)
    ),
    "straggler": Picture("tune-slow_rank-1", (Shown("seconds per step, by rank", ("step_time/*",)),)),
    "hang": Picture(
        "tune-hung_rank-0", (Shown("rank", ("entered/*",), zero=False),), axis="collective that the rank entered"
    ),
    "skew": Picture(
        "tune-train_serve_skew-0",
        (Shown("loss on held-out and on serving inputs", ("serve_loss", "eval_loss"), ("serve_loss",)),),
    ),
    "dead_layer": Picture(
        "tune-dead_activations-0", (_loss(), Shown("share of zeros that leave a layer", ("activation_zero_share/*",)))
    ),
    "data_starvation": Picture(
        "tune-data_starvation-2", (Shown("share of a step spent waiting for data", ("waiting",), ("waiting",)),)
    ),
}


def main() -> None:
    """Draw the failures that are named, or all of them."""
    torch.set_num_threads(1)
    images = ROOT / "docs" / "images" / "failures"
    images.mkdir(exist_ok=True)
    for failure in sys.argv[1:] or PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            picture = PICTURES[failure]
            path, faulty = make(picture.run, Path(folder), faulty=True)
            _, healthy = make(picture.run, Path(folder), faulty=False)
            found = detection_of(failure, path)
            panels = [
                Panel(shown.label, dict(_curves(shown, faulty, healthy)), log=shown.log, zero=shown.zero)
                for shown in picture.panels
            ]
            title = f"A run with {failure} and its healthy twin, by {picture.axis}"
            chart = draw(panels, title=title, marks=marks_of(found), axis=picture.axis)
            (images / f"{failure}.svg").write_text(chart, encoding="utf-8")
            quote(failure, path, Path(folder))
        print(f"{failure}: {', '.join(evidence.claim for evidence in found.evidence[:1])}", flush=True)


def make(run: str | Callable[..., Any], folder: Path, *, faulty: bool) -> tuple[Path, Columns]:
    """Train a run and write its log; return the log and the series to draw."""
    place = folder / ("run" if faulty else "healthy")
    place.mkdir()
    if isinstance(run, str):
        (spec,) = (spec for spec in make_plan() if spec.identifier == run)
        return _lab_run(spec if faulty else spec.twin, place)
    made = run(faulty=faulty)
    if isinstance(made, str):
        path = place / "train.log"
        path.write_text(made, encoding="utf-8")
        points = [line.split() for line in made.splitlines() if line.startswith("step ")]
        return path, {"loss": ([float(p[1]) for p in points], [float(p[3]) for p in points])}
    path = place / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    return path, {name: ([row["step"] for row in made], [row[name] for row in made]) for name in made[0]}


def _lab_run(spec: RunSpec, place: Path) -> tuple[Path, Columns]:
    cause = spec.cause or spec.twin_of
    record = (run_replicas if cause in DISTRIBUTED else train_run)(spec)
    path = write_log(spec, record, place)
    columns: dict[str, Curve] = {name: (series.steps, series.values) for name, series in record.series.items()}
    if cause == "rank_desync":
        columns["differing"] = _differing(columns)
    elif cause == "data_starvation":
        waits, times = columns["data_time"][1], columns["step_time"][1]
        columns["waiting"] = (columns["data_time"][0], [wait / time for wait, time in zip(waits, times, strict=True)])
    elif cause == "hung_rank":
        for event in record.events:
            if event["type"] == "collective":
                entered = columns.get(f"entered/rank{event['replica']}", ((), ()))[0]
                numbers = [*entered, event["sequence"]]
                columns[f"entered/rank{event['replica']}"] = (numbers, [event["replica"]] * len(numbers))
    return path, columns


def _differing(columns: Columns) -> Curve:
    """Return how many replicated parameters have another hash on some rank, by step."""
    by_parameter: dict[str, list[Curve]] = {}
    for name, curve in columns.items():
        if name.startswith("param_hash/") and "/shard." not in name:
            by_parameter.setdefault(name.rpartition("/")[0], []).append(curve)
    steps = next(iter(by_parameter.values()))[0][0]
    counts = [
        sum(len({ys[n] for _, ys in curves}) > 1 for curves in by_parameter.values()) for n, _ in enumerate(steps)
    ]
    return steps, counts


def _curves(shown: Shown, faulty: Columns, healthy: Columns) -> list[tuple[str, Curve]]:
    alone = len(shown.faulty) == 1 and not shown.faulty[0].endswith("*")
    drawn: list[tuple[str, Curve]] = []
    for wanted in shown.faulty:
        prefix = wanted.removesuffix("*")
        names = sorted(name for name in faulty if name.startswith(prefix)) if wanted.endswith("*") else [wanted]
        drawn += [("this run" if alone else name.removeprefix(prefix) or name, faulty[name]) for name in names]
    return drawn + [("healthy twin" if alone else f"twin: {name}", healthy[name]) for name in shown.twin]


def detection_of(failure: str, path: Path) -> Detection:
    """Return what the debugger sees of a failure in a log; it must see it, as a finding or related to one."""
    (run,) = MLSystemsDebugger().debug(str(path)).runs
    found = [finding.detection for finding in run.findings]
    found += [related for finding in run.findings for related in finding.related]
    named = [detection for detection in found if detection.failure.name == failure]
    assert named, f"{path} shows {[detection.failure.name for detection in found] or 'nothing'}, not {failure}"
    return named[0]


def marks_of(found: Detection) -> dict[str, float]:
    """Return the steps to mark: the onset, and where the finding was certain if that came later."""
    first, certain = found.first_step, found.certain_step
    marks = {} if first is None else {f"onset: step {first:g}": first}
    return marks | ({f"certain: step {certain:g}": certain} if certain is not None and certain != first else {})


def quote(failure: str, path: Path, folder: Path) -> None:
    """Put what the command prints of a run into the page of its failure."""
    shown = path.relative_to(folder)
    command = [sys.executable, "-m", "holdfast", "debug", str(shown)]
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, f"the command ended with {done.returncode}, not with a finding: {done.stderr}"
    block = f"```console\n$ holdfast debug {shown}\n{done.stdout.strip()}\n```"
    page = ROOT / "docs" / "failures" / f"{failure}.md"
    text, replaced = OUTPUT.subn(lambda _: block, page.read_text(encoding="utf-8"), count=1)
    assert replaced, f"{page} has no block that begins with $ holdfast debug"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
