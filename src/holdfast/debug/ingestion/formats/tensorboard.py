"""TensorBoard event files: TFRecords of ``Event`` messages; scalars of both the old and the new kind.

Read without TensorFlow or TensorBoard. A truncated or damaged file is read up to the damage.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.protobuf import BytesLike, WireError, as_double, as_float, fields, signed
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.run_log import RunLog

__all__ = ["TensorBoardFormat"]

_STEP, _FILE_VERSION, _SUMMARY = 2, 3, 5
_TAG, _SIMPLE, _TENSOR = 1, 2, 8
_MAX_RECORD_BYTES = 64 << 20
# TensorProto.dtype -> NumPy type, and the field of its unpacked values.
_DTYPES = {1: ("<f4", 5), 2: ("<f8", 6), 3: ("<i4", 7), 9: ("<i8", 10), 19: ("<f2", 13)}


class TensorBoardFormat(LogFormat):
    """``events.out.tfevents.*`` files."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "tensorboard"

    def sniff(self, file: LogFile) -> float:
        """Recognise ``brain.Event:`` in the first record of every event file."""
        return 1.0 if b"brain.Event:" in file.head[:64] else 0.9 if "tfevents" in file.name and file.size > 16 else 0.0

    def read(self, file: LogFile) -> RunLog:
        """Read every scalar."""
        rows = RowCollector(file.limits)
        notes: list[str] = []
        damaged = 0
        for record in _records(file, notes):
            damaged += not _read_event(record, rows)
        if damaged:
            notes.append(f"{damaged} damaged records were left out")
        signals, more, events = rows.finish()
        if not signals:
            raise file.unreadable("is an event file without scalars")
        return RunLog(str(file.path), self.name, tuple(signals), {}, tuple(events), (*notes, *more))


def _records(file: LogFile, notes: list[str]) -> Iterator[memoryview]:
    with file.path.open("rb") as stream:
        while len(header := stream.read(12)) == 12:
            length = int.from_bytes(header[:8], "little")
            if length > _MAX_RECORD_BYTES:
                notes.append("the file is damaged; everything before the damage was read")
                return
            data = stream.read(length + 4)
            if len(data) < length + 4:
                notes.append("the file is truncated; the last record was left out")
                return
            yield memoryview(data)[:length]


def _read_event(record: BytesLike, rows: RowCollector) -> bool:
    try:
        _event(record, rows)
    except WireError:
        return False
    return True


def _event(record: BytesLike, rows: RowCollector) -> None:
    step = 0
    summary: BytesLike | None = None
    for number, value in fields(record):
        if number == _STEP:
            step = signed(value)
        elif number == _SUMMARY and not isinstance(value, int):
            summary = value
    if summary is None:
        return
    scalars: dict[str, float | None] = {}
    for number, value in fields(summary):
        if number == 1 and not isinstance(value, int):
            named = _scalar(value)
            if named is not None:
                scalars[named[0]] = named[1]
    if scalars:
        rows.add(float(step), scalars)


def _scalar(message: BytesLike) -> tuple[str, float] | None:
    tag: str | None = None
    scalar: float | None = None
    for number, value in fields(message):
        if number == _TAG and not isinstance(value, int):
            tag = bytes(value).decode("utf-8", errors="replace")
        elif number == _SIMPLE:
            scalar = as_float(value)
        elif number == _TENSOR and not isinstance(value, int):
            scalar = _tensor(value)
    return None if tag is None or scalar is None else (tag, scalar)


def _tensor(message: BytesLike) -> float | None:
    """Return the value of a tensor of one element; larger ones (histograms, texts, images) are not scalars."""
    dtype, content, plain = 0, b"", {}
    for number, value in fields(message):
        if number == 1 and isinstance(value, int):
            dtype = value
        elif number == 4 and not isinstance(value, int):
            content = bytes(value)
        else:
            plain[number] = value
    known = _DTYPES.get(dtype)
    if known is None:
        return None
    numpy_type, field = known
    if content:
        if len(content) != np.dtype(numpy_type).itemsize:
            return None
        return float(np.frombuffer(content, dtype=numpy_type)[0])
    single = plain.get(field)
    if single is None:
        return None
    if isinstance(single, int):
        return float(signed(single))
    if dtype in (3, 9, 19):
        unpacked = list(_packed(single))
        return float(unpacked[0]) if len(unpacked) == 1 and dtype != 19 else None
    if len(single) not in (4, 8):
        return None
    return as_float(single) if len(single) == 4 else as_double(single)


def _packed(data: BytesLike) -> Iterator[int]:
    value = shift = 0
    for byte in bytes(data[:10]):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield signed(value)
            value = shift = 0
