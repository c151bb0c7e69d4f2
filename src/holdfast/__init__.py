"""holdfast keeps PyTorch training runs honest.

Data streams whose every batch is a pure function of its step, metrics that merge exactly over ranks and restarts,
checkpoints saved and restored at the speed of the disk and verified, runs that continue by themselves, and a debugger
that reads any training log.

The names load on first use, so that ``import holdfast`` costs milliseconds and needs neither torch nor pyarrow. They
are listed only in ``__init__.pyi``, which type checkers read too; import everything else from its package.
"""

from __future__ import annotations

from holdfast.lazy_names import stub_names as _stub_names

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = _stub_names(__name__, __file__)
__all__ = sorted([*__all__, "__version__", "errors"])
