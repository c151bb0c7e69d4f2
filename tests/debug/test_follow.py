"""Following logs that grow: every byte read once, the same reading as of the finished log, news told once."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.debug.detectors.series import falling_loss

from holdfast.debug.debugger import MLSystemsDebugger
from holdfast.debug.online import OnlineDebugger, OnlineOptions
from holdfast.debug.types import DebugReport, Failure, Signal, Verdict
from holdfast.errors import UnreadableLogError

DEBUGGER = MLSystemsDebugger(plugins=False)
SLACK = 64  # The bytes before the last offset that are looked at again, to notice a file that was written again.


def json_lines(loss: np.ndarray, start: int = 0) -> str:
    return "".join(json.dumps({"step": n, "loss": v, "lr": 1e-3}) + "\n" for n, v in enumerate(loss.tolist(), start))


def csv_rows(loss: np.ndarray, start: int = 0) -> str:
    head = "step,loss,lr\n" if start == 0 else ""
    return head + "".join(f"{n},{v},0.001\n" for n, v in enumerate(loss.tolist(), start))


def text_lines(loss: np.ndarray, start: int = 0) -> str:
    return "".join(f"INFO step {n}/9000 | loss: {v:.5f} | lr: 1.0e-03\n" for n, v in enumerate(loss.tolist(), start))


def megatron_lines(loss: np.ndarray, start: int = 0) -> str:
    lines = []
    for n, value in enumerate(loss.tolist(), start + 1):
        printed = f" lm loss: {value:.6E} |" if value == value else ""
        lines.append(f" iteration {n:8d}/ 9000 | elapsed time per iteration (ms): 500.0 |{printed} loss scale: 1.0 |\n")
    return "".join(lines)


def trainer_lines(loss: np.ndarray, start: int = 0) -> str:
    return "".join(
        f"{{'loss': {v:.4f}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': {n / 100:.2f}}}\n"
        for n, v in enumerate(loss.tolist(), start)
    )


WRITERS = {"jsonl": json_lines, "csv": csv_rows, "text": text_lines, "megatron": megatron_lines, "hf": trainer_lines}


def append(path: Path, text: str | bytes) -> int:
    with path.open("ab") as stream:
        return stream.write(text if isinstance(text, bytes) else text.encode())


def look(follower: OnlineDebugger) -> DebugReport:
    report = follower.look()
    assert report is not None
    return report


def series(signals: tuple[Signal, ...]) -> dict[tuple[str, str | None], tuple[list[float], list[float]]]:
    return {(s.name, s.kind): (s.steps.tolist(), s.values.tolist()) for s in signals}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_look_reads_the_new_bytes_and_no_others(tmp_path: Path, writer: str) -> None:
    write = WRITERS[writer]
    loss = falling_loss(6000)
    path = tmp_path / "log.txt"
    size = append(path, write(loss[:5000]))
    follower = OnlineDebugger(DEBUGGER, paths=[path])
    look(follower)
    assert follower.bytes_read == size
    for start in range(5000, 6000, 200):
        before = follower.bytes_read
        new = append(path, write(loss[start : start + 200], start))
        look(follower)
        assert new <= follower.bytes_read - before <= new + SLACK


@settings(deadline=None, max_examples=25)
@given(
    writer=st.sampled_from(sorted(WRITERS)), cuts=st.lists(st.integers(1, 9000), max_size=6), seed=st.integers(0, 99)
)
def test_a_log_followed_in_any_pieces_reads_as_the_finished_one(writer: str, cuts: list[int], seed: int) -> None:
    data = WRITERS[writer](falling_loss(150, seed=seed)).encode()
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.txt"
        follower = OnlineDebugger(DEBUGGER, paths=[path])
        report: DebugReport | None = None
        for begin, end in itertools.pairwise(bounds):
            append(path, data[begin:end])
            try:
                report = follower.look() or report
            except UnreadableLogError:
                continue
        assert report is not None
        (finished,) = DEBUGGER.debug(path).runs
        (run,) = report.runs
        assert (run.format, run.verdict) == (finished.format, finished.verdict)
        assert series(run.signals) == series(finished.signals)


@pytest.mark.parametrize("writer", ["jsonl", "csv", "text", "megatron"])
def test_a_long_run_is_held_in_a_bounded_window_that_begins_where_the_run_began(tmp_path: Path, writer: str) -> None:
    loss = falling_loss(5000)
    path = tmp_path / "log.txt"
    follower = OnlineDebugger(DEBUGGER, paths=[path], options=OnlineOptions(window=256))
    for start in range(0, 5000, 1000):
        append(path, WRITERS[writer](loss[start : start + 1000], start))
        (run,) = look(follower).runs
    own = next(signal for signal in run.signals if signal.kind == "loss")
    assert len(own.steps) <= 512
    assert own.steps[0] <= 1
    assert own.steps[-1] >= 4999
    assert np.all(np.diff(own.steps) > 0)
    assert run.verdict is Verdict.HEALTHY


def test_a_loss_that_is_no_longer_printed_is_told_while_the_log_grows(tmp_path: Path) -> None:
    loss = falling_loss(300)
    loss[250:] = np.nan
    path = tmp_path / "megatron.log"
    follower = OnlineDebugger(DEBUGGER, paths=[path])
    append(path, megatron_lines(loss[:240]))
    assert look(follower).verdict is Verdict.HEALTHY
    append(path, megatron_lines(loss[240:], 240))
    (run,) = look(follower).runs
    assert run.findings[0].detection.failure == Failure.NAN


def test_climbing_gradients_are_told_before_the_loss_jumps(tmp_path: Path) -> None:
    norms = [*(0.24 * np.exp(0.1 * np.random.default_rng(0).standard_normal(100))), 0.24, 0.95, 2.4, 15.9, 145.0]
    path = tmp_path / "log.jsonl"
    follower = OnlineDebugger(DEBUGGER, paths=[path])
    told: list[str] = []
    for step, norm in enumerate(norms):
        append(path, json.dumps({"step": step, "loss": 2.5, "grad_norm": norm}) + "\n")
        told += follower.news(look(follower))
    assert any("gradient" in line.lower() for line in told)


def test_what_was_told_is_not_told_again_and_stays_true_when_the_window_has_moved_on(tmp_path: Path) -> None:
    loss = falling_loss(6000)
    loss[300:304] += 9.0
    path = tmp_path / "log.jsonl"
    follower = OnlineDebugger(DEBUGGER, paths=[path], options=OnlineOptions(window=256))
    told: list[str] = []
    for start in range(0, 6000, 500):
        append(path, json_lines(loss[start : start + 500], start))
        report = look(follower)
        told += follower.news(report)
    assert sum("spike" in line.lower() for line in told if line.startswith("  ")) == 1
    assert report.verdict is Verdict.UNHEALTHY


def test_a_line_is_read_when_its_end_has_been_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    follower = OnlineDebugger(DEBUGGER, paths=[path])
    append(path, json_lines(falling_loss(20)) + '{"step": 20, "lo')
    assert look(follower).runs[0].signals[0].steps[-1] == 19
    append(path, 'ss": 1.25}\n')
    own = look(follower).runs[0].signals[0]
    assert (own.steps[-1], own.values[-1]) == (20, 1.25)


@pytest.mark.parametrize("how", ["replaced", "cut", "written again"])
def test_a_file_that_starts_over_is_read_from_its_beginning(tmp_path: Path, how: str) -> None:
    path = tmp_path / "log.jsonl"
    follower = OnlineDebugger(DEBUGGER, paths=[path])
    append(path, json_lines(falling_loss(200)))
    look(follower)
    fresh = json_lines(falling_loss({"replaced": 200, "cut": 50, "written again": 300}[how], start=9.0, seed=4))
    if how == "replaced":
        other = tmp_path / "new"
        other.write_text(fresh)
        os.replace(other, path)
    else:
        path.write_text(fresh)
    report = look(follower)
    assert any("replaced or truncated" in line for line in follower.news(report))
    assert series(report.runs[0].signals) == series(DEBUGGER.debug(path).runs[0].signals)


def test_what_only_makes_sense_whole_is_read_again_and_that_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    history = [{"step": n, "epoch": n / 10, "loss": 3.0 / (n + 1)} for n in range(30)]
    told: list[str] = []
    follower = OnlineDebugger(DEBUGGER, paths=[path])
    for end in (10, 20, 30):
        path.write_text(json.dumps({"log_history": history[:end], "global_step": end}))
        report = look(follower)
        told += follower.news(report)
    assert report.runs[0].signals[0].steps[-1] == 29
    assert sum("re-read in full" in line for line in told) == 1


def test_a_log_is_recognised_again_while_it_is_short(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = OnlineDebugger(DEBUGGER, paths=[path])
    append(path, "step: 1 loss: 3.5\nstep: 2 loss: 3.4\nstep: 3 loss: 3.3\n")
    assert look(follower).runs[0].format == "text"
    append(path, megatron_lines(falling_loss(200)))
    assert look(follower).runs[0].format == "megatron"


def test_paths_that_hold_nothing_yet_do_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append(path, json_lines(falling_loss(50)))
    assert look(OnlineDebugger(DEBUGGER, paths=[tmp_path / "later.log", path])).verdict is Verdict.HEALTHY
    with pytest.raises(UnreadableLogError):
        OnlineDebugger(DEBUGGER, paths=[tmp_path / "later.log"]).look()
