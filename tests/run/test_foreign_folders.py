"""A run's folder may come from anyone: whatever is in it is read, or refused by one typed error, in bounded time."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.run.damage import damage, make_run

from holdfast.cli import main
from holdfast.errors import HoldfastError, RunLogError
from holdfast.page import page_of_run
from holdfast.page.feeds import feeds_of
from holdfast.page.server import PageServer
from holdfast.run import RunLog
from holdfast.run.audit import audit
from holdfast.run.bisect import bisect
from holdfast.run.buckets import TIME_FIELDS
from holdfast.run.columns import RunColumns
from holdfast.run.history import History
from holdfast.run.investigations import read_investigations
from holdfast.run.layout import RunFolder
from holdfast.run_records import parse_record

MAX_SECONDS = 60
"""Nothing here takes a second; what takes a minute does not end."""
PROGRAM = """
from tests.run.job import make_job
def build(folder):
    job = make_job()
    return job.run(folder, steps=20, train_step=job.step)
"""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("sound") / "exp")


@contextmanager
def ending() -> Iterator[None]:
    """Fail where something waits for ever."""

    def fail(*_: object) -> None:
        raise AssertionError("it does not end")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(MAX_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def read_with_everything(folder: Path, sound: Path) -> None:
    """Ask every part that reads a run's folder for everything it can tell; each may refuse with an error of ours."""
    with suppress(HoldfastError):
        log = RunLog(folder)
        for ask in (
            lambda: (log.identity, log.ranks, log.attempts),
            lambda: [list(log.records(rank)) for rank in log.ranks],
            lambda: [log.steps(rank) for rank in log.ranks],
            lambda: [log.goodput(rank) for rank in log.ranks],
            log.header,
            log.events,
            log.verify,
            lambda: [RunColumns(folder, rank=rank, min_at_once=2).refresh() for rank in log.ranks],
            lambda: [History.read(RunFolder(folder), rank=rank) for rank in log.ranks],
            lambda: audit(folder, {"numbers": [1, 2]}, unfinished=True),
            lambda: bisect(log, RunLog(sound)),
            lambda: read_investigations(folder),
            lambda: json.dumps(page_of_run(folder).to_json(columns=100), allow_nan=False),
        ):
            with suppress(HoldfastError):
                ask()


def called(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Call the command line in this process; returns its exit code and what it wrote."""
    with pytest.raises(SystemExit) as ended:
        main.run(arguments)
    written = capsys.readouterr()
    return int(ended.value.code or 0), written.out, written.err


def commands(folder: Path, sound: Path) -> list[list[str]]:
    samples, page = str(folder.parent / "samples.csv"), str(folder.parent / "page.html")
    run = str(folder)
    program = f"{folder.parent / 'program.py'}:build"
    return [
        ["runs", run],
        ["runs", run, "--json"],
        ["runs", str(folder.parent)],
        ["report", run, "--output", page],
        ["report", str(sound), "--compare", run, "--json"],
        ["debug", run],
        ["debug", run, "--json"],
        ["audit", run, "--samples", samples, "--unfinished", "--json"],
        ["bisect", run, str(sound)],
        ["replay", run, "--steps", "16:18", "--program", program],
        ["blame", run, "--step", "17", "--program", program],
        ["prove", run, "--step", "17", "--program", program],
    ]


def attack(sound: Path, place: Path, seeds: range, capsys: pytest.CaptureFixture[str], *, per_case: int) -> None:
    (place / "samples.csv").write_text("source,index\nnumbers,1\n")
    (place / "program.py").write_text(PROGRAM)
    for seed in seeds:
        folder = place / "run"
        way = damage(sound, folder, seed)
        try:
            with ending():
                read_with_everything(folder, sound)
                for arguments in random.Random(seed).sample(commands(folder, sound), per_case):
                    code, out, error = called(arguments, capsys)
                    assert code in (0, 1, 2), (arguments, code)
                    assert "Traceback" not in out + error
                    assert code != 2 or (error.startswith("holdfast: ") and error.count("\n") == 1), error
                    assert "\x1b" not in error
        except BaseException as failure:
            failure.add_note(f"seed {seed}: {way}")
            raise
        shutil.rmtree(folder)


def test_the_sound_run_is_read_by_everything(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert RunLog(sound).verify() == []
    assert len(RunLog(sound).steps()) == 20
    (tmp_path / "samples.csv").write_text("source,index\nnumbers,1\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    shutil.copytree(sound, tmp_path / "run")
    for arguments in commands(tmp_path / "run", sound):
        code, _, error = called(arguments, capsys)
        assert code in (0, 1), (arguments, error)


def log_of(folder: Path) -> Path:
    """Return the newest file of rank 0."""
    return RunFolder(folder).log_files(rank=0)[-1].path


def damaged_runs(sound: Path, place: Path) -> dict[str, Path]:
    """Return copies of a run, each with one thing in its log that nobody expects, and what is said about it."""
    found = {}
    for number, (reason, content) in enumerate(
        {
            "nested too deeply": b"[" * 100_000 + b"]" * 100_000 + b"\n",
            "loss must be": b'{"step":20,"loss":"x"}\n',
            "a number in it is too large": b'{"step":20,"loss":1' + b"0" * 400 + b"}\n",
            "step is missing": b'{"event":"start"}\n',
            "to is missing": b'{"event":"rollback"}\n',
            "event must be": b'{"event":["a"]}\n',
            "a second header": b'{"holdfast":"run-log","attempt":"x","rank":-1}\n',
            "step_time must be from": b'{"step":20,"step_time":-1}\n',
            "not an object": b"null\n",
        }.items()
    ):
        shutil.copytree(sound, place / f"run-{number}")
        with log_of(place / f"run-{number}").open("ab") as file:
            file.write(content)
        found[reason] = place / f"run-{number}"
    for name in ("reversed", "fifo", "linked", "huge"):
        shutil.copytree(sound, place / name)
    path = log_of(place / "reversed")
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))
    for name in ("fifo", "linked", "huge"):
        log_of(place / name).unlink()
    os.mkfifo(log_of(place / "fifo").with_name(path.name))
    (place / "linked" / "log" / path.name).symlink_to("/etc/passwd")
    (place / "huge" / "log" / path.name).touch()
    os.truncate(place / "huge" / "log" / path.name, 1 << 40)
    named = {
        "not its header": "reversed",
        "not a regular file": "fifo",
        "leads out of": "linked",
        "longer than": "huge",
    }
    return found | {reason: place / name for reason, name in named.items()}


def test_what_is_wrong_is_said_with_the_file_and_the_line(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ending():
        for reason, folder in damaged_runs(sound, tmp_path).items():
            with pytest.raises(RunLogError, match=reason) as caught:
                list(RunLog(folder).records())
            assert Path(str(caught.value.file)) == log_of(folder)
            with pytest.raises(RunLogError, match=reason):
                RunColumns(folder, min_at_once=2).refresh()
            code, _, error = called(["report", str(folder), "--output", str(tmp_path / "page.html")], capsys)
            assert code == 2
            assert reason in error


def test_runs_and_serve_list_every_other_run_and_say_of_the_damaged_that_they_cannot_be_read(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = damaged_runs(sound, tmp_path)
    shutil.copytree(sound, tmp_path / "zzz-sound")
    with ending():
        code, out, error = called(["runs", str(tmp_path), "--json"], capsys)
        rows = {Path(row["folder"]).name: row for row in json.loads(out)["runs"]}
        assert (code, error) == (0, "")
        assert len(rows) == len(damaged) + 1
        assert rows["zzz-sound"]["steps"] == 20
        assert rows["zzz-sound"]["error"] is None
        for reason, folder in damaged.items():
            assert rows[folder.name]["verdict"] == "unreadable"
            assert reason in rows[folder.name]["error"]
        code, out, _ = called(["runs", str(tmp_path)], capsys)
        assert (code, out.count("unreadable: ")) == (0, len(damaged))
        with PageServer(feeds_of([tmp_path])) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                listed = urlopen(server.url).read().decode()
                fifo = urlopen(f"{server.url}?run=fifo").status
            finally:
                server.shutdown()
                thread.join()
        assert listed.count('"verdict":"unreadable"') == len(damaged)
        assert all(reason in listed for reason in damaged)
        assert "zzz-sound" in listed
        assert fifo == 200


def test_one_run_that_cannot_be_read_is_an_error_where_it_was_asked_for(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(sound, tmp_path / "run")
    log_of(folder).write_bytes(b"x\n")
    for command in ("runs", "debug"):
        code, out, error = called([command, str(folder)], capsys)
        assert (code, out) == (2, "")
        assert "is not JSON" in error


def test_a_line_nested_too_deeply_among_many_steps_does_not_reach_arrow(sound: Path, tmp_path: Path) -> None:
    # Arrow's parser recurses without a bound: the process would be gone.
    folder = shutil.copytree(sound, tmp_path / "run")
    lines = [b'{"step":%d,"loss":1.0}\n' % step for step in range(20, 1200)]
    lines[900] = b'{"step":920,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    with log_of(folder).open("ab") as file:
        file.write(b"".join(lines))
    with pytest.raises(RunLogError, match="nested too deeply") as caught:
        RunColumns(folder).refresh()
    assert log_of(folder).read_bytes().splitlines()[int(caught.value.where["line"]) - 1].startswith(b'{"step":920')


def test_looking_again_at_a_damaged_log_takes_nothing_twice(sound: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sound, tmp_path / "run")
    content = log_of(folder).read_bytes()
    log_of(folder).write_bytes(content + b"x\n")
    columns = RunColumns(folder)
    for _ in range(3):
        with pytest.raises(RunLogError, match="not JSON"):
            columns.refresh()
    log_of(folder).write_bytes(content)
    columns.refresh()
    assert columns.series("loss")[0].tolist() == list(range(20))
    assert len(columns.headers) == 2


def test_serving_what_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for name, reason in (("nope", "there is no such file or folder"), ("empty", "the folder is empty")):
        code, out, error = called(["serve", str(tmp_path / name), "--port", "0"], capsys)
        assert (code, out) == (2, "")
        assert reason in error


def test_a_program_that_exits_by_itself_proves_nothing(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    late = PROGRAM.replace("train_step=job.step", "train_step=lambda batch: exit(0)")
    for text in ("import sys\ndef build(folder):\n    sys.exit(0)\n", "import sys\nsys.exit(0)\n", late):
        program.write_text(text)
        code, out, error = called(["replay", str(sound), "--steps", "16:18", "--program", f"{program}:build"], capsys)
        assert (code, out) == (2, "")
        assert "the program exited with code 0" in error


def test_every_time_of_a_record_is_checked() -> None:
    for name in (*TIME_FIELDS.values(), "at"):
        for value in ("-1", '"x"', "NaN", "1e13", "true", "null"):
            line = f'{{"step":1,"{name}":{value}}}'.encode()
            with pytest.raises(RunLogError, match=name):
                parse_record(line, file="log", number=2)


def test_any_damage_is_read_or_refused_with_one_line(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attack(sound, tmp_path, range(30), capsys, per_case=1)


@pytest.mark.soak
def test_any_damage_is_read_or_refused_with_one_line_very_often(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attack(sound, tmp_path, range(1000, 4000), capsys, per_case=4)
