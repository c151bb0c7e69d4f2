"""Objects that a load refuses, intact as they are: which classes they use, or which form of theirs is not rebuilt."""

from __future__ import annotations

import sys
from typing import NamedTuple

from holdfast.errors import UnsafeCheckpointError

__all__ = ["Refusal", "refused"]

# What no checkpoint needs, and no line to paste should ever allow.
_RUN_CODE = frozenset(
    {"os", "posix", "nt", "sys", "subprocess", "runpy", "shutil", "importlib", "pty", "socket", "code", "ctypes"}
    | {f"builtins.{name}" for name in ("eval", "exec", "compile", "open", "getattr", "__import__", "map", "apply")}
)


class Refusal(NamedTuple):
    """Why an object is refused."""

    names: tuple[str, ...] = ()
    """The classes and functions it uses that are not allowed."""
    reason: str = ""
    """What of its form is not rebuilt (too deep, say); empty where names say it all."""

    def __str__(self) -> str:
        return self.reason or ", ".join(self.names)


def refused(refusals: dict[str, Refusal], *, file: str) -> UnsafeCheckpointError:
    """Return the error for objects that a load refuses, with what would allow them.

    Args:
        refusals: why, by the name of the object.
        file: the first one's.
    """
    classes = sorted({name for refusal in refusals.values() for name in refusal.names})
    forms = [f"{key}: {refusal.reason}" for key, refusal in sorted(refusals.items()) if refusal.reason]
    problems = []
    if classes:
        problems.append(f"use classes or functions that are not allowed: {', '.join(classes)}")
    if forms:
        problems.append(f"are of a form that is not rebuilt: {'; '.join(forms)}")
    reason = "; ".join(forms) if len(refusals) > 1 else "".join(refusal.reason for refusal in refusals.values())
    return UnsafeCheckpointError(
        f"objects of the checkpoint {'; others '.join(problems)}",
        tensor=", ".join(sorted(refusals)),
        file=file,
        names=classes,
        hint=_hint(classes, forms),
        **({"reason": reason} if reason else {}),
    )


def _module(name: str) -> str:
    """Return the module of a class or function; it may stand in a class of that module."""
    module = name.rpartition(".")[0]
    parents = [module[:end] for end, letter in enumerate(module) if letter == "."]
    return next((known for known in (module, *reversed(parents)) if known in sys.modules), module)


def _hint(classes: list[str], forms: list[str]) -> str:
    if not _RUN_CODE.isdisjoint(name.partition(".")[0] for name in classes) or not _RUN_CODE.isdisjoint(classes):
        return "this would run code of the checkpoint's choice: do not load it unless you made it yourself"
    if forms:
        return "pass trusted=True if you made this checkpoint yourself"
    modules = sorted(set(map(_module, classes)) - {"builtins"})
    line = f"torch.serialization.add_safe_globals([{', '.join(name.removeprefix('builtins.') for name in classes)}])"
    if modules:
        line = f"import {', '.join(modules)}; {line}"
    return f"if you trust them all: {line}; or pass trusted=True if you made this checkpoint yourself"
