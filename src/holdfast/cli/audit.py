"""``holdfast audit RUN --samples FILE``: the steps at which a run saw samples, as a statement anyone can recompute."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.console import table_console, working
from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import json_text, print_json
from holdfast.cli.paths import existing, existing_file
from holdfast.cli.program import PROGRAM_HELP, load_program
from holdfast.cli.write_whole import write_whole
from holdfast.errors import ConfigError, RunLogError

if TYPE_CHECKING:
    from holdfast.run.audit import Audit

__all__ = ["register"]

EXAMPLES = examples(
    "holdfast audit runs/exp7 --samples optout.csv --output statement.json",
    "holdfast audit statement.json",
    exit_codes="0 the question is answered, 2 a check failed or the input is unusable.",
)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=EXAMPLES)
    def audit(
        run: Annotated[
            Path,
            typer.Argument(metavar="RUN", callback=existing, help="A run's folder, or a statement to recompute."),
        ],
        samples: Annotated[
            Path | None,
            typer.Option(
                callback=existing_file, help="A CSV file with the columns source and index.", show_default=False
            ),
        ] = None,
        program: Annotated[
            str | None, typer.Option(metavar="FILE.py:FUNCTION", help=PROGRAM_HELP, show_default=False)
        ] = None,
        head: Annotated[str | None, typer.Option(help="A digest the log must contain.", show_default=False)] = None,
        unfinished: Annotated[
            bool, typer.Option("--unfinished", help="Accept a log of a run that has not ended.")
        ] = False,
        output: Annotated[Path | None, typer.Option(help="Write the statement here.", show_default=False)] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the statement.")] = False,
    ) -> None:
        """Show at which steps a run saw samples, or prove that it did not.

        The log's hash chain is checked first; with --program, the data is also compared with the data the run read.
        Given a statement instead of a run, its answer is recomputed.
        """
        from holdfast.run.audit import audit as find
        from holdfast.run.audit import check_statement

        if run.is_file():
            statement = _read_json(run)
            with working("recomputing"):
                check_statement(statement)
            summary = {"statement": "holds", "run": statement["run"], "heads": statement["heads"]}
            typer.echo(json_text(summary) if as_json else f"the statement about run {statement['run']} holds")
            return
        if samples is None:
            raise ConfigError("no samples were given", hint="pass --samples FILE.csv with the columns source and index")
        asked = _read_samples(samples)
        loader = load_program(program, run).components.loader if program is not None else None
        with working("checking the log"):
            found = find(run, asked, loader=loader, head=head, unfinished=unfinished)
        statement = found.to_json() if as_json or output is not None else {}
        if output is not None:
            write_whole(output, json.dumps(statement))
        if as_json:
            print_json(statement)
        else:
            _show(found)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunLogError(
            "this is neither a run's folder nor a statement",
            file=str(path),
            hint="pass the folder given to Run(...), or a file written with --output",
        ) from error


def _read_samples(path: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    try:
        table = csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines())
        rows = list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"the samples cannot be read: {error}", file=str(path), hint="pass a CSV file with the columns source,index"
        ) from error
    if any((table.fieldnames or ()).count(name) > 1 for name in ("source", "index")):
        raise ConfigError("a column appears twice", file=str(path), columns=list(table.fieldnames or ()))
    for number, row in enumerate(rows, start=2):
        source, index = row.get("source"), row.get("index")
        if not source or not index or not index.strip().isdecimal():
            raise ConfigError(
                "a line does not name a sample", file=str(path), line=number, hint="the columns are source,index"
            )
        found.setdefault(source, []).append(int(index))
    if not found:
        raise ConfigError("the file names no sample", file=str(path), hint="the columns are source,index")
    return found


def _show(found: Audit) -> None:
    from rich.table import Table

    table = Table("source", "index", "step", "epoch", "rank", "remark")
    for source, seen in found.seen.items():
        for row in seen.rows():
            index, step, _, epoch, rank, _, _, counted, masked = row
            remarks = [*([] if counted else ["step redone; does not count"]), *(["masked"] if masked else [])]
            table.add_row(source, str(index), str(step), str(epoch), str(rank), ", ".join(remarks))
    never = {source: indices for source, indices in found.never_seen.items() if indices}
    console = table_console()
    console.print(table)
    for source, indices in never.items():
        shown = ", ".join(map(str, indices[:20])) + (" …" if len(indices) > 20 else "")
        console.print(f"{source}: {len(indices)} never seen in {found.steps} steps: {shown}", markup=False)
    if not found.data_checked:
        console.print("the data itself was not checked: its fingerprints are those in the log", markup=False)
    if not found.ended:
        console.print("the run has not ended: this covers the steps recorded so far", markup=False)
