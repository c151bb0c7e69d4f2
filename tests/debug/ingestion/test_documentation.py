"""What the documentation shows must run and say what it says."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODULES = (
    "debugger",
    "online",
    "ingestion.log_ingestor",
    "ingestion.metric_ingestor",
    "signals.gradients",
    "signals.distributions",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str) -> None:
    module = import_module(f"holdfast.debug.{name}")
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_examples_on_the_page_about_debugging_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("opentelemetry")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "debug.md").read_text(), re.DOTALL):
        exec(compile(block, "docs/debug.md", "exec"), names)
    shown = capsys.readouterr().out
    assert shown.startswith("unhealthy\nnan 60.0\n")
    assert "text [('loss', 'loss')]" in shown
    assert "field 'loss' in row 1 is 'high', not a number" in shown


def test_every_format_is_documented() -> None:
    from holdfast.debug.ingestion.detection import default_formats

    page = (ROOT / "docs" / "log_formats.md").read_text()
    for form in default_formats():
        assert f"`{form.name}`" in page
