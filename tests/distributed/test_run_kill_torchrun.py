"""A run of two ranks under torchrun: one of them is killed, torchrun starts both again, and nothing shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.distributed import run_kill_worker
from tests.faults.run_job import STEPS
from tests.forking import torchrun

from holdfast.run import RunLog
from holdfast.run.run_log import is_step

pytestmark = pytest.mark.distributed


def launch(folder: Path, *, kills: int, seconds: float) -> None:
    """Train one run after another under torchrun, with this many kills, each within some seconds of a start."""
    folder.mkdir()
    torchrun(
        2,
        run_kill_worker.__name__,
        *(str(folder), "7", str(kills), str(seconds)),
        options=(f"--max-restarts={kills}", "--monitor-interval=0.1"),
        # torchrun shares one store between all lives, in which a new one finds the dead one's addresses (torch 135712).
        environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        timeout=3600,
    )


@pytest.mark.soak  # tests/faults/test_run_kill.py kills ranks every day, without torchrun
@pytest.mark.timeout(3600)
def test_forty_restarts_by_torchrun_end_as_if_no_rank_had_been_killed(tmp_path: Path) -> None:
    launch(tmp_path / "undisturbed", kills=0, seconds=0.0)
    whole = float((tmp_path / "undisturbed" / "seconds-0").read_text())
    launch(tmp_path / "killed", kills=40, seconds=1.2 * whole)
    runs = len(list((tmp_path / "killed").glob("run-*")))
    lives = [len(RunLog(tmp_path / "killed" / f"run-{number}").attempts) for number in range(runs)]
    print(f"\n40 kills in {runs} runs, begun {lives} times")
    for number in range(runs):
        log = RunLog(tmp_path / "killed" / f"run-{number}")
        assert log.verify() == []
        for rank in range(2):
            acknowledged = {int(line) for line in (tmp_path / "killed" / f"notes-{number}-{rank}").read_text().split()}
            assert acknowledged <= {record["step"] for record in log.records(rank) if is_step(record)}
            assert [record["step"] for record in log.steps(rank)] == list(range(STEPS))
            hashes = [tmp_path / name for name in ("undisturbed/hash-0-0", f"killed/hash-{number}-{rank}")]
            assert hashes[0].read_text() == hashes[1].read_text()
