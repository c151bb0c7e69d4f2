"""The pages on datasets and on testing run as written, and say what comes out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
CLAIMS = {
    "datasets.md": """
assert chat.info.length == 67
assert (report["samples_seen"], report["num_epochs"], report["samples_failed"]) == (160, 2, 0)
assert state is not None and mix.state_dict()["children"]["web"]["position"] == 512
assert mix.state_dict()["children"]["skills"]["children"]["code"]["position"] == 384
assert chat.state_dict()["position"] == 0 and first["tokens"].shape[0] == 8
assert len(set(before) | set(after)) == 100
assert sorted(ids) == list(range(40))
assert sum(i < 1000 for i in opening) == 256 and following == [int(s["id"]) for s in islice(corpus(), 1024, 1124)]
assert resumed_batch == expected
""",
    "testing.md": """
assert "step 4 differs: ['x'] is 5, but 6 after resuming; this is the batch of step 5, too far ahead" in shown
""",
}


@pytest.mark.parametrize("page", CLAIMS)
def test_every_example_on_the_page_runs_and_gives_what_it_says(tmp_path: Path, page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    assert len(blocks) >= 4
    body = "\n".join(blocks)
    if page == "testing.md":
        body = body.replace("    print(error)\n", "    shown = str(error)\n")
    # Worker processes of a script need the guard; a notebook or a training script has its own.
    (tmp_path / "page.py").write_text(body + CLAIMS[page])
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
