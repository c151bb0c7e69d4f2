"""Keys: 256-bit hashes of what a piece of the order belongs to.

A key is a real hash (BLAKE2b) of named parts, each tagged with its type and length, so that no two different lists of
parts share a key: in particular (seed, epoch + 1) and (seed + 1, epoch) have nothing in common.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from holdfast.order.numbers import whole_number

__all__ = ["derive_key", "scramble"]

KEY_BYTES = 32


def derive_key(*parts: int | str | bytes) -> bytes:
    """Hash the parts into a 32-byte key. The same parts give the same key on every machine and release."""
    digest = blake2b(digest_size=KEY_BYTES, person=b"holdfast.order.1")
    for part in parts:
        if isinstance(part, str):
            tag, body = b"s", part.encode()
        elif isinstance(part, bytes):
            tag, body = b"b", part
        else:
            tag, body = b"i", str(whole_number(part, "a seed")).encode()
        digest.update(tag + len(body).to_bytes(8, "little") + body)
    return digest.digest()


def scramble(values: NDArray[np.uint64], key: bytes) -> NDArray[np.uint64]:
    """Map each 64-bit value to a pseudo-random one: a keyed bijection of 64-bit words."""
    first, second = (np.uint64(word) for word in np.frombuffer(key[:16], dtype="<u8"))
    mixed = values + first
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed += second
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    return mixed
