"""The documentation covers what there is, its examples are Python, and its commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
import typer

import holdfast
from holdfast.cli.main import build_app
from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors import default_detectors, known_failures, thresholds_of
from holdfast.debug.types import Failure

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(
    r'^(?P<indent> *)```(?P<language>\w*)(?: title="(?P<title>\w+)")?[^\n]*\n(?P<body>.*?)^(?P=indent)```',
    re.MULTILINE | re.DOTALL,
)
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\.PHONY:(.*)$", makefile, re.MULTILINE)
    return set(line.split())


def _commands() -> list[str]:
    command = typer.main.get_command(build_app())
    return sorted(getattr(command, "commands", {}))


@pytest.mark.parametrize("name", [name for name in holdfast.__all__ if name != "__version__"])
def test_every_public_name_is_documented(name: str) -> None:
    assert re.search(rf"\b{re.escape(name)}\b", TEXT), f"{name} appears on no page of docs/"


@pytest.mark.parametrize("command", _commands())
def test_every_command_is_documented(command: str) -> None:
    assert f"holdfast {command}" in TEXT, f"`holdfast {command}` appears on no page of docs/"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_python_example_compiles(page: Path) -> None:
    for number, block in enumerate(FENCE.finditer(page.read_text(encoding="utf-8")), start=1):
        if block["language"] in ("python", "py") and block["title"] != "before":
            indent = len(block["indent"])
            body = "\n".join(line[indent:] for line in block["body"].splitlines())
            compile(body, f"{page.name}, example {number}", "exec")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"`make ([a-z-]+)`|^ *make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert {first or second for first, second in named} <= _targets()


def test_continuous_integration_runs_nothing_the_readme_does_not_say() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    ran = set(re.findall(r"\bmake ([a-z]+)", script))
    assert ran == {"services", "check", "test"}
    for target in ran:
        assert f"make {target}" in README


@pytest.mark.parametrize("failure", known_failures(), ids=lambda failure: failure.name)
def test_every_failure_has_a_page_with_its_picture_its_report_and_its_thresholds(failure: Failure) -> None:
    page = (ROOT / "docs" / "failures" / f"{failure.name}.md").read_text(encoding="utf-8")
    assert f"(failures/{failure.name}.md)" in (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
    assert f"(../images/failures/{failure.name}.svg)" in page
    assert (ROOT / "docs" / "images" / "failures" / f"{failure.name}.svg").is_file()
    (report,) = re.findall(r"^\$ holdfast debug run/.*?^```", page, re.MULTILINE | re.DOTALL)
    assert "UNHEALTHY" in report
    assert failure.title.lower() in report.lower()
    assert f"[[thresholds {failure.name}]]" in page


@pytest.mark.parametrize("detector", default_detectors(), ids=lambda detector: detector.name)
def test_the_thresholds_that_a_failures_page_names_exist(detector: BaseDetector) -> None:
    page = (ROOT / "docs" / "failures" / f"{detector.name}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_.]+)`", page.partition("## The thresholds that decide")[2]))
    assert named <= set(thresholds_of(detector)) | {field.name for field in fields(detector)}  # type: ignore[arg-type]


CONTINUES = re.compile(r"other examples on this page continue|Continue the program above")


def test_every_example_defines_what_it_uses_or_its_page_says_that_it_continues(tmp_path: Path) -> None:
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        text = page.read_text(encoding="utf-8")
        for block in FENCE.finditer(text):
            alone = not CONTINUES.search(text[: block.start()])
            if alone and block["language"] == "python" and block["title"] != "before":
                line = text[: block.start()].count("\n") + 1
                (tmp_path / f"{page.stem}-{line}.py").write_text(dedent(block["body"]), encoding="utf-8")
    assert len(list(tmp_path.iterdir())) > 30
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# Pages whose examples run one after another, with nothing prepared; the pages of each package are run by its own tests.
RUN_ALONE = [
    "index.md",
    "order.md",
    "checkpoint.md",
    "migrate/torchdata.md",
    "migrate/hf_trainer.md",
    "migrate/dcp.md",
    "tutorial.md",
    "packing.md",
    "remote.md",
    "run.md",
]


@pytest.mark.parametrize("name", RUN_ALONE)
@pytest.mark.filterwarnings("default")
def test_examples_that_run_alone_do_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    shown = (block for block in FENCE.finditer(page) if block["language"] == "python" and block["title"] != "before")
    blocks = [block["body"] for block in shown]
    assert blocks
    # A module of its own, so that classes of the example can be found by their name in worker processes.
    module = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    for number, body in enumerate(blocks, start=1):
        exec(compile(body, f"{name}, example {number}", "exec"), vars(module))
