"""Checks for what users write themselves: run them in your own tests."""

from __future__ import annotations

from holdfast.testing.source_contract import check_source

__all__ = ["check_source"]
