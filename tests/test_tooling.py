"""What other tools run of holdfast: the pytest plugin, shell completion, the GitHub action, the pre-commit hook."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent

pytest_plugins = ["pytester"]

PIPELINE = """
import numpy as np
import holdfast as hfast

def pipeline():
    source = hfast.ArraySource({"x": np.arange(100)})
    dataset = hfast.StreamDataset(source, name="numbers", seed=7)
    return hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=4)), None

class Forgetful:
    def __iter__(self):
        return iter([{"x": n} for n in range(50)])
    def state_dict(self):
        return {}
    def load_state_dict(self, state):
        pass

def test_exact(assert_exact_resume):
    assert_exact_resume(pipeline, steps_before=3, steps_after=4)

def test_forgetful(assert_exact_resume):
    assert_exact_resume(lambda: (Forgetful(), None), steps_before=3, steps_after=4)

def test_source(check_source):
    check_source(hfast.ArraySource({"x": np.arange(50)}))
"""


def test_the_pytest_plugin_gives_the_checks_as_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PIPELINE)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*resumed after 3 steps, step 3 differs*"])


def test_shell_completion_offers_the_commands() -> None:
    asked = {**os.environ, "_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": "holdfast ver", "COMP_CWORD": "1"}
    script = "import sys; from holdfast.cli.main import run; sys.argv = ['holdfast']; run()"
    done = subprocess.run([sys.executable, "-c", script], env=asked, capture_output=True, text=True, check=False)
    assert "verify" in done.stdout.split()


@pytest.fixture
def diverged(tmp_path: Path) -> Path:
    log = tmp_path / "train.csv"
    rows = [f"{step},{2.0 / (step + 1) if step < 60 else float('nan')}" for step in range(80)]
    log.write_text("step,loss\n" + "\n".join(rows) + "\n")
    return log


def _holdfast_on_the_path() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_the_action_fails_on_a_failed_run_and_writes_the_summary(tmp_path: Path, diverged: Path) -> None:
    action: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    step = action["runs"]["steps"][-1]
    summary = tmp_path / "summary.md"
    given = {"LOGS": str(diverged), "FAIL_ON": "warning", "GITHUB_STEP_SUMMARY": str(summary)}
    environment = {**_holdfast_on_the_path(), **given}
    assert set(step["env"]) == {"LOGS", "FAIL_ON"}
    command = ["bash", "-e", "-c", step["run"]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "nan" in summary.read_text().lower()


def test_the_pre_commit_hook_is_a_command_that_fails_on_a_failed_run(diverged: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    command = [*hook["entry"].split(), str(diverged)]
    done = subprocess.run(command, env=_holdfast_on_the_path(), capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr


def test_the_sdist_carries_every_folder_so_that_the_tests_run_from_it() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing says which folders belong to the project")
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    folders = {name.split("/")[0] for name in done.stdout.splitlines() if "/" in name}
    lines = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    assert folders - {"src"} == {line.split()[1] for line in lines if line.startswith("graft ")}
