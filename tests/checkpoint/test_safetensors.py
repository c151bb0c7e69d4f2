"""The Hugging Face layout, through the same engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoint.planners import read_box, run_plan
from tests.checkpoint.support import assert_same, blank, load, random_bits
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from holdfast.checkpoint import ParallelFileSystemReader, summarise_checkpoint, verify_checkpoint
from holdfast.errors import CheckpointReadError, UnsafeCheckpointError, UnusableCheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:The `torch.distributed")

SAVED = {
    "embedding": random_bits(700, 300, seed=1),
    "half": random_bits(40, 50, dtype=torch.bfloat16, seed=2),
    "fp8": random_bits(64, 3, dtype=torch.float8_e4m3fn, seed=3),
    "mask": random_bits(9, dtype=torch.bool),
    "scalar": random_bits(seed=4),
    "empty": torch.zeros(0, 4),
    "ids": random_bits(11, dtype=torch.int64, seed=5),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    mapping = {name: number % 2 + 1 for number, name in enumerate(SAVED)}
    writer = HuggingFaceStorageWriter(str(tmp_path / "hf"), fqn_to_index_mapping=mapping)
    dcp_save(dict(SAVED), storage_writer=writer, no_dist=True)
    return tmp_path / "hf"


@pytest.mark.parametrize("way", [{}, {"num_workers": 3}, {"verify": "full"}, {"parallel": False}], ids=str)
def test_what_torch_wrote_loads_as_torch_loads_it(folder: Path, way: dict[str, Any]) -> None:
    ours = load(blank(SAVED), ParallelFileSystemReader(folder, **way))
    stock = load(blank(SAVED), HuggingFaceStorageReader(str(folder)))
    assert_same(ours, stock)
    assert_same(ours, SAVED)


def test_files_that_safetensors_wrote_load_without_sharding_information(tmp_path: Path) -> None:
    save_file(SAVED, tmp_path / "model.safetensors")
    assert_same(load(blank(SAVED), ParallelFileSystemReader(tmp_path)), SAVED)


def test_shards_of_one_tensor_are_put_together(tmp_path: Path) -> None:
    whole = random_bits(60, 70)
    for number, rows in enumerate((slice(0, 25), slice(25, 60))):
        sharding = {"w": {"saved_offsets": [rows.start, 0]}}
        save_file(
            {"w": whole[rows].contiguous()},
            tmp_path / f"shard-{number}-model.safetensors",
            metadata={"DCP_SHARDING_INFO": json.dumps(sharding)},
        )
    assert_same(load({"w": torch.zeros(60, 70)}, ParallelFileSystemReader(tmp_path)), {"w": whole})


@pytest.mark.parametrize(
    ("shape", "start"),
    [((4, 2), [8, 0]), ((4, 2), [2, 0]), ((4,), [4]), ((4, 2), [4]), ((4, 2), [1 << 61, 0])],
    ids=["gap", "overlap", "dimensions", "offsets", "beyond"],
)
def test_shards_that_do_not_make_up_their_tensor_are_refused(
    tmp_path: Path, shape: tuple[int, ...], start: list[int]
) -> None:
    """A gap is what a shard that was not copied leaves: nothing else says that it is missing."""
    for number, (size, offsets) in enumerate((((4, 2), [0, 0]), (shape, start))):
        sharding = json.dumps({"w": {"saved_offsets": offsets}})
        path = tmp_path / f"shard-{number}-model.safetensors"
        save_file({"w": torch.ones(size)}, path, metadata={"DCP_SHARDING_INFO": sharding})
    with pytest.raises(UnusableCheckpointError):
        verify_checkpoint(tmp_path)
    with pytest.raises(UnusableCheckpointError):
        load({"w": torch.zeros(12, 2)}, ParallelFileSystemReader(tmp_path))


def test_rows_are_read_without_the_rest(folder: Path) -> None:
    reader = ParallelFileSystemReader(folder)
    target = torch.zeros(100, 300)
    run_plan(reader, [read_box("embedding", (50, 0), (100, 300))], [target])
    assert_same(target, SAVED["embedding"][50:150].clone())
    assert reader.report is not None
    assert reader.report.bytes_read == target.nbytes


def test_nothing_claims_to_be_verified_that_has_no_checksum(folder: Path) -> None:
    reader = ParallelFileSystemReader(folder)
    load(blank(SAVED), reader)
    assert reader.report is not None
    assert reader.report.verified == 0
    assert {entry.tensor for entry in reader.report.unverified} == set(SAVED) - {"empty"}  # nothing to read
    report = verify_checkpoint(folder)
    assert report.verdict == "incomplete"
    assert len(report.unverified) == len(SAVED) - 1


def test_the_summary_names_the_layout(folder: Path) -> None:
    summary = summarise_checkpoint(folder)
    assert summary.layout == "safetensors"
    assert {tensor.name: tensor.shape for tensor in summary.tensors} == {
        name: tuple(value.shape) for name, value in SAVED.items()
    }


def header(path: Path, change: Any) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    content = json.loads(data[8 : 8 + length])
    change(content)
    new = json.dumps(content).encode()
    path.write_bytes(len(new).to_bytes(8, "little") + new + data[8 + length :])


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["w"].update(dtype="F99"),
        lambda content: content["w"].update(shape=[3, -4]),
        lambda content: content["w"].update(shape=[300, 4]),
        lambda content: content["w"].update(data_offsets=[4, 52]),
        lambda content: content["w"].update(data_offsets=[0, 1 << 50]),
        lambda content: content["w"].pop("shape"),
        lambda content: content.update(w=3),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(tmp_path: Path, change: Any) -> None:
    save_file({"w": torch.ones(3, 4)}, tmp_path / "model.safetensors")
    header(tmp_path / "model.safetensors", change)
    with pytest.raises(UnusableCheckpointError) as caught:
        ParallelFileSystemReader(tmp_path).read_metadata()
    assert caught.value.file == "model.safetensors"


@pytest.mark.parametrize("place", ["header", "entry", "sharding"])
def test_a_header_with_a_name_twice_is_refused(tmp_path: Path, place: str) -> None:
    """Of the two, this reader would use one, and another reader the other."""
    entry = '{"dtype":"F32","shape":[4],"data_offsets":[0,16]}'
    sharding = json.dumps('{"w":{"saved_offsets":[4]},"w":{"saved_offsets":[0]}}')
    twice = {
        "header": '{"w":' + entry.replace("F32", "I32") + ',"w":' + entry + "}",
        "entry": '{"w":' + entry.replace("{", '{"dtype":"I32",') + "}",
        "sharding": '{"__metadata__":{"DCP_SHARDING_INFO":' + sharding + '},"w":' + entry + "}",
    }[place].encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(twice).to_bytes(8, "little") + twice + bytes(16))
    for attempt in (ParallelFileSystemReader(tmp_path).read_metadata, lambda: verify_checkpoint(tmp_path)):
        with pytest.raises(UnusableCheckpointError, match=r"damaged.*twice"):
            attempt()


def test_a_truncated_file_and_a_header_of_garbage_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(300, 4)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CheckpointReadError):
        ParallelFileSystemReader(tmp_path).read_metadata()
    for content in (b"", b"1234", b"\xff" * 100, whole[:20]):
        path.write_bytes(content)
        with pytest.raises(UnusableCheckpointError):
            ParallelFileSystemReader(tmp_path).read_metadata()


def test_two_files_with_the_same_tensor_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"w": torch.ones(3)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(UnusableCheckpointError) as caught:
        ParallelFileSystemReader(tmp_path).read_metadata()
    assert caught.value.tensor == "w"


def test_a_link_out_of_the_folder_needs_trust(tmp_path: Path) -> None:
    (tmp_path / "snapshot").mkdir()
    save_file({"w": torch.ones(3)}, tmp_path / "blob")
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(tmp_path / "blob")
    with pytest.raises(UnsafeCheckpointError):
        ParallelFileSystemReader(tmp_path / "snapshot").read_metadata()
    state = load({"w": torch.zeros(3)}, ParallelFileSystemReader(tmp_path / "snapshot", trusted=True))
    assert_same(state, {"w": torch.ones(3)})
