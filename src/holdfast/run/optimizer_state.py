"""An optimizer's state by the names of its parameters, so that it loads at any world size and in any order.

torch's own ``get_optimizer_state_dict`` makes a step with zero gradients if there is no state yet, which advances the
step counts of a run that has not begun, and cannot load a state in which some parameters have none. Here the state is
saved as it is: nothing is invented, and what a checkpoint holds is what is restored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from holdfast.errors import RunMismatchError

__all__ = ["check_optimizers", "collect_optimizer", "lay_out_optimizer", "parameter_names", "restore_optimizer"]

_WRAPPERS = ("module.", "_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")

MAX_NAMES = 8
"""Maximum number of parameters that an error names."""

Tensors = dict[str, dict[str, torch.Tensor]]


def parameter_names(model: nn.Module) -> dict[int, str]:
    """Return the plain name of every parameter by its identity."""
    names = {}
    for name, parameter in model.named_parameters():
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, "")
        names[id(parameter)] = name
    return names


def _named(optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str]) -> dict[str, torch.Tensor]:
    """Return every parameter of the optimizers by name, in their order."""
    found: dict[str, torch.Tensor] = {}
    for number, optimizer in enumerate(optimizers):
        for place, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            found[names.get(id(parameter), f"optimizer-{number}.parameter-{place}")] = parameter
    return found


def collect_optimizer(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str]
) -> tuple[Tensors, dict[str, Any]]:
    """Return the live tensors of the state by parameter and field, and everything else in it."""
    tensors: Tensors = {}
    values: dict[str, dict[str, Any]] = {}
    devices: dict[str, dict[str, str]] = {}
    for name, parameter in _named(optimizers, names).items():
        state: dict[str, Any] = next((o.state[parameter] for o in optimizers if parameter in o.state), {})
        for field, value in state.items():
            if isinstance(value, torch.Tensor):
                tensors.setdefault(name, {})[field] = value
                devices.setdefault(name, {})[field] = value.device.type
            else:
                values.setdefault(name, {})[field] = value
    groups = [
        [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        for optimizer in optimizers
    ]
    kinds = [type(optimizer).__name__ for optimizer in optimizers]
    defaults = [{key: value for key, value in each.defaults.items() if _is_plain(value)} for each in optimizers]
    return tensors, {
        "values": values,
        "devices": devices,
        "groups": groups,
        "kinds": kinds,
        "defaults": defaults,
        "parameters": _grouped(optimizers, names),
    }


def _grouped(optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str]) -> list[list[list[str]]]:
    """Return the names of the parameters in every group of every optimizer, as ``_named`` gives them."""
    every = {id(parameter): name for name, parameter in _named(optimizers, names).items()}
    return [[[every[id(each)] for each in group["params"]] for group in own.param_groups] for own in optimizers]


def _is_plain(value: Any) -> bool:
    values = value if isinstance(value, (list, tuple)) else (value,)
    return all(isinstance(each, (bool, int, float, str, type(None))) for each in values)


def check_optimizers(
    optimizers: Sequence[torch.optim.Optimizer], saved: Mapping[str, Any], names: Mapping[int, str] | None
) -> list[str]:
    """Compare the optimizers with those whose state was saved; return messages about options that differ.

    Args:
        optimizers: those of the program.
        saved: the second value of ``collect_optimizer``.
        names: the names of their parameters; None if another rank saved the state, which may have held others.

    Raises:
        RunMismatchError: the kind or number of optimizers, the number of their groups, or the parameters in a group
            differ.
    """
    kinds, groups = [type(each).__name__ for each in optimizers], [len(each.param_groups) for each in optimizers]
    known = saved.get("kinds", kinds if len(saved["groups"]) == len(kinds) else ["?"] * len(saved["groups"]))
    if known != kinds:
        raise RunMismatchError(
            "the run was trained with another optimizer",
            found=", ".join(kinds) or "none",
            expected=", ".join(known) or "none",
            hint="create the optimizer that the run was started with, or choose another folder",
        )
    if groups != [len(each) for each in saved["groups"]]:
        raise RunMismatchError(
            "the optimizer has a different number of parameter groups",
            found=groups,
            expected=[len(each) for each in saved["groups"]],
            hint="group the parameters as the run was started with, or choose another folder",
        )
    if names is not None and "parameters" in saved:
        _check_parameters(_grouped(optimizers, names), saved["parameters"])
    notes = []
    for optimizer, defaults in zip(optimizers, saved.get("defaults", ()), strict=False):
        for key, value in defaults.items():
            given = optimizer.defaults.get(key)
            if given != value and not (isinstance(value, (list, tuple)) and list(value) == list(given or ())):
                name = f"{key} of {type(optimizer).__name__}"
                notes.append(
                    f"the program now sets {name} to {given!r}; the run continues with its own, initially {value!r}"
                )
    return notes


def _check_parameters(found: list[list[list[str]]], saved: list[list[list[str]]]) -> None:
    """Raise if the parameters of a group differ from those saved; their order does not matter."""
    added, missing = set[str](), set[str]()
    for groups, before in zip(found, saved, strict=True):
        for group, known in zip(groups, before, strict=True):
            added |= set(group) - set(known)
            missing |= set(known) - set(group)
    if added or missing:
        raise RunMismatchError(
            "the optimizer, or one of its groups, has different parameters than when the run was started",
            added=sorted(added)[:MAX_NAMES],
            missing=sorted(missing)[:MAX_NAMES],
            hint="give the optimizer the parameters that the run was started with, or choose another folder",
        )


def lay_out_optimizer(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str], stored: Mapping[str, Any]
) -> Tensors:
    """Return empty tensors for the state that a checkpoint holds for these optimizers.

    Args:
        optimizers: the optimizers to restore.
        names: the names of their parameters.
        stored: the checkpoint's entries below ``optimizer.state.``, by ``parameter.field``.
    """
    tensors: Tensors = {}
    for name, parameter in _named(optimizers, names).items():
        for entry, about in stored.items():
            field = entry.removeprefix(f"{name}.")
            if field == entry or "." in field:
                continue
            if tuple(about.size) == tuple(parameter.shape) and parameter.dim():
                made = torch.zeros_like(parameter, dtype=about.properties.dtype, requires_grad=False)
            else:
                made = torch.zeros(about.size, dtype=about.properties.dtype, device="cpu")
            tensors.setdefault(name, {})[field] = made
    return tensors


def restore_optimizer(
    optimizers: Sequence[torch.optim.Optimizer],
    names: Mapping[int, str],
    tensors: Tensors,
    rest: Mapping[str, Any],
) -> None:
    """Put a loaded state into the optimizers, replacing all existing state."""
    for optimizer, groups in zip(optimizers, rest["groups"], strict=True):
        optimizer.state.clear()
        for group, saved in zip(optimizer.param_groups, groups, strict=True):
            group.update(saved)
    for name, parameter in _named(optimizers, names).items():
        state: dict[str, Any] = {}
        for field, value in tensors.get(name, {}).items():
            device = rest["devices"].get(name, {}).get(field)
            state[field] = value.to("cpu") if device == "cpu" else value.to(parameter.device)
        state |= rest["values"].get(name, {})
        if state:
            owner = next(o for o in optimizers if any(parameter is p for g in o.param_groups for p in g["params"]))
            owner.state[parameter] = state
