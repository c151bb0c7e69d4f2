"""The pages on streams and on resuming run as written, and say what comes out."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forking import run_script

import holdfast.stream
from holdfast.metrics import StandardMetricTransform
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

LINES_BEFORE = 4_594  # of the package before one function made every batch

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
    done = run_script(tmp_path / "page.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_option_of_the_loader_is_documented() -> None:
    text = "".join(page.read_text() for page in DOCS.glob("*.md"))
    options = set(holdfast.stream.StreamingConfig.__dataclass_fields__)
    assert sorted(name for name in options if f"`{name}" not in text and f"{name}=" not in text) == []


def modules_a_batch_passes(loader: StreamingShardLoader, step: int) -> list[str]:
    """The modules whose functions are done, in the order in which each is done with something first."""
    package = Path(holdfast.stream.__file__).parents[1]
    passed: dict[str, None] = {}

    def profile(frame: Any, event: str, _: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "return" and file.is_relative_to(package):
            passed[file.relative_to(package).with_suffix("").as_posix()] = None

    sys.setprofile(profile)
    try:
        loader.batch_at(step)
    finally:
        sys.setprofile(None)
    return list(passed)


@pytest.mark.parametrize("transform", [None, dict])
def test_a_sample_takes_the_way_that_is_drawn(transform: Any) -> None:
    drawing = re.search(r"```text\nstep\n(.*?)```", (DOCS / "stream.md").read_text(), flags=re.DOTALL)
    assert drawing is not None
    drawn = re.findall(r"^ │  (\w+/[\w…]+)", drawing[1], flags=re.MULTILINE)
    source = ArraySource({"tokens": np.arange(40).reshape(10, 4), "labels": np.arange(10)})
    dataset = StreamDataset(source, name="a", transform=transform, metric_transform=StandardMetricTransform())
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=4, epochs=1, last_batch="pad"))
    loader.mask(samples={"a": [3]})
    passed = modules_a_batch_passes(loader, 2)
    of_sources = next(module for module in passed if module.startswith("sources/"))
    assert [module for module in passed if module in drawn or module == of_sources] == [
        of_sources if hop == "sources/…" else hop for hop in drawn
    ]
    around = {"stream/read_batches", "stream/reading", "stream/loader", "stream/cursor"}
    assert {module for module in passed if module.startswith("stream/")} <= {*drawn, *around}


def test_the_package_stays_smaller_than_it_was_before_one_function_made_every_batch() -> None:
    package = Path(holdfast.stream.__file__).parent
    assert sum(len(file.read_text().splitlines()) for file in package.rglob("*.py")) < LINES_BEFORE
