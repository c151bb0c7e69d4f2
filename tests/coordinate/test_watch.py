"""`holdfast watch`: the live table on a terminal, one look in a pipe or as JSON, and a store that goes away."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from tests.faults.coordinate_runs import Host, start, wait_for
from tests.faults.coordinate_worker import Job, connect, run_on_terminal

from holdfast.cli.main import run
from holdfast.coordinate import StreamCoordinator
from holdfast.coordinate.protocol import LeaseTable
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset

COMMAND = [sys.executable, "-c", "from holdfast.cli.main import run; run()", "watch"]
ENVIRONMENT = {**os.environ, "RES_OPTIONS": "attempts:0", "TERM": "xterm", "COLUMNS": "100"}


class Terminal:
    """A command on a terminal of its own, whose screen can be waited for; by default forked, with torch loaded."""

    def __init__(self, *arguments: str, fresh: bool = False) -> None:
        self._ours, theirs = pty.openpty()
        self._process: Any
        if fresh:
            streams: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
            self._process = subprocess.Popen([*COMMAND, *arguments], env=ENVIRONMENT, start_new_session=True, **streams)
        else:
            self._process = start(run_on_terminal, os.ttyname(theirs), ["watch", *arguments])
            self._theirs = theirs  # open until the other process has opened it, too
        self._fresh = fresh
        if fresh:
            os.close(theirs)
        self.text = ""

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def read(self) -> bool:
        """Add what is written next; say whether there is more to come."""
        try:
            piece = os.read(self._ours, 65536)
        except OSError:  # the other end is closed
            return False
        self.text += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", piece.decode())
        if not self._fresh and self._theirs >= 0:
            os.close(self._theirs)
            self._theirs = -1
        return bool(piece)

    def wait_for(self, text: str, times: int = 1) -> None:
        while self.text.count(text) < times:
            assert self.read(), f"ended before it showed {text!r}: {self.text}"

    def end(self) -> int:
        while self.read():
            pass
        if self._fresh:
            return int(self._process.wait(30))
        (code,) = wait_for([self._process])
        assert code is not None
        return code


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


@pytest.fixture
def job(host: Host, tmp_path: Path) -> Iterator[Job]:
    job = Job(str(tmp_path), host.port, 2)
    with StreamCoordinator(connect(job), 2, heartbeat=0.05, ttl=1.0) as coordinator:
        for rank in range(2):
            coordinator.register_worker(rank)
            coordinator.update_worker_health(rank, 1000, 50.0)
        for rank in range(2):
            coordinator._presence.beat(coordinator._client, rank)
        yield job


def test_the_live_table_is_drawn_again_and_again_and_ends_after_so_many_looks(job: Job) -> None:
    terminal = Terminal(f"127.0.0.1:{job.port}", "--interval", "0.05", "--looks", "3")
    assert terminal.end() == 0, terminal.text
    assert terminal.text.count("2 active; 100.0 samples/s") == 3 + 1  # the last one stays on the screen
    assert "1,000" in terminal.text


def test_a_store_that_goes_away_under_the_live_table_ends_it_with_one_line_and_exit_code_2(
    job: Job, host: Host
) -> None:
    terminal = Terminal(f"127.0.0.1:{job.port}", "--interval", "0.05", fresh=True)
    terminal.wait_for("2 active", times=2)
    host.process.kill()
    assert terminal.end() == 2, terminal.text
    assert "the connection to the store was lost" in terminal.text
    assert "Traceback" not in terminal.text
    assert "frame #" not in terminal.text  # nor torch's own


def test_ctrl_c_ends_the_live_table(job: Job) -> None:
    terminal = Terminal(f"127.0.0.1:{job.port}", "--interval", "0.05")
    terminal.wait_for("2 active", times=2)
    os.kill(terminal.pid, signal.SIGINT)
    assert terminal.end() == 130, terminal.text
    assert "Traceback" not in terminal.text


def watch(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        run(["watch", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code, *capsys.readouterr()


def test_json_is_one_look_by_whatever_store(job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "store"
    with StreamCoordinator(dist.FileStore(str(file), -1), 2, heartbeat=0.05, ttl=1.0) as coordinator:  # type: ignore[attr-defined]
        coordinator.register_worker(1)
        by_file = watch(capsys, f"file:{file}", "--json")
    by_address = watch(capsys, f"127.0.0.1:{job.port}", "--json")
    for (code, output, _), ranks in ((by_file, [1]), (by_address, [0, 1])):
        assert code == 0
        rows = json.loads(output)["workers"]
        assert [(row["rank"], row["status"]) for row in rows] == [(rank, "active") for rank in ranks]


def test_a_look_tells_times_hosts_progress_time_left_takeovers_and_dead_letters(
    host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(str(tmp_path), host.port, 2)
    data = StreamDataset(ArraySource({"value": np.arange(40)}), name="data", seed=1)
    dead = StreamCoordinator(connect(job), 2, heartbeat=0.1, ttl=3.0)
    dead.register_worker(1)
    dead._stop.set()  # falls silent without leaving
    with StreamCoordinator(connect(job), 2, heartbeat=0.1, ttl=3.0) as coordinator:
        coordinator.register_worker(0)
        coordinator.update_worker_health(0, 8, 2.0)
        reader = coordinator.lease(data, name="captions", batch_size=4, chunk_size=4)
        records = coordinator._client.below("lease/captions/1")
        owner, heir = (LeaseTable(records, owner=name, chunks=10, ttl=1.0, max_attempts=2) for name in "ab")
        owner.claim(0.0, 4)
        heir.observe(0.0, range(4))
        first, second = (heir.take_over(chunk, 1.0) for chunk in (0, 1))  # on a clock of the test's own
        assert first is not None
        assert second is not None
        heir.commit(0, first.token, 1.0)
        heir.fail(1, second.token, 1.0, "poison")
        code, output, _ = watch(capsys, f"127.0.0.1:{job.port}", "--json")
        shown = " ".join(watch(capsys, f"127.0.0.1:{job.port}")[1].split())
        assert not reader.is_finished()
    told = json.loads(output)
    assert (code, told["ttl"], told["heartbeat"], told["certain"]) == (0, 3.0, 0.1, True)
    assert [(worker["rank"], worker["status"]) for worker in told["workers"]] == [(0, "active"), (1, "failed")]
    assert {worker["host"] for worker in told["workers"]} == {socket.gethostname()}
    (line,) = told["jobs"]
    assert (line["name"], line["generation"], line["chunks"]) == ("captions", 1, 10)
    assert (line["ended"], line["leased"], line["taken_over"], line["dead"]) == (2, 2, 2, 1)
    assert (line["samples_left"], line["seconds_left"]) == (32, 16.0)
    assert "ttl 3 s, heartbeat 0.1 s" in shown
    assert "2 of 10 chunks, 20.0%, 2 under lease, 16 s left, 2 taken over, 1 dead letters" in shown


def test_a_pipe_gets_one_table(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = watch(capsys, f"127.0.0.1:{job.port}")
    assert (code, output.count("2 active")) == (0, 1)


@pytest.mark.parametrize(
    "arguments", [("nowhere",), ("file:/no/such/store",), ("127.0.0.1:1", "--looks", "0")], ids=lambda it: it[0]
)
def test_what_cannot_be_watched_is_refused_in_one_line(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, errors = watch(capsys, *arguments)
    assert code == 2
    assert errors.startswith("holdfast: ")
    assert errors.count("\n") == 1
