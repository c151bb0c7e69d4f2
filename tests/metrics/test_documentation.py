"""The examples of docs/metrics.md run, in order, and print what they say they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast.metrics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_the_examples_run_and_print_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 5
    promised = [line.split("#", 1)[1].strip() for block in blocks for line in block.splitlines() if "print(" in line]
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    assert capsys.readouterr().out.splitlines() == promised
    assert (tmp_path / "metrics.jsonl").read_text().startswith('{"step": 100')


@pytest.mark.parametrize("name", sorted(set(holdfast.metrics.__all__) - {"MetricColumn", "RunMetricsState"}))
def test_every_public_name_is_documented(name: str) -> None:
    assert re.search(rf"(`|hfast\.|hfast\.metrics\.){name}\b", PAGE.read_text(encoding="utf-8"))
