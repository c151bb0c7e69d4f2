"""The pytest plugin: ``assert_exact_resume`` and ``check_source`` as fixtures, with nothing to import.

pytest finds it if holdfast is installed; it imports nothing heavy until a test requests a fixture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["assert_exact_resume", "check_source"]


@pytest.fixture(scope="session")
def assert_exact_resume() -> Callable[..., None]:
    """Return the check that a pipeline, stopped and resumed, continues as if it had never stopped."""
    from holdfast.testing import assert_exact_resume

    return assert_exact_resume


@pytest.fixture(scope="session")
def check_source() -> Callable[..., Any]:
    """Return the check that a source follows the contract."""
    from holdfast.testing import check_source

    return check_source
