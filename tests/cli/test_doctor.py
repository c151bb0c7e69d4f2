"""``holdfast doctor`` says what is here."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.cli.test_without_torch import without_torch
from typer.testing import CliRunner

from holdfast.cli.main import build_app


def test_it_names_what_is_installed_and_measures_the_disk(tmp_path: Path) -> None:
    done = CliRunner().invoke(build_app(), ["doctor", str(tmp_path), "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == (1 if found["advice"] else 0)
    assert found["packages"]["torch"] == version("torch")
    assert found["disk"]["write_bytes_per_second"] > 0
    assert "attach(trainer, loader)" in found["trainers"]["transformers"]["resumes_exactly_with"]
    assert list(tmp_path.iterdir()) == []


def test_it_works_where_torch_is_not_installed() -> None:
    ((code, told),) = without_torch(["doctor"])
    assert code in (0, 1)
    assert "transformers" in told


@pytest.mark.parametrize("name", ["nowhere/at/all", "a-file"])
def test_a_folder_that_cannot_be_written_to_is_an_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    from holdfast.cli.doctor import examine
    from holdfast.errors import ConfigError

    with pytest.raises(ConfigError, match="cannot be written to"):
        examine(tmp_path / name)
