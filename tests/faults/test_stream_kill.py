"""A training job killed at random moments and resumed at another size sees every sample exactly once per epoch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("stream_job.py")
SAMPLES, EPOCHS = 240, 2


def run_jobs(folder: Path, first: int, count: int) -> int:
    # Into files, not pipes: a process left over by a kill must not be able to hold this test up.
    with open(folder / "told", "w") as told, open(folder / "errors", "w") as errors:
        command = [sys.executable, str(SCRIPT), str(folder), str(first), str(count)]
        ended = subprocess.run(command, stdout=told, stderr=errors, timeout=20 * count, check=False)
    assert ended.returncode == 0, (folder / "errors").read_text()
    return sum(json.loads(line)["lives"] for line in (folder / "told").read_text().splitlines())


def committed(folder: Path) -> list[list[int]]:
    """What every step delivered, step by step: of each life the steps before the one the next life resumed at."""
    steps: dict[int, list[int]] = {}
    lives = sorted({int(path.name.split("-")[1]) for path in folder.glob("life-*.jsonl")})
    for life in lives:
        notes = {path: _read(path) for path in folder.glob(f"life-{life}-rank-*.jsonl")}
        started = {entry["start"] for entries in notes.values() for entry in entries if "start" in entry}
        assert len(started) <= 1, "the ranks of one life resumed at different steps"
        if not started:
            continue  # killed before it got that far
        start = started.pop()
        steps = {step: samples for step, samples in steps.items() if step < start}
        for step in range(start):
            assert step in steps, "a committed step was never delivered"
        for entries in notes.values():
            for entry in entries:
                if "step" in entry:
                    steps.setdefault(entry["step"], []).extend(entry["samples"])
    return [steps[step] for step in sorted(steps)]


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_jobs(folder: Path, count: int) -> None:
    for job in sorted(folder.glob("job-*")):
        seen = Counter(sample for step in committed(job) for sample in step)
        assert seen == dict.fromkeys(range(SAMPLES), EPOCHS), job.name
    assert len(list(folder.glob("job-*"))) == count


def test_ten_jobs_killed_at_random_moments_see_every_sample_exactly_once_per_epoch(tmp_path: Path) -> None:
    lives = run_jobs(tmp_path, 0, 10)
    check_jobs(tmp_path, 10)
    assert lives > 10, "no job was ever killed"


@pytest.mark.soak
def test_a_hundred_jobs_killed_at_random_moments_see_every_sample_exactly_once_per_epoch(tmp_path: Path) -> None:
    lives = run_jobs(tmp_path, 1000, 100)
    check_jobs(tmp_path, 100)
    assert lives > 200
