"""The checkpoint to resume from: the newest that is complete and sound, and why newer ones were not chosen."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint.files import LocalFiles, is_missing, is_there, list_names, tells_nothing
from holdfast.checkpoint.manifest import MANIFEST, read_manifest
from holdfast.checkpoint.metadata_files import has_metadata, is_checkpoint
from holdfast.checkpoint.options import whole_number
from holdfast.checkpoint.remote import is_url, locate
from holdfast.checkpoint.replaced import FolderWatch, read_again, replaced_error
from holdfast.checkpoint.verify import VerifyReport, verify_once
from holdfast.errors import CheckpointError, CheckpointReadError, ConfigError, HoldfastError, UnusableCheckpointError

__all__ = ["VerifiedCheckpoint", "latest_verified"]

_UNKNOWN = sys.maxsize
_OF_THE_SYSTEM = ("lost+found",)
"""Names in the top folder of a disk that only their owner can read."""


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """A checkpoint that was just verified.

    Attributes:
        path: its folder.
        step: its step, from the manifest, or else the number at the end of its name.
        passed_over: newer checkpoints that cannot be used, each with the reason.
        report: what the verification found.
    """

    path: Path
    step: int
    passed_over: tuple[tuple[Path, str], ...]
    report: VerifyReport


def latest_verified(
    folder: str | os.PathLike[str],
    *,
    not_after: int | None = None,
    require_manifest: bool = False,
    trusted: bool = False,
    num_workers: int | None = None,
) -> VerifiedCheckpoint | None:
    """Find the newest checkpoint in a folder that is complete and sound; this reads all of it.

    Args:
        folder: holds checkpoints, one per subfolder.
        not_after: look only at checkpoints of this step or earlier.
        require_manifest: pass over checkpoints that have no manifest.
        trusted: as for ``holdfast.checkpoint.verify_checkpoint``.
        num_workers: threads to use.

    Returns:
        The checkpoint, or ``None`` when the folder holds none at all (of that step or earlier).

    Raises:
        UnusableCheckpointError: there are checkpoints, but none of them is sound; the message gives each with its
            reason. Or the folder is a checkpoint itself, or a link that leads nowhere.
        CheckpointReadError: checkpoints were replaced or removed every time they were read (``replaced``), or the
            folder cannot be listed, or the state of the newest is unknown: this process may not read it, or has too
            many open files.
        ConfigError: the folder is a URL.
    """
    if is_url(folder):
        raise ConfigError("latest_verified only works on local folders", folder=os.fspath(folder))
    if not_after is not None:
        not_after = whole_number("not_after", not_after, least=0)
    options = {"require_manifest": require_manifest, "trusted": trusted, "num_workers": num_workers}
    place = Path(folder)
    listed = _names(place)
    while True:
        try:
            return read_again(lambda: _latest(place, not_after, **options))
        except CheckpointReadError as error:  # noqa: PERF203 — a reading costs more
            before, listed = listed, _names(place)
            if not error.replaced or listed == before:
                raise
            # A saver removed what was listed and saved others; if it never pauses, 1 of 2,551 searches needed this.


def _names(folder: Path) -> set[str]:
    try:
        return {name for name in os.listdir(folder) if not name.startswith(".")}
    except (OSError, ValueError):  # which reading the folder will report
        return set()


def _latest(folder: Path, not_after: int | None, **options: Any) -> VerifiedCheckpoint | None:
    passed_over: list[tuple[Path, str]] = []
    for step, _, path, watch in sorted(_candidates(folder), key=lambda found: found[:3], reverse=True):
        if not_after is not None and not_after < step < _UNKNOWN:
            continue
        if os.path.islink(path):
            passed_over.append((path, "it is a link to a place outside the folder"))
            continue
        report, reason = None, ""
        try:
            report = verify_once(path, *locate(path), **options)
            reason = report.reason
        except CheckpointError as error:
            reason = error.message
            if tells_nothing(error, remote=False):  # it may be sound: the run must not go back further because of this
                raise CheckpointReadError(
                    f"a checkpoint cannot be examined: {reason}",
                    folder=str(path),
                    hint="it may be the newest: make it readable, or move it out of the folder",
                ) from error.__cause__
        if watch.replaced() and os.path.exists(path):  # it may now be of another step, and sound
            raise watch.error()
        if report is not None and report.sound:
            return VerifiedCheckpoint(path, step, tuple(passed_over), report)
        passed_over.append((path, reason))
    if any(_is_gone(path) for path, _ in passed_over):  # a saver removed it after saving a newer one
        raise _changed(folder)
    if passed_over:
        raise UnusableCheckpointError(
            "none of the checkpoints can be used: " + "; ".join(f"{path.name}: {why}" for path, why in passed_over),
            folder=str(folder),
            hint="run holdfast verify on one to see what is wrong; to start over, use another folder",
        )
    if is_checkpoint(folder):
        raise UnusableCheckpointError(
            "this folder is a checkpoint itself", folder=str(folder), hint="pass the folder that holds the checkpoints"
        )
    return None


def _candidates(folder: Path) -> list[tuple[int, int, Path, FolderWatch]]:
    """Return the checkpoints in a folder, complete or not, with their step and when they were written."""
    try:
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    except FileNotFoundError:
        _check_links(folder)
        return []
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        unknown = isinstance(error, OSError) and not is_missing(error)
        text = getattr(error, "strerror", error)
        kind = CheckpointReadError if unknown else UnusableCheckpointError
        raise kind(f"the folder cannot be read: {text}", folder=str(folder)) from error
    found = []
    for entry in entries:
        if not _leads_inside(entry) and _may_be_checkpoint(entry):
            watch = FolderWatch(entry, LocalFiles())
            found.append((_step(entry), _written_at(entry), entry, watch))
    if any(map(_is_gone, entries)):  # a saver has removed one, and the newer one may not be listed
        raise _changed(folder)
    return found


def _changed(folder: Path) -> CheckpointReadError:
    return replaced_error("checkpoints that the folder lists were gone when they were read", str(folder))


def _is_gone(path: Path) -> bool:
    try:
        return not is_there(path)
    except OSError:
        return False


def _check_links(folder: Path) -> None:
    """Raise if a folder is missing because it, or a parent, is a broken link, as with an unmounted disk."""
    for place in (folder, *folder.parents):
        if os.path.lexists(place):
            if not os.path.exists(place):
                raise UnusableCheckpointError(
                    "the folder is behind a link that leads nowhere", folder=str(folder), link=str(place)
                )
            return


def _leads_inside(entry: Path) -> bool:
    """Return whether this is a link to another entry of its folder, such as ``latest``."""
    return os.path.islink(entry) and os.path.dirname(os.path.realpath(entry)) == os.path.realpath(entry.parent)


def _may_be_checkpoint(path: Path) -> bool:
    """Return whether this is a checkpoint, complete or not; also if that is unknown, which verifying will report."""
    try:
        names = list_names(path)
    except CheckpointReadError:
        return path.name not in _OF_THE_SYSTEM
    begun = any(name.endswith(".distcp") or name == MANIFEST for name in names)
    return has_metadata(names) or begun or (os.path.islink(path) and not os.path.exists(path))


def _written_at(path: Path) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _step(path: Path) -> int:
    try:
        manifest = read_manifest(path, LocalFiles())
        otherwise = -1
    except HoldfastError:  # damaged, which verifying it will report; it may well be the newest
        manifest, otherwise = None, _UNKNOWN
    if manifest is not None:
        return manifest.step
    numbers = re.findall(r"\d+", path.name)
    return int(numbers[-1]) if numbers else otherwise
