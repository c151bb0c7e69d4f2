"""Numbers as logs print them: ``1.5E+00``, ``12,345``, ``nan``, ``-inf``, ``[0.001]``, ``3.96GB``, ``45.2%``."""

from __future__ import annotations

import re

__all__ = ["NUMBER", "to_number"]

NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?(?:[eE][-+]?\d+)?|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|(?:[nN][aA][nN]|[iI]nf(?:inity)?|INF)\b)"
)
"""A pattern (no groups) for one number."""

_LEADING = re.compile(NUMBER)


def to_number(text: str) -> float | None:
    """The number at the start of ``text``, thousands separators removed; None where there is none."""
    match = _LEADING.match(text.strip().lstrip("[("))
    if match is None:
        return None
    try:
        return float(match.group().replace(",", ""))
    except ValueError:
        return None
