"""Saving: an ordinary DCP checkpoint that torch loads, published whole or not at all, with a manifest to hold it to.

Torch's own writer writes the files (:mod:`~holdfast.checkpoint.writer`) into a hidden folder, which takes its final
name when all of it is on the disk (:mod:`~holdfast.checkpoint.publish`). What is not there under its final name was
never saved.
"""

from __future__ import annotations

import copy
import errno
import os
import shutil
import sys
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread, current_thread
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_saver import _save_state_dict, _stateful_to_state_dict

from holdfast.checkpoint.files import is_file_name
from holdfast.checkpoint.interrupts import causes_of, interrupt_in
from holdfast.checkpoint.not_allowed import Refusal
from holdfast.checkpoint.options import whole_number
from holdfast.checkpoint.remote import is_url
from holdfast.checkpoint.state_keys import alike, unsortable
from holdfast.checkpoint.writer import VerifiedWriter
from holdfast.errors import CheckpointWriteError, ConfigError, HoldfastError
from holdfast.versioned import MAX_COUNT

__all__ = ["PendingSave", "SaveReport", "async_save", "save"]

MAX_NAMED_KEYS = 20
"""Maximum number of keys that a warning names per class: an optimizer may hold an object of it for every parameter."""
_order = Lock()
_background: list[Thread] = []  # this process's background saves, in the order of the calls


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What :func:`save` did, on this rank.

    Attributes:
        path: the published checkpoint.
        step: its step.
        items: stored tensors and objects that this rank wrote.
        bytes: their size in the files.
        removed: older checkpoints that were removed (on the coordinator).
        refused: keys of objects that this rank wrote and a load will refuse, unless it is told to trust them.
        seconds: how long it took.
    """

    path: Path
    step: int
    items: int
    bytes: int
    removed: tuple[Path, ...]
    refused: tuple[str, ...]
    seconds: float


def save(
    state_dict: dict[str, Any],
    path: str | os.PathLike[str],
    *,
    step: int,
    run_id: str | None = None,
    keep: int | None = None,
    process_group: dist.ProcessGroup | None = None,
    planner: SavePlanner | None = None,
    thread_count: int = 1,
) -> SaveReport:
    """Save a checkpoint that can be verified; every rank of the group calls it.

    Args:
        state_dict: what to save, as for ``torch.distributed.checkpoint.save``.
        path: the checkpoint's folder; its parent holds the run's checkpoints. A checkpoint of that name is replaced, in
            one step; what else lies in its folder stays. Anything that is not a checkpoint is refused.
        step: after how many steps this is; stored in the manifest.
        run_id: the run this belongs to; stored in the manifest.
        keep: how many checkpoints in the parent to keep, this one included; ``None`` keeps all. Removed are complete
            ones of an earlier step and the same ``run_id`` whose names differ in their digits only, when this one is on
            the disk; after a rollback those of later steps neither count nor go.
        process_group: the ranks that save together; the default group where torch.distributed is initialised.
        planner: torch's default one when ``None``.
        thread_count: files, and threads that write them, per rank.

    Raises:
        CheckpointWriteError: it could not be saved (a full disk, say). Nothing is left of it, and what was saved before
            is as it was.
        KeyboardInterrupt, SystemExit: this rank was asked to stop; at most a hidden folder is left, which the next save
            removes. The others raise CheckpointWriteError.
        ConfigError: the ranks disagree on path, step or run_id, or an option is invalid.
    """
    _wait_for(_others())
    began = time.perf_counter()
    alone = not (dist.is_available() and dist.is_initialized())
    handled = sys.exc_info()[1]
    own: HoldfastError | None = None
    try:
        target = _target(path)
        step, keep, thread_count = _checked(state_dict, step, run_id, keep, thread_count)
        state = _state_of(state_dict, target)
    except HoldfastError as error:
        if alone:
            raise
        own = error
    if not alone:
        _agree(own or (str(target), step, run_id), os.fspath(path), process_group)
    writer = VerifiedWriter(
        target,
        step=step,
        run_id=run_id,
        keep=keep,
        thread_count=thread_count,
        group=None if alone else process_group,
        alone=alone,
    )
    try:
        writer.begin()
        # Torch's ``save`` without its warning that this is one process, which is meant: a background thread must not
        # touch the filters, which are those of all threads.
        _save_state_dict(state, writer, process_group=process_group, planner=planner, no_dist=alone)
    except CheckpointWriteError:
        raise
    except (CheckpointException, OSError) as error:
        mine: BaseException = error
        if isinstance(error, CheckpointException):
            mine, _ = error.failures.get(0 if alone else dist.get_rank(process_group), (error, None))
        interrupt = interrupt_in(mine, handled=handled)
        if interrupt is not None:
            raise interrupt from None
        raise _write_error(error, target, handled=handled) from error
    except RuntimeError as error:  # torch cannot tell the other ranks of it
        raise error if alone else _lost(error, str(target)) from error
    finally:
        writer.close()
    if writer.refused:
        warnings.warn(_refusals(writer.refused), UserWarning, stacklevel=2)
    return SaveReport(
        path=target,
        step=step,
        items=writer.items,
        bytes=writer.bytes,
        removed=tuple(writer.removed),
        refused=tuple(sorted(writer.refused)),
        seconds=time.perf_counter() - began,
    )


class PendingSave:
    """A save that continues in the background."""

    def __init__(self, future: Future[SaveReport], thread: Thread) -> None:
        self._future = future
        self._thread = thread

    def done(self) -> bool:
        """Return whether it has ended, well or not."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> SaveReport:
        """Wait for the end; raises what :func:`save` raises, or ``TimeoutError``."""
        try:
            return self._future.result(timeout)
        finally:
            if self._future.done() and self._thread.ident is not None:
                self._thread.join()


def async_save(
    state_dict: dict[str, Any],
    path: str | os.PathLike[str],
    *,
    step: int,
    run_id: str | None = None,
    keep: int | None = None,
    process_group: dist.ProcessGroup | None = None,
    planner: SavePlanner | None = None,
    thread_count: int = 1,
) -> PendingSave:
    """Copy the state to memory now, and save it in the background; every rank calls it.

    Saves of one process are made one after the other, in the order of the calls: the last one wins, and a process
    group carries one at a time. Where the system allows no more threads it is saved before this returns.

    The arguments are those of :func:`save`. With several ranks the group must be one of its own, such as
    ``torch.distributed.new_group(backend="gloo")``: the training loop keeps using the default group meanwhile.
    """
    target = _target(path)
    step, keep, thread_count = _checked(state_dict, step, run_id, keep, thread_count)
    if process_group is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise ConfigError(
            "async_save needs its own process group",
            hint='pass process_group=torch.distributed.new_group(backend="gloo"), created once on all ranks',
        )
    handled = sys.exc_info()[1]
    state = _state_of(state_dict, target)
    try:
        copied = _copied(state)
    except Exception as error:
        raise _write_error(error, target, handled=handled) from error
    future: Future[SaveReport] = Future()

    def work() -> None:
        try:
            _wait_for(before)
            report = save(
                copied,
                target,
                step=step,
                run_id=run_id,
                keep=keep,
                process_group=process_group,
                planner=planner,
                thread_count=thread_count,
            )
        except BaseException as error:  # raised where the result is asked for
            future.set_exception(error)
        else:
            future.set_result(report)

    with _order:
        before = _others()
        thread = Thread(target=work, name="holdfast-checkpoint-save", daemon=False)
        _background[:] = [*before, thread]
        try:
            thread.start()
        except RuntimeError as error:
            if error.__context__ is not None:  # an interrupt, while the thread was being started
                raise
            _background[:] = before
    if thread not in _background:
        work()
    return PendingSave(future, thread)


def _state_of(state_dict: dict[str, Any], target: Path) -> dict[str, Any]:
    """Return the state, of objects that have one what they say it is."""
    handled = sys.exc_info()[1]
    try:
        state: dict[str, Any] = _stateful_to_state_dict(state_dict)
    except Exception as error:
        raise _write_error(error, target, handled=handled) from error
    fault = alike(state)
    if fault is not None:
        raise ConfigError(fault, hint="use other keys")
    return state


def _agree(mine: tuple[str, int, str | None] | HoldfastError, path: str, group: dist.ProcessGroup | None) -> None:
    """Raise on every rank if one of them cannot begin, or means another checkpoint."""
    told: list[Any] = [None] * dist.get_world_size(group)
    try:
        dist.all_gather_object(told, mine, group=group)
    except RuntimeError as error:
        raise _lost(error, path) from (mine if isinstance(mine, HoldfastError) else error)
    failed = [one for one in (mine, *told) if isinstance(one, HoldfastError)]
    if failed:
        raise failed[0]
    if any(other != told[0] for other in told):
        raise ConfigError(
            "the ranks disagree on the path, step or run_id of the checkpoint",
            ranks=sorted({str(other) for other in told}),
            hint="compute them on one rank and broadcast them; a time stamp or host name differs between ranks",
        )


def _lost(error: RuntimeError, path: str) -> CheckpointWriteError:
    return CheckpointWriteError(
        "another rank of the group died, or took too long",
        path=path,
        cause=str(error).partition("\n")[0],
        hint="find out why that rank ended; earlier checkpoints are unchanged, or replaced by this one as a whole",
    )


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the state, its tensors in CPU memory; every other value as ``copy.deepcopy`` has it."""
    tensors: dict[int, torch.Tensor] = {}

    def gather(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            tensors[id(value)] = value
        elif isinstance(value, (Mapping, list, tuple)):
            for entry in value.values() if isinstance(value, Mapping) else value:
                gather(entry)

    gather(state)
    stager = BlockingAsyncStager(cache_staged_state_dict=False, type_check=False)  # for tensors in parts
    copies = {
        place: value.detach().to("cpu", copy=True)
        if type(value) in (torch.Tensor, torch.nn.Parameter)
        else stager.stage({"": value})[""]
        for place, value in tensors.items()
    }
    return copy.deepcopy(state, copies)


def _others() -> list[Thread]:
    """Return the background saves that whatever is saved now comes after; none for one of them, which has waited."""
    return [] if current_thread() in _background else [thread for thread in _background if thread.is_alive()]


def _wait_for(saves: list[Thread]) -> None:
    for thread in saves:
        thread.join()


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the final folder; links are followed."""
    given = os.fspath(path)
    if is_url(given):
        raise ConfigError("checkpoint.save writes to local folders only", path=given, hint="copy it there afterwards")
    if not is_file_name(given):
        raise ConfigError("the path has a character that no file name can have", path=given)
    target = Path(os.path.abspath(given))
    head, name = os.path.split(given.rstrip(os.sep))
    if name in ("", ".", "..") or not target.name:
        raise ConfigError("the path must name the checkpoint's own folder", path=given)
    if ".." in Path(head).parts:  # what lies above a link is for the system to say, as it does when it is loaded
        if not os.path.isdir(head):
            raise ConfigError("a parent folder of the path does not exist", path=given)
        target = Path(os.path.realpath(head)) / name
    return Path(os.path.realpath(target)) if os.path.islink(target) else target


def _checked(
    state_dict: Any, step: int, run_id: str | None, keep: int | None, thread_count: int
) -> tuple[int, int | None, int]:
    """Refuse what cannot be saved; returns step, keep and thread_count as they are used."""
    if not isinstance(state_dict, dict):
        raise ConfigError(f"the state must be a dict, got {type(state_dict).__name__}")
    fault = unsortable(state_dict)
    if fault is not None:
        raise ConfigError(fault, hint="use text for all of them")
    if run_id is not None and type(run_id) is not str:
        raise ConfigError("run_id must be text", value=run_id)
    if not torch.serialization.get_crc32_options():
        raise ConfigError(
            "checkpoint.save needs the checksums that torch.save writes",
            hint="call torch.serialization.set_crc32_options(True), which is the default",
        )
    return (
        whole_number("step", step, least=0, most=MAX_COUNT),
        None if keep is None else whole_number("keep", keep, least=1),
        whole_number("thread_count", thread_count, least=1),
    )


def _write_error(error: BaseException, target: Path, *, handled: BaseException | None) -> BaseException:
    causes = [error]
    if isinstance(error, CheckpointException):
        causes = [cause for cause, _ in error.failures.values()]
    own = next((cause for cause in causes if isinstance(cause, (CheckpointWriteError, ConfigError))), None)
    if own is not None:
        return own
    # What the operating system said, where it did: torch's zip writer raises something else after it.
    every = (one for cause in causes for one in causes_of(cause, handled=handled))
    problem = next((one for one in every if isinstance(one, OSError)), causes[0] if causes else error)
    text = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    full = isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "make room" if full else "see the cause"
    return CheckpointWriteError(
        f"the checkpoint could not be saved: {text}",
        path=str(target),
        free_bytes=_free_bytes(target),
        hint=f"nothing of it was kept, and earlier checkpoints are unchanged; {advice}",
    )


def _refusals(refused: dict[str, Refusal]) -> str:
    keys: dict[Refusal, list[str]] = {}
    for key, refusal in sorted(refused.items()):
        keys.setdefault(refusal, []).append(key)
    named = []
    for refusal, same in keys.items():
        more = f" and {len(same) - MAX_NAMED_KEYS} more" if len(same) > MAX_NAMED_KEYS else ""
        named.append(f"{', '.join(same[:MAX_NAMED_KEYS])}{more} ({refusal})")
    return (
        f"the checkpoint is saved, but a load will refuse some of its objects: {'; '.join(named)}. Store plain data, "
        "allow their classes with torch.serialization.add_safe_globals before you load it, or pass trusted=True then"
    )


def _free_bytes(target: Path) -> int | None:
    try:
        return shutil.disk_usage(target.parent).free
    except OSError:
        return None
