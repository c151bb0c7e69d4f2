"""Dependencies point one way, and importing the package stays light."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "pyarrow", "datasets", "transformers", "pandas", "scipy", "sklearn", "fsspec", "rich"}


def _loaded(statement: str) -> set[str]:
    """Return the top-level modules a fresh interpreter holds after the statement."""
    code = (
        f"import sys, json\n{statement}\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(json.loads(shown.splitlines()[-1]))


def test_the_import_rules_hold() -> None:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_importing_holdfast_loads_nothing_heavy_not_even_numpy() -> None:
    loaded = _loaded("import holdfast")
    assert "holdfast" in loaded
    assert not loaded & (HEAVY | {"numpy", "typer"})


@pytest.mark.parametrize("package", ["order", "debug", "metrics", "sources"])
def test_packages_that_do_not_compute_on_tensors_leave_torch_alone(package: str) -> None:
    loaded = _loaded(f"import holdfast.{package}")
    assert not loaded & {"torch", "datasets", "transformers", "pandas"}


def test_the_order_needs_numpy_and_nothing_else() -> None:
    assert not _loaded("import holdfast.order") & (HEAVY | {"typer", "zlib_ng", "datasketches", "psutil"})


def test_the_command_line_shows_its_help_without_torch() -> None:
    loaded = _loaded("from holdfast.cli.main import run\ntry:\n    run(['--help'])\nexcept SystemExit:\n    pass")
    assert not loaded & {"torch", "pyarrow", "datasets", "pandas", "scipy"}
