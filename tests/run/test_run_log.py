"""The log of a run: chained, compacted, readable while it is written, and read by the debugger."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest
from tests.faults.coordinate_runs import wait_until
from tests.run.job import make_job, train

from holdfast.cli.runs import describe_run, find_runs
from holdfast.debug import MLSystemsDebugger
from holdfast.errors import CheckpointWriteError, RunFolderError, RunWriteError
from holdfast.run import RunLog
from holdfast.run.buckets import Origin
from holdfast.run.compact import compact
from holdfast.run.layout import RunFolder
from holdfast.run.recorder import Recorder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three attempts."""
    folder = tmp_path_factory.mktemp("runs") / "exp"
    for target in (7, 13, 20):
        job = make_job()
        with job.run(folder, steps=target, config={"batch_size": 4}) as run:
            train(job, run)
    return folder


def copied(source: Path, target: Path) -> RunFolder:
    shutil.copytree(source, target)
    return RunFolder(target)


def test_the_chain_of_an_untouched_log_holds(finished: Path) -> None:
    assert RunLog(finished).verify() == []


@pytest.mark.parametrize("lost", ["end", "file", "folder"])
def test_what_was_lost_before_a_checkpoint_is_noticed_after_the_run_has_continued_too(
    finished: Path, tmp_path: Path, lost: str
) -> None:
    folder = copied(finished, tmp_path / "run")
    if lost == "folder":
        shutil.rmtree(folder.logs)
    else:
        path = folder.log_files()[-1].path
        path.write_bytes(b"" if lost == "file" else b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    job = make_job()
    train(job, job.run(tmp_path / "run", steps=22))
    (fault,) = RunLog(tmp_path / "run").verify()
    assert "its end was cut off" in fault.reason


def test_a_log_that_is_gone_is_noticed_while_its_checkpoints_are_there(finished: Path, tmp_path: Path) -> None:
    shutil.rmtree(copied(finished, tmp_path / "run").logs)
    (fault,) = RunLog(tmp_path / "run").verify()
    assert fault.reason == "no log of rank 0 beside the checkpoint of step 20"


def test_any_edit_cut_swap_or_missing_file_is_noticed(finished: Path, tmp_path: Path) -> None:
    plan = random.Random(3)
    for number in range(60):
        folder = copied(finished, tmp_path / str(number))
        files = folder.log_files()
        file = plan.choice(files)
        lines = file.path.read_bytes().splitlines(keepends=True)
        place = plan.randrange(len(lines))
        kind = plan.choice(("edit", "remove", "swap", "insert", "file", "cut"))
        if kind == "edit":
            line = bytearray(lines[place])
            at = plan.randrange(len(line) - 1)
            line[at] = ord("7") if line[at] != ord("7") else ord("3")
            lines[place] = bytes(line)
        elif kind == "remove" and place < len(lines) - 1:
            del lines[place]
        elif kind in ("remove", "insert") and place in (0, len(lines) - 1):
            continue  # nothing before it to repeat; the end is what "cut" is about
        elif kind == "swap":
            other = (place + 1) % len(lines)
            lines[place], lines[other] = lines[other], lines[place]
        elif kind == "insert" and place:
            lines.insert(place, lines[place - 1])
        elif file == files[-1]:
            continue  # the end of the last file is where a crash may have cut it
        elif kind == "cut":
            lines = lines[:place]
        if kind == "file":
            file.path.unlink()
        else:
            file.path.write_bytes(b"".join(lines))
        assert RunLog(folder.root).verify(), (kind, file.path.name, place)


def test_a_line_that_a_crash_left_unfinished_is_not_part_of_the_log(finished: Path, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path / "run")
    with open(folder.log_files()[-1].path, "ab") as file:
        file.write(b'{"step":20,"loss":1.')
    log = RunLog(folder.root)
    assert log.verify() == []
    assert len(log.steps()) == 20


def test_compacted_files_read_the_same_and_keep_their_chain(finished: Path, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path / "run")
    before = list(RunLog(folder.root).records())
    for file in folder.log_files():
        compact(file)
    assert all(file.is_compacted for file in folder.log_files())
    log = RunLog(folder.root)
    assert list(log.records()) == before
    assert log.verify() == []


def test_columns_of_a_compacted_file_that_are_not_those_of_its_lines_are_noticed(
    finished: Path, tmp_path: Path
) -> None:
    folder = copied(finished, tmp_path / "run")
    path = compact(folder.log_files()[0])
    table = parquet.read_table(path)
    for name in ("value/loss", "other"):
        values = table[name].to_pylist()
        row = next(row for row, value in enumerate(values) if value is not None and row > 2)
        values[row] = values[row] * 2
        column = pyarrow.array(values, table[name].type)
        parquet.write_table(table.set_column(table.column_names.index(name), name, column), path)
        (fault,) = RunLog(folder.root).verify()
        assert "columns" in fault.reason
    parquet.write_table(table.drop_columns(["value/loss"]), path)
    assert len(RunLog(folder.root).verify()) == 1
    parquet.write_table(table, path)
    assert RunLog(folder.root).verify() == []


def test_a_renamed_file_is_noticed(finished: Path, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path / "run")
    last = folder.log_files()[-1].path
    last.rename(last.with_name(last.name.replace("part-000", "part-001")))
    (fault,) = RunLog(folder.root).verify()
    assert "renamed" in fault.reason


def test_a_kill_between_compaction_and_removal_leaves_a_log_that_reads_the_same(finished: Path, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path / "run")
    before = list(RunLog(folder.root).records())
    file = folder.log_files()[0]
    content = file.path.read_bytes()
    compact(file)
    file.path.write_bytes(content)
    assert list(RunLog(folder.root).records()) == before


def test_a_large_log_is_cut_into_parts_of_one_chain(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    header = {"run": "x", "time": 0.0, "monotonic": 0.0, "boot": ""}
    recorder = Recorder(folder, rank=0, attempt=1, header=header, max_part_bytes=2_000)
    for step in range(100):
        recorder.write({"step": step, "loss": 1.0, "at": float(step)})
        recorder.sync()
    recorder.close()
    folder.identity.write_text("{}")
    log = RunLog(tmp_path)
    assert len(folder.log_files()) > 3
    assert [record["step"] for record in log.steps()] == list(range(100))
    assert log.verify() == []


def test_reading_needs_no_torch(finished: Path) -> None:
    code = f"import sys; from holdfast.run import RunLog; RunLog({str(finished)!r}).steps()"
    code += "; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "False"


def test_the_debugger_reads_a_runs_folder_as_one_run(finished: Path) -> None:
    (run,) = MLSystemsDebugger().debug(finished).runs
    losses = next(signal for signal in run.signals if signal.name == "loss")
    assert losses.steps.tolist() == list(range(20))
    assert run.config["batch_size"] == 4


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        RunLog(tmp_path)


def test_holdfast_runs_lists_every_run_once(finished: Path) -> None:
    (row,) = [describe_run(path) for path in find_runs(finished.parent)]
    assert (row["steps"], row["attempts"], row["checkpoint"], row["ended"]) == (20, 3, "step-00000020", True)
    command = [sys.executable, "-m", "holdfast", "runs", str(finished.parent)]
    assert "step-00000020" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    shown = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
    assert json.loads(shown)["runs"][0]["steps"] == 20
    nothing = subprocess.run([*command[:-1], str(finished / "log")], capture_output=True, text=True, check=False)
    assert nothing.returncode == 2
    assert "holds no run" in nothing.stderr


def test_the_log_is_flushed_before_a_checkpoint_of_its_steps_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, flush = RunFolder(tmp_path / "run"), os.fsync
    flushed: list[tuple[int, list[int]]] = []  # steps on the disk, and the checkpoints that are there by then

    def noted(descriptor: int) -> None:
        flush(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.parent == folder.logs:
            flushed.append((path.read_bytes().count(b'"batches"'), list(folder.checkpoint_steps())))

    monkeypatch.setattr(os, "fsync", noted)
    job = make_job()
    with job.run(folder.root, steps=12) as run:
        train(job, run)
    for step in (5, 10, 12):
        assert any(steps >= step and step not in there for steps, there in flushed), step


def test_a_write_that_the_disk_refuses_leaves_only_whole_lines(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=False)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        header = {"run": "x", "time": 0.0, "monotonic": 0.0, "boot": ""}
        recorder = Recorder(RunFolder(tmp_path), rank=0, attempt=1, header=header)

        def fill() -> None:
            for step in range(100_000):
                recorder.write({"step": step, "loss": 1.0})

        with pytest.raises(RunWriteError, match="cannot be written") as caught:
            fill()
        assert "continues from the last checkpoint" in str(caught.value)
        content = recorder.file.path.read_bytes()
        assert content.endswith(b"}\n")
        recorder.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_ends_the_run_with_a_clear_error_and_freeing_it_lets_the_run_continue(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], check=False)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        ballast = tmp_path / "ballast"
        job = make_job()
        run = job.run(tmp_path / "run", steps=20)

        def fill(_: Any) -> None:
            if run.step_number == 8:
                published = run.folder.checkpoint(5)
                wait_until(published.exists, "the save of step 5, which goes on in the background, to be published")
                with pytest.raises(OSError, match="No space"):
                    ballast.write_bytes(bytes(4 << 20))

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="no checkpoint of step ")  # while the log has room left
            with pytest.raises((RunWriteError, CheckpointWriteError)):
                train(job, run, on_batch=fill)
        with contextlib.suppress(RunWriteError):
            run.close()
        ballast.unlink()
        job = make_job()
        with job.run(tmp_path / "run", steps=20) as run:
            assert run.resume() == 5
            train(job, run)
        assert RunLog(tmp_path / "run").verify() == []
        expected = make_job()
        with expected.run(tmp_path.parent / f"{tmp_path.name}-other", steps=20) as run:
            train(expected, run)
        assert job.hash == expected.hash
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_runs(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,ro", "tmpfs", str(tmp_path)], check=False)
    if mounted.returncode:
        pytest.skip("mounting a read-only disk needs root")
    try:
        with pytest.raises(RunWriteError, match="cannot be written to"):
            make_job().run(tmp_path / "run").resume()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_clock_set_back_makes_no_negative_time() -> None:
    first = Origin(time=1000.0, monotonic=50.0, boot="a")
    assert Origin(time=200.0, monotonic=80.0, boot="a").seconds_since(first, 10.0) == 20.0
    assert Origin(time=200.0, monotonic=5.0, boot="b").seconds_since(first, 10.0) == 0.0
    assert Origin(time=1100.0, monotonic=5.0, boot="b").seconds_since(first, 10.0) == 90.0
