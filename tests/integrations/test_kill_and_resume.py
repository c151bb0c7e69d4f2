"""Every trainer, killed with SIGKILL and started again at other sizes, trains on what one uninterrupted run does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integrations.jobs import live, trained_on

STEPS = 14


def run(trainer: str, folder: Path, lives: list[tuple[int, int]], *options: str) -> dict[int, list[list[int]]]:
    folder.mkdir()
    for life, (world, die_after) in enumerate(lives):
        code = live(trainer, folder, life, "--steps", str(STEPS), "--die-after", str(die_after), *options, world=world)
        assert (code == 0) == (die_after == 0)
    return trained_on(folder, [world for world, _ in lives])


CASES = [
    pytest.param("transformers", ("--epochs", "--accumulate", "2"), id="transformers, epochs, accumulation"),
    pytest.param("lightning", (), id="lightning, endless"),
    pytest.param("accelerate", ("--epochs", "--workers", "2"), id="accelerate, epochs, workers"),
]


@pytest.mark.distributed
@pytest.mark.parametrize(("trainer", "options"), CASES)
def test_a_killed_run_trains_on_the_same_batches_at_another_size(
    trainer: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    pytest.importorskip(trainer)
    whole = run(trainer, tmp_path / "whole", [(1, 0)], *options)
    assert sorted(whole) == list(range(STEPS))
    # The first life dies after its third checkpoint, the second after one that two processes saved together.
    batches_per_step = 2 if "--accumulate" in options else 1
    lives = [(1, 10 * batches_per_step), (2, 4 * batches_per_step), (1, 0)]
    assert run(trainer, tmp_path / "killed", lives, *options) == whole


MATRIX = [
    pytest.param(trainer, (*epochs, "--workers", workers, *accumulate), id=" ".join((trainer, *epochs, workers)))
    for trainer in ("transformers", "lightning", "accelerate")
    for epochs in ((), ("--epochs",))
    for workers in ("0", "2")
    for accumulate in ((), *((("--accumulate", "3"),) if trainer != "accelerate" else ()))
]


@pytest.mark.soak
@pytest.mark.distributed
@pytest.mark.parametrize(("trainer", "options"), MATRIX)
def test_every_trainer_with_and_without_epochs_and_workers(
    trainer: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    pytest.importorskip(trainer)
    whole = run(trainer, tmp_path / "whole", [(1, 0)], *options)
    for number, lives in enumerate(([(1, 5), (1, 8), (1, 0)], [(2, 7), (1, 7), (2, 0)])):
        assert run(trainer, tmp_path / f"killed-{number}", lives, *options) == whole
