"""From raw logs and metrics to signals: detects formats, unifies names and distinguishes kinds of gaps."""

from __future__ import annotations

from holdfast.debug.ingestion.detection import default_formats, rank_formats, read_file
from holdfast.debug.ingestion.folder import read_path
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.log_ingestor import LogIngestor
from holdfast.debug.ingestion.metric_ingestor import MetricIngestor
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.ingestion.schema import SchemaProblem, SchemaValidator

__all__ = [
    "Limits",
    "LogIngestor",
    "MetricIngestor",
    "RunLog",
    "SchemaProblem",
    "SchemaValidator",
    "default_formats",
    "rank_formats",
    "read_file",
    "read_path",
]
