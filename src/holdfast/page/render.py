"""The page as one file: markup, style, script and data, with a policy that allows nothing else.

The data is in a block that browsers do not execute, with every ``<`` escaped; the script writes it into the document as
text only. The policy names the script and style by their digests and allows no other source, so hostile text in a log
can neither run nor send anything anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from holdfast.page.model import Page

__all__ = ["MAX_BYTES", "render_page", "render_pages", "render_shell"]

MAX_BYTES = 700_000
"""Maximum size of the thinned data in a page file; with the script and style it stays below a megabyte."""

SCRIPTS = ("base.js", "parts.js", "lanes.js", "charts.js", "page.js")
"""The scripts that draw the page, in this order in one scope."""
MIN_COLUMNS, MAX_COLUMNS = 300, 4000
MIN_COLUMNS_OF_MANY = 60
"""Minimum number of columns, so that a run among hundreds in one file still shows its shape."""
VERDICT_ORDER = {"unhealthy": 0, "unknown": 1, "healthy": 2}
_BYTES_PER_COLUMN = 22  # two points of 8 bytes each, in base64


def render_page(page: Page, *others: Page, max_bytes: int = MAX_BYTES) -> str:
    """Return the page as one self-contained HTML file.

    Args:
        page: the run to show.
        *others: runs to overlay for comparison.
        max_bytes: maximum size of the thinned data.
    """
    pages = (page, *others)
    columns = _columns(pages, max_bytes, MIN_COLUMNS)
    return render_shell({"pages": [each.to_json(columns=columns) for each in pages]}, title=page.title)


def render_pages(pages: Sequence[Page], *, title: str) -> str:
    """Return several runs in one file: a table of them, worst first, with links to the page of each.

    Args:
        pages: the runs; a single one is shown at once.
        title: the title of the browser tab, if there are several.
    """
    if len(pages) == 1:
        return render_page(pages[0])
    columns = _columns(pages, MAX_BYTES, MIN_COLUMNS_OF_MANY)
    ordered = sorted(pages, key=lambda page: VERDICT_ORDER.get(page.verdict, len(VERDICT_ORDER)))
    return render_shell({"choice": [each.to_json(columns=columns) for each in ordered]}, title=title)


def _columns(pages: Sequence[Page], max_bytes: int, least: int) -> int:
    """Return the number of intervals to which each line is thinned so that all of them fit."""
    lines = sum(len(chart.lines) for each in pages for chart in each.charts) or 1
    return min(MAX_COLUMNS, max(least, max_bytes // (lines * _BYTES_PER_COLUMN)))


def render_shell(data: Mapping[str, Any], *, title: str) -> str:
    """Return the page around any data: pages to draw, or where to request them.

    Args:
        data: what the script reads; NaN and infinities are not allowed in it.
        title: the title of the browser tab.
    """
    style = _static("uPlot.min.css") + _static("page.css")
    drawing = "".join(map(_static, SCRIPTS))
    script = f'{_static("uPlot.min.js")}\n"use strict";(() => {{\n{drawing}}})();'
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy, quote=True)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)} · holdfast</title><style>{style}</style></head>"
        f'<body><div id="page"></div><script type="application/json" id="data">{text}</script>'
        f"<script>{script}</script></body></html>\n"
    )


@cache
def _static(name: str) -> str:
    return files("holdfast.page").joinpath("static", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
