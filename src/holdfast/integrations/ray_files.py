"""The file with the stream's state in the folder of a Ray checkpoint; read and written without Ray."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["STATE_FILE", "read_state", "write_state"]

STATE_FILE = "holdfast_stream.json"
"""Not ``holdfast.json``, which is the manifest of a checkpoint written there by ``holdfast.checkpoint.save``."""
EARLIER_FILE = "holdfast.json"
"""Where development versions before 0.2.0 put the state."""


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Put the state into a folder, whole or not at all."""
    temporary = folder / f".{STATE_FILE}.tmp"
    temporary.write_text(json.dumps(state), encoding="utf-8")
    os.replace(temporary, folder / STATE_FILE)


def read_state(folder: Path) -> Any:
    """Return the content of a folder's state file, unchecked; None if there is nothing that can be read."""
    path = next((folder / name for name in (STATE_FILE, EARLIER_FILE) if (folder / name).exists()), None)
    try:
        return None if path is None else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
