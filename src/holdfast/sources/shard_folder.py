"""Folders of shards listed in an ``index.json``, which is limited in size and may name no file outside the folder."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from holdfast.errors import SourceError, SourceFormatError
from holdfast.sources.files import DataFile, LocalFile, PathLike
from holdfast.sources.remote import RemoteFile, RemoteOptions

__all__ = ["ShardFolder", "check_fields"]

MAX_INDEX_BYTES = 2**30  # an index of a million shards takes about 500 MB
MAX_NAME_CHARACTERS = 4096
_NAME = re.compile(r"[^\0\\\ud800-\udfff]+")  # neither a backslash nor a lone surrogate


@dataclass(frozen=True, slots=True)
class ShardFolder:
    """A folder, local or at a URL, whose files are named in an index inside it.

    Args:
        place: the folder.
        remote: how a URL is read.
    """

    place: str
    remote: RemoteOptions | None = None

    @classmethod
    def at(cls, folder: PathLike, remote: RemoteOptions | None = None) -> ShardFolder:
        """Return the folder at a path or URL, which may also be that of its index."""
        place = os.fspath(folder)
        if place.startswith("file://"):
            place = place.removeprefix("file://")
        place = place.removesuffix("/index.json")
        return cls(place.rstrip("/") if "://" in place else os.path.abspath(os.path.expanduser(place)), remote)

    @property
    def index_name(self) -> str:
        """The path of the index."""
        return f"{self.place}/index.json"

    def file(self, name: object) -> DataFile:
        """Return a file that an index names; a name that leads out of the folder is rejected."""
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS or not _NAME.fullmatch(name):
            raise SourceFormatError("the index contains an invalid file name", file=self.index_name)
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or "://" in name or str(parts) in (".", "index.json"):
            raise SourceFormatError("the index names a file outside its folder", file=self.index_name, name=name[:200])
        whole = f"{self.place}/{parts}"
        return RemoteFile(whole, self.remote or RemoteOptions()) if "://" in self.place else LocalFile(whole)

    def read_json(self, name: str = "index.json") -> dict[str, Any]:
        """Return the content of a JSON file in the folder."""
        whole = f"{self.place}/{name}"
        file: DataFile = RemoteFile(whole, self.remote or RemoteOptions()) if "://" in whole else LocalFile(whole)
        try:
            if file.size > MAX_INDEX_BYTES:
                raise SourceFormatError(
                    "the index is too large to be one", file=whole, bytes=file.size, at_most=MAX_INDEX_BYTES
                )
            found = json.loads(file.read(0, file.size))
        except SourceError:
            raise
        except (ValueError, RecursionError) as error:
            raise SourceFormatError(f"the index is not valid JSON: {error}", file=whole) from error
        finally:
            file.close()
        if not isinstance(found, dict):
            raise SourceFormatError("the index is not a JSON object", file=whole)
        return found


def check_fields(entry: object, fields: dict[str, type | tuple[type, ...]], *, file: str, what: str) -> dict[str, Any]:
    """Return an entry of an index after checking that it has these fields, with valid types and no negative numbers."""
    if not isinstance(entry, dict):
        raise SourceFormatError(f"{what} is not a JSON object", file=file)
    for name, kind in fields.items():
        value = entry.get(name)
        # In Python, bool is an int.
        if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
            raise SourceFormatError(f"{what} has no valid {name!r}", file=file, value=repr(value)[:80])
    return entry
