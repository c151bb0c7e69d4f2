"""Healthy runs of the fault lab, fed to a run's monitor step by step: how often would it have acted?

The lab (``python -m bench.faultlab generate``) trains each of its broken runs a second time without the fault. Whatever
a run of holdfast records of such a twin at every step (losses, gradient norms, learning rate, layers) goes through the
monitor; a finding above *info* would be an alert, or a rollback where one is asked for. Twins of several ranks are also
compared rank by rank, as rank 0 of a run does: their times at every step, and the hashes of what all ranks hold whole.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import arguments, publish
from holdfast.debug.online import OnlineDebugger
from holdfast.run.monitor import Monitor, RankComparison
from holdfast.run.policy import Action, Policy

LAB = Path(tempfile.gettempdir()) / "holdfast-faultlab"  # where the lab keeps its runs
RUNS = 130
RECORDED = frozenset(("loss", "grad_norm", "lr", "learning_rate", "weight_norm"))
"""Kinds of series that a run records by itself."""


def healthy_twins(folder: Path, most: int) -> list[Path]:
    """Return runs that their label calls healthy."""
    found = []
    for path in sorted(folder.glob("*-twin")):
        label = json.loads((path / "label.json").read_text())["label"]
        if label["scored"] and label["failure"] is None:
            found.append(path)
    return found[:most]


def findings_of(path: Path) -> list[dict[str, Any]]:
    """Return what the monitor of every rank finds in a run's series, and rank 0 in how the ranks compare."""
    series = json.loads((path / "record.json").read_text())["series"].items()
    world = 1 + max(one["replica"] or 0 for _, one in series)
    found = []
    for rank in range(world):
        own = {name: one for name, one in series if one["kind"] in RECORDED and one["replica"] in (None, rank)}
        monitor = Monitor(OnlineDebugger(), rank=rank)
        rows = rows_of(own)
        found += [finding for step in sorted(rows) for finding in monitor.update(step, rows[step], {})]
        found += monitor.last_look()
    if world > 1:
        comparison = RankComparison(world)
        times = rows_of({one["replica"]: one for _, one in series if one["kind"] == "step_time"})
        for step in sorted(times):
            found += comparison.add_times(step, tuple(times[step][rank] for rank in range(world)))
        whole = [one for _, one in series if one["kind"] == "param_hash" and not one["extra"].get("sharded")]
        hashes = [rows_of({one["layer"]: one for one in whole if one["replica"] == rank}) for rank in range(world)]
        for step in sorted(hashes[0]):
            found += comparison.add_hashes(step, [hash(tuple(rows[step].items())) for rows in hashes])
    return found


def rows_of(series: Mapping[Any, Any]) -> dict[int, dict[Any, float]]:
    """Return step → the values of its series, by their key."""
    rows: dict[int, dict[Any, float]] = {}
    for key, one in series.items():
        for step, value in zip(one["steps"], one["values"], strict=True):
            rows.setdefault(int(step), {})[key] = value
    return rows


def main() -> None:
    """Run the bench."""
    options = arguments(__doc__ or "")
    twins = healthy_twins(LAB, 13 if options.quick else RUNS) if LAB.is_dir() else []
    policy = Policy("rollback")
    acted: Counter[str] = Counter()
    informed = 0
    for path in twins:
        found = findings_of(path)
        informed += any(finding["severity"] == "info" for finding in found)
        for finding in found:
            if policy.action(finding["failure"], finding["severity"]) > Action.LOG:
                acted[path.name] += 1
                if not options.json:
                    print(path.name, finding["failure"], finding["severity"], finding["onset"], finding["evidence"][:1])
    figures = {
        "healthy runs": float(len(twins)),
        "healthy runs with an alert above info or a rollback": float(len(acted)),
        "healthy runs with a finding that only informs": float(informed),
    }
    about = {"lab": "its healthy twins" if twins else "not there: python -m bench.faultlab generate"}
    publish(figures, about, as_json=options.json)


if __name__ == "__main__":
    main()
