"""Saving: published whole or not at all, loadable by torch, and held to its manifest ever after."""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import os
import resource
import shutil
import signal
import struct
import sys
import threading
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoint.support import State, assert_same, blank, load, nothing_left_behind, random_bits
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import MetadataIndex

from holdfast import checkpoint
from holdfast.checkpoint import ParallelFileSystemReader, latest_verified, verify_checkpoint
from holdfast.checkpoint.archive import TAIL_BYTES, ZIP_START
from holdfast.checkpoint.files import LocalFiles
from holdfast.checkpoint.items import memory_reader
from holdfast.checkpoint.manifest import MANIFEST, digest_whole, read_manifest
from holdfast.cli.main import run
from holdfast.errors import CheckpointError, CheckpointWriteError, ConfigError, UnusableCheckpointError


def state(step: int = 1) -> State:
    # Beyond what is digested whole; the other differs in the middle only, where nothing but its checksum tells.
    alike = random_bits(90, 60, seed=step + 4000)
    return {
        "model": {
            "large": random_bits(90_000, seed=step),
            "one": random_bits(40, 50, seed=step + 1000),
            "two": random_bits(40, 50, seed=step + 2000),
            "three": alike,
            "four": torch.cat([alike[:45], -alike[45:46], alike[46:]]),
            "small": random_bits(30, seed=step + 3000),
        },
        "step": step,
    }


def place(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08}"


def saved(folder: Path, *steps: int, **options: Any) -> Path:
    for step in steps:
        checkpoint.save(state(step), place(folder, step), step=step, **options)
    return place(folder, steps[-1])


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_what_was_saved_is_an_ordinary_checkpoint_that_torch_loads(tmp_path: Path) -> None:
    path = saved(tmp_path, 3)
    assert_same(load(blank(state(3)), FileSystemReader(path)), state(3))
    assert_same(load(blank(state(3)), ParallelFileSystemReader(path, require_manifest=True)), state(3))
    report = verify_checkpoint(path, require_manifest=True)
    assert (report.verdict, report.manifest, report.verified) == ("sound", True, 7)


def test_the_report_tells_what_was_written(tmp_path: Path) -> None:
    report = checkpoint.save(state(), place(tmp_path, 1), step=1, run_id="r7")
    assert (report.path, report.step, report.items, report.removed) == (place(tmp_path, 1), 1, 7, ())
    assert report.bytes == sum(path.stat().st_size for path in place(tmp_path, 1).glob("*.distcp"))
    manifest = json.loads((place(tmp_path, 1) / MANIFEST).read_text())
    assert (manifest["version"], manifest["step"], manifest["run_id"]) == (1, 1, "r7")


def test_only_the_last_k_are_kept_and_nothing_that_is_not_ours_is_removed(tmp_path: Path) -> None:
    (tmp_path / "step-00000000").mkdir()
    (tmp_path / "notes").write_text("mine")
    saved(tmp_path, 1, 2, 3, 9)
    report = checkpoint.save(state(4), place(tmp_path, 4), step=4, keep=2)
    assert [path.name for path in report.removed] == ["step-00000001", "step-00000002"]
    assert names(tmp_path) == ["notes", "step-00000000", "step-00000003", "step-00000004", "step-00000009"]


def test_a_checkpoint_of_that_name_is_replaced(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    checkpoint.save(state(2), place(tmp_path, 1), step=2)
    assert_same(load(blank(state(2)), ParallelFileSystemReader(place(tmp_path, 1))), state(2))
    assert names(tmp_path) == ["step-00000001"]


def test_a_background_save_stores_the_state_of_the_moment_it_was_called(tmp_path: Path) -> None:
    live = state(5)
    with nothing_left_behind():
        pending = checkpoint.async_save(live, place(tmp_path, 5), step=5)
        live["model"]["large"].zero_()
        assert pending.result(60).step == 5
        assert pending.done()
    assert_same(load(blank(state(5)), ParallelFileSystemReader(place(tmp_path, 5))), state(5))


def quantized_tensor() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to drop quantized tensors
        return torch.quantize_per_tensor(torch.arange(6.0), 0.5, 3, torch.qint8)


def test_a_save_that_makes_an_object_to_check_it_warns_of_nothing_that_the_user_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's function that rebuilds a quantized tensor warns once per process; every warning is an error here."""
    monkeypatch.setattr("torch.storage._always_warn_typed_storage_removal", True)
    saved = quantized_tensor()
    checkpoint.save({"a": deque([saved])}, tmp_path / "c", step=1)
    monkeypatch.undo()
    loaded: dict[str, Any] = {"a": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, as in torch's load
        checkpoint.load(loaded, tmp_path / "c")
    assert torch.equal(loaded["a"][0].int_repr(), saved.int_repr())


def test_a_background_save_stores_what_a_save_stores(tmp_path: Path) -> None:
    tied = torch.nn.Parameter(random_bits(5))
    values: dict[str, Any] = {
        "size": torch.Size([1, 2]),
        "queue": deque([OrderedDict(a=1)], maxlen=3),
        "stream": io.BytesIO(b"abc"),
        "array": np.arange(3),
        "imaginary": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        "quantized": quantized_tensor(),
        "expanded": torch.arange(3.0).expand(2, 3),
        "model": {"one": tied, "two": tied},
    }
    checkpoint.save(values, tmp_path / "now", step=1)
    pending = checkpoint.async_save(values, tmp_path / "later", step=1)
    values["stream"].write(b"zzz")
    values["array"][:] = 9
    pending.result()
    manifests = [read_manifest(tmp_path / name, LocalFiles()) for name in ("now", "later")]
    now, later = ({record[0]: record[-1] for record in one.records} for one in manifests if one is not None)
    assert now == later
    assert len(now) == 9


def test_a_tensor_without_elements_in_an_object_is_saved_now_or_later(tmp_path: Path) -> None:
    empty = torch.ones(3, device="meta")
    for name, begin in (("now", checkpoint.save), ("later", checkpoint.async_save)):
        pending = begin({"o": (empty, torch.nn.Parameter(empty))}, tmp_path / name, step=1)
        if isinstance(pending, checkpoint.PendingSave):
            pending.result()
        state: dict[str, Any] = {"o": None}
        checkpoint.load(state, tmp_path / name)
        assert [(value.device.type, value.shape) for value in state["o"]] == [("meta", (3,))] * 2


def test_a_top_level_tensor_without_elements_fails_the_save_now_or_later(tmp_path: Path) -> None:
    state = {"w": torch.ones(3, device="meta")}
    with pytest.raises(CheckpointWriteError, match="meta tensor"):
        checkpoint.save(state, tmp_path / "c", step=1)
    pending = checkpoint.async_save(state, tmp_path / "c", step=1)
    with pytest.raises(CheckpointWriteError, match="meta tensor"):
        pending.result()
    assert names(tmp_path) == []


def test_a_state_that_cannot_be_copied_is_a_save_that_failed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointWriteError, match="lock"):
        checkpoint.async_save({"w": torch.ones(3), "lock": threading.Lock()}, tmp_path / "c", step=1)
    assert names(tmp_path) == []


def test_a_path_means_what_it_meant_when_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved(tmp_path, 1).parent)
    busy = checkpoint.async_save(state(2), "step-00000002", step=2)
    pending, reader = (
        checkpoint.async_save(state(3), "step-00000003", step=3),
        ParallelFileSystemReader("step-00000001"),
    )
    monkeypatch.chdir("/")
    assert pending.result().path.parent == busy.result().path.parent == tmp_path
    assert names(tmp_path) == [f"step-{step:08}" for step in (1, 2, 3)]
    wiped = blank(state())
    load(wiped, reader)
    assert_same(wiped, state())
    assert reader.checkpoint_id == Path("step-00000001")


def test_a_background_save_leaves_the_warning_filters_alone(tmp_path: Path) -> None:
    """They belong to all threads: a filter that the program sets meanwhile must stand afterwards."""
    seen: list[Any] = []

    class Looking:
        def __reduce__(self) -> tuple[Any, ...]:
            seen.append(list(warnings.filters))
            return (int, (1,))

    checkpoint.async_save({"w": torch.ones(3), "o": Looking()}, tmp_path / "c", step=1).result()
    assert seen
    assert all(filters == warnings.filters for filters in seen)


def test_a_background_save_that_fails_says_so_when_asked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    pending = checkpoint.async_save(state(), tmp_path / "file" / "c", step=1)
    with pytest.raises(CheckpointWriteError):
        pending.result(60)


@pytest.mark.parametrize(
    "options", [{"step": -1}, {"step": 2**60 + 1}, {"step": 1.5}, {"step": 1, "keep": 0}], ids=repr
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        checkpoint.save(state(), tmp_path / "c", **options)
    assert names(tmp_path) == []


def test_the_largest_step_that_is_taken_can_be_verified(tmp_path: Path) -> None:
    checkpoint.save(state(), tmp_path / "c", step=2**60)
    assert verify_checkpoint(tmp_path / "c", require_manifest=True).sound


def test_a_path_that_no_file_can_have_is_refused_with_our_errors(tmp_path: Path) -> None:
    for name in ("a\0b", "a\ud800", "a\0b/c"):
        with pytest.raises(ConfigError, match="no file name can have"):
            checkpoint.save(state(), tmp_path / name, step=1)
        for read in (verify_checkpoint, latest_verified, lambda path: checkpoint.load(state(), path)):
            with pytest.raises(UnusableCheckpointError):
                read(tmp_path / name)
    too_long = tmp_path / ("n" * 300)
    with pytest.raises(CheckpointWriteError, match="too long"):
        checkpoint.save(state(), too_long, step=1)
    with pytest.raises(CheckpointWriteError, match="too long"):
        checkpoint.async_save(state(), too_long / "c", step=1).result()
    for read in (verify_checkpoint, latest_verified, lambda path: checkpoint.load(state(), path)):
        with pytest.raises(UnusableCheckpointError, match="too long"):
            read(too_long)
    assert names(tmp_path) == []


def swapped_large_records(folder: Path) -> None:
    """Swap the stored bytes of two tensors of one shape of which only the ends are digested."""
    swapped_records(folder, ("three", "four"))


def swapped_records(folder: Path, swapped: tuple[str, str] = ("one", "two")) -> None:
    """Swap the stored bytes of two tensors of one shape."""
    metadata = FileSystemReader(folder).read_metadata()
    places = {index.fqn.removeprefix("model."): info for index, info in metadata.storage_data.items()}
    one, two = (places[name] for name in swapped)
    path = folder / one.relative_path
    data = bytearray(path.read_bytes())
    assert one.length == two.length
    first, second = (bytes(data[info.offset : info.offset + info.length]) for info in (one, two))
    data[one.offset : one.offset + one.length] = second
    data[two.offset : two.offset + two.length] = first
    path.write_bytes(data)


def swapped_places(folder: Path) -> None:
    """Swap two places in the metadata."""
    import pickle

    metadata = FileSystemReader(folder).read_metadata()
    places = metadata.storage_data
    one, two = (MetadataIndex(f"model.{name}", torch.Size((0, 0))) for name in ("one", "two"))
    places[one], places[two] = places[two], places[one]
    metadata.storage_meta = None
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def data_of_another_step(folder: Path) -> None:
    other = place(folder.parent, 77)
    checkpoint.save(state(77), other, step=77)
    shutil.copy(other / "__0_0.distcp", folder / "__0_0.distcp")
    shutil.rmtree(other)


def metadata_of_another_step(folder: Path) -> None:
    other = place(folder.parent, 77)
    checkpoint.save(state(77), other, step=77)
    shutil.copy(other / ".metadata", folder / ".metadata")
    shutil.rmtree(other)


def changed_manifest(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"step":4', '"step":5'))


def cut_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:100])


def newer_manifest(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"version":1', '"version":2'))


def resealed_manifest(folder: Path) -> None:
    """A manifest with the right digest that places a record where the metadata does not."""
    manifest = read_manifest(folder, LocalFiles())
    assert manifest is not None
    records = [[*record[:3], record[3] + 1, *record[4:]] for record in manifest.records]
    (folder / MANIFEST).write_bytes(replace(manifest, records=records).sealed().to_bytes())


def mistyped_manifest(folder: Path) -> None:
    """A manifest with the right digest whose records are not what they should be."""
    manifest = read_manifest(folder, LocalFiles())
    assert manifest is not None
    records = [[*record[:5], {}, record[6]] for record in manifest.records]
    (folder / MANIFEST).write_bytes(replace(manifest, records=records).sealed().to_bytes())


def nested_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text("[" * 200_000)


@pytest.mark.parametrize(
    "damage",
    [
        swapped_records, swapped_places, data_of_another_step, metadata_of_another_step, changed_manifest,
        cut_manifest, newer_manifest, nested_manifest, resealed_manifest, mistyped_manifest, swapped_large_records,
    ],
    ids=lambda damage: damage.__name__,
)  # fmt: skip
@pytest.mark.parametrize("parallel", [True, False])
def test_what_the_format_cannot_tell_the_manifest_tells(
    tmp_path: Path, damage: Callable[[Path], None], parallel: bool
) -> None:
    path = saved(tmp_path, 4)
    damage(path)
    with pytest.raises(CheckpointError):
        load(blank(state(4)), ParallelFileSystemReader(path, parallel=parallel))
    with pytest.raises(CheckpointError):
        checkpoint.load(blank(state(4)), path, parallel=parallel)
    try:
        assert verify_checkpoint(path).verdict == "damaged"
    except UnusableCheckpointError as error:
        assert "manifest" in error.message  # noqa: PT017 — either is right, and both name the manifest


@pytest.mark.parametrize(
    "change",
    [
        lambda record: [[*record[:1], [1], *record[2:]]],
        lambda record: [["other", *record[1:]]],
        lambda record: [[*record[:2], "other.distcp", *record[3:]]],
        lambda record: [[*record[:4], record[4] + 1, *record[5:]]],
        lambda record: [record, ["other", *record[1:]]],
        lambda record: [record, record],
        lambda record: [],
    ],
    ids=["part", "tensor", "file", "length", "one more", "one twice", "one less"],
)
def test_a_manifest_with_the_right_digest_must_list_what_the_metadata_lists(
    tmp_path: Path, change: Callable[[list[Any]], list[Any]]
) -> None:
    checkpoint.save({"w": torch.ones(3), "step": 1}, tmp_path / "c", step=1)
    manifest = read_manifest(tmp_path / "c", LocalFiles())
    assert manifest is not None
    first, *rest = manifest.records
    changed = replace(manifest, records=[*change(first), *rest]).sealed()
    (tmp_path / "c" / MANIFEST).write_bytes(changed.to_bytes())
    with pytest.raises(UnusableCheckpointError, match="items in the manifest do not match"):
        verify_checkpoint(tmp_path / "c")


def test_a_tensor_whose_ends_do_not_hold_its_checksums_is_digested_whole() -> None:
    plain, many = io.BytesIO(), io.BytesIO()
    torch.save(torch.zeros(20_000), plain)
    torch.save([torch.zeros(1000) for _ in range(20)], many)
    for stream, whole in ((plain, False), (many, True)):
        data = memoryview(stream.getvalue())
        assert digest_whole(memory_reader(data), len(data), tensor=True) == whole
        longer = memoryview(bytes(data) + bytes(100))
        assert digest_whole(memory_reader(longer), len(longer), tensor=True)


@pytest.mark.parametrize(("more", "whole"), [(0, False), (1, True)])
def test_a_tensor_is_digested_whole_if_its_directory_does_not_fit_into_the_end(more: int, whole: bool) -> None:
    """The end is what is digested behind the payload: the directory, and the two records of 98 bytes after it."""
    length, directory = 1 << 20, TAIL_BYTES - 98 + more
    data = bytearray(length)
    data[:4] = ZIP_START
    struct.pack_into("<QQ", data, length - 98 + 40, directory, length - 98 - directory)
    assert digest_whole(memory_reader(memoryview(data)), length, tensor=True) == whole


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("length", [10, 300_000], ids=["read with its neighbours", "read by itself"])
def test_objects_of_one_length_that_were_swapped_are_told_by_the_manifest(
    tmp_path: Path, length: int, parallel: bool
) -> None:
    checkpoint.save({"model": {"one": "a" * length, "two": "b" * length}}, tmp_path / "c", step=1)
    swapped_records(tmp_path / "c")
    assert verify_checkpoint(tmp_path / "c").verdict == "damaged"
    with pytest.raises(CheckpointError, match="manifest"):
        checkpoint.load({"model": {"one": "", "two": ""}}, tmp_path / "c", parallel=parallel)


def test_without_the_manifest_the_same_swap_goes_unnoticed(tmp_path: Path) -> None:
    path = saved(tmp_path, 4)
    swapped_records(path)
    (path / MANIFEST).unlink()
    assert verify_checkpoint(path).sound
    with pytest.raises(UnusableCheckpointError, match="no manifest"):
        verify_checkpoint(path, require_manifest=True)


def test_the_command_can_insist_on_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, 4)
    for code, options in ((0, []), (0, ["--require-manifest"])):
        with pytest.raises(SystemExit) as exit_:
            run(["verify", str(path), *options])
        assert exit_.value.code == code
    (path / MANIFEST).unlink()
    with pytest.raises(SystemExit) as exit_:
        run(["verify", str(path), "--require-manifest"])
    assert exit_.value.code == 2
    assert "no manifest" in capsys.readouterr().err


def test_the_latest_verified_checkpoint_says_why_newer_ones_were_passed_over(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 4, 5)
    swapped_records(place(tmp_path, 3))
    (place(tmp_path, 4) / ".metadata").unlink()
    (place(tmp_path, 5) / "__0_0.distcp").unlink()
    (tmp_path / ".step-00000006.saving").mkdir()
    found = latest_verified(tmp_path)
    assert found is not None
    assert (found.path, found.step) == (place(tmp_path, 2), 2)
    assert [path.name for path, _ in found.passed_over] == ["step-00000005", "step-00000004", "step-00000003"]
    reasons = [reason for _, reason in found.passed_over]
    assert "cannot open" in reasons[0]
    assert "no metadata" in reasons[1]
    assert "manifest" in reasons[2]
    earlier = latest_verified(tmp_path, not_after=1)
    assert earlier is not None
    assert earlier.step == 1


def test_the_latest_verified_checkpoint_is_found_while_a_saver_keeps_only_one(tmp_path: Path) -> None:
    saved(tmp_path, 0)
    saver = threading.Thread(target=saved, args=(tmp_path, *range(1, 12)), kwargs={"keep": 1})
    saver.start()
    steps = []
    while saver.is_alive():
        found = latest_verified(tmp_path)
        assert found is not None
        steps.append(found.step)
    saver.join()
    assert steps == sorted(steps)


def test_no_checkpoint_at_all_is_none_and_none_that_is_sound_is_an_error(tmp_path: Path) -> None:
    assert latest_verified(tmp_path) is None
    assert latest_verified(tmp_path / "nothing") is None
    cut_manifest(saved(tmp_path, 1))
    with pytest.raises(UnusableCheckpointError, match="step-00000001"):
        latest_verified(tmp_path)


def limited(folder: Path, limit: int) -> None:
    """Save where files may not grow beyond a limit, which the kernel enforces as it does a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        checkpoint.save(state(2), place(folder, 2), step=2, keep=1)
    except CheckpointWriteError as error:
        sys.exit(17 if "free_bytes" in str(error) else str(error))


@pytest.mark.parametrize("limit", [1000, 100_000, 361_500])
def test_a_full_disk_leaves_the_older_checkpoints_intact_and_says_so(tmp_path: Path, limit: int) -> None:
    saved(tmp_path, 1)
    saver = multiprocessing.get_context("fork").Process(target=limited, args=(tmp_path, limit))
    saver.start()
    saver.join(120)
    assert saver.exitcode == 17
    assert names(tmp_path) == ["step-00000001"]
    found = latest_verified(tmp_path)
    assert found is not None
    assert found.step == 1


def keep_saving(folder: Path, told: Connection) -> None:
    """Save one checkpoint after the other, and tell of each, until killed."""
    for step in itertools.count(1):
        checkpoint.save(state(step), place(folder, step), step=step, keep=2)
        told.send(step)


def test_a_save_killed_at_any_moment_leaves_whole_checkpoints_only(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for kills in range(3):
        heard, told = context.Pipe(duplex=False)
        saver = context.Process(target=keep_saving, args=(tmp_path, told))
        saver.start()
        for _ in range(3 + 2 * kills):
            last = heard.recv()
        saver.kill()
        saver.join()
        heard.close()
        told.close()
        found = latest_verified(tmp_path, require_manifest=True)
        assert found is not None
        assert found.step >= last
        assert found.passed_over == ()
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()


def test_what_nobody_asks_for_is_named_in_a_warning_and_in_the_report(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    full = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    checkpoint.save(full, tmp_path / "c", step=1)
    fresh = {"model": model.state_dict(), "optimizer": torch.optim.AdamW(model.parameters()).state_dict()}
    with pytest.warns(UserWarning, match=r"optimizer\.….exp_avg \(2\)"):
        report = checkpoint.load(fresh, tmp_path / "c")
    assert "optimizer.state.0.exp_avg" in report.not_loaded
    assert len(report.not_loaded) == 6
    assert checkpoint.load(fresh, tmp_path / "c", warn_not_loaded=False).not_loaded == report.not_loaded
    assert checkpoint.load(full, tmp_path / "c").not_loaded == ()


def test_a_tensor_without_elements_is_not_called_left_behind(tmp_path: Path) -> None:
    values = {"w": torch.ones(3), "none": torch.empty(0), "rows": torch.empty(3, 0)}
    checkpoint.save(values, tmp_path / "c", step=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoint.load(blank(values), tmp_path / "c").not_loaded == ()


def test_background_saves_of_one_process_are_made_in_the_order_of_the_calls(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": torch.zeros(50_000), "n": 0}
    pending = []
    for step in range(1, 6):
        state["w"].fill_(step)
        pending.append(checkpoint.async_save({**state, "n": step}, tmp_path / "last", step=step))
    state["w"].fill_(6)
    checkpoint.save({**state, "n": 6}, tmp_path / "last", step=6)
    assert all(save.done() for save in pending)
    loaded = {"w": torch.zeros(50_000), "n": 0}
    checkpoint.load(loaded, tmp_path / "last")
    assert loaded["n"] == 6
    assert [save.result().step for save in pending] == [1, 2, 3, 4, 5]


def test_a_path_above_a_link_is_where_the_system_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "sub")
    monkeypatch.chdir(tmp_path)
    checkpoint.save({"w": torch.ones(3)}, "link/../c", step=1)
    assert (tmp_path / "far" / "c" / ".metadata").exists()
    loaded = {"w": torch.zeros(3)}
    checkpoint.load(loaded, "link/../c")
    assert loaded["w"].tolist() == [1, 1, 1]
    for path in ("nothing/../c", "link/..", "."):
        with pytest.raises(ConfigError):
            checkpoint.save({"w": torch.ones(3)}, path, step=1)
