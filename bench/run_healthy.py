"""Healthy runs of the fault lab, fed to a run's monitor step by step: how often would it have acted?

The lab (``python -m bench.faultlab generate``) trains each of its broken runs a second time without the fault. Whatever
a run of holdfast records of such a twin at every step (losses, gradient norms, learning rate, layers) goes through the
monitor; a finding above *info* would be an alert, or a rollback where one is asked for.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from common import arguments, publish
from holdfast.debug.online import OnlineDebugger
from holdfast.run.monitor import Monitor
from holdfast.run.policy import Action, Policy

LAB = Path(tempfile.gettempdir()) / "holdfast-faultlab"  # where the lab keeps its runs
RUNS = 130
RECORDED = frozenset(("loss", "grad_norm", "lr", "learning_rate", "weight_norm"))
"""Kinds of series that a run records by itself."""


def healthy_twins(folder: Path, most: int) -> list[Path]:
    """Return runs of one process that their label calls healthy."""
    found = []
    for path in sorted(folder.glob("*-twin")):
        label = json.loads((path / "label.json").read_text())["label"]
        record = json.loads((path / "record.json").read_text())
        if (
            label["scored"]
            and label["failure"] is None
            and all(series["replica"] is None for series in record["series"].values())
        ):
            found.append(path)
    return found[:most]


def findings_of(path: Path) -> list[dict[str, Any]]:
    """Return what the monitor finds in a run's series."""
    series = json.loads((path / "record.json").read_text())["series"]
    rows: dict[int, dict[str, float]] = {}
    for name, one in series.items():
        if one["kind"] in RECORDED:
            for step, value in zip(one["steps"], one["values"], strict=True):
                rows.setdefault(int(step), {})[name] = value
    monitor = Monitor(OnlineDebugger())
    found = [finding for step in sorted(rows) for finding in monitor.update(step, rows[step], {})]
    return found + monitor.last_look()


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
