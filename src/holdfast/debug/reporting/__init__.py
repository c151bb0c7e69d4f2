"""Reports for people and machines."""

from __future__ import annotations

from holdfast.debug.reporting.reporter import Reporter, ReportFormat

__all__ = ["ReportFormat", "Reporter"]
