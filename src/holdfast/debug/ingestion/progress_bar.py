"""A progress bar as tqdm draws it: the text before it, its position, and the values shown.

``Epoch 3:  38%|###   | 65/170 [00:21<00:34, 3.05it/s, loss=0.52]``. A bar is drawn many times per second, so a text of
bars is long and must be read fast.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Bar", "find_bar"]

_SHARE = "%|"
_REST = re.compile(
    r"[^|]{0,400}\|\s{0,20}(\d{1,12})/(\d{1,12})\s?\[[^\[\],]{0,40}(?:,[^\[\],=]{1,40})?(?:,\s?([^\[\]]{1,2000}))?\]\s*$"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One drawing of a bar.

    Args:
        before: the text before the percentage.
        done: its position.
        total: its total.
        after: what follows its rate: ``loss=0.52, acc=0.9``.
    """

    before: str
    done: float
    total: float
    after: str

    @property
    def is_bare(self) -> bool:
        """Whether it shows nothing but its position."""
        return not self.after and not self.before

    def numbers(self) -> dict[str, float] | None:
        """Return the values by name, or None if it shows anything but named numbers."""
        fields: dict[str, float] = {}
        for pair in self.after.split(", "):
            name, sign, value = pair.partition("=")
            try:
                fields[name] = float(value)
            except ValueError:
                return None
            if not sign or not name:
                return None
        return fields


def find_bar(line: str) -> Bar | None:
    """Return the bar on a line, or None.

    >>> find_bar("Epoch 3:  38%|###   | 65/170 [00:21<00:34, 3.05it/s, loss=0.52]")
    Bar(before='Epoch 3:', done=65.0, total=170.0, after='loss=0.52')
    """
    at = line.find(_SHARE)
    if at < 0:
        return None
    rest = _REST.match(line, at + len(_SHARE))
    if rest is None:
        return None
    before = line[:at].rstrip("0123456789").strip()
    return Bar(before, float(rest[1]), float(rest[2]), rest[3] or "")
