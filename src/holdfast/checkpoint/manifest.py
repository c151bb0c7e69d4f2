"""``holdfast.json``: what a checkpoint is supposed to hold, so that no stored record can be mistaken for another.

DCP's own format cannot reveal two swapped records of the same shape, a data file from another step under the right
name, or two locations swapped in ``.metadata``. The manifest binds the content of every stored item to its tensor,
part, file and offset, and holds the digest of ``.metadata`` and a digest of all of this.

The content of an item is bound by a BLAKE2b digest of the item, or, for a tensor, of its two ends. The ends hold
everything in an archive except the payload, including the payload's CRC-32, which torch computes while writing and a
load compares anyway; so neither needs a second pass over the payload (``bench/checkpoint_save.py`` measures its cost).
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata

from holdfast.checkpoint.archive import HEAD_BYTES, TAIL_BYTES, ZIP_START, DamagedArchiveError
from holdfast.checkpoint.files import FileLayer, contained_path, is_remote, read_file
from holdfast.errors import UnusableCheckpointError
from holdfast.versioned import Count, Format

__all__ = ["MANIFEST", "Bound", "Manifest", "ManifestRecord", "digest_of", "item_digest", "read_manifest"]

MANIFEST = "holdfast.json"
MAX_MANIFEST_BYTES = 1 << 30
WHOLE_BYTES = 16 << 10
"""Items up to this size are digested whole: they are read whole anyway."""
_HINT = "the checkpoint was changed after it was saved: restore it from a copy, or load an older one"
_RECORDS, _DIGEST = b',"records":', b',"digest":'
_END64_BYTES = 98
_STEP_BYTES = 4 << 20


class ManifestRecord(NamedTuple):
    """One stored item: which part of what, where, and the digest of its content.

    Attributes:
        tensor: the name of the tensor or object.
        part: where the part starts in the tensor; empty for an object.
        file: the file it is in.
        offset: where the item starts in the file.
        length: how long it is.
        whole: whether the digest covers the whole item, rather than its two ends.
        digest: BLAKE2b, 128 bits, in hexadecimal.
    """

    tensor: str
    part: list[Count]
    file: str
    offset: Count
    length: Count
    whole: bool
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint is supposed to hold.

    Attributes:
        step: the number of steps completed when it was saved.
        run_id: the run it belongs to, or ``None``.
        metadata: the digest of ``.metadata``.
        records: a ``ManifestRecord``, or the same as a list, for every stored item. Not checked on reading, which
            would take longer than everything else: ``bind`` compares each with the metadata.
        digest: of all the above.
    """

    step: Count
    run_id: str | None
    metadata: str
    records: Any
    digest: str = ""

    def sealed(self) -> Manifest:
        """Return the manifest with its records sorted, and with its digest."""
        records = sorted(map(list, self.records))
        return replace(self, records=records, digest=self.digest_with(_json(records)))

    def is_intact(self) -> bool:
        """Return whether the digest matches the content."""
        # The first releases computed the digest of the sorted records, but wrote them in another order.
        orders = (self.records, sorted(self.records, key=repr))
        return any(self.digest == self.digest_with(_json(records)) for records in orders)

    def digest_with(self, records: bytes) -> str:
        """Return the digest of the content, with the records as they are written."""
        return digest_of(_json([self.step, self.run_id, self.metadata])[:-1] + b"," + records + b"]")

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        # The records are plain JSON already: only the rest is converted.
        return _json(_FORMAT.to_json(replace(self, records=None)) | {"records": self.records}) + b"\n"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


_FORMAT = Format(
    "checkpoint manifest", Manifest, error=UnusableCheckpointError, version_error=UnusableCheckpointError, hint=_HINT
)


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """Return the digest of bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


ReadPart = Callable[[int, int], "bytes | bytearray | memoryview"]


def item_digest(read: ReadPart, length: int, *, whole: bool) -> str:
    """Return the digest of an item.

    Args:
        read: reads from the item.
        length: its length.
        whole: digest all of it; otherwise its two ends.
    """
    if whole and length <= _STEP_BYTES:
        return digest_of(read(0, length))
    digest = hashlib.blake2b(digest_size=16)
    if whole:
        for start in range(0, length, _STEP_BYTES):
            digest.update(read(start, min(_STEP_BYTES, length - start)))
    else:
        digest.update(read(0, HEAD_BYTES))
        digest.update(read(length - TAIL_BYTES, TAIL_BYTES))
    return digest.hexdigest()


def digest_whole(read: ReadPart, length: int, *, tensor: bool) -> bool:
    """Return whether an item must be digested in full: small, not a tensor, or without checksums at its ends."""
    if not tensor or length <= WHOLE_BYTES or bytes(read(0, 4)) != ZIP_START:
        return True
    tail = read(length - _END64_BYTES, _END64_BYTES)
    directory_bytes, directory_at = struct.unpack_from("<QQ", tail, 40)
    return bool(directory_bytes + _END64_BYTES > TAIL_BYTES or directory_at + directory_bytes + _END64_BYTES != length)


class Bound(NamedTuple):
    """The digest that an item must have."""

    whole: bool
    digest: str

    def check(self, read: ReadPart, length: int) -> None:
        """Raise unless the item has this digest."""
        if item_digest(read, length, whole=self.whole) != self.digest:
            raise DamagedArchiveError(
                "this is not what was saved here: its digest differs from the one in the manifest", 0, length
            )


BoundItems = dict[tuple[str, int], Bound]
"""The digest that each stored item must have, by its file and offset."""


def read_manifest(folder: Path, layer: FileLayer, *, follow_links_out: bool = False) -> Manifest | None:
    """Read the manifest of a checkpoint; ``None`` when it has none.

    Raises:
        UnusableCheckpointError: it is damaged.
    """
    if not layer.exists(folder / MANIFEST):  # by its own name: a link that leads nowhere is not a missing manifest
        return None
    path = contained_path(folder, MANIFEST, follow_links_out=follow_links_out or is_remote(layer))
    data = read_file(path, MANIFEST, layer, most=MAX_MANIFEST_BYTES)
    manifest = _as_written(data)
    if manifest is not None:
        return manifest
    try:
        manifest = _FORMAT.from_json(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise UnusableCheckpointError(f"the manifest is damaged: {error}", file=MANIFEST, hint=_HINT) from error
    if type(manifest.records) is not list or not manifest.is_intact():
        raise UnusableCheckpointError("the manifest differs from its digest", file=MANIFEST, hint=_HINT)
    return manifest


def _as_written(data: bytes) -> Manifest | None:
    """Read a manifest that is exactly as ``Manifest.to_bytes`` writes it; return ``None`` when it is not.

    The digest is then that of the text itself: serialising the records again would take longer than everything else.
    """
    head, _, rest = data.partition(_RECORDS)
    text, _, tail = rest.rpartition(_DIGEST)
    with suppress(ValueError, RecursionError):
        manifest = _FORMAT.from_json(json.loads(head + _RECORDS + b"null" + _DIGEST + tail))
        records = json.loads(text)
        if type(records) is list and manifest.digest == manifest.digest_with(text):
            return replace(manifest, records=records)
    return None


def bind(manifest: Manifest, metadata: Metadata, content: bytes) -> BoundItems:
    """Compare the metadata with the manifest, and return the digest that each stored item must have.

    Args:
        manifest: of the checkpoint.
        metadata: of the checkpoint.
        content: the bytes of ``.metadata``.

    Raises:
        UnusableCheckpointError: they do not belong together.
    """
    if digest_of(content) != manifest.metadata:
        raise UnusableCheckpointError("the metadata differs from its digest in the manifest", file=MANIFEST, hint=_HINT)
    bound: BoundItems = {}
    try:
        listed = {(record[0], *record[1]): record for record in manifest.records}
        for index, info in metadata.storage_data.items():
            _, _, file, offset, length, whole, digest = listed[(index.fqn, *(index.offset or ()))]
            if file != info.relative_path or offset != info.offset or length != info.length:
                raise ValueError("another place")
            if type(whole) is not bool or type(digest) is not str:
                raise TypeError("not a digest")
            bound[file, offset] = Bound(whole, digest)
    except (LookupError, TypeError, ValueError):
        bound = {}
    if not len(bound) == len(manifest.records) == len(metadata.storage_data):
        raise UnusableCheckpointError("the items in the manifest do not match the metadata", file=MANIFEST, hint=_HINT)
    return bound
