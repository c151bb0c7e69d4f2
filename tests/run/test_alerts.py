"""Alerts reach a webhook, OpenTelemetry or a function, once per finding, and never harm the training."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.faults.coordinate_runs import wait_until
from tests.run.job import make_job
from tests.run.test_rollback import OPTIONS, nan_job

from holdfast.errors import ConfigError
from holdfast.run import OpenTelemetryAlert, RunLog, WebhookAlert


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", received
    server.shutdown()
    thread.join()
    server.server_close()


def train_on(folder: Path, *alerts: Any, steps: int = 45) -> None:
    job = nan_job(33)
    with job.run(folder, steps=steps, options=OPTIONS, on_finding="alert", alerts=alerts) as run:
        for batch in run:
            run.step(loss=job.step(batch))


def test_a_webhook_gets_one_message_per_finding_even_when_the_run_is_started_again(
    tmp_path: Path, hook: tuple[str, list[dict[str, Any]]]
) -> None:
    url, received = hook
    train_on(tmp_path / "run", WebhookAlert(url=url))
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        if path.name > "step-00000030":
            path.rename(tmp_path / path.name)  # the second attempt meets the same finding again
    train_on(tmp_path / "run", WebhookAlert(url=url))
    found = [message for message in received if message["failure"] == "nan"]
    assert len(found) == 1
    assert found[0]["onset"] == 33
    assert found[0]["text"].startswith(str(tmp_path / "run"))


def test_an_alert_that_fails_is_noted_and_the_training_goes_on(tmp_path: Path) -> None:
    def broken(finding: Any) -> None:
        raise ValueError("nobody home")

    train_on(tmp_path / "run", broken)
    log = RunLog(tmp_path / "run")
    assert len(log.steps()) == 45
    assert any("nobody home" in (event["error"] or "") for event in log.events("alert_sent"))


def test_opentelemetry_gets_a_span_with_the_finding() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    OpenTelemetryAlert(provider=provider)({"failure": "nan", "onset": 33, "evidence": ["loss is NaN"]})
    (span,) = exporter.get_finished_spans()
    assert dict(span.attributes or {}) == {"holdfast.failure": "nan", "holdfast.onset": 33}


def test_a_paused_run_waits_until_the_file_is_deleted(tmp_path: Path) -> None:
    paused = tmp_path / "run" / "PAUSED"
    seen: list[str] = []

    def person() -> None:
        wait_until(paused.exists, "the run pauses")
        seen.append(json.loads(paused.read_text() or "{}").get("failure", ""))
        paused.unlink()

    thread = threading.Thread(target=person)
    thread.start()
    job = nan_job(33)
    with job.run(tmp_path / "run", steps=36, options=OPTIONS, on_finding={"nan": "pause"}) as run:
        for batch in run:
            run.step(loss=job.step(batch))
    thread.join()
    log = RunLog(tmp_path / "run")
    assert [event["step"] for event in log.events("paused")] == [34]
    assert log.goodput().seconds["paused"] > 0
    assert len(seen) == 1


def test_what_is_no_alert_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="http"):
        WebhookAlert(url="ftp://example.org")
    job = make_job()
    with pytest.raises(ConfigError, match="must be callable"):
        job.run(tmp_path / "run", alerts=["mail"]).resume()
