"""The page on sources runs as written."""

from __future__ import annotations

import re
from pathlib import Path

from tests.forking import run_script

import holdfast.sources

PAGE = Path(__file__).parents[2] / "docs" / "sources.md"


def test_every_example_on_the_page_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) > 8
    # As a script of its own: classes of a __main__ pickle, as they do for a reader who tries the page.
    (tmp_path / "page.py").write_text("\n".join(blocks))
    done = run_script(tmp_path / "page.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_on_the_page() -> None:
    text = PAGE.read_text()
    assert [name for name in holdfast.sources.__all__ if f"`{name}" not in text and f".{name}" not in text] == []
