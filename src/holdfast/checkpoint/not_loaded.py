"""What a checkpoint holds but nothing requested.

DCP loads what the state dict has, and silently drops the rest. A fresh optimizer's state dict has no moments yet, so a
run that resumes into one continues without them: it looks like a resumed run and is not.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable

__all__ = ["grouped", "warn_not_loaded"]

MAX_GROUPS = 12
"""Maximum number of groups that a message names."""


def grouped(names: Iterable[str]) -> list[str]:
    """Return names as groups: those that share their first and last part become one entry, with their count."""
    groups = Counter[tuple[str, str]]()
    example: dict[tuple[str, str], str] = {}
    for name in names:
        first, _, rest = name.partition(".")
        key = (first, rest.rpartition(".")[2])
        groups[key] += 1
        example[key] = name
    return [
        example[first, last] if count == 1 else f"{first}.….{last} ({count})"
        for (first, last), count in sorted(groups.items())
    ]


def warn_not_loaded(names: tuple[str, ...]) -> None:
    """Warn that these names were not loaded."""
    groups = grouped(names)
    more = f", and {len(groups) - MAX_GROUPS} more groups" if len(groups) > MAX_GROUPS else ""
    warnings.warn(
        f"the checkpoint holds {len(names)} tensors or objects that are not in the state dict, so they were not "
        f"loaded: {', '.join(groups[:MAX_GROUPS])}{more}. A fresh optimizer has no moments in its state_dict(): build "
        "the state with torch.distributed.checkpoint.state_dict.get_optimizer_state_dict, which creates them; or pass "
        "warn_not_loaded=False if you only want a part",
        UserWarning,
        stacklevel=2,
    )
