"""Publishing a complete checkpoint under its name, and removing older ones.

A checkpoint is written into a hidden folder beside the final one (its name starts with a dot), which then replaces
whatever has the final name in one step. Only the files of a checkpoint are ever removed: other files in a folder belong
to the user, and stay where they are or move into the checkpoint that replaces the old one. What a killed saver left
behind is removed by the next one on that machine; a saver locks its folder, so a running saver is never disturbed.
Names change under a lock on the parent, one saver at a time: no saver sees another's folder between two steps.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import pickle
import re
import shutil
import socket
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from holdfast.checkpoint.files import LocalFiles, is_there
from holdfast.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from holdfast.checkpoint.syncing import sync_names
from holdfast.errors import CheckpointWriteError, HoldfastError

__all__ = ["Staging", "check_replaceable", "prune"]

_OURS = re.compile(rf"\.metadata(\.tmp)?|__\d+\.metadata|__\d+_\d+\.distcp|{re.escape(MANIFEST)}")
_HIDDEN = re.compile(r"\.(?P<name>.+)\.(?P<host>[^.]*)-[0-9a-f]{12}\.(?P<kind>saving|removing|replaced)")
_LEAST_MANIFEST_BYTES = 16
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

Result = TypeVar("Result")


def check_replaceable(target: Path) -> None:
    """Raise unless the target does not exist, or is an empty folder or a checkpoint."""
    if not is_there(target):
        return
    if target.is_dir():
        names = os.listdir(target)
        if not names or any(_is_of_checkpoint(target / name) for name in names if _OURS.fullmatch(name)):
            return
    raise CheckpointWriteError(
        "something that is not a checkpoint already exists at this path",
        path=str(target),
        hint="nothing was written or removed: save under another name, such as checkpoints/step-00001000",
    )


def _is_of_checkpoint(path: Path) -> bool:
    """Return whether a file named like one of ours is one, even if damaged: data, a pickle, or a manifest."""
    if not path.is_file():
        return False
    if path.suffix == ".distcp":
        return True
    with path.open("rb") as file:
        start = file.read(_LEAST_MANIFEST_BYTES)
    expected = b'{"version":' if path.name == MANIFEST else pickle.PROTO
    return not start or start.startswith(expected)


class Staging:
    """The hidden folder that one save writes into.

    Args:
        target: the final folder.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = _hidden(target, "saving")
        self.published = False
        self._lock: _FolderLock | None = None

    def make(self) -> None:
        """Create the folder and lock it until ``close``; remove what dead savers left behind."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        _changing_names(self.target.parent, self._make)

    def _make(self) -> None:
        _clean(self.target.parent)
        self._lock = _FolderLock()
        self.folder.mkdir()
        self._lock.take(self.folder)

    def publish(self) -> None:
        """Replace the target by the folder: in one step, or in two where the file system cannot exchange names."""
        _changing_names(self.target.parent, self._publish)

    def _publish(self) -> None:
        replaced: list[Path] = []
        try:
            while not self._take_place(replaced):
                check_replaceable(self.target)
        except BaseException:
            if self._is_target_aside():  # judged by the names: an interrupt may have come between a step and its record
                os.rename(self._aside, self.target)
            raise
        try:
            sync_names(self.target.parent)
        except OSError as error:
            try:
                self._step_back(replaced)
            except OSError:
                raise self._unflushed(error, replaced) from error
            raise
        self.published = True
        for old in replaced:
            with _warning("the checkpoint that was replaced could not be removed"):
                _remove(_named(old, "removing"), keep_in=self.target)

    def _unflushed(self, error: OSError, replaced: list[Path]) -> CheckpointWriteError:
        where = self.target if self._is_at(self.target) else self.folder
        before = f" The one it replaces is in {replaced[-1]} until the next save." if replaced else ""
        return CheckpointWriteError(
            f"the checkpoint is complete in {where}, but its name could not be flushed to the disk: {error.strerror}."
            f"{before}",
            path=str(self.target),
            hint="it may not survive a crash of the machine: check the disk, and save again",
        )

    def _step_back(self, replaced: list[Path]) -> None:
        """Undo ``_take_place``: restore whatever was there before."""
        if replaced and _exchange(replaced[-1], self.target):
            os.rename(replaced[-1], self.folder)
        else:
            os.rename(self.target, self.folder)
            if replaced:
                os.rename(replaced[-1], self.target)

    @property
    def _aside(self) -> Path:
        """The target's temporary name, if replacing takes two steps; it is restored while this folder exists."""
        return self.folder.with_suffix(".replaced")

    def _is_target_aside(self) -> bool:
        return not is_there(self.target) and os.path.isdir(self._aside)

    def _is_at(self, place: Path) -> bool:
        """Return whether a path is the folder that was created, whatever its name now."""
        return self._lock is not None and self._lock.is_of(place)

    def _take_place(self, replaced: list[Path]) -> bool:
        try:
            os.rename(self.folder, self.target)  # onto nothing, or an empty folder
            return True
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        old = _hidden(self.target, "removing")
        exchanged: bool | None = None
        with contextlib.suppress(FileNotFoundError):  # somebody removed it meanwhile
            try:
                # Exchanged under that name, so that the old content is removed if the saver is killed right after.
                os.rename(self.folder, old)
                exchanged = _exchange(old, self.target)
            finally:
                if exchanged is False or (exchanged is None and self._is_at(old)):
                    os.rename(old, self.folder)
            if not exchanged:
                replaced[:] = [_named(before, "removing") for before in replaced]
                old = self._aside
                os.rename(self.target, old)
            replaced.append(old)
            return exchanged
        return False

    def close(self) -> Path | None:
        """Unlock the folder, and remove it unless it was published; return it if it could not be removed."""
        lock, self._lock = self._lock, None
        if lock is None:
            return None
        try:
            if self._is_target_aside():  # the next saver restores it
                return self.folder
            lock.let_go()  # first, because its descriptor may be the last one, and removing takes one
            _remove_tree(self.folder)
        except OSError:  # left to the next saver, like the rest if interrupted
            return self.folder
        finally:
            lock.let_go()
        return None


class _FolderLock:
    """A lock on a folder, released at the latest when this object is deleted."""

    _descriptor = -1

    def take(self, folder: Path) -> None:
        """Lock the folder; no other saver locks it."""
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _lock(self._descriptor)

    def is_of(self, folder: Path) -> bool:
        """Return whether a folder is the locked one."""
        try:
            return os.path.samestat(os.stat(folder), os.fstat(self._descriptor))
        except OSError:
            return False

    def let_go(self) -> None:
        """Release the lock; calling this again is harmless."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # closing is not enough if a process was forked meanwhile
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            with contextlib.suppress(OSError):
                os.close(descriptor)

    __del__ = let_go


def _lock(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # where locks are not supported, nothing of another saver's is removed
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _changing_names(parent: Path, change: Callable[[], Result]) -> Result:
    """Call a function while no other saver on this machine reads or changes the names in a folder."""
    descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor)
        return change()
    finally:
        # An interrupt may be raised wherever a Python function begins: if one were called here, this process could keep
        # the lock, and its next save would wait for it forever.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        except OSError:
            pass
        finally:
            try:  # noqa: SIM105 — for that reason
                os.close(descriptor)
            except OSError:
                pass


@contextlib.contextmanager
def _warning(problem: str) -> Iterator[None]:
    """Turn an error of the operating system into a warning: the new checkpoint is saved anyway."""
    try:
        yield
    except (FileNotFoundError, BlockingIOError):  # another saver was faster, or is at work
        pass
    except OSError as error:
        warnings.warn(f"{problem}: {error}", UserWarning, stacklevel=2)


def prune(target: Path, manifest: Manifest, keep: int) -> list[Path]:
    """Remove the oldest checkpoints of the same run beyond ``keep``, the target included.

    Only complete checkpoints count, and only those whose names differ from the target's in digits only: one with
    missing or truncated files is kept for inspection, and a copy under another name belongs to the user.
    """
    removed: list[Path] = []
    with _warning("older checkpoints could not be removed"):
        _changing_names(target.parent, lambda: _prune(target, manifest, keep, removed))
    return removed


def _prune(target: Path, manifest: Manifest, keep: int, removed: list[Path]) -> None:
    pattern = re.compile(r"\d+".join(map(re.escape, re.split(r"\d+", target.name))))
    older = []
    for entry in target.parent.iterdir():
        if entry == target or entry.is_symlink() or not entry.is_dir() or not pattern.fullmatch(entry.name):
            continue
        with contextlib.suppress(HoldfastError, OSError):
            other = read_manifest(entry, LocalFiles())
            if other is not None and _same_run(other, manifest) and _is_complete(entry, other):
                older.append((other.step, entry))
    older.sort()
    for _, path in older[: max(0, len(older) + 1 - keep)]:
        with _warning("an older checkpoint could not be removed"):
            _remove_older(path)
            removed.append(path)


def _remove_older(path: Path) -> None:
    """Remove a checkpoint; if not even one of its files can be removed, it keeps its name."""
    names = set(os.listdir(path))
    hidden = _hidden(path, "removing")
    os.rename(path, hidden)  # disappears in one step, however long removing takes
    try:
        _remove(hidden, keep_in=path)
    except OSError:
        if set(os.listdir(hidden)) == names:
            os.rename(hidden, path)
        raise


def _same_run(other: Manifest, manifest: Manifest) -> bool:
    return other.run_id == manifest.run_id and other.step < manifest.step


def _is_complete(folder: Path, manifest: Manifest) -> bool:
    """Return whether every file has the length that the manifest says; cheaper than verifying."""
    ends: dict[str, int] = {".metadata": 0}
    for record in manifest.records:
        ends[record[2]] = max(ends.get(record[2], 0), record[3] + record[4])
    return all((folder / name).stat().st_size >= end for name, end in ends.items())


def _hidden(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{_host()}-{uuid.uuid4().hex[:12]}.{kind}")


def _named(folder: Path, kind: str) -> Path:
    """Rename a hidden folder to another kind, in a separate step."""
    renamed = folder.with_suffix(f".{kind}")
    if renamed != folder:
        os.rename(folder, renamed)
    return renamed


def _host() -> str:
    return re.sub(r"[^\w-]", "_", socket.gethostname())


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; ``False`` where that is not possible."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(other))


def _remove(folder: Path, *, keep_in: Path) -> None:
    """Remove the files of a checkpoint from a hidden folder; everything else goes to ``keep_in``."""
    names = os.listdir(folder)
    rest = [name for name in names if not _OURS.fullmatch(name) or (folder / name).is_dir()]
    beside = is_there(keep_in)
    if beside:  # first, so that they are moved even if the rest cannot be removed
        for name in rest:
            if not is_there(keep_in / name):
                os.rename(folder / name, keep_in / name)
    for name in sorted(set(names).difference(rest)):
        os.unlink(folder / name)
    if rest and not beside:
        os.rename(folder, keep_in)
    else:
        os.rmdir(folder)


def _remove_tree(folder: Path) -> None:
    """Remove a folder that a saver wrote into, with one file descriptor at a time if there is no folder in it."""
    try:
        for name in os.listdir(folder):
            os.unlink(folder / name)
        os.rmdir(folder)
    except FileNotFoundError:  # published, or another saver removed it
        pass
    except OSError:
        shutil.rmtree(folder)


def _clean(parent: Path) -> None:
    """Remove what savers on this machine that are no longer running left behind."""
    for name in sorted(os.listdir(parent)):  # "replaced" before the "saving" that belongs to it
        match = _HIDDEN.fullmatch(name)
        if match is None or match["host"] != _host():
            continue
        folder, target = parent / name, parent / match["name"]
        with _warning("what an earlier save left could not be removed"):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                unpublished = folder.with_suffix(".saving").is_dir()
                if match["kind"] == "saving":
                    _remove_tree(folder)
                elif match["kind"] == "replaced" and unpublished and not is_there(target):
                    os.rename(folder, target)  # the saver was killed before the new one replaced it
                else:
                    _remove(folder, keep_in=target)
            finally:
                os.close(lock)
