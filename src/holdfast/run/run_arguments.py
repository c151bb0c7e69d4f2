"""The arguments of a ``Run``, checked when they are passed, so that nothing fails in the middle of a start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from holdfast.arguments import check_type
from holdfast.errors import ConfigError
from holdfast.run.chain import encode
from holdfast.run.snapshot import Stateful

__all__ = ["are_functions", "as_list", "checked_config", "is_model", "other_parts"]


def as_list(optimizer: Any) -> list[torch.optim.Optimizer]:
    """Return one optimizer or several as a list."""
    if optimizer is None:
        return []
    is_one = hasattr(optimizer, "param_groups") or not isinstance(optimizer, Iterable)
    found = [optimizer] if is_one else list(optimizer)
    for each in found:
        # Wrapped optimizers, as trainers use them, are accepted too.
        check_type("optimizer", each, lambda one: hasattr(one, "param_groups"), "a torch optimizer, or a list of them")
    return found


def is_model(value: Any) -> bool:
    """Return whether this is a module, or modules by name."""
    modules = list(value.values()) if isinstance(value, Mapping) else [value]
    return bool(modules) and all(isinstance(module, nn.Module) for module in modules)


def other_parts(parts: Mapping[str, Stateful]) -> Mapping[str, Stateful]:
    """Return the program's own parts; raise for names that the run reserves."""
    for name in ("scheduler", "scaler", "monitor"):
        if name in parts:
            raise ConfigError("this name is reserved", part=name, hint=f"pass {name}= to Run, or choose another name")
    return parts


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration; raise if it cannot be written to the log."""
    made = dict(config)
    try:
        encode(made)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"config cannot be written to the log: {error}", hint="pass numbers, text, lists and mappings"
        ) from None
    return made


def are_functions(values: Any) -> bool:
    """Return whether these are functions, any number of them."""
    return isinstance(values, Iterable) and not isinstance(values, str) and all(map(callable, values))
