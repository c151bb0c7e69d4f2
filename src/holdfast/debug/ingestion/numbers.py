"""Numbers as logs print them: ``1.5E+00``, ``12,345``, ``3,1416``, ``nan``, ``-inf``, ``[0.001]``, ``109K``, ``5%``."""

from __future__ import annotations

import re

__all__ = ["NUMBER", "SUFFIX", "to_number", "to_scaled"]

# Repetitions are bounded and no two of them meet: a hostile line must not have this backtrack.
_EXPONENT = r"(?:[eE][-+]?\d{1,5})?"
NUMBER = (
    rf"[-+]?(?:(?:0,\d{{1,64}}|\d{{1,64}},(?:\d{{1,2}}|\d{{4,64}}))(?![\d,]){_EXPONENT}"
    rf"|\d{{1,3}}(?:,\d{{3}}){{1,20}}(?:\.\d{{1,64}})?{_EXPONENT}"
    rf"|\d{{1,64}}(?:\.\d{{0,64}})?(?!\d){_EXPONENT}|\.\d{{1,64}}(?!\d){_EXPONENT}"
    r"|(?:[nN][aA][nN]|[iI]nf(?:inity)?|INF)\b)"
)
"""A pattern (no groups) for one number."""

SUFFIX = r"(?:[kKMGT](?![A-Za-z0-9]))?"
"""A pattern for the factor behind a number."""

_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_LEADING = re.compile(NUMBER)
# Half of the world writes 3,1416. Three digits after a comma are thousands, unless a zero stands before it.
_DECIMAL_COMMA = re.compile(r"[-+]?(?:0,\d+|\d+,(?:\d{1,2}|\d{4,}))(?:[eE][-+]?\d+)?$")


def to_number(text: str) -> float | None:
    """The number at the start of ``text``, thousands separators removed; None where there is none."""
    match = _LEADING.match(text.strip().lstrip("[("))
    if match is None:
        return None
    text = match.group()
    try:
        return float(text.replace(",", "." if _DECIMAL_COMMA.match(text) else ""))
    except ValueError:
        return None


def to_scaled(text: str) -> float | None:
    """The number at the start of ``text``, times the factor at its end: ``1.2k`` is 1200."""
    number = to_number(text)
    return None if number is None else number * _FACTORS.get(text[-1:], 1.0)
