"""Tensors that torch's own functions would rebuild as they are told, and nobody could use safely."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._tensor
import torch._utils
from tests.checkpoint.support import assert_same, load, save
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.tensor import DTensor
from torch.testing._internal.two_tensor import TwoTensor

from holdfast.checkpoint import ParallelFileSystemReader, verify_checkpoint
from holdfast.checkpoint.items import decode_item
from holdfast.errors import CorruptRecordError, UnsafeCheckpointError

Payloads = dict[str, bytes]


class Storage:
    """Pickled as a reference to a record of the archive."""

    def __init__(self, key: str = "0", kind: Any = torch.FloatStorage, count: int = 2, location: str = "cpu") -> None:
        self.identity = ("storage", kind, key, location, count)


class Call:
    """Pickled as the call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self._reduced


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.identity if isinstance(value, Storage) else None


def archive_of(value: Any, payloads: Payloads, *, module: bytes = b"torch") -> bytes:
    """What ``torch.save`` would write for calls that it never makes, with storages of some module."""
    content, buffer = io.BytesIO(), io.BytesIO()
    _Pickler(content, 2).dump(value)
    pickled = content.getvalue().replace(b"ctorch\nFloatStorage", b"c" + module + b"\nFloatStorage")
    writer = torch._C.PyTorchFileWriter(buffer)
    for name, data in {"data.pkl": pickled, "byteorder": b"little", **payloads}.items():
        writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    return buffer.getvalue()


def tensor(size: tuple[int, ...], storage: Storage, hooks: Any = None, metadata: Any = None) -> Call:
    strides = tuple(int(np.prod(size[place + 1 :])) for place in range(len(size)))
    more = () if metadata is None else (metadata,)
    return Call(torch._utils._rebuild_tensor_v2, storage, 0, size, strides, False, hooks or OrderedDict(), *more)


def longs(*numbers: int) -> bytes:
    return np.array(numbers, dtype=np.int64).tobytes()


VALUES = {"data/0": np.array([1, 2], dtype=np.float32).tobytes()}


def coo(index: int, *, coalesced: bool = False) -> tuple[Call, Payloads]:
    indices = tensor((1, 2), Storage("1", torch.LongStorage))
    parts = (indices, tensor((2,), Storage()), Call(torch.Size, (4,)), coalesced)
    return Call(torch._utils._rebuild_sparse_tensor, torch.sparse_coo, parts), VALUES | {"data/1": longs(index, 3)}


def coo_of_old_torch() -> tuple[Call, Payloads]:
    """Without the mark that says whether it is coalesced."""
    indices = tensor((1, 2), Storage("1", torch.LongStorage))
    parts = (indices, tensor((2,), Storage()), Call(torch.Size, (4,)))
    return Call(torch._utils._rebuild_sparse_tensor, torch.sparse_coo, parts), VALUES | {"data/1": longs(0, 3)}


def compressed(index: int, layout: torch.layout = torch.sparse_csr) -> tuple[Call, Payloads]:
    """Two elements on the diagonal of a matrix of two rows, or blocks of one element."""
    ends, others = tensor((3,), Storage("1", torch.LongStorage, 3)), tensor((2,), Storage("2", torch.LongStorage))
    values = tensor((2,) if layout in (torch.sparse_csr, torch.sparse_csc) else (2, 1, 1), Storage())
    parts = (ends, others, values, Call(torch.Size, (2, 2)))
    payloads = {"data/1": longs(0, 1, 2), "data/2": longs(index, 1)}
    return Call(torch._utils._rebuild_sparse_tensor, layout, parts), VALUES | payloads


def quantized(
    channels: int,
    *,
    scale: float = 2.0,
    zero: int = 0,
    axis: int = 0,
    size: tuple[int, ...] = (2,),
) -> tuple[Call, Payloads]:
    """With two scales, of 1 and ``scale``, and two zero points, of 0 and ``zero``."""
    scales = tensor(size, Storage())
    zeros = tensor(size, Storage("1", torch.LongStorage))
    scheme = (torch.per_channel_affine, scales, zeros, axis)
    storage = Storage("2", torch.QInt8Storage, channels)
    call = Call(torch._utils._rebuild_qtensor, storage, 0, (channels,), (1,), scheme, False, OrderedDict())
    payloads = {"data/0": np.array([1, scale], dtype=np.float32).tobytes(), "data/1": longs(0, zero)}
    return call, payloads | {"data/2": bytes(channels)}


def quantized_by(scale: Any, zero: Any, kind: Any = torch.QInt8Storage) -> tuple[Call, Payloads]:
    """With one scale for all of it."""
    scheme = (torch.per_tensor_affine, scale, zero)
    storage = Storage("0", kind, 2)
    call = Call(torch._utils._rebuild_qtensor, storage, 0, (2,), (1,), scheme, False, OrderedDict())
    return call, {"data/0": bytes(8 if kind is torch.QInt32Storage else 2)}


def wrapper(kind: Any, attributes: dict[str, Any] | None = None) -> tuple[Call, Payloads]:
    """A tensor that holds other tensors; what they are is in its attributes."""
    about = (kind, torch.float32, (2,), (1,), 0, torch.strided, torch.device("cpu"), False)
    if attributes is None:
        return Call(torch._utils._rebuild_wrapper_subclass, *about), {}
    rebuild = torch._tensor._rebuild_from_type_v2
    return Call(rebuild, torch._utils._rebuild_wrapper_subclass, kind, about, attributes), VALUES


def with_attributes(**attributes: Any) -> tuple[Call, Payloads]:
    inner: tuple[Any, ...] = (Storage(), 0, (2,), (1,), False, OrderedDict())
    rebuild = torch._tensor._rebuild_from_type_v2
    return Call(rebuild, torch._utils._rebuild_tensor_v2, torch.Tensor, inner, attributes), VALUES


def parameter_with(**attributes: Any) -> tuple[Call, Payloads]:
    data = tensor((2,), Storage())
    return Call(torch._utils._rebuild_parameter_with_state, data, True, OrderedDict(), attributes), VALUES


UNUSABLE = {
    "an index outside a sparse tensor": coo(10**9),
    "a negative index of a sparse tensor": coo(-1),
    "a column outside a compressed tensor": compressed(10**8),
    "a row outside a compressed tensor": compressed(2, torch.sparse_csc),
    "a block outside a compressed tensor": compressed(2, torch.sparse_bsr),
    "a sparse tensor that is dense": compressed(0, torch.strided),
    "an index twice in a sparse tensor without repetitions": coo(3, coalesced=True),
    "fewer scales than channels": quantized(8),
    "a channel's scale that is not a number": quantized(2, scale=float("nan")),
    "a channel's scale below zero": quantized(2, scale=-1.0),
    "a channel's zero point below the dtype": quantized(2, zero=-129),
    "a channel's zero point beyond the dtype": quantized(2, zero=128),
    "channels of a dimension that is not there": quantized(2, axis=1),
    "channels of a negative dimension": quantized(2, axis=-1),
    "scales in two dimensions": quantized(2, size=(2, 1)),
    "a scale that is not a number": quantized_by(float("nan"), 0),
    "an endless scale": quantized_by(float("inf"), 0),
    "a scale of zero": quantized_by(0.0, 0),
    "a scale that is text": quantized_by("1", 0),
    "a zero point beyond everything": quantized_by(0.5, 1 << 62),
    "a zero point below an unsigned dtype": quantized_by(0.5, -1, torch.QUInt8Storage),
    "a zero point beyond an unsigned dtype": quantized_by(0.5, 256, torch.QUInt8Storage),
    "a zero point that is true": quantized_by(0.5, True),
    "a tensor of tensors on its own": wrapper(torch.Tensor),
    "a tensor of tensors without any": wrapper(DTensor, {}),
    "a parameter of tensors": wrapper(torch.nn.Parameter, {"a": tensor((2,), Storage())}),
    "a tensor larger than its empty storage": (tensor((1 << 20,), Storage(count=0)), {"data/0": b""}),
    "a tensor larger than its storage": (tensor((1 << 20,), Storage()), VALUES),
    "hooks": (tensor((2,), Storage(), hooks=OrderedDict([(0, torch._utils._rebuild_tensor)])), VALUES),
    "a mark that is not a table": (tensor((2,), Storage(), metadata="conj"), VALUES),
    "a method of its own": with_attributes(__reduce_ex__=list),
    "elements of its own": with_attributes(data=tensor((1,), Storage())),
    "another class": parameter_with(__class__=torch.Tensor),
}
USABLE = {
    "a sparse tensor": coo(0),
    "a sparse tensor of an older torch": coo_of_old_torch(),
    "a sparse tensor without repetitions": coo(0, coalesced=True),
    "rows of a compressed tensor": compressed(0),
    "columns of a compressed tensor": compressed(0, torch.sparse_csc),
    "rows of blocks": compressed(0, torch.sparse_bsr),
    "columns of blocks": compressed(0, torch.sparse_bsc),
    "a quantized tensor": quantized(2),
    "a quantized tensor of the smallest and largest": quantized(2, zero=-128),
    "a tensor quantized as one": quantized_by(0.5, 127),
    "an unsigned one": quantized_by(0.5, 255, torch.QUInt8Storage),
    "a quantized one of 32 bits": quantized_by(0.5, -(1 << 31), torch.QInt32Storage),
    "an empty tensor": (tensor((0, 3), Storage(count=0)), {"data/0": b""}),
    "a tensor with a user's attribute": with_attributes(name_of_user=5),
    "a parameter with a user's attribute": parameter_with(name_of_user=5),
}


def put(folder: Path, name: str, content: bytes) -> None:
    """Replace what is stored under a name, and its length in the metadata."""
    metadata = FileSystemReader(folder).read_metadata()
    (index,) = (index for index in metadata.storage_data if index.fqn == name)
    info = metadata.storage_data[MetadataIndex(name, index.offset)]
    (folder / info.relative_path).write_bytes(content)
    info.length = len(content)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_tensor_that_could_not_be_used_is_refused_by_load_and_verify(
    tmp_path: Path, kind: str, parallel: bool
) -> None:
    folder = save({"step": 5}, tmp_path / "c", single_file_per_rank=False)
    put(folder, "step", archive_of(*UNUSABLE[kind]))
    with pytest.raises(UnsafeCheckpointError) as caught:
        load({"step": None}, ParallelFileSystemReader(folder, parallel=parallel))
    assert caught.value.tensor == "step"
    report = verify_checkpoint(folder)
    assert report.verdict == "incomplete"
    assert [refused.tensor for refused in report.unsafe] == ["step"]


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch has some for storages, sparse and quantized tensors
@pytest.mark.parametrize("kind", USABLE)
def test_what_torch_would_have_saved_is_rebuilt_as_torch_does(tmp_path: Path, kind: str) -> None:
    content = archive_of(*USABLE[kind])
    expected = torch.load(io.BytesIO(content), weights_only=False)
    made = decode_item(memoryview(content), check=True, tensor="x", file="f").value
    assert type(made) is type(expected)
    assert made.layout == expected.layout
    assert made.layout != torch.sparse_coo or made.is_coalesced() == expected.is_coalesced()
    assert vars(made) == vars(expected)
    if expected.is_quantized:
        made, expected = made.dequantize(), expected.dequantize()
    assert_same(made.to_dense().detach(), expected.to_dense().detach())
    folder = save({"step": 5}, tmp_path / "c", single_file_per_rank=False)
    put(folder, "step", content)
    assert verify_checkpoint(folder).verdict == "sound"
    load({"step": None}, ParallelFileSystemReader(folder))


def test_a_tensor_of_tensors_whose_class_is_allowed_is_rebuilt(tmp_path: Path) -> None:
    value = TwoTensor(torch.ones(3), torch.arange(3.0))  # type: ignore[no-untyped-call]
    folder = save({"pair": [(value,)]}, tmp_path / "c")
    with torch.serialization.safe_globals([TwoTensor]):
        assert verify_checkpoint(folder).sound
        ((made,),) = load({"pair": [None]}, ParallelFileSystemReader(folder))["pair"]
    assert type(made) is TwoTensor
    assert_same([made.a, made.b], [value.a, value.b])


@pytest.mark.parametrize("parallel", [True, False])
def test_a_tensor_without_elements_of_its_own_is_damage(tmp_path: Path, parallel: bool) -> None:
    """On the meta device: the call that copies it out fails, but not for those who only verify."""
    folder = save({"weight": torch.ones(2)}, tmp_path / "c", single_file_per_rank=False)
    put(folder, "weight", archive_of(tensor((2,), Storage(location="meta")), VALUES))
    with pytest.raises(CorruptRecordError, match="without its elements"):
        load({"weight": torch.zeros(2)}, ParallelFileSystemReader(folder, parallel=parallel))
    assert verify_checkpoint(folder).verdict == "damaged"


@pytest.mark.parametrize(
    ("offset", "size", "strides"), [(-1, (2,), (1,)), (1, (2,), (-1,)), (0, (-1,), (1,)), (0, (2,), (1, 1))]
)
def test_a_tensor_with_a_negative_place_size_or_stride_is_not_read(
    tmp_path: Path, offset: int, size: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    folder = save({"weight": torch.ones(2)}, tmp_path / "c", single_file_per_rank=False)
    call = Call(torch._utils._rebuild_tensor_v2, Storage(), offset, size, strides, False, OrderedDict())
    put(folder, "weight", archive_of(call, VALUES))
    with pytest.raises(UnsafeCheckpointError):
        load({"weight": torch.zeros(2)}, ParallelFileSystemReader(folder))
    assert verify_checkpoint(folder).verdict == "incomplete"


ODD: dict[str, Call] = {
    "a number of elements that is true": tensor((1,), Storage(count=True)),
    "a device that is not text": tensor((1,), Storage(count=1, location=False)),  # type: ignore[arg-type]
    "a gradient that is neither wanted nor not": Call(
        torch._utils._rebuild_tensor_v2, Storage(count=1), 0, (1,), (1,), "cpu", OrderedDict()
    ),
    "a gradient that is a number": Call(
        torch._utils._rebuild_tensor_v2, Storage(count=1), 0, (1,), (1,), 1, OrderedDict()
    ),
    "a size that is true": Call(
        torch._utils._rebuild_tensor_v2, Storage(count=1), 0, (True,), (1,), False, OrderedDict()
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_tensor_of_odd_values_is_judged_alike_by_every_way_to_read_it(tmp_path: Path, kind: str) -> None:
    folder = save({"weight": torch.ones(1)}, tmp_path / "c", single_file_per_rank=False)
    put(folder, "weight", archive_of(ODD[kind], {"data/0": VALUES["data/0"][:4]}))
    for parallel in (True, False):
        with pytest.raises((CorruptRecordError, UnsafeCheckpointError)):
            load({"weight": torch.zeros(1)}, ParallelFileSystemReader(folder, parallel=parallel))
    assert not verify_checkpoint(folder).sound


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"(K\x03X\x01\x00\x00\x00<", b"(K\xffX\x01\x00\x00\x00<"),  # of its dtype
        (b"(K\x03X\x01\x00\x00\x00<", b"(\x88X\x01\x00\x00\x00<"),
        (b"(K\x01K\x02\x85", b"(K\x02K\x02\x85"),  # of the array
    ],
)
def test_an_array_of_a_version_that_numpy_does_not_have_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    content, buffer = io.BytesIO(), io.BytesIO()
    pickle.Pickler(content, 2).dump(np.array([1, 2]))
    assert content.getvalue().count(old) == 1
    writer = torch._C.PyTorchFileWriter(buffer)
    for name, data in {"data.pkl": content.getvalue().replace(old, new), "byteorder": b"little"}.items():
        writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    folder = save({"step": 5}, tmp_path / "c", single_file_per_rank=False)
    put(folder, "step", buffer.getvalue())
    with pytest.raises(UnsafeCheckpointError):
        load({"step": None}, ParallelFileSystemReader(folder))
    assert verify_checkpoint(folder).verdict == "incomplete"


@pytest.mark.parametrize("module", [b"array", b"zlib"])
def test_a_storage_of_another_module_than_torch_is_refused(tmp_path: Path, module: bytes) -> None:
    folder = save({"weight": torch.ones(2)}, tmp_path / "c", single_file_per_rank=False)
    put(folder, "weight", archive_of(tensor((2,), Storage()), VALUES, module=module))
    with pytest.raises(UnsafeCheckpointError) as caught:
        load({"weight": torch.zeros(2)}, ParallelFileSystemReader(folder))
    assert caught.value.names == [f"{module.decode()}.FloatStorage"]
    assert verify_checkpoint(folder).verdict == "incomplete"


def test_an_object_that_cannot_be_passed_on_is_refused_by_verify_too(tmp_path: Path) -> None:
    folder = save({"step": 5}, tmp_path / "c", single_file_per_rank=False)
    put(folder, "step", archive_of(Call(Unsaveable), {}))
    torch.serialization.add_safe_globals([Unsaveable])
    try:
        assert verify_checkpoint(folder).verdict == "incomplete"
        with pytest.raises(UnsafeCheckpointError, match="cannot be passed on"):
            load({"step": None}, ParallelFileSystemReader(folder))
    finally:
        torch.serialization.clear_safe_globals()


class Unsaveable:
    """Can be made and not saved."""

    def __reduce__(self) -> Any:
        raise TypeError("not this one")
