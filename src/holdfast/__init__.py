"""holdfast keeps a PyTorch training run true.

Data streams whose every batch is a pure function of its step, metrics that merge exactly over ranks and restarts,
checkpoint restore at the speed of the disk, and a debugger that reads any training log.

The names below load on first use, so that ``import holdfast`` costs milliseconds and needs neither torch nor pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast import errors as errors

# Where each public name lives. One line a name, sorted within its package.
_HOME: dict[str, str] = {}

__all__ = ["__version__", "errors", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is not None:
        value = getattr(import_module(home), name)
    elif name in _PACKAGES:
        value = import_module(f"holdfast.{name}")
    else:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    globals()[name] = value
    return value


_PACKAGES = frozenset(
    ("checkpoint", "coordinate", "debug", "errors", "metrics", "order", "run", "sources", "stream", "testing")
)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_PACKAGES})
