"""The report for continuous integration: JUnit XML with one suite per run and one case per failure checked."""

from __future__ import annotations

from xml.etree import ElementTree

from holdfast.debug.detectors import known_failures
from holdfast.debug.reporting.words import clean, sure, where
from holdfast.debug.types import DebugReport, Failure, Finding, RunReport, Severity, Verdict

__all__ = ["render_junit"]


def render_junit(report: DebugReport) -> str:
    """Render the report as JUnit XML. Findings of level info pass; a run without a verdict is skipped, not passed."""
    root = ElementTree.Element("testsuites", name="holdfast debug")
    suites = [_suite(run) for run in report.runs]
    for suite in suites:
        root.append(suite)
    for name in ("tests", "failures", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(run: RunReport) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=clean(run.path))
    found: dict[Failure, list[Finding]] = {}
    for finding in run.findings:
        found.setdefault(finding.detection.failure, []).append(finding)
    failures = 0
    looked_for = tuple(dict.fromkeys((*known_failures(), *found)))
    for failure in looked_for:
        case = ElementTree.SubElement(suite, "testcase", classname=clean(run.format), name=failure.name)
        bad = [item for item in found.get(failure, []) if item.detection.severity is not Severity.INFO]
        if bad:
            failures += 1
            element = ElementTree.SubElement(case, "failure", type=bad[0].detection.severity.value)
            element.set("message", f"{failure.title}, {where(bad[0].detection)}")
            element.text = "\n".join(line for item in bad for line in _lines(item))
        elif run.verdict is Verdict.UNKNOWN:
            why = run.reason.text if run.reason is not None else "no reason given"
            ElementTree.SubElement(case, "skipped", message=clean(f"cannot tell: {why}"))
    suite.set("tests", str(len(looked_for)))
    suite.set("failures", str(failures))
    suite.set("errors", "0")
    suite.set("skipped", str(len(looked_for) - failures if run.verdict is Verdict.UNKNOWN else 0))
    return suite


def _lines(finding: Finding) -> list[str]:
    lines = [f"{clean(item.signal)}: {clean(item.claim)}" for item in finding.detection.evidence]
    causes = (f"cause: {clean(c.cause)} ({sure(c.confidence)}). {clean(c.remediation)}" for c in finding.causes[:3])
    return [*lines, *causes]
