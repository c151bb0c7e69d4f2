"""A training job killed at random moments and resumed at another size sees every sample exactly once per epoch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.faults.stream_job import EPOCHS, PARTITIONS, SAMPLES

from holdfast.stream import load_state
from holdfast.stream.provenance import samples_in

SCRIPT = Path(__file__).with_name("stream_job.py")


def run_jobs(folder: Path, jobs: range, launchers: int) -> list[dict[str, Any]]:
    """Run the jobs, a few at a time, to their ends; give what is told of every life."""
    running = []
    for number in range(launchers):
        command = [sys.executable, str(SCRIPT), str(folder), *map(str, jobs[number::launchers])]
        # Into files, not pipes: a process left over by a kill must not be able to hold this test up.
        with open(folder / f"told-{number}", "w") as told, open(folder / f"errors-{number}", "w") as errors:
            running.append(subprocess.Popen(command, stdout=told, stderr=errors))
    try:
        for number, process in enumerate(running):
            assert process.wait(timeout=30 * len(jobs)) == 0, (folder / f"errors-{number}").read_text()
    finally:
        for process in running:
            process.kill()
    lines = [line for number in range(launchers) for line in (folder / f"told-{number}").read_text().splitlines()]
    return [json.loads(line) for line in lines]


def committed(folder: Path) -> list[dict[int, list[int]]]:
    """What every step gave every rank: of each life the steps before the one the next life resumed at."""
    steps: dict[int, dict[int, list[int]]] = {}
    lives = sorted({int(path.name.split("-")[1]) for path in folder.glob("life-*.jsonl")})
    for life in lives:
        notes = {int(path.stem.split("-")[3]): _read(path) for path in folder.glob(f"life-{life}-rank-*.jsonl")}
        started = {entry["start"] for entries in notes.values() for entry in entries if "start" in entry}
        assert len(started) <= 1, "the ranks of one life resumed at different steps"
        if not started:
            continue  # killed before it got that far
        start = started.pop()
        steps = {step: ranks for step, ranks in steps.items() if step < start}
        for step in range(start):
            assert step in steps, "a committed step was never delivered"
        for rank, entries in notes.items():
            for entry in entries:
                if "step" in entry:
                    assert rank not in steps.setdefault(entry["step"], {}), "a rank was given a step twice in one life"
                    steps[entry["step"]][rank] = entry["samples"]
    assert list(steps) == sorted(steps) == list(range(len(steps)))
    return [steps[step] for step in range(len(steps))]


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_job(folder: Path, partition: str) -> int:
    """Check one job; give how many samples it committed."""
    steps = committed(folder)
    seen = Counter(sample for ranks in steps for samples in ranks.values() for sample in samples)
    assert seen == dict.fromkeys(range(SAMPLES), EPOCHS), folder.name
    schedule = load_state(folder / "final").rebuild(PARTITIONS[partition])
    assert schedule.total_steps == len(steps)
    for step, ranks in enumerate(steps):  # and the state still knows what each step of each life gave to whom
        told: dict[int, list[int]] = {rank: [] for rank in range(schedule.segment_at(step).world_size)}
        for ref in samples_in(schedule, step):
            told[ref.rank].append(ref.index)
        assert told == ranks, (folder.name, step)
    return seen.total()


def check_jobs(folder: Path, jobs: range, launchers: int) -> None:
    lives = run_jobs(folder, jobs, launchers)
    partitions = {life["job"]: life["partition"] for life in lives}
    assert sorted(partitions) == list(jobs)
    samples = sum(check_job(folder / f"job-{job}", partition) for job, partition in partitions.items())
    moments = Counter(life["moment"] for life in lives)
    print(f"\n{len(jobs)} jobs, {len(lives)} lives; ended {dict(moments)}; {samples:,} samples committed, each once")
    print(f"saves cut short by a kill: {sum(life['torn'] for life in lives)}")
    assert moments["finished"] == len(jobs)
    assert set(partitions.values()) == set(PARTITIONS)
    assert len(lives) - len(jobs) >= len(jobs), "hardly a job was ever killed"


def test_six_jobs_killed_at_random_moments_see_every_sample_exactly_once_per_epoch(tmp_path: Path) -> None:
    check_jobs(tmp_path, range(len(PARTITIONS)), launchers=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_hundred_jobs_killed_at_random_moments_see_every_sample_exactly_once_per_epoch(tmp_path: Path) -> None:
    check_jobs(tmp_path, range(1000, 1100), launchers=3)
