"""``holdfast runs`` finds the runs below a folder, a few levels deep, and none inside a run."""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast.cli.runs import MAX_DEPTH, find_runs

RUN = Path(__file__).parent.parent / "states" / "v1" / "run"


def test_runs_are_found_down_to_the_greatest_depth_and_no_deeper(tmp_path: Path) -> None:
    levels = [f"level-{number}" for number in range(MAX_DEPTH)]
    last, beyond = tmp_path.joinpath(*levels[:-1], "run"), tmp_path.joinpath(*levels, "run")
    for place in (tmp_path / "run", last, beyond):
        shutil.copytree(RUN, place)
    assert find_runs(tmp_path) == sorted([tmp_path / "run", last])


def test_a_run_is_not_searched_for_others(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "outer")
    shutil.copytree(RUN, tmp_path / "outer" / "inner")
    assert find_runs(tmp_path) == [tmp_path / "outer"]
    assert find_runs(tmp_path / "outer") == [tmp_path / "outer"]
