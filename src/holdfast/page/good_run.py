"""What a run does differently from the last good run next to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.debug.reporting.words import clean
from holdfast.errors import HoldfastError
from holdfast.run.history import History
from holdfast.run.layout import RunFolder, is_run_folder
from holdfast.run.run_log import RunLog

__all__ = ["config_difference", "last_good_run"]

MAX_LOOKED_AT = 8
"""Maximum number of earlier runs that are examined, newest first."""
MAX_LOG_BYTES = 64 << 20
"""A run with a longer log is skipped: examining it would delay the page."""
ABSENT = "–"


def last_good_run(folder: Path) -> Path | None:
    """Return the newest earlier run next to this one that finished without a serious finding."""
    began = _began(folder)
    if began is None:
        return None
    try:
        beside = [each for each in folder.absolute().parent.iterdir() if is_run_folder(each)]
    except OSError:
        return None
    beside = [each for each in beside if each.name != folder.absolute().name]
    earlier = [(time, each) for each in beside if (time := _began(each)) is not None and time < began]
    newest = sorted(earlier, key=lambda found: found[0], reverse=True)[:MAX_LOOKED_AT]
    return next((each for _, each in newest if _was_good(each)), None)


def config_difference(config: Mapping[str, Any], other: Path) -> tuple[tuple[str, str, str], ...]:
    """Return (name, here, there) for each difference between the configurations."""
    try:
        there = RunLog(other).header().get("config") or {}
    except HoldfastError:  # changed since it was found to be good
        return ()
    if not config.keys() & there.keys():  # another program's, or nothing was recorded: every name would be listed
        return ()
    names = [*config, *(name for name in there if name not in config)]
    return tuple(
        (clean(name), _shown(config, name), _shown(there, name))
        for name in names
        if config.get(name) != there.get(name) or (name in config) != (name in there)
    )


def _shown(config: Mapping[str, Any], name: str) -> str:
    return clean(config[name]) if name in config else ABSENT


def _began(folder: Path) -> tuple[str, int] | None:
    """Return when a run began: its recorded time, and within the same second its file time."""
    try:
        log = RunLog(folder)
        return str(log.identity["created"]), log.folder.identity.stat().st_mtime_ns
    except (HoldfastError, OSError, KeyError):
        return None


def _was_good(folder: Path) -> bool:
    files = RunFolder(folder).log_files(rank=0)
    try:
        if sum(file.path.stat().st_size for file in files) > MAX_LOG_BYTES:
            return False
        events = History.read(RunFolder(folder)).events
    except (HoldfastError, OSError):
        return False
    serious = any(event["event"] == "finding" and event.get("severity") in ("warning", "critical") for event in events)
    return not serious and any(event["event"] == "end" for event in events)
