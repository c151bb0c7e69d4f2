"""Templates of tensor archives, so that the next archive of the same kind is compared rather than parsed.

Archives of tensors of one shape and dtype differ only in their payload, the archive's own number, and the CRC-32 of
both. Everything else was parsed and checked once and need only have the same bytes: one copy and one comparison replace
about thirty structures (a third of the time of loading thousands of small tensors, ``bench/checkpoint_load.py``).
"""

from __future__ import annotations

import struct

from holdfast.checkpoint.archive import ReadAt, Record
from holdfast.checkpoint.checksum import crc32

__all__ = ["Template"]

_NUMBER = ".data/serialization_id"
_NO_CRC = bytes(4)


class Template:
    """One archive without the parts that vary.

    Args:
        read_at: reads from the archive.
        length: its length in bytes.
        records: what is in it; each with a checksum.
        payload: the name of the record with the tensor's elements.
    """

    __slots__ = ("_constant", "_ends_at", "_form", "_length", "_number", "_payload", "_starts_at")

    def __init__(self, read_at: ReadAt, length: int, records: dict[str, Record], payload: str) -> None:
        own = records[payload]
        self._length = length
        self._starts_at, self._ends_at = own.start, own.start + own.size
        varying = {at: 4 for name in (payload, _NUMBER) if name in records for at in records[name].crc_at}
        if _NUMBER in records:
            varying[records[_NUMBER].start] = records[_NUMBER].size
        form, position = "<", 0
        for at in sorted(varying):
            place = at if at < self._starts_at else at - own.size
            form += f"{place - position}s{varying[at]}s"
            position = place + varying[at]
        self._form = struct.Struct(f"{form}{length - own.size - position}s")
        self._constant = self._fields(read_at)[::2]
        order = sorted(varying).index
        self._payload = [order(at) for at in own.crc_at]
        self._number = (
            [order(at) for at in (records[_NUMBER].start, *records[_NUMBER].crc_at)] if _NUMBER in records else []
        )

    def _fields(self, read_at: ReadAt) -> tuple[bytes, ...]:
        """Return everything except the payload: constant and varying sections in turn."""
        ends_at = self._ends_at
        return self._form.unpack(b"".join((read_at(0, self._starts_at), read_at(ends_at, self._length - ends_at))))

    def read(self, read_at: ReadAt, *, check: bool) -> int | None:
        """Return the CRC-32 of another archive's payload; ``None`` unless everything else matches.

        Args:
            read_at: reads from the archive.
            check: compare the archive's number with its CRC-32.
        """
        fields = self._fields(read_at)
        if fields[::2] != self._constant:
            return None
        varying = fields[1::2]
        crcs = [varying[place] for place in self._payload]
        if crcs.count(crcs[0]) != len(crcs):
            return None
        if self._number:
            number, *told = [varying[place] for place in self._number]
            if told.count(told[0]) != len(told) or told[0] == _NO_CRC:
                return None
            if check and crc32(number).to_bytes(4, "little") != told[0]:
                return None
        return int.from_bytes(crcs[0], "little") or None
