"""The contract of a storage reader, and the options of this one."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.support import assert_same, load, nothing_left_behind, random_bits, save
from tests.faults.checkpoint_layers import FaultyFiles
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from holdfast import checkpoint
from holdfast.checkpoint import LoadProgress, ParallelFileSystemReader
from holdfast.errors import ConfigError, UnusableCheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


def test_checkpoint_id_points_the_same_reader_at_another_checkpoint(tmp_path: Path) -> None:
    first, second = {"x": random_bits(5, seed=1)}, {"x": random_bits(5, seed=2)}
    save(first, tmp_path / "first")
    save(second, tmp_path / "second")
    reader = ParallelFileSystemReader(tmp_path / "first")
    before = reader.load_id
    state = {"x": torch.zeros(5)}
    dcp_load(state, storage_reader=reader, checkpoint_id=tmp_path / "second")
    assert_same(state, second)
    assert reader.checkpoint_id == tmp_path / "second"
    assert reader.load_id != before


def test_metadata_carries_the_load_id(tmp_path: Path) -> None:
    reader = ParallelFileSystemReader(save({"x": torch.zeros(3)}, tmp_path / "c"))
    storage_meta = reader.read_metadata().storage_meta
    assert storage_meta is not None
    assert storage_meta.load_id == reader.load_id


def test_validate_checkpoint_id_takes_local_paths_and_no_urls(tmp_path: Path) -> None:
    validate = ParallelFileSystemReader.validate_checkpoint_id
    assert validate(tmp_path)
    assert validate(str(tmp_path / "new"))
    assert not validate("s3://bucket/checkpoint")


def test_metadata_that_each_rank_saved_for_itself_is_found(tmp_path: Path) -> None:
    saved = {"x": random_bits(40, 3), "step": 5}
    dcp_save(saved, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    (tmp_path / ".metadata").rename(tmp_path / "__0.metadata")
    reader = ParallelFileSystemReader(tmp_path)
    state = load({"x": torch.zeros(40, 3), "step": None}, reader)
    assert_same(state, saved)
    assert (reader.rank, reader.use_collectives) == (0, False)


def test_a_state_can_be_built_from_the_checkpoint_alone(tmp_path: Path) -> None:
    saved = {"model": {"w": random_bits(40, 3)}, "step": 5}
    folder = save(saved, tmp_path / "c")
    assert_same(_load_state_dict_from_keys(storage_reader=ParallelFileSystemReader(folder)), saved)


def test_one_load_after_the_other_and_many_at_once_on_threads(tmp_path: Path) -> None:
    saved = {f"t{number}": random_bits(70_000, seed=number) for number in range(5)}
    folder = save(saved, tmp_path / "c")

    def one(_: int) -> dict[str, Any]:
        return load({name: torch.zeros(70_000) for name in saved}, ParallelFileSystemReader(folder, num_workers=2))

    with nothing_left_behind(), ThreadPoolExecutor(4) as pool:
        for state in pool.map(one, range(8)):
            assert_same(state, saved)


def test_planner_calls_stay_on_the_calling_thread(tmp_path: Path) -> None:
    saved = {f"t{number}": random_bits(300_000, seed=number) for number in range(6)} | {"step": 3}
    folder = save(saved, tmp_path / "c", thread_count=3)
    callers: set[int] = set()

    class Watched(DefaultLoadPlanner):
        commits_in_any_order = True

        def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
            callers.add(threading.get_ident())
            tensor: torch.Tensor = super().resolve_tensor(read_item)
            return tensor

        def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
            callers.add(threading.get_ident())

        def load_bytes(self, read_item: ReadItem, value: Any) -> None:
            callers.add(threading.get_ident())
            super().load_bytes(read_item, value)

    state = {name: torch.zeros(300_000) for name in saved if name != "step"} | {"step": None}
    load(state, ParallelFileSystemReader(folder, num_workers=4), Watched())
    assert callers == {threading.get_ident()}


def test_progress_counts_up_to_everything(tmp_path: Path) -> None:
    saved = {f"t{number}": random_bits(1000 * number + 1, seed=number) for number in range(9)}
    folder = save(saved, tmp_path / "c")
    seen: list[LoadProgress] = []
    load(
        {name: torch.zeros_like(value) for name, value in saved.items()},
        ParallelFileSystemReader(folder, progress=seen.append),
    )
    assert [now.items_done for now in seen] == list(range(1, 10))
    assert seen[-1].bytes_done == seen[-1].bytes_total == sum(value.nbytes for value in saved.values())


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_true_draws_a_bar_on_a_terminal_and_nothing_in_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    folder = save({"x": random_bits(3000)}, tmp_path / "c")
    stream = Stream()
    monkeypatch.setattr(sys, "stderr", stream)
    load({"x": torch.zeros(3000)}, ParallelFileSystemReader(folder, progress=True))
    assert ("loading" in stream.getvalue()) == terminal


def test_the_report_counts_what_was_read_and_checked(tmp_path: Path) -> None:
    saved = {"large": random_bits(500_000), "small": random_bits(10), "step": 5}
    counting = FaultyFiles()
    reader = ParallelFileSystemReader(save(saved, tmp_path / "c"), file_layer=counting)
    load({"large": torch.zeros(500_000), "small": torch.zeros(10), "step": None}, reader)
    report = reader.report
    assert report is not None
    assert report.reads == counting.reads - 1, "all but that of the metadata"
    assert (report.items, report.verified, report.unverified, report.generic) == (3, 3, (), ())
    assert report.bytes_needed <= report.bytes_read <= 1.05 * report.bytes_needed


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_reads_in_the_middle_of_an_archive_of_several_tensors_are_counted_too(tmp_path: Path) -> None:
    zeros = torch.zeros(50_000, dtype=torch.int64)
    saved = torch.quantize_per_channel(torch.ones(50_000, 2), torch.ones(50_000), zeros, 0, torch.qint8)
    counting = FaultyFiles()
    reader = ParallelFileSystemReader(save({"w": saved}, tmp_path / "c"), file_layer=counting, num_workers=1)
    load({"w": saved.clone()}, reader)
    assert reader.report is not None
    assert reader.report.generic == ("w",)
    assert reader.report.reads == counting.reads - 1, "all but that of the metadata"


@pytest.mark.parametrize(
    ("count", "size", "threads"),
    [(5, 30, False), (300, 4000, False), (300, 4200, True)],
    ids=["tiny", "many that are small", "many that are not"],
)
def test_only_a_checkpoint_that_takes_time_to_read_starts_threads(
    tmp_path: Path, count: int, size: int, threads: bool
) -> None:
    """Small tensors cost Python time, of which threads bring no more."""
    values = random_bits(count, size)
    reader = ParallelFileSystemReader(save({f"t{row}": values[row].clone() for row in range(count)}, tmp_path / "c"))
    load({f"t{row}": torch.zeros(size) for row in range(count)}, reader)
    assert reader.report is not None
    assert (reader.report.workers > 0) is threads


@pytest.mark.parametrize(
    "options",
    [{"engine": "fibre"}, {"verify": "maybe"}, {"num_workers": 0}, {"memory_limit": -1}, {"num_workers": True}],
    ids=str,
)
def test_options_that_cannot_work_are_refused_at_once(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ParallelFileSystemReader(tmp_path, **options)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("x")])
def test_what_is_not_a_checkpoint_is_named(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "c")
    with pytest.raises(UnusableCheckpointError) as caught:
        ParallelFileSystemReader(tmp_path / "c").read_metadata()
    assert caught.value.folder == str(tmp_path / "c")


@pytest.mark.filterwarnings("ignore")
def test_torchs_own_message_tells_what_was_wrong_with_the_metadata(tmp_path: Path) -> None:
    folder = save({"x": torch.zeros(3)}, tmp_path / "c")
    (folder / ".metadata").write_bytes(b"garbage")
    reader = ParallelFileSystemReader(folder)
    with pytest.raises(CheckpointException, match="the metadata is damaged"):
        dcp_load({"x": torch.zeros(3)}, storage_reader=reader, no_dist=True)
    assert isinstance(reader.error, UnusableCheckpointError)


def test_a_planner_that_looks_for_its_own_keys_adds_none_to_the_state(tmp_path: Path) -> None:
    saved = {"x": random_bits(5, seed=1), "more": {"y": random_bits(3, seed=2)}}
    save(saved, tmp_path / "c")
    state: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner(keys={"x"})  # type: ignore[no-untyped-call]
    checkpoint.load(state, tmp_path / "c", planner=planner, warn_not_loaded=False)
    assert state == {}
    assert_same({"x": planner.state_dict["x"]}, {"x": saved["x"]})
