"""The report to show around: one self-contained page, plots and all. No script; everything from a log is escaped."""

from __future__ import annotations

import html

from holdfast.debug.reporting.plot import draw
from holdfast.debug.reporting.style import STYLE
from holdfast.debug.reporting.words import VERDICTS, clean, next_command, number, remarks, sure, where
from holdfast.debug.types import DebugReport, Detection, Finding, RunReport, Signal, Verdict

__all__ = ["render_html"]

_MOST_PLOTS = 6
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LEADS = {
    Verdict.HEALTHY: "Nothing in this log points to a failure.",
    Verdict.UNHEALTHY: "The log shows a failure. The worst finding comes first.",
    Verdict.UNKNOWN: "There is too little in this log to tell.",
}
_ORDER = (
    "loss",
    "eval_loss",
    "grad_norm",
    "perplexity",
    "metric",
    "reward",
    "loss_scale",
    "lr",
    "step_time",
    "throughput",
)


def _safe(text: object) -> str:
    return html.escape(clean(text), quote=True)


def render_html(report: DebugReport) -> str:
    """The whole page."""
    title = f"holdfast: {VERDICTS[report.verdict]}"
    body = "".join(_run(run, number_of_run) for number_of_run, run in enumerate(report.runs))
    overview = _overview(report) if len(report.runs) > 1 else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_safe(title)}</title><style>{STYLE}</style></head><body><main>"
        f'<header class="top"><span class="brand">holdfast</span><span>training run diagnosis</span></header>'
        f"{overview}{body}</main></body></html>\n"
    )


def _overview(report: DebugReport) -> str:
    rows = "".join(
        f'<tr><td><a href="#run-{place}">{_safe(run.path)}</a></td><td>{_safe(run.format)}</td>'
        f"<td>{_pill(run.verdict.value, VERDICTS[run.verdict])}</td>"
        f"<td>{_safe(', '.join(f.detection.failure.name for f in run.findings) or '–')}</td></tr>"
        for place, run in enumerate(report.runs)
    )
    heads = "".join(f"<th>{head}</th>" for head in ("run", "format", "verdict", "findings"))
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _run(run: RunReport, place: int) -> str:
    points = sum(len(signal.values) for signal in run.signals)
    last = max((float(signal.steps[-1]) for signal in run.signals if len(signal.steps)), default=None)
    facts = [f"{_safe(run.format)} format", f"{len(run.signals)} series", f"{points:,} points"]
    if last is not None:
        facts.append(f"up to step {number(last)}")
    head = (
        f'<section class="run" id="run-{place}"><div class="verdict {run.verdict.value}">'
        f'<div class="word">{VERDICTS[run.verdict]}</div><div><h1>{_safe(run.path)}</h1>'
        f'<p>{_LEADS[run.verdict]}</p><p class="facts">{" · ".join(facts)}</p></div></div>'
    )
    findings = "".join(_finding(finding, count, run) for count, finding in enumerate(run.findings, 1))
    notes = "".join(f"<li>{_safe(note)}</li>" for note in remarks(run))
    notes = f'<h2>How this was read</h2><ul class="notes">{notes}</ul>' if notes else ""
    command = next_command(run, plots_shown=True)
    then = f"<h2>Next</h2><pre><code>{_safe(command)}</code></pre>" if run.findings else ""
    return f"{head}{findings}{_others(run)}{then}{notes}</section>"


def _finding(finding: Finding, count: int, run: RunReport) -> str:
    detection, level = finding.detection, finding.detection.severity.value
    evidence = "".join(
        f"<li><code>{_safe(item.signal)}</code> {_safe(item.claim)}{_numbers(item.numbers)}</li>"
        for item in detection.evidence
    )
    related = "".join(
        f"<li>{_pill(other.severity.value, other.failure.title)} {_safe(where(other))}</li>"
        for other in finding.related
    )
    related = f'<h4>Part of the same story</h4><ul class="related">{related}</ul>' if related else ""
    plots = "".join(
        f"<figure>{picture}<figcaption><code>{_safe(signal.name)}</code>{_of(signal)}; "
        "the shaded stretch is the failure</figcaption></figure>"
        for signal in _concerned(detection, run)
        if (picture := draw(signal, _stretches(detection, signal)))
    )
    return (
        f'<article class="finding {level}"><h2><span class="count">{count}</span>'
        f"{_safe(detection.failure.title)} {_pill(level, level)}"
        f'</h2><p class="where">{_safe(where(detection))}<span class="sure">{_gauge(detection.confidence)}'
        f"{sure(detection.confidence)} sure</span></p>{plots}"
        f'<h4>Evidence</h4><ul class="evidence">{evidence}</ul>{related}{_causes(finding)}</article>'
    )


def _pill(tone: str, text: str) -> str:
    return f'<span class="pill {tone}">{_safe(text)}</span>'


def _causes(finding: Finding) -> str:
    if not finding.causes:
        return ""
    rows = "".join(
        f'<li class="cause"><div class="head"><b>{_safe(cause.cause.replace("_", " "))}</b>{_gauge(cause.confidence)}'
        f"<span>{sure(cause.confidence)}</span></div><p>{_safe(cause.remediation)}</p>"
        + (f'<p class="for">for: {_safe("; ".join(cause.evidence_for))}</p>' if cause.evidence_for else "")
        + (
            f'<p class="against">against: {_safe("; ".join(cause.evidence_against))}</p>'
            if cause.evidence_against
            else ""
        )
        + "</li>"
        for cause in finding.causes[:3]
    )
    return f'<h4>Likely causes, and what to do</h4><ol class="causes">{rows}</ol>'


def _gauge(share: float) -> str:
    width = 100 * min(max(share, 0.0), 1.0)
    return f'<span class="gauge"><span style="width:{width:.0f}%"></span></span>'


def _numbers(numbers: object) -> str:
    if not isinstance(numbers, dict) or not numbers:
        return ""
    items = ", ".join(
        f"{_safe(name.replace('_', ' '))} {number(float(value))}" for name, value in list(numbers.items())[:6]
    )
    return f' <span class="numbers">({items})</span>'


def _of(signal: Signal) -> str:
    parts = [f"layer {signal.layer}"] if signal.layer is not None else []
    parts += [f"rank {signal.replica}"] if signal.replica is not None else []
    return f" ({_safe(', '.join(parts))})" if parts else ""


def _concerned(detection: Detection, run: RunReport) -> list[Signal]:
    """The series the evidence speaks of; hashes and states of collectives make no picture."""
    names = [detection.signal, *(item.signal for item in detection.evidence)]
    found: list[Signal] = []
    for name in dict.fromkeys(name for name in names if name):
        for signal in run.signals:
            same = signal.name == name and (detection.layer is None or signal.layer in (None, detection.layer))
            if same and signal.kind not in ("param_hash", "collective") and signal not in found:
                found.append(signal)
                break
    return found[:2]


def _stretches(detection: Detection, signal: Signal) -> list[tuple[float, float]]:
    if detection.first_step is None or not len(signal.steps):
        return []
    last = detection.last_step if detection.last_step is not None else float(signal.steps[-1])
    return [(detection.first_step, last)]


def _others(run: RunReport) -> str:
    """The main series of the run, for the eye; those already drawn under a finding are left out."""
    drawn = {id(signal) for finding in run.findings for signal in _concerned(finding.detection, run)}
    known = [signal for kind in _ORDER for signal in run.signals if signal.kind == kind and id(signal) not in drawn]
    plots = []
    for signal in known[:_MOST_PLOTS]:
        reason = signal.metadata.get("not_collected")
        marked = [stretch for finding in run.findings for stretch in _stretches(finding.detection, signal)]
        picture = "" if reason else draw(signal, marked, width=400, height=170)
        caption = f"<code>{_safe(signal.name)}</code>{_of(signal)}"
        if reason:
            plots.append(f'<figure><p class="facts">{caption} was not collected: {_safe(reason)}</p></figure>')
        elif picture:
            plots.append(f"<figure>{picture}<figcaption>{caption}</figcaption></figure>")
    if not plots:
        return ""
    more = (
        f'<p class="facts">{len(known) - _MOST_PLOTS} more series are not drawn.</p>'
        if len(known) > _MOST_PLOTS
        else ""
    )
    return f'<h2>The run</h2><div class="plots">{"".join(plots)}</div>{more}'
