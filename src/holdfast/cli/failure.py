"""Any error that a command can raise, as one sentence for people and one object for machines."""

from __future__ import annotations

import errno
import json
import math
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import typer

from holdfast.errors import HoldfastError

__all__ = ["Explained", "explain"]

# Click's, or the copy of it inside newer releases of Typer.
_WRONG_USE: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
# Package that may be missing -> the extra that installs it.
_EXTRAS = {"torch": "torch", "zlib_ng": "torch", "datasets": "hf", "transformers": "hf", "accelerate": "hf"}
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF)
"""Errors that only writing raises; without a file name, writing to standard output failed."""
_MAX_VALUE = 200
"""Characters shown of a value: a path may have thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What went wrong: its kind, what happened, where, and what to do."""

    type: str
    message: str
    hint: str | None = None
    where: dict[str, Any] = field(default_factory=dict)
    sentence: str | None = None
    """The text for people, if it is not built from the other fields."""
    shown_already: bool = False

    def show(self, *, as_json: bool) -> None:
        """Print the sentence on standard error and, if requested, the object on standard output."""
        if as_json:
            told = {"type": self.type, "message": self.message, "hint": self.hint}
            told |= {name: value for name, value in self.where.items() if name not in told}
            with suppress(OSError, ValueError):  # the failure may be that there is nowhere to print to
                print(json.dumps({"error": {name: _plain(value) for name, value in told.items()}}), flush=True)
        sentence = self.sentence or str(HoldfastError(self.message, hint=self.hint, **self.where))
        typer.echo(f"holdfast: {sentence}", err=True)


def explain(error: Exception) -> Explained:
    """Return the explanation of an error; an unexpected error also leaves its traceback."""
    kind = type(error).__name__
    if isinstance(error, _WRONG_USE):
        return _wrong_use(error)
    if isinstance(error, HoldfastError):
        where = {name: _short(value) for name, value in error.where.items() if value is not None}
        return Explained(type=kind, message=error.message, hint=error.hint, where=where)
    if isinstance(error, ModuleNotFoundError) and (missing := (error.name or "").partition(".")[0]) in _EXTRAS:
        return Explained(
            type="MissingDependencyError",
            message=f"this command needs {missing}, which is not installed",
            hint=f"pip install 'holdfast[{_EXTRAS[missing]}]'",
        )
    if isinstance(error, OSError):
        return _system_error(error)
    if isinstance(error, UnicodeError):
        return Explained(
            type=kind, message="a file or an argument is not UTF-8 text", hint="check the paths and their content"
        )
    traceback.print_exception(error, file=sys.stderr)
    return Explained(type=kind, message=f"holdfast has a bug here: {kind}: {error}", hint="please report it")


def _wrong_use(error: Any) -> Explained:
    """Return what is wrong with the arguments and where to read more; without arguments, show the help."""
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        typer.echo(context.get_help())
        return Explained(type="UsageError", message="there are no arguments", shown_already=True)
    command = "holdfast" if context is None else context.command_path
    text = " ".join(error.format_message().split())
    option = getattr(error, "option_name", None) or ""
    if option[:1] == "-" and option[1:2].isdecimal():
        text = f"an argument cannot be negative: {option}"
    message, hint = f"{text[:1].lower()}{text[1:].rstrip('.')}", f"see {command} --help"
    return Explained(type="UsageError", message=message, hint=hint, sentence=f"{message} — {hint}")


def _system_error(error: OSError) -> Explained:
    kind, reason = type(error).__name__, error.strerror or str(error)
    if error.filename is not None:
        name = error.filename.decode(errors="replace") if isinstance(error.filename, bytes) else str(error.filename)
        return Explained(
            type=kind,
            message=f"the path cannot be used: {reason}",
            hint="check the path",
            where={"path": _short(name)},
        )
    if error.errno in _NOT_WRITTEN:
        hint = "redirect it to a file on a disk with space"
        return Explained(type=kind, message=f"the output cannot be written: {reason}", hint=hint)
    return Explained(type=kind, message=f"reading or writing failed: {reason}")


def _plain(value: Any) -> Any:
    """Return a value as plain JSON, without secrets."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(HoldfastError(str(value)))


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MAX_VALUE:
        return f"{value[: _MAX_VALUE // 2]}…{value[-_MAX_VALUE // 2 :]}"
    return value
