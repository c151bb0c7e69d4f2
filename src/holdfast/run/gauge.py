"""The numbers of a training step, measured by hooks and read one step later.

Nothing here waits for the device: norms are computed by fused kernels on the gradients' device, copied to the host in
the background, and read when the next step has begun.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

import torch
from torch import nn

from holdfast.run.parameters import is_sharded, local_tensor

__all__ = ["NOTHING", "Deferred", "Gauge", "Measured", "Norms", "by_layer", "on_host", "total_norm"]


class Deferred:
    """A tensor of numbers that is on its way to the host."""

    __slots__ = ("_event", "_value")

    def __init__(self, value: torch.Tensor) -> None:
        value = local_tensor(value)
        self._event: Any = None
        if value.is_cuda:
            host = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=True)
            host.copy_(value, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
            value = host
        elif value.device.type == "cpu":
            value = value.clone()  # a program may reuse the memory of its loss
        self._value = value

    @property
    def is_ready(self) -> bool:
        """Whether it can be read without waiting."""
        return self._event is None or bool(self._event.query())

    def numbers(self) -> list[float]:
        """Return the numbers; wait for the device if they have not arrived."""
        if self._event is not None:
            self._event.synchronize()
        flat: list[float] = self._value.double().reshape(-1).tolist()
        return flat


Norms = Deferred | list[float]
"""Numbers on their way to the host, or already there."""


def on_host(norms: Norms) -> list[float]:
    """Return the numbers; wait for the device if they have not arrived."""
    return norms if isinstance(norms, list) else norms.numbers()


class Measured(NamedTuple):
    """The measurements of the hooks during a step.

    Attributes:
        norms: the norm of every parameter's gradient, over all ranks if it is sharded.
        weights: the norm of every parameter; only if layers were requested.
        layers: the layer of each parameter; only if layers were requested.
        rate: the learning rate.
        unclipped: the norm of the whole gradient before clipping, if the code that clipped it reported it.
    """

    norms: Norms | None = None
    weights: Norms | None = None
    layers: tuple[str, ...] = ()
    rate: float | None = None
    unclipped: Norms | None = None


_PLAIN = {torch.Tensor}
_ON_HOST = {float}
# Code that every step runs avoids functions of our own, list comprehensions included: with cold caches, each call
# costs more than its own time (``bench/run.py``).
_grad_of, _is_on_cpu, _item_of = attrgetter("grad"), attrgetter("is_cpu"), methodcaller("item")

NOTHING = Measured()
"""The measurements of a step in which no optimizer stepped."""


_Taken = tuple[list[Any], list[str], list[Any]]
"""The measurements of one optimizer's step: norms (tensors, or floats if they were on the host), layers, weights."""


class Gauge:
    """Hooks on the model and its optimizers.

    Args:
        model: the model whose forward pass is timed, or several models by name, which are timed separately.
        optimizers: the optimizers whose gradients are measured, just before they are used.
        grad_norm: measure the norm of the whole gradient at every step.
        stats_every: measure every layer's gradient and weights at every n-th step; never if None.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        grad_norm: bool,
        stats_every: int | None,
    ) -> None:
        self._optimizers = list(optimizers)
        self._grad_norm = grad_norm
        self._stats_every = stats_every
        self._names = _names_of(model)
        self._handles: list[Any] = []
        self._taken: dict[int, _Taken] = {}  # by optimizer: the measurements of its last step
        self._stepped = False
        self._are_sparse = False  # whether some gradients are sparse
        self._idle = False  # no optimizer stepped between the last two calls of ``take``
        self._rate: float | None = None
        self._unclipped: Norms | None = None
        self._ahead: set[int] = set()  # optimizers whose gradients were measured before they were clipped
        self.forward_ended = 0.0
        self._is_told = False
        # Norms of shards are added up over all ranks, so no rank may skip them on its own.
        self._is_sharded = any(map(is_sharded, model.parameters()))
        self.wants_layers: Callable[[], bool] = lambda: False
        self._handles += [each.register_step_pre_hook(self._before_step) for each in self._optimizers]
        # Models that are trained together do not share a forward pass.
        models = model.values() if isinstance(model, nn.ModuleDict) else [model]
        self._handles += [each.register_forward_hook(self._after_forward) for each in models]
        self._compiled = [(each, compiled) for each in models if (compiled := each._compiled_call_impl) is not None]
        for each, compiled in self._compiled:
            each._compiled_call_impl = self._timing(compiled)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for model, compiled in self._compiled:
            model._compiled_call_impl = compiled
        self._compiled.clear()

    def is_due(self, step: int) -> bool:
        """Return whether layers are measured at this step."""
        return self._stats_every is not None and step % self._stats_every == 0

    @property
    def stepped(self) -> bool:
        """Whether an optimizer has stepped since the last ``take``."""
        return self._stepped

    def holds_gradients(self) -> bool:
        """Return whether gradients are pending, though no optimizer stepped in what ``take`` last returned."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        gradients = (parameter.grad for group in groups for parameter in group["params"])
        dense = (local_tensor(gradient) for gradient in gradients if gradient is not None and not gradient.is_sparse)
        return self._idle and any(bool(gradient.any()) for gradient in dense)

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():  # compiled code cannot read the clock: see ``_timing``
            self.forward_ended = time.monotonic()

    def _timing(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return a compiled forward pass that is timed from outside: a hook would be compiled too."""

        def call(*arguments: Any, **options: Any) -> Any:
            output = compiled(*arguments, **options)
            self.forward_ended = time.monotonic()
            return output

        return call

    def _before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
        self._stepped = True
        if self._ahead and id(optimizer) in self._ahead:
            self._ahead.discard(id(optimizer))
        # Torch's own profiling wrapper passes the optimizer itself as the first argument.
        elif options.get("closure") is None and not (arguments and callable(arguments[-1])):
            self._measure(optimizer)
        else:  # the closure computes the gradients inside the step
            handle = optimizer.register_step_post_hook(lambda *_: self._after_closure(optimizer, handle))

    def _after_closure(self, optimizer: torch.optim.Optimizer, handle: Any) -> None:
        handle.remove()
        if id(optimizer) in self._ahead:  # measured inside the closure, before clipping
            self._ahead.discard(id(optimizer))
        else:
            self._measure(optimizer)

    def measure_unclipped(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure an optimizer's gradients now, before they are clipped, instead of when it steps."""
        if any(each is optimizer for each in self._optimizers):
            self._ahead.add(id(optimizer))
            self._measure(optimizer)

    def be_told(self, is_told: bool) -> None:
        """Set whether the program itself passes the norm of its gradient: then only layers are measured.

        If the program stops passing it, the step that was not measured is measured now, from its remaining gradients.
        """
        was_told, self._is_told = self._is_told, is_told and not self._is_sharded
        if was_told and not is_told and self._stepped:
            for optimizer in self._optimizers:
                self._measure(optimizer)

    def note_unclipped(self, norm: Any) -> None:
        """Store the norm that a gradient had before clipping."""
        if isinstance(norm, torch.Tensor) and not norm.is_cpu:
            self._unclipped = Deferred(norm.detach())
        else:
            self._unclipped = [float(norm)]

    def _measure(self, optimizer: torch.optim.Optimizer) -> None:
        groups = optimizer.param_groups
        if self._rate is None and groups:
            rate = groups[0].get("lr")
            self._rate = float(rate) if rate is not None else None
        layers = self.wants_layers()
        if not layers and (self._is_told or not self._grad_norm):
            return
        owners: list[Any] = []
        for group in groups:
            owners += group["params"]
        norms = self._norms_of_all([*map(_grad_of, owners)])
        if norms is None:
            owners = [owner for owner in owners if owner.grad is not None and not owner.grad.is_sparse]
            norms = _norms([owner.grad for owner in owners])
        if norms and layers:
            names = [self._names.get(id(parameter), "?") for parameter in owners]
            self._taken[id(optimizer)] = (norms, names, _norms(owners))
        elif norms:
            self._taken[id(optimizer)] = (norms, [], [])

    def _norms_of_all(self, grads: list[Any]) -> list[Any] | None:
        """Return the norms of ordinary gradients, with as few checks per step as possible; None for unusual ones."""
        if self._are_sparse or {*map(type, grads)} != _PLAIN:
            return None
        try:
            norms = torch._foreach_norm(grads)
        except NotImplementedError:
            self._are_sparse = True
            return None
        # Read while they are in the processor's cache: a step later each read would be a cache miss.
        return [*map(_item_of, norms)] if all(map(_is_on_cpu, norms)) else list(norms)

    def take(self) -> Measured:
        """Return what was measured since the last call."""
        self._idle = not self._stepped
        if self._idle:
            return NOTHING
        self._stepped = False
        rate, self._rate = self._rate, None
        unclipped, self._unclipped = self._unclipped, None
        if not self._taken:
            return Measured(rate=rate, unclipped=unclipped)
        (norms, layers, weights), *others = self._taken.values()
        for more_norms, more_layers, more_weights in others:
            norms, layers, weights = norms + more_norms, layers + more_layers, weights + more_weights
        self._taken = {}
        return Measured(_together(norms), _together(weights) if weights else None, tuple(layers), rate, unclipped)


def _norms(tensors: list[torch.Tensor]) -> list[Any]:
    """Return the norm of every tensor, over all ranks if it is sharded; as floats if on the host.

    All ranks measure at the same point of the same step, so the norms of shards are added up by one small all-reduce
    per mesh, queued after the backward pass like its own collectives.
    """
    if not tensors:
        return []
    if {*map(type, tensors)} == _PLAIN:
        return _read(torch._foreach_norm(tensors))
    norms: list[Any] = list(torch._foreach_norm([local_tensor(tensor) for tensor in tensors]))
    together: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if is_sharded(tensor):
            placed: Any = tensor
            together.setdefault((placed.device_mesh, placed.placements), []).append(place)
    for (mesh, placements), places in together.items():
        from torch.distributed.tensor import DTensor, Partial, Replicate

        squares = torch.stack([norms[place].double() for place in places]).square()
        adding = [Replicate() if placement.is_replicate() else Partial() for placement in placements]
        whole = DTensor.from_local(squares, mesh, adding, run_check=False).full_tensor().sqrt()
        for place, norm in zip(places, whole.unbind(), strict=True):
            norms[place] = norm
    return _read(norms)


def _read(norms: Sequence[torch.Tensor]) -> list[Any]:
    """Return norms as floats, if they are on the host.

    They are read while they are in the processor's cache: a step later each read would be a cache miss.
    """
    for norm in norms:
        if not norm.is_cpu:
            return list(norms)
    return [norm.item() for norm in norms]


def _together(norms: list[Any]) -> Norms | None:
    if not norms:
        return None
    if {*map(type, norms)} == _ON_HOST:
        return norms
    tensors = [norm if isinstance(norm, torch.Tensor) else torch.tensor(norm, device="cpu") for norm in norms]
    device = next(norm.device for norm in tensors if not norm.is_cpu)
    wide = [norm.to(torch.float32) if norm.dtype.itemsize < 4 else norm for norm in tensors]
    return Deferred(torch.stack([norm.to(device, non_blocking=True) for norm in wide]))


def total_norm(norms: Sequence[float]) -> float:
    """Return the norm of the whole from the norms of its parts; NaN and infinity are preserved."""
    total = math.hypot(*norms)
    # An infinity would hide a NaN.
    return math.nan if math.isinf(total) and any(map(math.isnan, norms)) else total


def by_layer(layers: Sequence[str], norms: Sequence[float]) -> dict[str, float]:
    """Return layer → norm, over all tensors of the layer."""
    parts: dict[str, list[float]] = {}
    for layer, norm in zip(layers, norms, strict=False):
        parts.setdefault(layer, []).append(norm)
    return {layer: total_norm(own) for layer, own in parts.items()}


def _names_of(model: nn.Module) -> dict[int, str]:
    """Return the layer of every parameter: its name without the last part and without a wrapper's prefix."""
    found = {}
    for name, parameter in model.named_parameters():
        plain = name.removeprefix("module.").replace("_orig_mod.", "")
        found[id(parameter)] = plain.rpartition(".")[0] or plain
    return found
