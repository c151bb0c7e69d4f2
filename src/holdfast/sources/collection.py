"""Rest for the garbage collector while thousands of objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keep Python from looking for cyclic garbage: a third of opening 20,000 files (bench/many_files.py).

    Only for stretches that are short and make no such garbage: other threads are not collected for meanwhile either.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
