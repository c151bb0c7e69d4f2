"""``Reporter``: renders a report in any of its formats."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from holdfast.debug.reporting.json_report import render_json
from holdfast.debug.reporting.junit import render_junit
from holdfast.debug.reporting.markdown import render_markdown
from holdfast.debug.reporting.text import render_text
from holdfast.debug.types import DebugReport
from holdfast.errors import ConfigError

__all__ = ["ReportFormat", "Reporter"]


def render_html(report: DebugReport) -> str:
    """Return the report as a self-contained HTML page without external requests."""
    from holdfast.page.from_report import render_report

    return render_report(report)


class ReportFormat(str, Enum):
    """The format of a report."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"
    JUNIT = "junit"


_RENDERERS = {
    ReportFormat.TEXT: render_text,
    ReportFormat.JSON: render_json,
    ReportFormat.MARKDOWN: render_markdown,
    ReportFormat.HTML: render_html,
    ReportFormat.JUNIT: render_junit,
}


class Reporter:
    """Writes reports."""

    def __repr__(self) -> str:
        return "holdfast.Reporter()"

    def render(self, report: DebugReport, format: ReportFormat | str = ReportFormat.TEXT) -> str:  # noqa: A002 - the design's name
        """Return the report as text in the given format.

        Raises:
            ConfigError: unknown report format.
        """
        try:
            chosen = ReportFormat(format)
        except ValueError as error:
            raise ConfigError(
                "unknown report format",
                hint=f"one of {', '.join(item.value for item in ReportFormat)}",
                format=str(format),
            ) from error
        return _RENDERERS[chosen](report)

    def write(self, report: DebugReport, path: Path | str, format: ReportFormat | str = ReportFormat.HTML) -> Path:  # noqa: A002
        """Write the report to a file and return its path."""
        target = Path(path)
        target.write_text(self.render(report, format), encoding="utf-8")
        return target
