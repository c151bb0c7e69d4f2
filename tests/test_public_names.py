"""The public face: `__all__` is the real namespace, every name loads, and type checkers see the same names."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.lazy_names import public_name
from holdfast.sources import Columns, ConcatSource
from holdfast.sources.base import Indices

SOURCE = Path(holdfast.__file__)


def test_all_is_sorted_and_names_nothing_twice() -> None:
    assert list(holdfast.__all__) == sorted(set(holdfast.__all__))


def test_all_equals_the_real_namespace() -> None:
    for name in holdfast.__all__:
        getattr(holdfast, name)
    real = {
        name
        for name, value in vars(holdfast).items()
        if not name.startswith("_") and not inspect.ismodule(value) and _is_ours(value)
    }
    assert real | {"__version__", "errors"} == set(holdfast.__all__)


def _is_ours(value: object) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "holdfast"


@pytest.mark.parametrize("name", [name for name in holdfast.__all__ if name != "__version__"])
def test_every_name_loads_and_says_what_it_is_for(name: str) -> None:
    assert inspect.getdoc(getattr(holdfast, name))


def test_the_list_names_nothing_twice_and_every_line_is_a_re_export() -> None:
    tree = ast.parse(SOURCE.with_suffix(".pyi").read_text(encoding="utf-8"))
    names = []
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom):
            (alias,) = statement.names
            assert alias.asname == alias.name, f"write `{alias.name} as {alias.name}`: a re-export"
            names.append(alias.name)
    assert len(names) == len(set(names))
    assert {*holdfast.__all__, "__version__"} <= {*names, "__version__"}


def test_there_are_about_forty_five_names_that_people_type() -> None:
    assert 40 <= len(holdfast.__all__) <= 48


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = holdfast.Nonsense  # type: ignore[attr-defined]  # that is the point
    assert set(holdfast.__all__) <= set(dir(holdfast))


def test_a_star_import_brings_every_public_name_and_no_other() -> None:
    code = "from holdfast import *; print(sorted(n for n in dir() if n == '__version__' or not n.startswith('_')))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert ast.literal_eval(shown) == sorted(holdfast.__all__)


def test_no_public_object_shows_its_address_or_the_module_it_lives_in(tmp_path: Path) -> None:
    classes = [cls for cls in (getattr(holdfast, name) for name in holdfast.__all__) if inspect.isclass(cls)]
    unnamed = [cls.__name__ for cls in classes if cls.__repr__ is object.__repr__ and cls is not holdfast.Partition]
    assert not unnamed
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"x": 2}\n')
    arrays = holdfast.ArraySource({"x": [1, 2, 3]})
    assert repr(arrays) == "holdfast.ArraySource(3 samples)"
    assert repr(holdfast.JsonlSource(tmp_path / "a.jsonl")) == f"holdfast.JsonlSource('{tmp_path}/a.jsonl')"
    assert repr(holdfast.JsonlSource(tmp_path)) == f"holdfast.JsonlSource('{tmp_path}/a.jsonl', …: 2 files)"
    shown = "holdfast.sources.ConcatSource(holdfast.ArraySource(3 samples), …: 2 sources)"
    assert repr(ConcatSource([arrays, arrays])) == shown
    assert repr(Own()) == f"{__name__}.Own()"
    assert repr(holdfast.MetricsAggregator()) == "holdfast.MetricsAggregator(0 metrics, step=0)"
    assert repr(holdfast.StandardMetricTransform()) == "holdfast.StandardMetricTransform()"
    assert repr(holdfast.Reporter()) == "holdfast.Reporter()"
    assert repr(holdfast.OnlineDebugger()).startswith("holdfast.OnlineDebugger(holdfast.MLSystemsDebugger(")


def test_a_class_that_only_shares_the_name_of_a_public_one_shows_its_own_module() -> None:
    assert public_name(type("Run", (), {"__module__": "holdfast.order.aligned"})) == "holdfast.order.aligned.Run"


class Own(holdfast.Source):
    """A user's source."""

    def __len__(self) -> int:
        return 0

    def read(self, indices: Indices) -> Columns:
        return {}


def test_the_types_ship_with_the_package() -> None:
    assert (SOURCE.parent / "py.typed").is_file()
