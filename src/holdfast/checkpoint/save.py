"""Saving: an ordinary DCP checkpoint that torch can load, published completely or not at all, with a manifest.

Torch's own writer writes the files (``holdfast.checkpoint.writer``) into a hidden folder, which takes its final
name when all of it is on the disk (``holdfast.checkpoint.publish``). A checkpoint that does not exist under its
final name was never saved.
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
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_saver import _save_state_dict, _stateful_to_state_dict

from holdfast.checkpoint.background import run_in_background, wait_for_background
from holdfast.checkpoint.files import is_file_name, path_text
from holdfast.checkpoint.interrupts import causes_of, interrupt_in
from holdfast.checkpoint.not_allowed import Refusal
from holdfast.checkpoint.options import whole_number
from holdfast.checkpoint.remote import is_url
from holdfast.checkpoint.state_keys import alike, flatten_as_now, unsortable
from holdfast.checkpoint.writer import VerifiedWriter
from holdfast.errors import CheckpointWriteError, ConfigError, HoldfastError
from holdfast.versioned import MAX_COUNT

__all__ = ["PendingSave", "SaveReport", "async_save", "save"]

MAX_NAMED_KEYS = 20
"""Maximum number of keys that a warning names per class: an optimizer may hold one such object per parameter."""


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What ``save`` did, on this rank.

    Attributes:
        path: the published checkpoint.
        step: its step.
        items: stored tensors and objects that this rank wrote.
        bytes: their size in the files.
        removed: older checkpoints that were removed (on the coordinator).
        refused: keys of what this rank wrote that a load will refuse unless it is told to trust it.
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
        path: the checkpoint's folder; its parent holds the run's checkpoints. A checkpoint with that name is replaced
            in one step; other files in its folder stay. Anything that is not a checkpoint is refused.
        step: the number of steps completed so far; stored in the manifest.
        run_id: the run this belongs to; stored in the manifest.
        keep: how many checkpoints in the parent to keep, including this one; ``None`` keeps all. Once this one is on
            the disk, complete ones of an earlier step with the same ``run_id``, whose names differ in digits only, are
            removed. After a rollback, those of later steps are neither counted nor removed.
        process_group: the ranks that save together; the default group where torch.distributed is initialised.
        planner: torch's default one when ``None``.
        thread_count: files, and threads that write them, per rank.

    Raises:
        CheckpointWriteError: it could not be saved (the disk is full, for example). Nothing of it is left, or the error
            names the hidden folder that could not be removed; earlier checkpoints are unchanged.
        KeyboardInterrupt, SystemExit: this rank was asked to stop; at most a hidden folder is left, which the next save
            removes. The other ranks raise CheckpointWriteError.
        ConfigError: the ranks disagree on path, step or run_id, or an option is invalid.
    """
    wait_for_background()
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
        _agree(own or (str(target), step, run_id), str(path), process_group)
    writer = VerifiedWriter(
        target,
        step=step,
        run_id=run_id,
        keep=keep,
        thread_count=thread_count,
        group=None if alone else process_group,
        alone=alone,
    )
    flatten_as_now()
    try:
        writer.begin()
        # Torch's ``save`` without its warning that there is only one process, which is intended: a background thread
        # must not change the warning filters, which all threads share.
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
        raise _write_error(error, target, handled=handled, left=writer.discard()) from error
    except RuntimeError as error:  # torch cannot inform the other ranks
        raise error if alone else _lost(error, str(target)) from error
    finally:
        writer.discard()
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
        """Return whether it has ended, successfully or not."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> SaveReport:
        """Wait for the end; raise what ``save`` raises, or ``TimeoutError``."""
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

    Saves of one process run one after the other, in the order of the calls: the last one wins, and a process group
    serves one at a time. If the system allows no more threads, the save completes before this returns. A rank that
    cannot begin raises its error here, and the others raise it from ``PendingSave.result``.

    The arguments are those of ``save``. With several ranks, saving needs its own group, such as
    ``torch.distributed.new_group(backend="gloo")``: the training loop keeps using the default group meanwhile.
    """
    grouped = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if process_group is None and grouped:
        raise ConfigError(
            "async_save needs its own process group",
            hint='pass process_group=torch.distributed.new_group(backend="gloo"), created once on all ranks',
        )
    try:
        target = _target(path)
        step, keep, thread_count = _checked(state_dict, step, run_id, keep, thread_count)
        copied = _copied(_state_of(state_dict, target), target)
    except HoldfastError as error:
        if grouped:  # the other ranks are about to save: they need not wait for the group's timeout
            run_in_background(partial(_refuse, error, str(path), process_group))
        raise
    future: Future[SaveReport] = Future()

    def work() -> None:
        try:
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
        except BaseException as error:  # raised by result()
            future.set_exception(error)
        else:
            future.set_result(report)

    return PendingSave(future, run_in_background(work))


def _refuse(error: HoldfastError, path: str, group: dist.ProcessGroup | None) -> None:
    """Tell the other ranks why this one does not save."""
    with suppress(Exception):  # it is raised here already
        _agree(error, path, group)


def _state_of(state_dict: dict[str, Any], target: Path) -> dict[str, Any]:
    """Return the state, with objects that have a ``state_dict`` replaced by it."""
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
    """Raise on every rank if one of them cannot start, or was given another checkpoint."""
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


def _copied(state: dict[str, Any], target: Path) -> dict[str, Any]:
    handled = sys.exc_info()[1]
    try:
        return _copy(state)
    except Exception as error:
        raise _write_error(error, target, handled=handled) from error


def _copy(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the state, with tensors in CPU memory and every other value copied by ``copy.deepcopy``."""
    tensors: dict[int, torch.Tensor] = {}

    def gather(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            tensors[id(value)] = value
        elif isinstance(value, (Mapping, list, tuple)):
            for entry in value.values() if isinstance(value, Mapping) else value:
                gather(entry)

    gather(state)
    stager = BlockingAsyncStager(cache_staged_state_dict=False, type_check=False)  # for sharded tensors
    copies = {
        place: value.detach()  # it has no elements to copy
        if value.is_meta
        else value.detach().to("cpu", copy=True)
        if type(value) in (torch.Tensor, torch.nn.Parameter)
        else stager.stage({"": value})[""]
        for place, value in tensors.items()
    }
    return copy.deepcopy(state, copies)


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the final folder; links are followed."""
    given = path_text(path)
    if is_url(given):
        raise ConfigError("checkpoint.save writes to local folders only", path=given, hint="copy it there afterwards")
    if not is_file_name(given):
        raise ConfigError("the path has a character that no file name can have", path=given)
    target = Path(os.path.abspath(given))
    head, name = os.path.split(given.rstrip(os.sep))
    if name in ("", ".", "..") or not target.name:
        raise ConfigError("the path must name the checkpoint's own folder", path=given)
    if ".." in Path(head).parts:  # the system resolves what is above a link, as it does when loading
        if not os.path.isdir(head):
            raise ConfigError("a parent folder of the path does not exist", path=given)
        target = Path(os.path.realpath(head)) / name
    return Path(os.path.realpath(target)) if os.path.islink(target) else target


def _checked(
    state_dict: Any, step: int, run_id: str | None, keep: int | None, thread_count: int
) -> tuple[int, int | None, int]:
    """Raise for arguments that cannot be used; return step, keep and thread_count as they are used."""
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


def _write_error(
    error: BaseException, target: Path, *, handled: BaseException | None, left: Path | None = None
) -> BaseException:
    causes = [error]
    if isinstance(error, CheckpointException):
        causes = [cause for cause, _ in error.failures.values()]
    own = next((cause for cause in causes if isinstance(cause, (CheckpointWriteError, ConfigError))), None)
    if own is not None:
        return own
    # The operating system's error, if any: torch's zip writer raises something else after it.
    every = (one for cause in causes for one in causes_of(cause, handled=handled))
    problem = next((one for one in every if isinstance(one, OSError)), causes[0] if causes else error)
    text = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    full = isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "make room" if full else "see the cause"
    rest = (
        "nothing of it is left" if left is None else f"its folder {left} could not be removed, a later save does that"
    )
    return CheckpointWriteError(
        f"the checkpoint could not be saved: {text}",
        path=str(target),
        free_bytes=_free_bytes(target),
        hint=f"{rest}, and earlier checkpoints are unchanged; {advice}",
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
        f"the checkpoint is saved, but a load will refuse some of its items: {'; '.join(named)}. Store plain data, "
        "or when loading allow their classes with torch.serialization.add_safe_globals or pass trusted=True"
    )


def _free_bytes(target: Path) -> int | None:
    try:
        return shutil.disk_usage(target.parent).free
    except OSError:
        return None
