"""The pages on streams and on resuming run as written, and say what comes out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast.stream

DOCS = Path(__file__).parents[2] / "docs"

# What the examples claim in comments, asked after the examples have run.
CLAIMS = {
    "stream.md": """
assert sum(ref.source == "wiki" for ref in refs) == 7168
assert [len(batches) for batches in steps] == [48, 48, 48]
assert not steps[2][-1]["__valid__"].all()
assert stats.samples_loaded == 1000 and stats.prefetch_hits + stats.prefetch_misses == 63
""",
    "resume.md": """
assert hfast.load_state("state").step == 20
assert (len(rest), len(set(rest))) == (840, 840)
assert grown.changes == ("source 'wiki' grows from 1000 to 1200 samples at its epoch 1",)
""",
}


@pytest.mark.parametrize("page", CLAIMS)
def test_every_example_on_the_page_runs_and_gives_what_it_says(tmp_path: Path, page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    assert len(blocks) > 5
    (tmp_path / "page.py").write_text("\n".join(blocks) + CLAIMS[page])
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_option_of_the_loader_is_documented() -> None:
    text = "".join(page.read_text() for page in DOCS.glob("*.md"))
    options = set(holdfast.stream.StreamingConfig.__dataclass_fields__)
    assert sorted(name for name in options if f"`{name}" not in text and f"{name}=" not in text) == []
