"""The numbers of a run log as arrays: the same as its records, however it was written and read."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.run.job import make_job, train

from holdfast.errors import RunLogError
from holdfast.run import RunLog
from holdfast.run.columns import RunColumns
from holdfast.run.compact import compact


class Writer:
    """Writes a log as a run would, without a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "log").mkdir(parents=True)
        (folder / "run.json").write_text("{}")
        self.attempt, self.reached, self.step = 0, 0, 0
        self.file: Path | None = None

    def write(self, **fields: Any) -> None:
        assert self.file is not None
        with self.file.open("a") as stream:
            stream.write(json.dumps({**fields, "chain": "0"}) + "\n")

    def begin(self, step: int) -> None:
        self.attempt += 1
        self.file = self.folder / "log" / f"attempt-{self.attempt:05d}.rank-00000.part-000.jsonl"
        self.write(holdfast="run-log", version=1, attempt=self.attempt, rank=0, part=0, world_size=1)
        self.write(event="start", step=step, startup_time=1.0)
        self.step = step

    def make_step(self, loss: float) -> None:
        fields: dict[str, Any] = {"step": self.step, "loss": loss, "step_time": 0.5, "data_time": 0.25}
        if self.step % 3 == 0:
            fields["grad_norm/a"] = loss
        if self.step < self.reached:
            fields["redone"] = True
        self.write(**fields)
        self.step += 1
        self.reached = max(self.reached, self.step)

    def roll_back(self, step: int) -> None:
        self.write(event="rolled_back", step=step, restore_time=2.0)
        self.step = step


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.sampled_from([1.0, -2.5, math.nan, math.inf])),
        st.tuples(st.just("restart"), st.floats(0, 1)),
        st.tuples(st.just("rollback"), st.floats(0, 1)),
        st.tuples(st.just("checkpoint"), st.just(0.0)),
        st.tuples(st.just("look"), st.just(0.0)),
        st.tuples(st.just("compact"), st.just(0.0)),
    ),
    max_size=60,
)


def same(first: Any, second: Any) -> bool:
    return np.array_equal(np.array(first, dtype=float), np.array(second, dtype=float), equal_nan=True)


@settings(max_examples=60)
@given(ACTIONS, st.sampled_from([2, 512]))
def test_columns_equal_the_records_however_the_log_was_written_and_read(
    tmp_path_factory: Any, actions: list[tuple[str, float]], min_at_once: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    writer = Writer(folder)
    writer.begin(0)
    columns = RunColumns(folder, min_at_once=min_at_once)
    for action, number in actions:
        if action == "step":
            writer.make_step(number)
        elif action == "restart":
            writer.begin(int(number * writer.step))
        elif action == "rollback":
            writer.roll_back(int(number * writer.step))
        elif action == "checkpoint":
            writer.write(event="checkpoint", step=writer.step, save_time=0.125)
        elif action == "look":
            columns.refresh()
        else:
            for file in RunLog(folder).folder.log_files()[:-1]:
                if not file.is_compacted:
                    compact(file)
    columns.refresh()
    log = RunLog(folder)
    for name in ("loss", "grad_norm/a", "step_time"):
        expected = [(record["step"], record[name]) for record in log.steps() if name in record]
        steps, values = columns.series(name)
        assert same(steps, [step for step, _ in expected])
        assert same(values, [value for _, value in expected])
    assert [event["event"] for event in columns.events] == [event["event"] for event in log.events()]
    assert columns.goodput.attempts == log.goodput().attempts == len(columns.headers)
    for bucket, seconds in log.goodput().seconds.items():
        assert columns.goodput.seconds[bucket] == seconds
    assert columns.refresh() is False


def test_a_line_that_is_still_being_written_is_taken_when_it_is_whole(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.begin(0)
    columns = RunColumns(tmp_path)
    columns.refresh()
    assert writer.file is not None
    with writer.file.open("a") as stream:
        stream.write('{"step":0,"lo')
        stream.flush()
        assert columns.refresh() is False
        stream.write('ss":1.5}\n')
    assert columns.refresh() is True
    assert columns.series("loss")[1].tolist() == [1.5]


@pytest.mark.parametrize("target", ["elsewhere.jsonl", "itself"])
def test_a_log_file_that_is_a_link_to_nothing_is_an_error_and_not_left_out(tmp_path: Path, target: str) -> None:
    """The page called a run healthy of which it had read only the second attempt."""
    for steps in (6, 12):
        job = make_job()
        train(job, job.run(tmp_path / "run", steps=steps))
    first = next(iter(sorted((tmp_path / "run" / "log").iterdir())))
    first.unlink()
    first.symlink_to(first if target == "itself" else tmp_path / target)
    with pytest.raises(RunLogError, match="cannot be read"):
        RunColumns(tmp_path / "run").refresh()


def test_reading_imports_neither_torch_nor_pandas(tmp_path: Path) -> None:
    """Arrow imports pandas on its own accord, which takes longer than a part of the log does."""
    writer = Writer(tmp_path)
    for step in (0, 600):  # the first attempt is compacted, the second is parsed as one table
        writer.begin(step)
        for _ in range(600):
            writer.make_step(1.0)
        writer.write(event="checkpoint", step=writer.step, save_time=0.125)
    compact(RunLog(tmp_path).folder.log_files()[0])
    read = (
        "import sys; from holdfast.page.feeds import feeds_of; from pathlib import Path;"
        f"page = feeds_of([Path({str(tmp_path)!r})])[0].page(); page.to_json(columns=300);"
        "print(page.facts[0], *sorted({'torch', 'pandas'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["1,200", "steps"]
