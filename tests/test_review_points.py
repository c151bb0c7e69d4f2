"""The page that answers design reviews: every point has a row, every row a test; and what no other test here shows."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from holdfast.metrics import AggregationType, MetricBatch, MetricColumn, MetricsAggregator, StandardMetricTransform
from holdfast.metrics.gather import _device

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "tests" / "review_points.md"
# What the reviews are about: what is read, in which order, and what is counted of it.
REVIEWED = ["metrics", "order", "sources", "stream", "testing"]


def rows() -> list[list[str]]:
    """The cells of every row of every table."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "shown by" not in line]


def test_each_of_the_38_points_has_a_row() -> None:
    found: list[int] = []
    for row in rows():
        if len(row) == 4 and row[0]:
            first, _, last = row[0].partition("–")
            found += range(int(first), int(last or first) + 1)
    assert found == list(range(1, 39))


def test_every_row_names_a_test_that_exists() -> None:
    for row in rows():
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[-1])
        assert named, f"no test shows: {row[-3]}"
        for path, name in named:
            assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


# --- the aggregator ------------------------------------------------------------------------------------------------


def test_a_report_reads_rank_and_world_size_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Any] = []

    def world_of(group: Any) -> tuple[int, int]:
        reads.append(group)
        return 0, 1

    monkeypatch.setattr("holdfast.metrics.aggregator.world_of", world_of)
    aggregator = MetricsAggregator()
    aggregator.update([])
    aggregator.get_metrics()
    assert len(reads) == 1


def test_a_metric_without_values_has_no_maximum_minimum_or_mean() -> None:
    aggregator = MetricsAggregator()
    for kind in AggregationType:
        aggregator.update(MetricBatch((MetricColumn("wiki", kind.value, np.array([]), kind),)))
    assert aggregator.get_metrics() == {"wiki": {"sum": 0}}


@pytest.mark.parametrize(
    ("backends", "device"),
    [
        ("cpu:gloo,cuda:gloo", "cpu"),
        ("cpu:gloo,cuda:nccl", "cpu"),
        ("cuda:nccl", "cuda:3"),
        ("cpu:mpi", "cpu"),
    ],
)
def test_bytes_are_exchanged_where_the_backend_works(
    monkeypatch: pytest.MonkeyPatch, backends: str, device: str
) -> None:
    # There is no GPU here: what torch would say of one is given.
    monkeypatch.setattr(dist, "get_backend_config", lambda _: backends)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert _device(None) == torch.device(device)


def test_no_function_of_the_metrics_is_long() -> None:
    for path in (ROOT / "src" / "holdfast" / "metrics").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                code = node.body[1:] if ast.get_docstring(node) else node.body
                lines = (node.end_lineno or 0) - code[0].lineno + 1 if code else 0
                assert lines <= 30, f"{path.name}: {node.name}"


@pytest.mark.parametrize("pad_id", [None, 0])
def test_the_standard_metrics_take_no_dataset_name_and_their_docstring_lists_all_they_report(
    pad_id: int | None,
) -> None:
    assert "dataset_name" not in inspect.signature(StandardMetricTransform).parameters
    transform = StandardMetricTransform(pad_id=pad_id)
    transform.set_dataset_name("wiki")
    for metric in transform.sample_metrics({"tokens": np.array([1, 2, 0])}):
        assert f"``{metric.name}``" in (StandardMetricTransform.__doc__ or "")


# --- the code itself -----------------------------------------------------------------------------------------------


def test_nothing_is_defined_that_nothing_uses() -> None:
    everything = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    uses = Counter(re.findall(r"[A-Za-z_]\w*", everything))
    own = {*re.findall(r"^class (\w+)", everything, flags=re.MULTILINE), "ABC", "NamedTuple", "Protocol", "TypedDict"}
    beside = [path for folder in ("tests", "docs", "bench") for path in (ROOT / folder).rglob("*.*")]
    shown = {w for path in beside if path.suffix in (".py", ".md") for w in re.findall(r"\w+", path.read_text())}
    dead = []
    for package in REVIEWED:
        for path in (ROOT / "src" / "holdfast" / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            names = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
            names |= {target.id for target in _assigned(tree)}
            names -= _hooks(tree, own)
            used = {name for name in names if uses[name] > 1 or (name in shown and not name.startswith("_"))}
            dead += [f"{path.name}: {name}" for name in names - used if not name.startswith("__")]
    assert dead == []


def _hooks(tree: ast.Module, own: set[str]) -> set[str]:
    """Methods of classes with a base from another library (``pickle.Pickler``, say), which that library may call."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
            if bases - own:
                found |= {method.name for method in node.body if isinstance(method, ast.FunctionDef)}
    return found


def _assigned(tree: ast.Module) -> list[ast.Name]:
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    return [target for target in targets if isinstance(target, ast.Name)]


@pytest.mark.parametrize("folder", ["metrics", "stream", "testing"])
def test_no_factory_or_helper_of_the_tests_is_written_twice(folder: str) -> None:
    written: dict[str, list[str]] = defaultdict(list)
    for path in (ROOT / "tests" / folder).glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (node.end_lineno or 0) - node.lineno > 2:
                written[ast.dump(node)].append(f"{path.name}: {node.name}")
    assert [places for places in written.values() if len(places) > 1] == []


def test_the_name_of_every_test_is_a_sentence() -> None:
    for folder in REVIEWED:
        names: list[str] = []
        for path in (ROOT / "tests" / folder).glob("test_*.py"):
            names += re.findall(r"^def (test_\w+)\(", path.read_text(), flags=re.MULTILINE)
        assert [name for name in names if name.count("_") < 3] == []


def test_no_file_of_tests_is_a_bag_of_edge_cases() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert not re.search(r"(^|_)(edges?|corners?|misc|utils?)(_|$)", path.stem), path.name
