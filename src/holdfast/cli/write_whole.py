"""Writing the file given by ``--output``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from holdfast.errors import ConfigError

__all__ = ["write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it exists either whole or not at all.

    Raises:
        ConfigError: it cannot be written there.
    """
    # A terminal, a pipe or /dev/null is written to, not replaced.
    is_device = path.exists() and not path.is_file()
    place = path if is_device else path.with_name(f".{path.name}.tmp")
    try:
        place.write_text(text, encoding="utf-8")
        if not is_device:
            place.replace(path)
    except OSError as error:
        if not is_device:
            with suppress(OSError):
                place.unlink(missing_ok=True)
        raise ConfigError(
            f"the output cannot be written: {error.strerror}", file=str(path), hint="choose another --output"
        ) from error
