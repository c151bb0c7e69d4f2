"""Destinations of every kind end up as torch's own reader would leave them."""

from __future__ import annotations

import argparse
import copy
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.planners import read_box, run_plan
from tests.checkpoint.support import assert_same, load, nothing_left_behind, random_bits, save
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.planner import ReadItem

from holdfast import checkpoint
from holdfast.checkpoint import ParallelFileSystemReader, plan
from holdfast.errors import CheckpointError, CheckpointMismatchError, ConfigError


@pytest.mark.parametrize("size", [10, 200_000])
@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_tied_tensors_that_were_saved_different_end_as_torchs_reader_leaves_them(
    tmp_path: Path, size: int, order: list[str]
) -> None:
    folder = save({"a": random_bits(size, seed=1), "b": random_bits(size, seed=2)}, tmp_path / "c", thread_count=2)
    results = []
    for reader in (FileSystemReader(folder), ParallelFileSystemReader(folder, num_workers=4)):
        tied = torch.zeros(size)
        load(dict.fromkeys(order, tied), reader)
        results.append(tied)
    assert_same(results[0], results[1])


def test_a_planner_with_one_scratch_buffer_sees_each_item_before_the_next_is_read(tmp_path: Path) -> None:
    stored = {f"t{number}": random_bits(100_000, seed=number) for number in range(12)}
    folder = save(stored, tmp_path / "c", thread_count=3)
    scratch = torch.zeros(100_000)
    seen: dict[str, torch.Tensor] = {}

    class Scratch(DefaultLoadPlanner):
        commits_in_any_order = True

        def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
            return scratch

        def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
            seen[read_item.dest_index.fqn] = tensor.clone()

    load({name: torch.zeros(100_000) for name in stored}, ParallelFileSystemReader(folder, num_workers=4), Scratch())
    assert_same(dict(sorted(seen.items())), dict(sorted(stored.items())))


def test_column_blocks_of_one_matrix_do_not_wait_for_each_other() -> None:
    matrix = torch.zeros(100, 90)
    chunks = []
    for number in range(3):
        columns = matrix[:, 30 * number : 30 * number + 30]
        request = plan.Request(read_box("m", (0, 0), (100, 30)), number, columns, True)
        chunks.append(plan.Chunk("f", number, 1, (), None, None, None, [request]))
    assert plan.chain_overlaps(chunks) == chunks
    assert not any(chunk.blocked for chunk in chunks)


def test_columns_that_share_a_column_are_chained_in_order() -> None:
    matrix = torch.zeros(100, 90)
    chunks = []
    for number, start in enumerate((0, 29)):
        request = plan.Request(read_box("m", (0, 0), (100, 30)), number, matrix[:, start : start + 30], True)
        chunks.append(plan.Chunk("f", number, 1, (), None, None, None, [request]))
    first, second = plan.chain_overlaps(chunks)
    assert (first.blocked, second.blocked) == (False, True)
    assert first.followers == [second]


def test_another_dtype_is_an_error_that_names_both(tmp_path: Path) -> None:
    folder = save({"weight": random_bits(30, 4)}, tmp_path / "c")
    with pytest.raises(CheckpointMismatchError) as caught:
        load({"weight": torch.zeros(30, 4, dtype=torch.bfloat16)}, ParallelFileSystemReader(folder))
    assert caught.value.tensor == "weight"
    assert (caught.value.stored, caught.value.destination) == ("torch.float32", "torch.bfloat16")


@pytest.mark.parametrize("size", [10, 300_000])
@pytest.mark.parametrize("parallel", [True, False])
def test_cast_converts_as_torchs_reader_does(tmp_path: Path, size: int, parallel: bool) -> None:
    folder = save({"weight": torch.randn(size)}, tmp_path / "c")
    ours = {"weight": torch.zeros(size, dtype=torch.bfloat16)}
    stock = {"weight": torch.zeros(size, dtype=torch.bfloat16)}
    load(ours, ParallelFileSystemReader(folder, cast=True, parallel=parallel))
    load(stock, FileSystemReader(folder))
    assert_same(ours, stock)


def test_another_shape_is_an_error_that_names_the_tensor(tmp_path: Path) -> None:
    folder = save({"weight": random_bits(30, 4)}, tmp_path / "c")
    reader = ParallelFileSystemReader(folder)
    with pytest.raises(CheckpointMismatchError) as caught:
        run_plan(reader, [read_box("weight", (0, 0), (30, 4))], [torch.zeros(30, 5)])
    assert caught.value.tensor == "weight"


def test_a_box_beyond_the_stored_tensor_is_an_error_that_names_the_tensor(tmp_path: Path) -> None:
    folder = save({"weight": random_bits(30, 4), "large": random_bits(300, 400)}, tmp_path / "c")
    for name, lengths in (("weight", (30, 5)), ("large", (301, 400))):
        with pytest.raises(CheckpointMismatchError) as caught:
            run_plan(ParallelFileSystemReader(folder), [read_box(name, (0, 0), lengths)], [torch.zeros(lengths)])
        assert caught.value.tensor == name


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("lengths", [(6,), (3, 1, 2)])
def test_a_box_of_other_dimensions_than_the_stored_tensor_is_an_error_that_names_the_tensor(
    tmp_path: Path, lengths: tuple[int, ...], parallel: bool
) -> None:
    folder = save({"weight": random_bits(3, 2)}, tmp_path / "c")
    box = read_box("weight", (0,) * len(lengths), lengths)
    box = replace(box, storage_index=read_box("weight", (0, 0), (3, 2)).storage_index)
    with pytest.raises(CheckpointMismatchError) as caught:
        run_plan(ParallelFileSystemReader(folder, parallel=parallel), [box], [torch.zeros(lengths)])
    assert caught.value.tensor == "weight"


def test_leaves_that_require_grad_are_filled_and_keep_requiring_it(tmp_path: Path) -> None:
    stored = {"weight": random_bits(300, 400)}
    folder = save(stored, tmp_path / "c")
    weight = torch.zeros(300, 400, requires_grad=True)
    load({"weight": weight}, ParallelFileSystemReader(folder))
    assert weight.requires_grad
    assert_same(weight.detach(), stored["weight"])


def test_autograd_notices_that_a_tensor_was_loaded_over(tmp_path: Path) -> None:
    folder = save({"weight": torch.randn(300, 400)}, tmp_path / "c")
    weight = torch.zeros(300, 400, requires_grad=True)
    loss = (weight * weight).sum()
    load({"weight": weight}, ParallelFileSystemReader(folder))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("inside", [True, False])
def test_inference_tensors_are_filled_inside_and_outside_inference_mode(tmp_path: Path, inside: bool) -> None:
    stored = {"weight": random_bits(300, 400), "small": random_bits(4, 3), "bent": random_bits(400, 300)}
    folder = save(stored, tmp_path / "c")
    with torch.inference_mode():
        state = {"weight": torch.zeros(300, 400), "small": torch.zeros(4, 3), "bent": torch.zeros(300, 400).t()}
    with torch.inference_mode(inside):
        load(state, ParallelFileSystemReader(folder, num_workers=2))
    assert all(tensor.is_inference() for tensor in state.values())
    assert_same({key: value.clone().contiguous() for key, value in state.items()}, stored)


def test_ordinary_tensors_are_filled_inside_inference_mode(tmp_path: Path) -> None:
    stored = {"weight": random_bits(300, 400), "small": random_bits(4, 3), "bent": random_bits(400, 300)}
    folder = save(stored, tmp_path / "c")
    state = {"weight": torch.zeros(300, 400), "small": torch.zeros(4, 3), "bent": torch.zeros(300, 400).t()}
    with torch.inference_mode():
        load(state, ParallelFileSystemReader(folder))
    assert_same({key: value.contiguous() for key, value in state.items()}, stored)


class Elsewhere(torch.Tensor):
    """A tensor that says which thread copied into it; stands for one that lives on an accelerator."""

    copied_by: list[int]

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            Elsewhere.copied_by.append(threading.get_ident())
            return super().copy_(source, non_blocking)


@pytest.mark.parametrize("memory_limit", [None, 1])
def test_destinations_that_are_not_plain_memory_are_copied_on_the_calling_thread(
    tmp_path: Path, memory_limit: int | None
) -> None:
    stored = {f"t{number}": random_bits(50, 2000, seed=number) for number in range(8)} | {"small": random_bits(3)}
    folder = save(stored, tmp_path / "c", thread_count=2)
    Elsewhere.copied_by = []
    state: dict[str, Any] = {name: torch.zeros(value.shape).as_subclass(Elsewhere) for name, value in stored.items()}
    with nothing_left_behind():
        load(state, ParallelFileSystemReader(folder, num_workers=3, memory_limit=memory_limit))
    assert set(Elsewhere.copied_by) == {threading.get_ident()}
    assert len(Elsewhere.copied_by) == len(stored)
    assert_same({key: value.as_subclass(torch.Tensor) for key, value in state.items()}, stored)


def test_a_device_tensor_is_filled_block_by_block_through_bounded_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = {"large": random_bits(1000, 3000), "bent": random_bits(700, 900)}
    folder = save(stored, tmp_path / "c")
    resolve = plan.resolve

    def as_if_on_a_device(*arguments: Any) -> None:
        requests = list(arguments[0])
        resolve(requests, *arguments[1:])
        for request in requests:
            request.in_memory = False

    monkeypatch.setattr("holdfast.checkpoint.reader.resolve", as_if_on_a_device)
    state = {"large": torch.zeros(1000, 3000), "bent": torch.zeros(900, 700).t()}
    reader = ParallelFileSystemReader(folder, num_workers=2, memory_limit=1 << 20)
    load(state, reader)
    assert reader.report is not None
    assert reader.report.peak_buffer_bytes <= 1 << 20
    assert reader.report.verified == 2
    assert_same({key: value.contiguous() for key, value in state.items()}, stored)


def test_a_destination_without_memory_is_named(tmp_path: Path) -> None:
    checkpoint.save({"layer": {"w": torch.ones(3)}}, tmp_path / "c", step=1)
    with pytest.raises(CheckpointMismatchError, match="meta device") as caught:
        checkpoint.load({"layer": {"w": torch.empty(3, device="meta")}}, tmp_path / "c")
    assert caught.value.tensor == "layer.w"


def test_a_progress_callback_that_raises_is_not_taken_for_a_damaged_checkpoint(tmp_path: Path) -> None:
    checkpoint.save({"w": torch.ones(3)}, tmp_path / "c", step=1)

    def fail(_: object) -> None:
        raise ZeroDivisionError("by zero")

    with pytest.raises(CheckpointError, match="the progress callback raised ZeroDivisionError: by zero"):
        checkpoint.load({"w": torch.zeros(3)}, tmp_path / "c", progress=fail)
    with pytest.raises(CheckpointError, match="the progress callback raised ZeroDivisionError: by zero"):
        checkpoint.verify_checkpoint(tmp_path / "c", progress=fail)


@pytest.mark.parametrize("failing", ["state_dict", "load_state_dict"])
def test_an_error_of_the_programs_own_object_reaches_the_program(tmp_path: Path, failing: str) -> None:
    class Counter:
        def state_dict(self) -> dict[str, Any]:
            return self.do("state_dict")

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.do("load_state_dict")

        def do(self, what: str) -> dict[str, Any]:
            if what == failing:
                raise RuntimeError("not ready")
            return {"n": 1}

    checkpoint.save({"counter": {"n": 1}}, tmp_path / "c", step=1)
    with pytest.raises(RuntimeError, match=r"^not ready$"):
        checkpoint.load({"counter": Counter()}, tmp_path / "c")


@pytest.mark.parametrize("options", [{}, {"memory_limit": 1}, {"parallel": False}])
@pytest.mark.parametrize("strides", [(0, 1), (2, 1)])
def test_a_destination_whose_elements_share_memory_is_refused(
    tmp_path: Path, options: dict[str, Any], strides: tuple[int, int]
) -> None:
    checkpoint.save({"t": torch.arange(12.0).reshape(3, 4)}, tmp_path / "c", step=1)
    into = torch.zeros(12).as_strided((3, 4), strides)
    with pytest.raises(CheckpointMismatchError, match="elements of the destination share memory") as caught:
        checkpoint.load({"t": into}, tmp_path / "c", **options)
    assert caught.value.tensor == "t"
    assert not into.any()


@pytest.mark.parametrize("options", [{}, {"memory_limit": 1}, {"parallel": False}, {"verify": "full"}])
@pytest.mark.parametrize(("shape", "strides"), [((3, 4), (4, 6)), ((5, 4, 2), (11, 3, 7)), ((1, 4), (0, 5))])
def test_a_destination_with_interleaved_strides_is_filled(
    tmp_path: Path, options: dict[str, Any], shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    stored = torch.randn(shape)
    checkpoint.save({"t": stored}, tmp_path / "c", step=1)
    into = torch.zeros(100).as_strided(shape, strides)
    checkpoint.load({"t": into}, tmp_path / "c", **options)
    assert_same(into, stored)


@pytest.mark.parametrize("partial", [False, True])
def test_torchs_own_planner_loads_as_none_does(tmp_path: Path, partial: bool) -> None:
    checkpoint.save({"o": {0: {"n": 7, "t": torch.ones(1)}}}, tmp_path / "c", step=1)
    into: dict[str, Any] = {"o": {0: {"n": 0, "t": torch.zeros(1)}}}
    checkpoint.load(into, tmp_path / "c", planner=DefaultLoadPlanner(allow_partial_load=partial))
    assert str(into) == str({"o": {0: {"n": 7, "t": torch.ones(1)}}})
    into["new"] = torch.zeros(1)
    if partial:
        checkpoint.load(into, tmp_path / "c", planner=DefaultLoadPlanner(allow_partial_load=True))
    else:
        with pytest.raises(CheckpointMismatchError, match="no such key"):
            checkpoint.load(into, tmp_path / "c", planner=DefaultLoadPlanner())


def test_a_load_that_fails_leaves_torch_as_it_was(tmp_path: Path) -> None:
    """Its planner tries the names of older checkpoints with a switch of the whole process."""
    checkpoint.save({"a": {"0": {"b": 1}, "c": torch.ones(1)}, "more": 1}, tmp_path / "c", step=1)
    with pytest.raises(CheckpointError):
        checkpoint.load({"a": {"0": {}, 0: {}, "c": torch.zeros(1)}}, tmp_path / "c")
    into: dict[str, Any] = {"o": {0: {"n": 7, "e": {}}}}
    checkpoint.save(into, tmp_path / "d", step=1)
    loaded: dict[str, Any] = {"o": {0: {"n": 0, "e": {}}}}
    checkpoint.load(loaded, tmp_path / "d")
    assert loaded == into


EMPTY_IN_LISTS: dict[str, tuple[Any, Any]] = {
    "below the top": ({"x": {"b": [1, "a"]}}, {"x": {"b": [{}, "x"]}}),
    "at the top": ({"b": [1, "a"]}, {"b": [{}, "x"]}),
    "deeper in lists": ({"x": {"b": [1, "a"]}}, {"x": {"b": [[{}], "x"]}}),
    "beside a tensor": ({1: [{"u": {}, "z": [torch.ones(2)]}, True]}, {1: [{"u": {}, "z": [torch.zeros(2)]}, {}]}),
    "one of each kind": ({"x": {"b": [1, 2], "c": [{}, 2]}}, {"x": {"b": [{}, 0], "c": [{}, 0]}}),
    "under a number": ({"x": {0: [1, "a"]}}, {"x": {0: [{}, "x"]}}),
    "a name of two": ({"a.b": 1, "a": {"b": {}}}, {"a.b": 0, "a": {"b": {}}}),
}


@pytest.mark.parametrize("kind", EMPTY_IN_LISTS)
def test_a_list_with_an_empty_dict_takes_what_the_checkpoint_has_in_its_place(tmp_path: Path, kind: str) -> None:
    stored, into = copy.deepcopy(EMPTY_IN_LISTS[kind])
    checkpoint.load(into, save(stored, tmp_path / "c"))
    assert_same(into, stored)


@pytest.mark.parametrize("into", [{"x": {"b": {}}}, {"x": {"b": [{}]}}, {"x": {"b": [[{}], {}]}}])
def test_an_empty_dict_that_torch_leaves_alone_stays_and_what_is_stored_there_is_named(
    tmp_path: Path, into: dict[str, Any]
) -> None:
    save({"x": {"b": [1]}}, tmp_path / "c")
    before = copy.deepcopy(into)
    stock = load(copy.deepcopy(into), FileSystemReader(tmp_path / "c"))
    report = checkpoint.load(into, tmp_path / "c", warn_not_loaded=False)
    assert into == stock == before
    assert report.not_loaded == ("x.b",)


def test_a_tensor_in_the_place_of_an_empty_dict_is_a_mismatch(tmp_path: Path) -> None:
    save({"x": {"b": [torch.ones(2), torch.ones(2)]}}, tmp_path / "c")
    with pytest.raises(CheckpointMismatchError, match=r"something else.*x\.b\.0.*dict"):
        checkpoint.load({"x": {"b": [{}, torch.zeros(2)]}}, tmp_path / "c")


@pytest.mark.parametrize("into", [{"o": {1: 0, "1": 0}}, {"o": {"1": torch.zeros(2), 1: torch.zeros(2)}}])
def test_keys_that_torch_cannot_tell_apart_are_a_mismatch_that_names_them(tmp_path: Path, into: dict[str, Any]) -> None:
    checkpoint.save({"o": {"1": 5}}, tmp_path / "c", step=1)
    with pytest.raises(CheckpointMismatchError, match=r"'1'.* in the state\['o'\] are the same key"):
        checkpoint.load(into, tmp_path / "c")


def test_entries_of_one_flat_name_are_a_mismatch(tmp_path: Path) -> None:
    checkpoint.save({"a.b": 5}, tmp_path / "c", step=1)
    with pytest.raises(CheckpointMismatchError, match=r"a\.b"):
        checkpoint.load({"a.b": 0, "a": {"b": 0}}, tmp_path / "c")


@pytest.mark.parametrize("into", [None, [1], 5, "state"])
def test_a_destination_that_is_not_a_dict_is_refused(tmp_path: Path, into: Any) -> None:
    checkpoint.save({"a": 5}, tmp_path / "c", step=1)
    with pytest.raises(ConfigError, match="must be a dict"):
        checkpoint.load(into, tmp_path / "c")


def test_tensors_of_torch_func_are_filled_as_torchs_reader_fills_them(tmp_path: Path) -> None:
    saved = torch.arange(24.0).reshape(4, 6)
    folder = save({"a": saved}, tmp_path / "c")

    def filled(tensor: torch.Tensor) -> torch.Tensor:
        load({"a": tensor}, ParallelFileSystemReader(folder))
        return tensor.sum()

    assert filled(torch._to_functional_tensor(torch.zeros(4, 6))).item() == saved.sum()
    _, total = torch.func.grad_and_value(lambda given: filled(given.clone()))(torch.zeros(4, 6))
    assert total == saved.sum()


def freed() -> torch.Tensor:
    tensor = torch.zeros(4, 6)
    tensor.untyped_storage().resize_(0)
    return tensor


def constant_zero() -> torch.Tensor:
    return torch._efficientzerotensor((4, 6))


@pytest.mark.parametrize("make", [freed, constant_zero])
def test_a_destination_without_memory_is_refused(tmp_path: Path, make: Callable[[], torch.Tensor]) -> None:
    folder = save({"a": torch.ones(4, 6)}, tmp_path / "c")
    with pytest.raises(CheckpointMismatchError, match="no memory") as raised:
        load({"a": make()}, ParallelFileSystemReader(folder))
    assert raised.value.tensor == "a"


@pytest.mark.parametrize("options", [{}, {"parallel": False}, {"verify": "full"}, {"memory_limit": 100}])
def test_torchs_default_device_does_not_reach_the_reader(tmp_path: Path, options: dict[str, Any]) -> None:
    saved = {"w": random_bits(90_000).reshape(300, 300), "o": argparse.Namespace(t=torch.ones(2))}
    folder = save(saved, tmp_path / "c")
    state: dict[str, Any] = {"w": torch.zeros(300, 600)[:, ::2], "o": None}
    with torch.device("meta"):
        checkpoint.load(state, folder, **options)
        checkpoint.save(saved, tmp_path / "again", step=1)
    assert_same(state["w"], saved["w"])
    assert_same(state["o"].t, torch.ones(2))
    assert checkpoint.verify_checkpoint(tmp_path / "again").sound


def test_the_options_of_a_default_planner_are_kept(tmp_path: Path) -> None:
    saved = {"w": torch.ones(3), "extra": {"rate": 0.1}}
    checkpoint.save(saved, tmp_path / "c", step=1, planner=DefaultSavePlanner(flatten_state_dict=False))
    stock, ours = ({"w": torch.zeros(3), "extra": {"rate": None}} for _ in range(2))
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    load(stock, FileSystemReader(tmp_path / "c"), planner)
    checkpoint.load(ours, tmp_path / "c", planner=DefaultLoadPlanner(flatten_state_dict=False))
    assert_same(ours, stock)
    assert_same(ours["w"], saved["w"])
