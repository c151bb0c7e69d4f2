"""Every trainer, killed with SIGKILL and started again at other sizes, trains on what one uninterrupted run does."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.jobs import live_all, live_under_torchrun, trained_on
from tests.integrations.trainer_job import Life

STEPS = 14
pytestmark = pytest.mark.distributed


def lives_of(
    trainer: str, folder: Path, lives: list[tuple[int, int]], options: dict[str, Any]
) -> tuple[list[Life], list[int]]:
    """Return the lives of one job, and how many processes each has."""
    made = [
        Life(trainer=trainer, folder=str(folder), number=number, world=world, die_after=die, steps=STEPS, **options)
        for number, (world, die) in enumerate(lives)
    ]
    return made, [world for world, _ in lives]


# The first life dies after its third checkpoint, the second after one that two processes saved together.
CASES: dict[str, tuple[dict[str, Any], list[tuple[int, int]]]] = {
    "transformers": ({"epochs": True, "accumulate": 2}, [(1, 20), (2, 8), (1, 0)]),
    "trl": ({"epochs": True}, [(1, 10), (2, 4), (1, 0)]),
    "lightning": ({}, [(1, 10), (2, 4), (1, 0)]),
    "accelerate": ({"epochs": True, "workers": 2}, [(1, 10), (2, 4), (1, 0)]),
}
DCP = [(1, 7), (2, 4), (1, 0)]


def skip_without(trainer: str) -> None:
    if trainer != "dcp" and find_spec(trainer) is None:  # importing it here would cost more than the test
        pytest.skip(f"{trainer} is not installed")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All jobs, whole and killed, from one process that has imported the trainers."""
    root = tmp_path_factory.mktemp("jobs")
    plan: list[Life] = []
    for trainer in (trainer for trainer in CASES if find_spec(trainer) is not None):
        options, lives = CASES[trainer]
        plan += lives_of(trainer, root / f"{trainer}-whole", [(1, 0)], options)[0]
        plan += lives_of(trainer, root / f"{trainer}-killed", lives, options)[0]
    plan += lives_of("dcp", root / "dcp-whole", [(1, 0)], {})[0]
    plan += lives_of("dcp", root / "dcp-killed", DCP, {})[0]
    live_all(plan)
    return root


@pytest.mark.parametrize("trainer", CASES)
def test_a_killed_run_trains_on_the_same_batches_at_another_size(trainer: str, finished: Path) -> None:
    skip_without(trainer)
    whole = trained_on(finished / f"{trainer}-whole", [1])
    assert sorted(whole) == list(range(STEPS))
    assert trained_on(finished / f"{trainer}-killed", [world for world, _ in CASES[trainer][1]]) == whole


@pytest.mark.parametrize("trainer", CASES)
def test_a_killed_run_is_one_record_over_all_its_lives(trainer: str, finished: Path) -> None:
    from holdfast.run import RunLog

    skip_without(trainer)
    log = RunLog(finished / f"{trainer}-killed" / "run")
    records = log.steps()
    assert [record["step"] for record in records] == list(range(STEPS))
    # Whatever the number of processes: the loss and the gradient of the whole batch.
    whole = RunLog(finished / f"{trainer}-whole" / "run").steps()
    for name in ("loss", "grad_norm"):
        assert [record[name] for record in records] == pytest.approx([record[name] for record in whole], rel=1e-5)
    assert log.verify() == []
    assert [log.header(attempt=attempt)["world_size"] for attempt in log.attempts] == [1, 2, 1]
    assert log.ranks == [0, 1]
    for attempt, header in enumerate(log.header(attempt=attempt) for attempt in log.attempts):
        made = [record for record in log.records(0, attempt=attempt + 1) if "loss" in record]
        assert all("step_time" in record for record in made), "what a checkpoint took is not the step's"
        # What a rank took for itself, where there are others it waits for.
        assert {"own_time" in record for record in made} == {header["world_size"] > 1}
        assert all(record["own_time"] >= 0 for record in made if "own_time" in record)
    starts = [event["step"] for event in log.events("start")]
    assert all(step % 3 == 0 for step in starts), "from the checkpoints, which are saved every third step"


def check_loop(whole: Path, killed: Path) -> None:
    from holdfast.run import RunLog

    assert trained_on(killed, [world for world, _ in DCP]) == trained_on(whole, [1])
    for folder in (whole, killed):
        assert json.loads((folder / "metrics.json").read_text()) == STEPS * 8
    log = RunLog(killed / "run")
    assert log.verify() == []
    assert [record["step"] for record in log.steps()] == list(range(STEPS))
    assert [event["step"] for event in log.events("start")] == [0, 6, 9]


def test_a_loop_on_torchs_own_checkpoints_resumes_at_another_size(finished: Path) -> None:
    """The loader, the metrics and the run's record are one Stateful beside the model, as in torchtitan."""
    check_loop(finished / "dcp-whole", finished / "dcp-killed")


@pytest.mark.soak
def test_it_does_so_under_torchrun_too(tmp_path: Path, finished: Path) -> None:
    killed, _ = lives_of("dcp", tmp_path, DCP, {})
    live_all(killed[:1])
    live_under_torchrun(killed[1])
    live_all(killed[2:])
    check_loop(finished / "dcp-whole", tmp_path)


MATRIX = [
    pytest.param(
        trainer,
        {"epochs": epochs, "workers": workers, "accumulate": accumulate},
        id=f"{trainer}{' epochs' * epochs} {workers} {accumulate}",
    )
    for trainer in (*CASES, "dcp")
    for epochs in (False, True)
    for workers in (0, 2)
    for accumulate in ((1, 3) if trainer in ("transformers", "trl", "lightning") else (1,))
]


@pytest.mark.soak
@pytest.mark.parametrize(("trainer", "options"), MATRIX)
def test_every_trainer_with_and_without_epochs_and_workers(
    trainer: str, options: dict[str, Any], tmp_path: Path
) -> None:
    skip_without(trainer)
    whole, _ = lives_of(trainer, tmp_path / "whole", [(1, 0)], options)
    once, once_worlds = lives_of(trainer, tmp_path / "same", [(1, 5), (1, 8), (1, 0)], options)
    other, other_worlds = lives_of(trainer, tmp_path / "other", [(2, 7), (1, 7), (2, 0)], options)
    live_all([*whole, *once, *other])
    expected = trained_on(tmp_path / "whole", [1])
    assert trained_on(tmp_path / "same", once_worlds) == expected
    assert trained_on(tmp_path / "other", other_worlds) == expected
