"""Values and archives that torch itself would not load, or nobody could use: never *sound*, always a named error."""

from __future__ import annotations

import datetime
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoint.support import random_bits, raw_bytes, save
from torch.distributed.checkpoint import _version
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from holdfast import checkpoint
from holdfast.checkpoint.archive import DamagedArchiveError
from holdfast.checkpoint.items import Expected, KnownItems, decode_item, decode_tensor, memory_reader, open_item
from holdfast.errors import CheckpointMismatchError, ConfigError, UnsafeCheckpointError, UnusableCheckpointError


def archive(value: Any, change: dict[str, bytes | None] | None = None) -> memoryview:
    """Save a value as torch does, with some records replaced or left out."""
    saved, buffer = io.BytesIO(), io.BytesIO()
    torch.save(value, saved)
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(buffer, "w") as target:
        for entry in source.infolist():
            name = entry.filename.partition("/")[2]
            content = (change or {}).get(name, source.read(entry))
            if content is not None:
                target.writestr(zipfile.ZipInfo(entry.filename), content)
    return memoryview(buffer.getvalue())


@pytest.mark.parametrize("change", [{"byteorder": b"mid"}, {"version": None}, {"version": b"99"}, {"version": b"x"}])
def test_an_archive_that_torch_refuses_is_damaged(change: dict[str, bytes | None]) -> None:
    tensor = torch.arange(3.0)
    assert decode_item(archive(tensor), check=True, tensor="w", file="f").value.equal(tensor)
    data = archive(tensor, change)
    with pytest.raises(DamagedArchiveError, match=r"version|byte order"):
        decode_item(data, check=True, tensor="w", file="f")
    with pytest.raises(DamagedArchiveError, match=r"version|byte order"):
        open_item(memory_reader(data), len(data), KnownItems(), check=True)


class Reduced:
    """Is saved as any call, and state, of NumPy's that an archive may hold."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> Any:
        return self._parts


def time_type(unit: bytes, *numbers: int) -> Any:
    return Reduced(np.dtype, ("m8", False, True), (4, "<", None, None, None, -1, -1, 0, ({}, (unit, *numbers))))


@pytest.mark.parametrize(
    ("unit", "numbers"),
    [(b"h", (0, 1, 1)), (b"h", (-1, 1, 1)), (b"h", (5, 0, 1)), (b"h", (1, 7, 1)), (b"h", (2**31, 1, 1)),
     (b"generic", (0, 1, 1)), (b"generic", (5, 1, 1)), (b"h", (1, 1, 7))],
)  # fmt: skip
def test_a_time_that_numpy_would_not_read_again_is_refused(unit: bytes, numbers: tuple[int, ...]) -> None:
    with pytest.raises(UnsafeCheckpointError):
        decode_item(archive([time_type(unit, *numbers)]), check=True, tensor="w", file="f")


@pytest.mark.parametrize("code", ["S0", "U0"])
def test_text_without_length_takes_no_memory_however_much_of_it_there_is(code: str) -> None:
    reconstruct = np.empty(0).__reduce__()[0]  # its module has another name in NumPy 1
    count = 10**12
    data = archive([Reduced(reconstruct, (np.ndarray, (0,), b"b"), (1, (count,), np.dtype(code), False, b""))])
    (made,) = decode_item(data, check=True, tensor="w", file="f").value
    assert (made.dtype.str[1:], made.shape, made.nbytes) == (code, (count,), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex64])
def test_a_tensor_saved_on_a_machine_of_the_other_byte_order_has_the_same_values(dtype: torch.dtype) -> None:
    tensor = random_bits(5, 3, dtype=dtype)
    width = dtype.itemsize // (2 if dtype.is_complex else 1)
    swapped = np.frombuffer(raw_bytes(tensor), np.uint8).reshape(-1, width)[:, ::-1].tobytes()
    data = archive(tensor, {"byteorder": b"big", "data/0": swapped})
    assert open_item(memory_reader(data), len(data), KnownItems(), check=True) is None, "the bytes must be turned first"
    ours, _ = decode_tensor(data, Expected((5, 3), dtype), check=True, tensor="w", file="f")
    assert raw_bytes(ours) == raw_bytes(torch.load(io.BytesIO(data), weights_only=True)) == raw_bytes(tensor)


def test_a_sparse_tensor_where_the_metadata_says_dense_is_damage() -> None:
    data = archive(torch.eye(3).to_sparse())
    with pytest.raises(DamagedArchiveError, match="sparse_coo tensor where the metadata says"):
        decode_tensor(data, Expected((3, 3), torch.float32), check=True, tensor="w", file="f")


class Call:
    """Pickled as a call of a function, and the state that its result is given."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.call = (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "value",
    [
        Call(torch.device, "cuda", 2000),
        Call(torch.device, "cuda", -3),
        Call(torch.Size, [10**30]),
        Call(torch.Size, [1] * 5000),
        torch.zeros([1] * 5000),
        Call(datetime.datetime, bytes([7, 232, 2, 30, 0, 0, 0, 0, 0, 0])),
        Call(datetime.date, bytes([7, 232, 2, 0])),
        Call(datetime.time, bytes([24, 0, 0, 0, 0, 0])),
    ],
    ids=[
        "device",
        "negative device",
        "size",
        "dimensions of a size",
        "dimensions of a tensor",
        "30 February",
        "0 February",
        "24:00",
    ],
)
def test_a_value_that_nobody_could_use_is_refused(value: Any) -> None:
    with pytest.raises(UnsafeCheckpointError, match="not supported"):
        decode_item(archive(value), check=True, tensor="w", file="f")


@pytest.mark.parametrize("kind", ["U1", [("text", "U1")], [("texts", "U1", (1,))]], ids=["plain", "field", "array"])
def test_text_beyond_unicode_in_an_array_is_refused(kind: Any) -> None:
    text = np.zeros(2, dtype=kind)
    assert (decode_item(archive(text), check=True, tensor="w", file="f").value == text).all()
    text.view(np.uint32)[1] = 0xFFFFFFFF
    with pytest.raises(UnsafeCheckpointError, match="not a character"):
        decode_item(archive(text), check=True, tensor="w", file="f")


def test_what_does_not_fit_the_destination_is_a_mismatch_with_its_name(tmp_path: Path) -> None:
    save({"w": torch.zeros(100, 10)}, tmp_path)
    with pytest.raises(CheckpointMismatchError) as caught:
        checkpoint.load({"w": torch.zeros(3)}, tmp_path)
    assert caught.value.where["tensor"] == "w"
    with pytest.raises(CheckpointMismatchError, match="no such key") as caught:
        checkpoint.load({"absent": torch.zeros(3)}, tmp_path)
    assert caught.value.where["tensor"] == "absent"
    for planner in (None, DefaultLoadPlanner()):
        with pytest.raises(CheckpointMismatchError, match="stores a tensor") as caught:
            checkpoint.load({"w": "text"}, tmp_path, planner=planner)
        assert caught.value.where["tensor"] == "w"
    partial = DefaultLoadPlanner(allow_partial_load=True)
    with pytest.raises(CheckpointMismatchError) as caught:
        checkpoint.load({"absent": torch.zeros(3), "w": torch.zeros(3)}, tmp_path, planner=partial)
    assert caught.value.where["tensor"] == "w"


@pytest.mark.parametrize(
    "number", [np.int64(3), np.uint8(3), torch.tensor(3)], ids=lambda number: type(number).__name__
)
def test_whole_numbers_of_any_kind_are_whole_numbers(tmp_path: Path, number: Any) -> None:
    report = checkpoint.save({"w": torch.zeros(2)}, tmp_path / "c-3", step=number, keep=number, thread_count=number)
    assert type(report.step) is int
    found = checkpoint.latest_verified(tmp_path, not_after=number)
    assert found is not None
    assert found.step == 3
    checkpoint.load({"w": torch.zeros(2)}, tmp_path / "c-3", num_workers=number, memory_limit=number)


@pytest.mark.parametrize("number", [True, 2.0, "3", -1, torch.tensor([1, 2]), None])
def test_what_is_not_a_whole_number_is_refused(tmp_path: Path, number: Any) -> None:
    with pytest.raises(ConfigError, match="step must be a whole number"):
        checkpoint.save({"w": torch.zeros(2)}, tmp_path / "c", step=number)
    if number is not None:
        with pytest.raises(ConfigError, match="not_after must be a whole number"):
            checkpoint.latest_verified(tmp_path, not_after=number)


def test_an_unknown_option_of_installed_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="verifyy"), checkpoint.installed(verifyy=1):
        pass


def hf_folder(folder: Path, weight_map: Any) -> Path:
    save_file({"a": torch.zeros(2)}, folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize(
    "weight_map",
    [
        {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
        {"a": "../evil.safetensors"},
        {"c": "model-00001-of-00002.safetensors"},
        5,
        None,
    ],
)
def test_an_index_that_names_what_is_not_there_is_refused(tmp_path: Path, weight_map: Any) -> None:
    folder = hf_folder(tmp_path, weight_map)
    for use in (checkpoint.verify_checkpoint, checkpoint.summarise_checkpoint):
        with pytest.raises(UnusableCheckpointError, match="index"):
            use(folder)


def test_an_index_that_fits_is_accepted(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path, {"a": "model-00001-of-00002.safetensors"})
    assert checkpoint.verify_checkpoint(folder).verdict == "incomplete"


@pytest.mark.parametrize("count", [0, 2, (1 << 31) // 8, 1 << 40, 1 << 62, -1], ids=str)
def test_a_numpy_type_of_arrays_beyond_numpys_limit_is_refused(count: int) -> None:
    """Pickled as NumPy pickles it, with another shape."""
    size = min(8 * count, 1 << 40)
    state = (3, "|", (np.dtype("f8"), (count,)), None, None, size, 8, 0)
    value = Call(np.dtype, f"V{max(0, min(size, 999_999_999))}", False, True, state=state)
    if 0 <= count < 3:
        assert decode_item(archive(value), check=True, tensor="w", file="f").value == np.dtype(("f8", (count,)))
    else:
        with pytest.raises(UnsafeCheckpointError, match="not supported"):
            decode_item(archive(value), check=True, tensor="w", file="f")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_load_that_failed_in_torch_does_not_change_what_is_saved_and_loaded_later(tmp_path: Path) -> None:
    """Torch flattens as an older version did while it looks for missing keys, and stays with that if it fails."""
    stored = {"x": {1: {1: 2.5}, "1": 3, "w": torch.ones(2)}, "more": 1}
    save(stored, tmp_path / "stored")
    into = {"x": {1: {1: 0.0}, "1": 0, "w": torch.zeros(2)}}

    def fail_in_torch() -> None:
        with pytest.raises(CheckpointException, match="duplicated flatten key"):
            dcp_load(into, checkpoint_id=tmp_path / "stored", no_dist=True)
        assert _version._derived_version is not None  # otherwise torch has mended it, and this test can go

    checkpoint.save({"m": {"a": {"b": 1}}}, tmp_path / "before", step=1)
    fail_in_torch()
    wanted = {"m": {"a": {"b": 0}}}
    checkpoint.load(wanted, tmp_path / "before")
    assert wanted == {"m": {"a": {"b": 1}}}
    fail_in_torch()
    checkpoint.save({"m": {"a": {"b": 1}}}, tmp_path / "after", step=1)
    assert checkpoint.summarise_checkpoint(tmp_path / "after").objects == ("m.a.b",)
