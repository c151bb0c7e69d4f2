"""The page inside a notebook: framed, so that its script and style are isolated."""

from __future__ import annotations

import html
from pathlib import Path

from holdfast.errors import RunFolderError

__all__ = ["HEIGHT", "framed", "framed_run"]

HEIGHT = 720
"""Height in pixels; the page scrolls inside."""

MAX_NOTEBOOK_BYTES = 200_000
"""Maximum size of a page's thinned data in a notebook: it is saved with every cell that shows it."""


def framed(page: str, *, height: int = HEIGHT) -> str:
    """Return HTML that shows a whole page in a frame that may only run its own script."""
    return (
        f'<iframe srcdoc="{html.escape(page, quote=True)}" sandbox="allow-scripts" title="holdfast" '
        f'style="width:100%;height:{height}px;border:1px solid #8884;border-radius:8px"></iframe>'
    )


def framed_run(folder: Path) -> str | None:
    """Return the page of a run's folder for a notebook, or None if nothing is recorded there yet."""
    from holdfast.page.from_run import page_of_run
    from holdfast.page.render import render_page

    try:
        return framed(render_page(page_of_run(folder), max_bytes=MAX_NOTEBOOK_BYTES))
    except RunFolderError:
        return None
