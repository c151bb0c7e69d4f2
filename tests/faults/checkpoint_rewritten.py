"""Archives whose pickle was changed by somebody who also made every checksum right again.

The changes are of opcodes, not of bytes: a number, text or name for another, an opcode twice, left out, or exchanged
with another. What comes out is mostly still a pickle, and calls what it calls with other arguments.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import random

import torch

NUMBERS = (0, 1, 2, 3, -1, 5, 255, 1 << 16, (1 << 31) - 1, -(1 << 31), 1 << 33, 1 << 40, 1 << 62, -(1 << 63), 1 << 64)
TEXTS = ("cpu", "meta", "0", "1", "conj", "data", "__class__", "__reduce_ex__", "latin1", "\ud800", "")
NAMES = (
    "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3", "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_parameter_with_state", "torch._utils _rebuild_qtensor",
    "torch._utils _rebuild_sparse_tensor", "torch._utils _rebuild_meta_tensor_no_storage",
    "torch._utils _rebuild_wrapper_subclass", "torch._utils _rebuild_nested_tensor",
    "torch._tensor _rebuild_from_type_v2", "torch.serialization _get_layout", "torch Size", "torch device",
    "torch FloatStorage", "torch LongStorage", "torch.storage UntypedStorage", "torch Tensor",
    "torch.nn.parameter Parameter", "torch float32", "torch complex64", "torch qint8", "collections OrderedDict",
    "collections defaultdict", "collections deque", "__builtin__ set", "__builtin__ bytearray",
    "__builtin__ getattr", "_codecs encode", "numpy.core.multiarray _reconstruct", "numpy.core.multiarray scalar",
    "numpy dtype", "numpy ndarray", "datetime datetime", "decimal Decimal", "uuid UUID", "types SimpleNamespace",
    "_io BytesIO", "os system",
)  # fmt: skip
_TORCHS_OWN = {"version", ".data/serialization_id", ".format_version", ".storage_alignment"}
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "BINFLOAT", "NONE", "NEWTRUE", "NEWFALSE"}
_CONTAINERS = (b"N", b"\x88", b"\x89", b"]", b"}", b")")


def opcodes(data: bytes) -> list[tuple[str, bytes]]:
    """The opcodes of a pickle: their names, and their bytes with the argument."""
    found = [(opcode.name, place) for opcode, _, place in pickletools.genops(data) if place is not None]
    ends = [place for _, place in found[1:]] + [len(data)]
    return [(name, data[place:end]) for (name, place), end in zip(found, ends, strict=True)]


def _value(chance: random.Random) -> bytes:
    way = chance.randrange(3)
    if way == 0:
        return pickle.dumps(chance.choice(NUMBERS), 2)[2:-1]
    if way == 1:
        text = chance.choice(TEXTS).encode("utf-8", "surrogatepass")
        return pickle.BINUNICODE + len(text).to_bytes(4, "little") + text
    return chance.choice(_CONTAINERS)


def rewrite(chance: random.Random, data: bytes) -> bytes:
    """Change a few opcodes of a pickle of protocol 2, and number the places of its memo anew."""
    codes = opcodes(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        way = chance.randrange(8)
        values = [place for place, (name, _) in enumerate(codes) if name in _VALUES]
        names = [place for place, (name, _) in enumerate(codes) if name == "GLOBAL"]
        place, other = chance.randrange(len(codes)), chance.randrange(len(codes))
        if way <= 2 and values:
            codes[chance.choice(values)] = ("BININT", _value(chance))
        elif way <= 4 and names:
            module, name = chance.choice(NAMES).split()
            codes[chance.choice(names)] = ("GLOBAL", f"c{module}\n{name}\n".encode())
        elif way == 5:
            codes.insert(place, codes[other])
        elif way == 6:
            del codes[place]
        else:
            codes[place], codes[other] = codes[other], codes[place]
    return b"".join(_numbered(codes))


def _numbered(codes: list[tuple[str, bytes]]) -> list[bytes]:
    places: dict[bytes, int] = {}
    written, count = [], 0
    for name, code in codes:
        if name in ("BINPUT", "LONG_BINPUT"):
            places[code[1:].ljust(4, b"\0")] = count
            code = pickle.LONG_BINPUT + count.to_bytes(4, "little")
            count += 1
        elif name in ("BINGET", "LONG_BINGET"):
            code = pickle.LONG_BINGET + places.get(code[1:].ljust(4, b"\0"), 0).to_bytes(4, "little")
        written.append(code)
    return written


def rewritten(chance: random.Random, archive: bytes) -> bytes:
    """An archive of ``torch.save`` with a changed pickle, and at times a shorter payload; every checksum is right."""
    reader = torch._C.PyTorchFileReader(io.BytesIO(archive))
    records = {name: bytes(reader.get_record(name)) for name in reader.get_all_records() if name not in _TORCHS_OWN}
    records["data.pkl"] = rewrite(chance, records["data.pkl"])
    payloads = [name for name in records if name.startswith("data/")]
    if payloads and chance.random() < 0.2:
        name = chance.choice(payloads)
        records[name] = records[name][: chance.randrange(len(records[name]) + 1)]
    buffer = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(buffer)
    for name, content in records.items():
        writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    return buffer.getvalue()
