"""The line of a step: written once per step, so its encoding determines the cost of recording.

Its names hardly ever change from step to step. Their JSON is built once per set of names, as a format string for the
numbers: two to three times as fast as encoding a dictionary (``bench/run.py``). Steps with non-finite numbers use the
ordinary encoder, which writes them as NaN and Infinity.
"""

from __future__ import annotations

import json
import struct
from binascii import hexlify
from collections.abc import Mapping

from holdfast.run.chain import encode

__all__ = ["BITS_OF", "StepLines", "bits_of", "number_from_bits"]

BITS_OF = ("loss", "grad_norm")
"""Numbers whose exact bits are recorded as well."""
# A program whose names change at every step is still encoded correctly; its formats are not all kept.
MAX_FORMATS = 256
_pack = struct.Struct(">d").pack
_pack_both = struct.Struct(">dd").pack


def bits_of(value: float) -> str:
    """Return the exact bits of a number, as 16 hexadecimal digits."""
    return _pack(value).hex()


def number_from_bits(bits: str) -> float:
    """Return the number with these bits; the inverse of ``bits_of``."""
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    return float(value)


class StepLines:
    """An encoder for the steps of one log."""

    __slots__ = ("_bits_of", "_form", "_formats", "_key")

    def __init__(self) -> None:
        self._formats: dict[tuple[object, ...], bytes] = {}
        # The format of the previous step, for a step with the same names.
        self._key: tuple[object, ...] = ()
        self._form = b""
        self._bits_of: list[str] = []

    def encode(
        self,
        step: int,
        batches: tuple[int, int],
        numbers: Mapping[str, float],
        times: Mapping[str, float],
        at: float,
        redone: bool,
    ) -> bytes:
        """Return the record of a step as JSON, without its closing brace, before which the chain's digest is inserted.

        Args:
            step: its number.
            batches: the first batch it took, and one past the last.
            numbers: the measured numbers; every value exactly a ``float``.
            times: the laps of the stopwatch, by field; finite.
            at: the attempt's age.
            redone: whether the step had been done before.
        """
        values = numbers.values()
        total = sum(values)
        if total - total != 0.0:  # a number is not finite, or the sum overflows
            return encode(_fields(step, batches, numbers, times, at, redone))[:-1].encode()
        key = (*numbers, redone, *times)
        if key != self._key:
            self._choose(key, numbers, times, redone)
        bits = self._bits_of
        if len(bits) == 2:  # without a loop, because every step comes through here
            both = hexlify(_pack_both(numbers["loss"], numbers["grad_norm"]))
            return self._form % (step, *batches, *values, both[:16], both[16:], *times.values(), at)
        return self._form % (
            step, *batches, *values, *[hexlify(_pack(numbers[name])) for name in bits], *times.values(), at
        )  # fmt: skip

    def _choose(
        self, key: tuple[object, ...], numbers: Mapping[str, float], times: Mapping[str, float], redone: bool
    ) -> None:
        form = self._formats.get(key)
        if form is None:
            if len(self._formats) >= MAX_FORMATS:
                self._formats.clear()
            form = self._formats[key] = _format(numbers, times, redone)
        self._key, self._form = key, form
        self._bits_of = [name for name in BITS_OF if name in numbers]


def _fields(
    step: int,
    batches: tuple[int, int],
    numbers: Mapping[str, float],
    times: Mapping[str, float],
    at: float,
    redone: bool,
) -> dict[str, object]:
    bits = {f"{name}_bits": bits_of(numbers[name]) for name in BITS_OF if name in numbers}
    fields: dict[str, object] = {"step": step, "batches": list(batches), **numbers, **bits}
    fields.update((name, round(seconds, 7)) for name, seconds in times.items())
    if redone:
        fields["redone"] = True
    return {**fields, "at": round(at, 6)}


def _format(numbers: Mapping[str, float], times: Mapping[str, float], redone: bool) -> bytes:
    parts = ['"step":%d', '"batches":[%d,%d]']
    parts += [f"{_name(name)}:%a" for name in numbers]
    parts += [f'"{name}_bits":"%b"' for name in BITS_OF if name in numbers]
    parts += [f"{_name(name)}:%.7f" for name in times]
    parts += ['"redone":true'] if redone else []
    return ("{" + ",".join(parts) + ',"at":%.6f').encode()


def _name(name: str) -> str:
    return json.dumps(name).replace("%", "%%")
