"""Under torchrun with its own TCPStore: a killed rank, a restarted group, a smaller group, and a slow rank."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.distributed import coordinate_trainer
from tests.distributed.coordinate_trainer import GLOBAL_BATCH, SAMPLES, dataset
from tests.forking import ROOT
from tests.forking import torchrun as run

pytestmark = pytest.mark.distributed

PAGE = (ROOT / "docs" / "coordinate.md").read_text()


def torchrun(folder: Path, ranks: int, **plan: Any) -> None:
    file = folder / f"plan-{plan['name']}.json"
    set_up = re.search(r"^(store = dist\.TCPStore.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert set_up is not None
    file.write_text(json.dumps({"folder": str(folder), "set_up": set_up[1], **plan}))
    options = ("--max-restarts=2", "--monitor-interval=0.1")
    # torch's server looks up the name of every client; a lost answer of the name server would stall it for seconds.
    run(ranks, coordinate_trainer.__name__, str(file), options=options, environment={"RES_OPTIONS": "attempts:0"})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    # A rank dies at its ninth step; in the group's second life another dies at its fourth chunk of a leased job.
    kills = {"train": [0, 1, 9], "lease": [1, 0, 4]}
    torchrun(folder, 2, name="two", kills=kills, stop_at=20)
    torchrun(folder, 1, name="one", kills={}, stop_at=None)
    return folder


def steps_of(folder: Path) -> dict[int, list[dict[str, Any]]]:
    steps: dict[int, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("step-*.json")):
        steps.setdefault(int(file.name.split("-")[1]), []).append(json.loads(file.read_text()))
    return steps


def ends(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob(f"end-{name}-*.json"))]  # by life, then rank


def test_every_step_has_the_samples_of_the_uninterrupted_run(trained: Path) -> None:
    steps = steps_of(trained)
    assert sorted(steps) == list(range(SAMPLES // GLOBAL_BATCH))
    order = dataset().order()
    for step, ranks in steps.items():
        expected = order.locate(np.arange(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH)).index.tolist()
        assert sorted(value for rank in ranks for value in rank["values"]) == sorted(expected)


def test_the_group_was_restarted_and_went_on_by_itself_from_the_last_committed_step(trained: Path) -> None:
    # It died in its ninth step, so only its second and third lives came to an end of the training.
    assert [end["begun"] for end in ends(trained, "two-1")] == [8, 8]
    assert [end["begun"] for end in ends(trained, "two-2")] == [20, 20]
    assert ends(trained, "two-0") == []


def test_a_smaller_group_goes_on_where_the_larger_one_stopped(trained: Path) -> None:
    assert [end["begun"] for end in ends(trained, "one-0")] == [20]


def test_every_rank_adopts_the_same_shares_at_the_same_step(trained: Path) -> None:
    first, second = (end["segments"] for end in ends(trained, "two-1"))
    assert first == second
    assert any(shares is not None for _, _, _, shares, _ in first)


def test_the_slow_rank_ends_up_with_the_smaller_share(trained: Path) -> None:
    shares = {entry["rank"]: entry["share"] for entry in steps_of(trained)[19]}
    assert shares[1] < shares[0]
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_leased_job_survives_a_killed_rank_and_torchruns_restart(trained: Path) -> None:
    results = [json.loads(file.read_text()) for file in trained.glob("results-*.json")]
    assert len(results) == 2
    assert all([chunk for chunk, _ in found] == list(range(SAMPLES // 8)) for found in results)
    told = Counter(line for file in trained.glob("leased-*.jsonl") for line in file.read_text().splitlines())
    assert max(told.values()) == 1
    assert {payload[1] for _, payload in results[0]} == {"1", "2"}  # commits of both lives stand side by side
