"""The demo: its quick stages in every run, the whole of it in soak runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.demo import STAGES, order_stage, takeover_stage
from holdfast.cli.demo.corpus import write_corpus


def test_every_claim_of_the_order_stage_holds(tmp_path: Path) -> None:
    said: list[str] = []
    rows = order_stage.run(tmp_path, said.append)
    assert said
    assert rows
    assert all(row.held for row in rows)


def test_the_worker_that_is_killed_leaves_work_to_take_over(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    (row,) = takeover_stage.run(tmp_path, lambda _: None)
    assert row.held, row.measured


def test_every_stage_module_offers_a_run_function() -> None:
    package = Path(order_stage.__file__).parent
    for module in STAGES:
        assert (
            "def run(folder: Path, say: Callable[[str], None]) -> list[Row]:" in (package / f"{module}.py").read_text()
        )


@pytest.mark.soak
def test_every_claim_of_the_whole_demo_holds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "demo", "--json", "--folder", str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    rows = json.loads(finished.stdout)["rows"]
    assert len(rows) >= 8
    assert [row for row in rows if not row["held"]] == []
