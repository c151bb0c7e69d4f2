"""``holdfast feedback REPORT``: record whether a finding was true, so that confidences can be calibrated."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import json_text, print_json
from holdfast.cli.paths import existing_file
from holdfast.errors import ConfigError, DebugError

__all__ = ["read_feedback", "register"]

DEFAULT_STORE = Path("holdfast-feedback.jsonl")
EXAMPLES = examples(
    "holdfast feedback report.json --verdict true",
    "holdfast feedback report.json --finding 2 --verdict false --note planned",
    "holdfast feedback report.json --missed spike",
    "# what was recorded so far",
    "holdfast feedback",
)


class Answer(str, Enum):
    """A user's verdict on a finding."""

    TRUE = "true"
    FALSE = "false"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=EXAMPLES)
    def feedback(
        report: Annotated[
            Path | None,
            typer.Argument(
                metavar="REPORT", callback=existing_file, help="A report from `holdfast debug --format json`."
            ),
        ] = None,
        verdict: Annotated[Answer | None, typer.Option("--verdict", help="Was the finding true?")] = None,
        finding: Annotated[int, typer.Option("--finding", min=1, help="Number of the finding, from 1.")] = 1,
        run: Annotated[int, typer.Option("--run", min=1, help="Number of the run in the report, from 1.")] = 1,
        missed: Annotated[str | None, typer.Option("--missed", help="A failure the report should have named.")] = None,
        cause: Annotated[str | None, typer.Option("--cause", help="The true cause, if you know it.")] = None,
        note: Annotated[str, typer.Option("--note", help="A remark to keep with the verdict.")] = "",
        store: Annotated[Path, typer.Option("--store", help="The file the verdicts are kept in.")] = DEFAULT_STORE,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Record a true or false verdict on a finding (or a missed failure); without a report, summarise the verdicts.

        `holdfast calibrate --feedback` fits confidences on them.
        """
        if report is None:
            _summarise(store, as_json=as_json)
            return
        if (verdict is None) == (missed is None):
            raise DebugError("pass either --verdict true|false or --missed FAILURE", report=str(report))
        entry = _entry(_run_of(report, run), run, finding, verdict, missed)
        entry |= {"cause": cause, "note": note, "time": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        with store.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        typer.echo(
            json_text(entry) if as_json else f"recorded: {entry['failure']} in {entry['path']} was {entry['verdict']}"
        )


def _run_of(report: Path, run: int) -> dict[str, Any]:
    try:
        runs = json.loads(report.read_text(encoding="utf-8"))["runs"]
        found = runs[run - 1]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DebugError(
            "not a JSON report", report=str(report), hint="make one with `holdfast debug --format json`"
        ) from error
    except IndexError as error:
        raise DebugError(
            "the report has no such run",
            report=str(report),
            run=run,
            hint="pass another --run; runs are numbered from 1",
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("findings"), list):
        raise DebugError("not a JSON report", report=str(report), hint="make one with `holdfast debug --format json`")
    return found


def _entry(found: dict[str, Any], run: int, finding: int, verdict: Answer | None, missed: str | None) -> dict[str, Any]:
    from holdfast.debug.detectors import known_failures
    from holdfast.debug.types import Failure

    path = str(found.get("path", ""))
    if missed is not None:
        try:
            missed = Failure(missed).name  # Names are open: a plug-in's failure can be missed, too.
        except ConfigError as error:
            known = ", ".join(failure.name for failure in known_failures())
            raise DebugError("this is not the name of a failure", failure=missed, hint=f"use one of {known}") from error
        return {"path": path, "failure": missed, "verdict": "missed", "confidence": None}
    findings = found["findings"]
    if finding > len(findings):
        raise DebugError("the run has no such finding", run=run, finding=finding, hint=f"it has {len(findings)}")
    chosen = findings[finding - 1]
    causes = chosen.get("causes") or [{}]
    return {
        # Confidences as the report gave them: `holdfast calibrate` learns from them how often such claims are true.
        "path": path,
        "failure": chosen["failure"],
        "verdict": verdict.value if verdict is not None else "",
        "confidence": chosen.get("confidence"),
        "claimed_cause": causes[0].get("cause"),
        "claimed_cause_confidence": causes[0].get("confidence"),
    }


def read_feedback(store: Path) -> list[dict[str, Any]]:
    """Return every recorded verdict.

    Raises:
        DebugError: the file cannot be read, or a line of it was not written by this command.
    """
    try:
        lines = store.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "they are not UTF-8 text"
        raise DebugError(
            f"the verdicts cannot be read: {reason}", file=str(store), hint="pass their file with --store"
        ) from error
    entries: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if entry["verdict"] not in ("true", "false", "missed") or not isinstance(entry["failure"], str):
                raise ValueError
        except (ValueError, KeyError, TypeError) as error:
            raise DebugError(
                "a line is not a recorded verdict", file=str(store), line=number, hint="correct or remove this line"
            ) from error
        entries.append(entry)
    return entries


def _summarise(store: Path, *, as_json: bool) -> None:
    counts = Counter((entry["failure"], entry["verdict"]) for entry in read_feedback(store))
    failures = sorted({failure for failure, _ in counts})
    table = {
        failure: {answer: counts[failure, answer] for answer in ("true", "false", "missed")} for failure in failures
    }
    if as_json:
        print_json({"verdicts": table})
        return
    for failure, row in table.items():
        typer.echo(f"{failure:<22}{row['true']} true  {row['false']} false  {row['missed']} missed")
