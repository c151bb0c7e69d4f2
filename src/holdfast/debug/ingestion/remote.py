"""Logs that are not local files: a URL, or standard input.

Both are first copied to a temporary file, within the limits: format detection reads the beginning, the middle and the
end.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, cast
from urllib.error import HTTPError
from urllib.parse import urlsplit

from holdfast.debug.ingestion.limits import Limits
from holdfast.errors import UnreadableLogError

__all__ = ["copied", "is_url", "opened_url"]

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]{1,20}://")
_NAME = re.compile(r"[^\w.\-]+")
_BLOCK = 1 << 20
TIMEOUT_SECONDS = 60.0
"""A server that does not answer for this long is considered unavailable."""


def is_url(source: object) -> bool:
    """Return whether it is something that has to be fetched."""
    return isinstance(source, str) and bool(_SCHEME.match(source)) and "\n" not in source


@contextmanager
def opened_url(url: str) -> Iterator[IO[bytes]]:
    """Open a URL: ``http`` and ``https`` with the standard library, every other scheme with fsspec.

    Raises:
        UnreadableLogError: it cannot be opened, or a package needed for that is not installed.
    """
    try:
        if url.startswith(("http://", "https://")):
            from urllib.request import urlopen

            with urlopen(url, timeout=TIMEOUT_SECONDS) as stream:
                yield cast("IO[bytes]", stream)
        else:
            import fsspec

            with fsspec.open(url, "rb") as stream:
                yield cast("IO[bytes]", stream)
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, HTTPError):
            error.close()  # it is an open answer, too
        raise UnreadableLogError(
            f"the log cannot be fetched: {error}", hint="check the URL, or download the log first", file=url
        ) from error


@contextmanager
def copied(
    stream: IO[bytes], name: str, limits: Limits, *, progress: Callable[[int], None] | None = None
) -> Iterator[Path]:
    """Copy a stream to a temporary file whose name ends like ``name``.

    Raises:
        UnreadableLogError: it is larger than the limit for logs.
    """
    folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
    try:
        last = PurePosixPath(urlsplit(name).path).name if is_url(name) else name
        path = folder / (_NAME.sub("_", last)[-100:] or "log")
        size = 0
        with path.open("wb") as file:
            while block := stream.read(_BLOCK):
                size += len(block)
                if size > limits.text_bytes:
                    raise UnreadableLogError(
                        f"the log is larger than {limits.text_bytes:,} bytes", hint="cut it", file=name
                    )
                file.write(block)
                if progress is not None:
                    progress(len(block))
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)
