"""A folder is read down to a depth that is a limit like any other."""

from __future__ import annotations

from pathlib import Path

from holdfast.debug.ingestion.folder import read_path
from holdfast.debug.ingestion.limits import Limits


def test_logs_are_read_down_to_the_limit_of_depth_and_no_deeper(tmp_path: Path) -> None:
    folder = tmp_path
    for level in range(4):
        folder = folder / f"level-{level}"
        folder.mkdir()
        rows = "".join(f"{step},{3 / (1 + step)}\n" for step in range(20))
        (folder / "metrics.csv").write_text("step,loss\n" + rows)
    found = [Path(log.path).parent.name for log in read_path(tmp_path, Limits(depth=2))]
    assert found == ["level-0", "level-1"]
