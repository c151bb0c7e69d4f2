from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.debug.detectors.series import falling_loss, signal

from holdfast.debug import MLSystemsDebugger
from holdfast.debug.detectors import known_failures
from holdfast.debug.reporting import Reporter, ReportFormat
from holdfast.debug.reporting.terminal import print_report
from holdfast.debug.reporting.words import next_command
from holdfast.debug.types import (
    RUN_FOLDER,
    AttributionHypothesis,
    DebugReport,
    Detection,
    Evidence,
    Failure,
    Finding,
    Reason,
    ReasonCode,
    RunReport,
    Severity,
    Signal,
    Verdict,
)
from holdfast.errors import ConfigError

BROKEN = falling_loss(2000) + 3 * np.clip((np.arange(2000) - 1400) / 400, 0, 1)
HOSTILE = "<script>alert(1)</script>\"'&|`\x1b[31m*_[x](javascript:y)"


def report(name: str = "train/loss", *, values: np.ndarray | None = None) -> DebugReport:
    steps = np.arange(300.0)
    numbers = np.where(steps < 200, 3 - steps / 100, np.nan) if values is None else values
    signal = Signal(name, steps[: len(numbers)], numbers, metadata={"kind": "loss"})
    detection = Detection(
        Failure.NAN, Severity.CRITICAL, 0.97, 200.0, 299.0,
        (Evidence(name, f"is NaN from step 200 on {name}", {"count": 100.0, "worst": float("inf")}),), signal=name,
    )  # fmt: skip
    cause = AttributionHypothesis("learning_rate_too_high", 0.8, (f"for {name}",), ("against",), f"Lower it. {name}")
    related = Detection(Failure.EXPLOSION, Severity.WARNING, 0.5, 190.0, 200.0, (), layer=name, replica=3)
    run = RunReport(
        name, "csv", Verdict.UNHEALTHY, (Finding(detection, (cause,), (related,)),), (signal,), (f"note {name}",)
    )
    fine = RunReport("fine", "csv", Verdict.HEALTHY, (), (signal,))
    unknown = RunReport("unknown", "csv", Verdict.UNKNOWN, reason=Reason(ReasonCode.NO_LOSS, "no loss found"))
    return DebugReport((run, fine, unknown))


def test_json_has_exactly_the_published_fields() -> None:
    data = json.loads(Reporter().render(report(), ReportFormat.JSON))
    assert data["schema"] == 1
    (finding,) = data["runs"][0]["findings"]
    assert {"path", "format", "verdict", "findings"} <= set(data["runs"][0])
    assert {
        "failure", "severity", "confidence", "first_step", "last_step", "layer", "replica", "evidence", "causes",
    } <= set(finding)  # fmt: skip
    assert {"cause", "confidence", "remediation"} <= set(finding["causes"][0])
    assert (finding["failure"], finding["severity"], finding["first_step"]) == ("nan", "critical", 200)


def test_json_is_strict_even_where_numbers_are_not_finite() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads(Reporter().render(report(), "json"), parse_constant=refuse)


def test_text_and_markdown_say_what_where_why_how_sure_and_what_to_do() -> None:
    for form in (ReportFormat.TEXT, ReportFormat.MARKDOWN):
        text = Reporter().render(report(), form)
        for word in (
            "Not a number",
            "steps 200 – 299",
            "97%",
            "is NaN from step 200",
            "learning rate too high",
            "Lower it",
            "80%",
        ):
            assert word in text, word


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def test_the_page_is_self_contained() -> None:
    text = Reporter().render(report(), ReportFormat.HTML)
    page = Page()
    page.feed(text)
    assert not {"link", "img", "iframe"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "href")]
    assert "default-src &#x27;none&#x27;" in text


@pytest.mark.parametrize("form", list(ReportFormat))
def test_nothing_from_a_log_is_markup_in_any_format(form: ReportFormat) -> None:
    text = Reporter().render(report(HOSTILE), form)
    if form is not ReportFormat.JSON:
        assert "\x1b" not in text
    if form in (ReportFormat.MARKDOWN, ReportFormat.JUNIT):
        assert "<script" not in text
    if form is ReportFormat.HTML:
        assert text.count("<script") == 2, "the page's data and its own script"
    if form is ReportFormat.MARKDOWN:
        assert "[x](javascript" not in text


@given(st.text(max_size=40))
def test_any_name_gives_well_formed_html_and_xml(name: str) -> None:
    page = Page()
    page.feed(Reporter().render(report(name), "html"))
    assert page.tags.count("script") == 2
    ElementTree.fromstring(Reporter().render(report(name), "junit"))


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=60))
def test_any_series_can_be_drawn(values: list[float]) -> None:
    text = Reporter().render(report(values=np.array(values)), "html")
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    json.loads(block, parse_constant=refuse)


def test_a_million_points_make_a_small_page() -> None:
    values = np.random.default_rng(0).normal(size=300).repeat(1)
    big = Signal("loss", np.arange(1e6), np.resize(values, 1_000_000), metadata={"kind": "loss"})
    run = RunReport("big", "csv", Verdict.HEALTHY, (), (big,))
    assert len(Reporter().render(DebugReport((run,)), "html")) < 300_000


def test_a_report_shows_its_page_in_a_notebook_and_keeps_it_in_a_frame() -> None:
    markup = report(HOSTILE)._repr_html_()
    assert markup.startswith("<iframe srcdoc=")
    assert markup.count("<") == 2, "the frame's own tags"
    assert 'sandbox="allow-scripts"' in markup


def test_junit_fails_bad_runs_and_skips_those_nothing_is_known_of() -> None:
    root = ElementTree.fromstring(Reporter().render(report(), ReportFormat.JUNIT))
    suites = root.findall("testsuite")
    assert [suite.get("failures") for suite in suites] == ["1", "0", "0"]
    assert [suite.get("skipped") for suite in suites] == ["0", "0", str(len(known_failures()))]
    (failure,) = root.iter("failure")
    assert "steps 200" in (failure.get("message") or "")


def test_an_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="unknown report format"):
        Reporter().render(report(), "pdf")


def test_a_report_is_written_to_a_file(tmp_path: Path) -> None:
    assert Reporter().write(report(), tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")


def test_the_terminal_shows_names_from_logs_as_they_are_and_not_as_markup() -> None:
    console = Console(record=True, width=100, file=open("/dev/null", "w"))  # noqa: SIM115 - closed with the console
    print_report(report("[bold]loss[/bold]"), console)
    text = console.export_text()
    assert "[bold]loss[/bold]" in text
    assert "Not a number" in text
    console.file.close()


def test_findings_reach_opentelemetry_as_events_and_gauges() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from holdfast.debug.reporting.otel import export_events, export_metrics

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    assert export_events(report(), provider) == 1
    (event,) = [event for span in exporter.get_finished_spans() for event in span.events]
    assert event.name == "holdfast.finding.nan"
    assert dict(event.attributes or {})["cause"] == "learning_rate_too_high"
    reader = InMemoryMetricReader()
    export_metrics(report(), MeterProvider(metric_readers=[reader]))
    assert "holdfast.run.health" in str(reader.get_metrics_data())


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_a_report_with_findings_ends_with_the_next_command_to_copy(form: str) -> None:
    text = Reporter().render(MLSystemsDebugger(plugins=False).debug([signal("loss", BROKEN)]), form)
    assert "holdfast debug memory --" in text


@pytest.mark.parametrize(("form", "cause", "command"), [
    (RUN_FOLDER, "bad_data_window", "holdfast blame runs/night --step 3 --program FILE.py:FUNCTION"),
    (RUN_FOLDER, "learning_rate_too_high", "holdfast debug runs/night --format html --output report.html"),
    ("csv", "bad_data_window", "holdfast debug runs/night --format html --output report.html"),
])  # fmt: skip
def test_samples_are_asked_for_next_where_they_are_suspect_and_on_record(form: str, cause: str, command: str) -> None:
    seen = Detection(Failure.SPIKE, Severity.WARNING, 0.9, 3.0, 3.0, ())
    finding = Finding(seen, causes=(AttributionHypothesis(cause, 0.8),))
    assert next_command(RunReport("runs/night", form, Verdict.UNHEALTHY, (finding,))) == command


def test_a_report_tells_the_onset_and_when_it_was_certain() -> None:
    text = Reporter().render(MLSystemsDebugger(plugins=False).debug([signal("loss", BROKEN)]), "text")
    assert "certain from step" in text


def test_a_finding_is_marked_on_every_plot_of_the_page() -> None:
    others = [signal("grad_norm", np.ones(2000)), signal("eval_loss", BROKEN[::100], steps=np.arange(0, 2000, 100))]
    text = Reporter().render(MLSystemsDebugger(plugins=False).debug([signal("loss", BROKEN), *others]), "html")
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    (page,) = json.loads(block)["pages"]
    assert len(page["charts"]) == 3
    assert page["flags"], "they are drawn on every chart: tests/page/test_browser.py"
    assert all(flag["onset"] is not None for flag in page["flags"])


@pytest.mark.parametrize("form", [ReportFormat.TEXT, ReportFormat.MARKDOWN])
def test_a_claim_about_no_series_stands_alone(tmp_path: Path, form: ReportFormat) -> None:
    log = tmp_path / "train.log"
    lines = [f"step {step} loss {3 / (step + 1):.4f}" for step in range(40)]
    log.write_text("\n".join([*lines, "Traceback (most recent call last):", "ValueError: shapes differ"]) + "\n")
    text = Reporter().render(MLSystemsDebugger().debug(log), form)
    assert "ValueError: shapes differ" in text
    assert not re.search(r"- (:|\*\*\*\*)", text)
