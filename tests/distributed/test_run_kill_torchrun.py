"""Runs under torchrun: ranks are killed, torchrun starts all of them again, and nothing shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.distributed import run_kill_worker
from tests.faults.run_job import STEPS
from tests.forking import torchrun

from holdfast.run import RunLog
from holdfast.run.run_log import is_step

pytestmark = [pytest.mark.distributed, pytest.mark.soak, pytest.mark.timeout(3600)]
# tests/faults/test_run_kill.py kills ranks every day, without torchrun.
KINDS = ("replicated", "sharded")
KILLS = 20
HALF = STEPS // 2


def launch(folder: Path, world: int, kind: str, *, kills: int = 0, seconds: float = 0.0, steps: int = STEPS) -> float:
    """Train one run after another under torchrun, with this many kills, each within some seconds of a start.

    Returns:
        how long its last life took.
    """
    folder.mkdir(exist_ok=True)
    torchrun(
        world,
        run_kill_worker.__name__,
        *(str(folder), "7", str(kills), str(seconds), str(steps), kind),
        options=(f"--max-restarts={kills}", "--monitor-interval=0.1"),
        # torchrun shares one store between all lives, in which a new one finds the dead one's addresses (torch 135712).
        environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        timeout=3600,
    )
    return float((folder / "seconds-0").read_text())


def check_log(folder: Path, number: int, ranks: int) -> None:
    """Assert that a run's log is whole: every step that a rank was told of is in it, and nothing is missing."""
    log = RunLog(folder / f"run-{number}")
    assert log.verify() == []
    for rank in range(ranks):
        acknowledged = {int(line) for line in (folder / f"notes-{number}-{rank}").read_text().split()}
        assert acknowledged <= {record["step"] for record in log.records(rank) if is_step(record)}
    assert [record["step"] for record in log.steps(0)] == list(range(STEPS))


def take_hashes(folder: Path, ranks: int) -> list[str]:
    """Return the hash with which every run ended, the same on all ranks, and let the runs be continued."""
    found: list[str] = []
    while paths := list(folder.glob(f"hash-{len(found)}-*")):
        if len(paths) < ranks:
            break
        (told,) = {path.read_text() for path in paths}
        found.append(told)
    for path in folder.glob("hash-*"):
        path.unlink()
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [2, 3])
def test_restarts_by_torchrun_end_as_if_no_rank_had_been_killed(tmp_path: Path, world: int, kind: str) -> None:
    alone, killed = tmp_path / "undisturbed", tmp_path / "killed"
    whole = launch(alone, world, kind)
    launch(killed, world, kind, kills=KILLS, seconds=1.2 * whole)
    ended = take_hashes(killed, world)
    print(f"\n{KILLS} kills in {len(ended)} runs of {world} {kind} ranks")
    assert ended == take_hashes(alone, world) * len(ended) != []
    for number in range(len(ended)):
        check_log(killed, number, world)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3)])
def test_a_run_killed_at_two_world_sizes_ends_as_if_only_its_size_had_changed(
    tmp_path: Path, before: int, after: int, kind: str
) -> None:
    alone, killed = tmp_path / "undisturbed", tmp_path / "killed"
    launch(alone, before, kind, steps=HALF)
    halfway = take_hashes(alone, before)
    whole = launch(alone, after, kind)
    (expected,) = take_hashes(alone, after)
    launch(killed, before, kind, kills=KILLS // 2, seconds=whole, steps=HALF)
    half = take_hashes(killed, before)
    assert half == halfway * len(half)
    launch(killed, after, kind, kills=KILLS // 2, seconds=whole)
    ended = take_hashes(killed, after)[: len(half)]  # others, if there are any, never had another size
    print(f"\n{KILLS} kills in {len(ended)} runs of {before}, then {after} {kind} ranks")
    assert ended == [expected] * len(ended) != []
    for number in range(len(ended)):
        check_log(killed, number, min(before, after))
