"""Which checkpoint to resume from: the newest that is complete and sound, and why newer ones are not it."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint.files import LocalFiles, is_there, list_names, tells_nothing
from holdfast.checkpoint.manifest import MANIFEST, read_manifest
from holdfast.checkpoint.metadata_files import has_metadata, is_checkpoint
from holdfast.checkpoint.options import whole_number
from holdfast.checkpoint.remote import is_url, locate
from holdfast.checkpoint.replaced import FolderWatch, read_again
from holdfast.checkpoint.verify import VerifyReport, verify_once
from holdfast.errors import CheckpointError, CheckpointReadError, ConfigError, HoldfastError, UnusableCheckpointError

__all__ = ["VerifiedCheckpoint", "latest_verified"]

_UNKNOWN = sys.maxsize
_OF_THE_SYSTEM = ("lost+found",)
"""What is in the top folder of a disk, and closed to all but its owner."""


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """A checkpoint that was verified just now.

    Attributes:
        path: its folder.
        step: its step, from the manifest, or else the number at the end of its name.
        passed_over: newer checkpoints that are not usable, each with the reason.
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
    """Find the newest checkpoint in a folder that is complete and sound; reads all of it.

    Args:
        folder: holds checkpoints, one per subfolder.
        not_after: look only at checkpoints of this step or earlier.
        require_manifest: pass over checkpoints that have no manifest.
        trusted: as for :func:`~holdfast.checkpoint.verify_checkpoint`.
        num_workers: threads to use.

    Returns:
        The checkpoint, or ``None`` when the folder holds none at all (of that step or earlier).

    Raises:
        UnusableCheckpointError: there are checkpoints, and none of them is sound; names each with its reason. Or the
            folder is a checkpoint itself, or a link that leads nowhere.
        CheckpointReadError: the newest was replaced by another whenever it was read (``replaced``), or nothing can be
            told about it: this process may not read it, or has too many files open.
        ConfigError: the folder is a URL.
    """
    if is_url(folder):
        raise ConfigError("latest_verified only works on local folders", folder=os.fspath(folder))
    if not_after is not None:
        not_after = whole_number("not_after", not_after, least=0)
    return read_again(
        lambda: _latest(
            Path(folder), not_after, require_manifest=require_manifest, trusted=trusted, num_workers=num_workers
        )
    )


def _latest(folder: Path, not_after: int | None, **options: Any) -> VerifiedCheckpoint | None:
    passed_over: list[tuple[Path, str]] = []
    for step, _, path, watch in sorted(_candidates(folder), key=lambda found: found[:3], reverse=True):
        if not_after is not None and not_after < step < _UNKNOWN:
            continue
        if os.path.islink(path):
            passed_over.append((path, "it is a link that leads out of the folder"))
            continue
        report, reason = None, ""
        try:
            report = verify_once(path, *locate(path), **options)
            reason = report.reason
        except CheckpointError as error:
            reason = error.message
            if tells_nothing(error, remote=False):  # it may be sound: a run must not go back because of that
                raise CheckpointReadError(
                    f"a checkpoint cannot be looked at: {reason}",
                    folder=str(path),
                    hint="it may be the newest: make it readable, or move it out of the folder",
                ) from error.__cause__
        if watch.replaced() and os.path.exists(path):  # of another step, and sound for all that is known
            raise watch.error()
        if report is not None and report.sound:
            return VerifiedCheckpoint(path, step, tuple(passed_over), report)
        passed_over.append((path, reason))
    if any(_is_gone(path) for path, _ in passed_over):  # a saver has removed it, for a newer one
        return _latest(folder, not_after, **options)
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
    """Return the checkpoints in a folder, whole or not, with their step and when they were written."""
    while True:
        try:
            entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
        except FileNotFoundError:
            _check_links(folder)
            return []
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            text = getattr(error, "strerror", error)
            raise UnusableCheckpointError(f"the folder cannot be read: {text}", folder=str(folder)) from error
        found = []
        for entry in entries:
            if not _leads_inside(entry) and _may_be_checkpoint(entry):
                watch = FolderWatch(entry, LocalFiles())
                found.append((_step(entry), _written_at(entry), entry, watch))
        if not any(map(_is_gone, entries)):  # else a saver has removed one since, and the newer one is not listed
            return found


def _is_gone(path: Path) -> bool:
    try:
        return not is_there(path)
    except OSError:
        return False


def _check_links(folder: Path) -> None:
    """Raise if a folder is not there because a link to it, or above it, leads nowhere: its disk is not mounted, say."""
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
    """Return whether this is a checkpoint, whole or cut off, or cannot be looked at: verifying it will say so."""
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
    except HoldfastError:  # damaged; verifying it will say so, and it may well be the newest
        manifest, otherwise = None, _UNKNOWN
    if manifest is not None:
        return manifest.step
    numbers = re.findall(r"\d+", path.name)
    return int(numbers[-1]) if numbers else otherwise
