"""What the page says of ranks, checkpoints, reading and speed, from logs that say all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.page import page_of_run
from holdfast.page.model import Page

RANKS, STEPS, SLOW = 4, 40, 2


def write_log(folder: Path, *, rank: int, lines: list[dict[str, Any]], attempt: int = 1, world: int = RANKS) -> None:
    (folder / "log").mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text("{}")
    header = {"holdfast": "run-log", "version": 1, "attempt": attempt, "rank": rank, "part": 0, "world_size": world}
    path = folder / "log" / f"attempt-{attempt:05d}.rank-{rank:05d}.part-000.jsonl"
    path.write_text("".join(json.dumps({**line, "chain": "0"}) + "\n" for line in (header, *lines)))


def steps_of(rank: int, first: int = 0, stop: int = STEPS, **more: Any) -> list[dict[str, Any]]:
    own = 0.4 if rank == SLOW else 0.1
    return [
        {"step": step, "loss": 2.0, "step_time": 0.5, "data_time": 0.05, "own_time": own, **more}
        for step in range(first, stop)
    ]


def read(page: Page, title: str) -> Any:
    shown: list[Any] = [*page.charts, *page.heat_maps, *page.tables]
    return next(each for each in shown if each.title == title)


def test_the_rank_strip_shows_who_is_late_and_who_stood_still(tmp_path: Path) -> None:
    straggler = {"event": "finding", "failure": "straggler", "title": "Straggling rank", "severity": "warning"}
    straggler |= {"onset": 5, "last_step": 39, "rank": SLOW, "names_rank": True, "step": 30}  # type: ignore[dict-item]
    stall = {"event": "stall", "rank": 1, "step": 20, "standing": 31.5, "where": "train.py:7 f", "culprits": [3]}
    for rank in range(RANKS):
        lines = [{"event": "start", "step": 0}, *steps_of(rank)]
        lines += [straggler] if rank == 0 else [stall] if rank == 1 else []
        write_log(tmp_path, rank=rank, lines=lines)
    strip = read(page_of_run(tmp_path), "Time per step by rank")
    assert [line.name for line in strip.rows] == [f"rank {rank}" for rank in range(RANKS)]
    times = [float(line.values.mean()) for line in strip.rows]
    assert np.allclose(times, [0.15, 0.15, 0.45, 0.15]), "a rank's own time and its wait for data, not that for others"
    assert [(mark.row, mark.first, mark.last) for mark in strip.marks] == [(SLOW, 5, 39), (3, 20, 20)]
    assert "31.5 s" in strip.marks[1].text


def test_a_log_without_own_times_shows_whole_steps(tmp_path: Path) -> None:
    for rank in range(2):
        lines = [{name: value for name, value in line.items() if name != "own_time"} for line in steps_of(rank)]
        write_log(tmp_path, rank=rank, lines=[{"event": "start", "step": 0}, *lines], world=2)
    strip = read(page_of_run(tmp_path), "Time per step by rank")
    assert np.allclose(strip.rows[1].values, 0.55)
    assert "waiting for the others included" in strip.note


def test_checkpoints_say_what_is_known_of_them(tmp_path: Path) -> None:
    first = [{"event": "start", "step": 0}, *steps_of(0, 0, 30)]
    first += [{"event": "checkpoint", "step": step, "path": f"step-{step:08d}"} for step in (10, 20, 30)]
    second = [{"event": "start", "step": 20, "checkpoint": "step-00000020", "passed_over": [["step-00000030", "torn"]]}]
    second += [*steps_of(0, 20, 40), {"event": "checkpoint", "step": 40, "path": "step-00000040"}]
    write_log(tmp_path, rank=0, lines=first, world=2)
    write_log(tmp_path, rank=0, lines=second, attempt=2, world=1)
    (tmp_path / "checkpoints" / "step-00000040").mkdir(parents=True)
    events = page_of_run(tmp_path).events
    states = [(event.step, event.state) for event in events if event.kind == "checkpoint"]
    assert states == [(10, "removed"), (20, "verified"), (30, "damaged"), (40, "saved")]
    assert any(event.kind == "resize" and "2 → 1 ranks" in event.text for event in events)


def test_verifying_marks_damaged_checkpoints(tmp_path: Path) -> None:
    import torch

    from holdfast.checkpoint import save
    from holdfast.page.from_run import RunFeed

    lines = [{"event": "start", "step": 0}, *steps_of(0)]
    lines += [{"event": "checkpoint", "step": step, "path": f"step-{step:08d}"} for step in (10, 20)]
    write_log(tmp_path, rank=0, lines=lines, world=1)
    for step in (10, 20):
        save({"w": torch.ones(1000)}, tmp_path / "checkpoints" / f"step-{step:08d}", step=step)
    (damaged,) = (tmp_path / "checkpoints" / "step-00000020").glob("*.distcp")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    events = RunFeed(tmp_path, verify=True).page().events
    assert [event.state for event in events if event.kind == "checkpoint"] == ["verified", "damaged"]


def test_what_a_rollback_left_out_stands_where_the_run_went_back_to(tmp_path: Path) -> None:
    cure = {"skip_batches": [22, 25], "mask_samples": {"wiki": [7, 9]}}
    lines = [{"event": "start", "step": 0}, *steps_of(0, 0, 30)]
    lines += [
        {"event": "rollback", "step": 30, "to": 20, "number": 1, "cure": cure},
        {"event": "rolled_back", "step": 20},
    ]
    write_log(tmp_path, rank=0, lines=lines, world=1)
    told = [(event.step, event.kind, event.text) for event in page_of_run(tmp_path).events]
    assert (20, "skip", "batches 22 to 24 are left out") in told
    assert (20, "mask", "samples wiki 7, 9 are left out") in told


def test_reading_is_told_by_source_over_all_ranks_and_attempts(tmp_path: Path) -> None:
    def note(step: int, scale: int, wait: float) -> dict[str, Any]:
        counts = {"samples_remote": 10 * scale, "bytes_read": 1000 * scale, "bytes_fetched": 1500 * scale}
        counts |= {"cache_hits": 3 * scale, "retries": scale, "hedges": 0}
        return {"event": "reading", "step": step, "sources": {"wiki": {**counts, "seconds_waited": wait}}}

    for rank in range(2):
        lines = [{"event": "start", "step": 0}, *steps_of(rank, 0, 20), note(10, 1, 0.5), note(20, 2, 1.5)]
        write_log(tmp_path, rank=rank, lines=lines, world=2)
    again = [{"event": "start", "step": 20}, *steps_of(0, 20), note(40, 4, 2.0)]
    write_log(tmp_path, rank=0, lines=again, attempt=2, world=1)
    page = page_of_run(tmp_path)
    (row,) = read(page, "What was read, by source").rows
    assert row == ("wiki", "80", "8.0 kB", "12.0 kB", "24", "8", "0", "5.0 s")
    (line,) = read(page, "Seconds waited for remote data per step, by source").lines
    assert (line.steps.tolist(), line.values.tolist()) == ([20.0], [0.1])


def test_throughput_is_what_the_times_of_the_steps_say(tmp_path: Path) -> None:
    write_log(tmp_path, rank=0, lines=[{"event": "start", "step": 0}, *steps_of(0)], world=1)
    (line,) = read(page_of_run(tmp_path), "Throughput").lines
    assert line.name == "steps per second"
    assert np.allclose(line.values, 1 / 0.55)


def test_a_programs_own_throughput_is_shown_instead(tmp_path: Path) -> None:
    lines = steps_of(0, tokens_per_second=1234.0)
    write_log(tmp_path, rank=0, lines=[{"event": "start", "step": 0}, *lines], world=1)
    (line,) = read(page_of_run(tmp_path), "Throughput").lines
    assert (line.name, line.values[0]) == ("tokens_per_second", 1234.0)


def test_the_strip_puts_every_second_at_its_steps(tmp_path: Path) -> None:
    lines = [{"event": "start", "step": 0, "startup_time": 3.0}, *steps_of(0)]
    lines += [{"event": "checkpoint", "step": 40, "save_time": 2.0, "path": "x"}]
    write_log(tmp_path, rank=0, lines=lines, world=1)
    page = page_of_run(tmp_path)
    spent = {bucket.name: bucket.seconds for bucket in page.goodput}
    assert spent == pytest.approx({"startup": 3.0, "data": 2.0, "step": 20.0, "save": 2.0})
    assert {bucket.name: float(bucket.spent.sum()) for bucket in page.goodput} == pytest.approx(spent)
    shown = page.to_json(columns=300, first=10, last=19)["strip"]
    assert (shown["steps"][0], shown["steps"][-1]) == (10.0, 20.0)
