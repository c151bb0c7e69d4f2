"""Trains the plan with two processes and caches every run, so that scoring again costs nothing."""

from __future__ import annotations

import json
import math
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bench.faultlab.plan import DISTRIBUTED, RunSpec, make_plan

if TYPE_CHECKING:
    from bench.faultlab.train import Record

__all__ = ["default_folder", "generate", "label_again"]


def default_folder(draw: int = 0) -> Path:
    """Where the runs of a draw are cached unless told otherwise."""
    return Path(tempfile.gettempdir()) / ("holdfast-faultlab" if draw == 0 else f"holdfast-faultlab-{draw}")


def generate(
    folder: Path,
    *,
    draw: int = 0,
    half: str | None = None,
    per_cause: int = 5,
    processes: int = 2,
    limit: int | None = None,
) -> int:
    """Train every run of the plan that is not in the folder yet; returns how many runs the folder holds."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = [spec for spec in make_plan(draw=draw, per_cause=per_cause) if half in (None, spec.half)][:limit]
    missing = [spec for spec in plan if not (folder / spec.twin.identifier / "label.json").exists()]
    with ProcessPoolExecutor(processes) as pool:
        for number, identifier in enumerate(pool.map(_train_pair, missing, [folder] * len(missing)), 1):
            print(f"[{number}/{len(missing)}] {identifier}", flush=True)
    return len(list(folder.glob("*/label.json")))


def label_again(folder: Path, *, draw: int = 0) -> int:
    """Derive every label again from the stored records; returns how many changed."""
    from bench.faultlab.label import label_fault, label_twin

    changed = 0
    for spec in make_plan(draw=draw):
        paths = [folder / one.identifier for one in (spec, spec.twin)]
        if spec.cause in DISTRIBUTED or not all((path / "record.json").exists() for path in paths):
            continue
        faulty, healthy = (_read_record(path / "record.json") for path in paths)
        for path, label in zip(
            paths, (label_fault(spec, faulty, healthy), label_twin(spec.twin, healthy)), strict=True
        ):
            facts = json.loads((path / "label.json").read_text())
            fresh = json.loads(json.dumps(label.as_json()))
            changed += fresh != facts["label"]
            (path / "label.json").write_text(json.dumps({**facts, "label": fresh}, indent=1))
    return changed


def _train_pair(spec: RunSpec, folder: Path) -> str:
    import torch
    from bench.faultlab.label import label_fault, label_twin
    from bench.faultlab.replicas import run_replicas
    from bench.faultlab.train import train_run
    from bench.faultlab.write import write_log

    torch.set_num_threads(1)
    distributed = DISTRIBUTED & {spec.cause}
    train = run_replicas if distributed else train_run
    faulty, healthy = train(spec), train(spec.twin)
    if distributed:
        from bench.faultlab.label import Label

        twin_label = Label(None, (), None, True, "no fault injected")
    else:
        twin_label = label_twin(spec.twin, healthy)
    labels = {spec: label_fault(spec, faulty, healthy), spec.twin: twin_label}
    for one, record in ((spec, faulty), (spec.twin, healthy)):
        target = folder / one.identifier
        target.mkdir(exist_ok=True)
        log = write_log(one, record, target)
        _write_record(record, target / "record.json")
        facts = {"spec": asdict(one), "log": log.name, "label": labels[one].as_json(), "truth": _truth(record)}
        (target / "label.json").write_text(json.dumps(facts, indent=1))
    return f"{spec.identifier}: {labels[spec].failure or labels[spec].why}; twin: {labels[spec.twin].why}"


def _truth(record: Record) -> dict[str, float]:
    loss = record.series.get("loss")
    return (
        {}
        if loss is None
        else {key: value for key, value in loss.extra.items() if not isinstance(value, str) and math.isfinite(value)}
    )


def _write_record(record: Record, path: Path) -> None:
    body = {"series": {name: asdict(series) for name, series in record.series.items()}, "events": record.events}
    path.write_text(json.dumps(body))


def _read_record(path: Path) -> Record:
    from bench.faultlab.train import Record, Series

    body = json.loads(path.read_text())
    return Record({name: Series(**series) for name, series in body["series"].items()}, body["events"])
