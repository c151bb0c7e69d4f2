"""The paths a command is given: checked before anything opens them, with the same error messages everywhere.

Opening a named pipe would block until somebody writes to it; a loop of links, a name that is too long and a folder that
may not be entered are not the same as a path that does not exist.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError

__all__ = ["check_path", "existing", "existing_file", "existing_folder"]


def check_path(path: str | Path) -> os.stat_result:
    """Return the state of a file or folder.

    Raises:
        ConfigError: it does not exist, cannot be reached, or is a pipe, a socket or a device.
    """
    name = str(path)
    try:
        state = os.stat(path)
    except FileNotFoundError as error:
        raise ConfigError("there is no such file or folder", path=name, hint="check the path") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"the path cannot be used: {reason}", path=name, hint="check the path") from error
    if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
        raise ConfigError("the path is neither a file nor a folder", path=name, hint="check the path")
    return state


def existing(value: Any) -> Any:
    """Check an argument that is a path, or several; used as its ``callback=``."""
    for path in value if isinstance(value, (list, tuple)) else [value]:
        if path is not None:
            check_path(path)
    return value


def existing_folder(value: Any) -> Any:
    """Check an argument that is a folder; used as its ``callback=``."""
    if value is not None and not stat.S_ISDIR(check_path(value).st_mode):
        raise ConfigError("this is a file, not a folder", path=str(value), hint="check the path")
    return value


def existing_file(value: Any) -> Any:
    """Check an argument that is a file; used as its ``callback=``."""
    if value is not None and not stat.S_ISREG(check_path(value).st_mode):
        raise ConfigError("this is a folder, not a file", path=str(value), hint="check the path")
    return value
