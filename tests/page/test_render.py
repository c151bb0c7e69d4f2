"""The mailed file: one file, bounded, and hostile text stays text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.page.pages import HOSTILE, full_page

from holdfast.cli.main import run
from holdfast.page import render_page


def data_of(text: str) -> dict[str, object]:
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    found: dict[str, object] = json.loads(block)
    return found


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_does_not_leave_its_data_block(text: str) -> None:
    page = render_page(full_page(text=text))
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "<img" not in page
    pages = data_of(page)["pages"]
    assert isinstance(pages, list)
    assert pages[0]["lead"] == text


def test_the_policy_allows_this_script_and_nothing_else() -> None:
    page = render_page(full_page())
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert "default-src &#x27;none&#x27;" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?://(?!github\.com/leeoniya|www\.w3\.org)", page.replace(policy, ""))


def test_a_million_steps_of_twenty_series_fit_in_a_megabyte() -> None:
    assert len(render_page(full_page(steps=1_000_000, series=19)).encode()) <= 1_000_000


def test_debug_writes_the_same_page_of_a_foreign_log_as_report(tmp_path: Path) -> None:
    log, (first, second) = tmp_path / "train.jsonl", (tmp_path / "debug.html", tmp_path / "report.html")
    log.write_text("".join(json.dumps({"step": n, "loss": 5.0 / (n + 1) + 1}) + "\n" for n in range(120)))
    for arguments in (
        ["debug", str(log), "--format", "html", "-o", str(first)],
        ["report", str(log), "-o", str(second)],
    ):
        with pytest.raises(SystemExit) as ended:
            run(arguments)
        assert not ended.value.code
    assert "Loss" in first.read_text()
    assert first.read_text() == second.read_text()


def test_numbers_that_json_cannot_hold_are_drawn_not_written() -> None:
    page = full_page()
    line = page.charts[0].lines[1].to_json(columns=300)
    assert len(line["values"]) > 0
    json.dumps(page.to_json(columns=300), allow_nan=False)
    assert np.isnan(page.charts[0].lines[1].values).any()
