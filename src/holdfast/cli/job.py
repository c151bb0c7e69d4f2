"""``holdfast job show|results|retry FOLDER``: a leased job's folder, without a store or running workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json
from holdfast.cli.paths import existing_folder
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.coordinate.ledger import Ledger

__all__ = ["register"]

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", callback=existing_folder, help="The folder passed to the job's workers.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def _open(folder: Path) -> Ledger:
    from holdfast.coordinate.ledger import Ledger

    if not (folder / "job.json").is_file():
        raise ConfigError(
            "this is not the folder of a leased job: it has no job.json",
            folder=str(folder),
            hint="pass the folder= that was given to lease()",
        )
    return Ledger(folder, owner="cli")


def _summary(ledger: Ledger) -> dict[str, Any]:
    from holdfast.coordinate.records import Dead, Done

    job = ledger.definition()
    assert job is not None
    ends = ledger.read()
    dead = [entry for entry in ends.values() if isinstance(entry, Dead)]
    return {
        "job": job.job,
        "name": job.name,
        "positions": len(job.positions),
        "chunk_size": job.chunk_size,
        "chunks": job.chunks,
        "committed": sum(isinstance(entry, Done) for entry in ends.values()),
        "generation": ledger.generation,
        "owners": len(Counter(entry.owner for entry in ends.values())),
        "dead_letters": [asdict(entry) for entry in sorted(dead, key=lambda entry: entry.chunk)],
    }


def _show(summary: dict[str, Any], *, tracebacks: bool) -> None:
    done, total, dead = summary["committed"], summary["chunks"], summary["dead_letters"]
    typer.echo(f"job {summary['job']} ({summary['name']}), generation {summary['generation']}")
    typer.echo(f"{done:,} of {total:,} chunks committed ({done / total:.1%}) by {summary['owners']} workers")
    if not dead:
        typer.echo("no dead letters")
        return
    typer.echo(f"{len(dead):,} dead letters:")
    for letter in dead:
        lines = letter["error"].strip().splitlines() or [""]
        typer.echo(_shown(f"  chunk {letter['chunk']} after {letter['attempts']} attempts: {lines[-1]}"))
        if tracebacks:
            typer.echo(_shown("\n".join("    " + line for line in lines)))


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    job = typer.Typer(no_args_is_help=True, help="Show a leased job's folder, or have its dead letters retried.")
    app.add_typer(job, name="job")

    @job.command(cls=Command, epilog=examples("holdfast job show runs/captions --tracebacks"))
    def show(
        folder: Folder,
        tracebacks: Annotated[bool, typer.Option("--tracebacks", help="Print each dead letter's traceback.")] = False,
        as_json: AsJson = False,
    ) -> None:
        """Show how far a job is, and which chunks were given up."""
        summary = _summary(_open(folder))
        if as_json:
            print_json(summary)
        else:
            _show(summary, tracebacks=tracebacks)

    @job.command(cls=Command, epilog=examples("holdfast job results runs/captions --json > results.json"))
    def results(folder: Folder, as_json: AsJson = False) -> None:
        """List every committed chunk: its number, fencing token, output and payload."""
        from holdfast.coordinate.records import Done

        ends = _open(folder).read()
        found = [asdict(entry) for _, entry in sorted(ends.items()) if isinstance(entry, Done)]
        if as_json:
            print_json({"results": found})
            return
        for entry in found:
            typer.echo(_shown(f"{entry['chunk']}\t{entry['token']}\t{entry['file']}\t{entry['payload']}"))

    @job.command(cls=Command, epilog=examples("holdfast job retry runs/captions --chunk 17 --chunk 23"))
    def retry(
        folder: Folder,
        chunk: Annotated[
            list[int] | None, typer.Option("--chunk", metavar="N", help="Retry only this chunk; may be repeated.")
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        """Have dead letters retried by the next workers.

        Run it when the job has ended, because workers that still run can commit nothing more. Then start workers as
        before.
        """
        chosen = _open(folder).retry(chunk)
        if as_json:
            print_json({"chunks": chosen})
        elif chosen:
            typer.echo(f"{len(chosen)} chunks will be retried: {', '.join(map(str, chosen))}. Start workers as before.")
        else:
            typer.echo("there is nothing to retry")


def _shown(text: str) -> str:
    """Return a user's text without unprintable characters: file names may contain lone surrogates."""
    return text.encode(errors="backslashreplace").decode()
