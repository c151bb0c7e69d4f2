"""``holdfast report PATH``: the page of a run or of any training log, as a single file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.console import working
from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json
from holdfast.cli.paths import existing
from holdfast.cli.write_whole import write_whole

__all__ = ["register"]

EXAMPLES = examples(
    "holdfast report runs/exp7",
    "holdfast report trainer_state.json -o page.html",
    "holdfast report runs/exp8 --compare runs/exp7",
    "holdfast report runs/exp7 --verify",
)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=EXAMPLES)
    def report(
        path: Annotated[
            Path, typer.Argument(metavar="PATH", callback=existing, help="A run's folder, or any training log.")
        ],
        output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")] = Path("report.html"),
        compare: Annotated[
            Path | None,
            typer.Option("--compare", callback=existing, help="Another run to overlay.", show_default=False),
        ] = None,
        verify: Annotated[
            bool, typer.Option("--verify", help="Check every checkpoint of the run, and mark damaged ones.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print the page's data as JSON instead.")] = False,
    ) -> None:
        """Write a run's page: verdict, charts, findings and events in one file that loads nothing from other hosts."""
        from holdfast.page import render_page
        from holdfast.page.feeds import feed_of
        from holdfast.page.render import MAX_COLUMNS

        with working("reading"):
            pages = [feed_of(each, verify=verify).page() for each in (path, compare) if each is not None]
        if as_json:
            print_json({"pages": [page.to_json(columns=MAX_COLUMNS) for page in pages]})
            return
        text = render_page(*pages)
        write_whole(output, text)
        typer.echo(f"{output}: {pages[0].verdict}, {len(text.encode()) / 1e3:,.0f} kB")
