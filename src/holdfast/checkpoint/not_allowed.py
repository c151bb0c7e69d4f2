"""Intact objects that a load refuses, because of the classes they use or because their form is not supported."""

from __future__ import annotations

import sys
from typing import NamedTuple

from holdfast.errors import UnsafeCheckpointError

__all__ = ["Refusal", "refused"]

# No checkpoint needs these, and no hint should ever suggest allowing them.
_RUN_CODE = frozenset(
    {"os", "posix", "nt", "sys", "subprocess", "runpy", "shutil", "importlib", "pty", "socket", "code", "ctypes"}
    | {f"builtins.{name}" for name in ("eval", "exec", "compile", "open", "getattr", "__import__", "map", "apply")}
)


class Refusal(NamedTuple):
    """Why an object is refused."""

    names: tuple[str, ...] = ()
    """The classes and functions it uses that are not allowed."""
    reason: str = ""
    """Why its form is not supported (too deeply nested, for example); empty where ``names`` is the reason."""
    hint: str = ""
    """What to do about it; empty where trusting the checkpoint is enough."""

    def __str__(self) -> str:
        return self.reason or ", ".join(self.names)


def refused(refusals: dict[str, Refusal], *, file: str) -> UnsafeCheckpointError:
    """Return the error for objects that a load refuses, with what would allow them.

    Args:
        refusals: why, by the name of the object.
        file: the file of the first one.
    """
    classes = sorted({name for refusal in refusals.values() for name in refusal.names})
    forms = [f"{key}: {refusal.reason}" for key, refusal in sorted(refusals.items()) if refusal.reason]
    hints = sorted({refusal.hint or _TRUST for refusal in refusals.values() if refusal.reason})
    problems = []
    if classes:
        problems.append(f"use classes or functions that are not allowed: {', '.join(classes)}")
    if forms:
        problems.append(f"have a form that is not supported: {'; '.join(forms)}")
    reason = "; ".join(forms) if len(refusals) > 1 else "".join(refusal.reason for refusal in refusals.values())
    return UnsafeCheckpointError(
        f"objects in the checkpoint {'; others '.join(problems)}",
        tensor=", ".join(sorted(refusals)),
        file=file,
        names=classes,
        hint=_hint(classes, hints),
        **({"reason": reason} if reason else {}),
    )


def _module(name: str) -> str:
    """Return the module of a class or function, which may be nested in a class of that module."""
    module = name.rpartition(".")[0]
    parents = [module[:end] for end, letter in enumerate(module) if letter == "."]
    return next((known for known in (module, *reversed(parents)) if known in sys.modules), module)


_TRUST = "pass trusted=True if you made this checkpoint yourself"


def _hint(classes: list[str], hints: list[str]) -> str:
    if not _RUN_CODE.isdisjoint(name.partition(".")[0] for name in classes) or not _RUN_CODE.isdisjoint(classes):
        return "loading this would run code chosen by the checkpoint: do not load it unless you made it yourself"
    if hints:
        return "; ".join(hints)
    modules = sorted(set(map(_module, classes)) - {"builtins"})
    line = f"torch.serialization.add_safe_globals([{', '.join(name.removeprefix('builtins.') for name in classes)}])"
    if modules:
        line = f"import {', '.join(modules)}; {line}"
    return f"if you trust them all: {line}; or {_TRUST}"
