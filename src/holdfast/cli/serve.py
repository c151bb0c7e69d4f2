"""``holdfast serve PATH…``: a live page of runs in progress, served from this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json
from holdfast.cli.paths import existing

__all__ = ["register"]

EXAMPLES = examples(
    "holdfast serve runs/exp7",
    "# a list of runs; each can be compared with another",
    "holdfast serve runs/ --port 0",
    "# prints an address with a token",
    "holdfast serve runs/ --host 0.0.0.0",
)

SWITCH_SECONDS = 0.0005
"""How long the detectors, which run in the background, may hold up a response each time it waits for its turn: a tenth
of Python's default. A response waits hundreds of times (bench/page.py, "opened again")."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=EXAMPLES)
    def serve(
        paths: Annotated[
            list[Path],
            typer.Argument(
                metavar="PATH", callback=existing, help="Run folders, folders of runs, or any training logs."
            ),
        ],
        host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
        port: Annotated[
            int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 for any free port.")
        ] = 8642,
        token: Annotated[
            str | None,
            typer.Option("--token", help="Token a browser must present; generated if --host is not this machine."),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
    ) -> None:
        """Serve the page live until Ctrl-C: a new step is visible about a second later."""
        import sys

        import pyarrow.compute
        import pyarrow.json
        import pyarrow.parquet  # noqa: F401 - before anyone waits for a page

        from holdfast.errors import UnreadableLogError
        from holdfast.page.feeds import LogFeed, feeds_of
        from holdfast.page.server import PageServer

        sys.setswitchinterval(SWITCH_SECONDS)
        feeds = feeds_of(paths)
        for feed in feeds:
            if isinstance(feed, LogFeed):
                try:
                    feed.page()  # read once here, to refuse a page with nothing to show before serving
                except UnreadableLogError:
                    log = Path(feed.name)
                    if log.is_dir() or log.stat().st_size > 0:
                        raise
                    typer.echo(f"{log} is empty so far: the page fills when it is written to", err=True)
        with PageServer(feeds, host=host, port=port, token=token) as server:
            if as_json:
                print_json({"url": server.url, "runs": list(server.feeds)})
            else:
                typer.echo(f"{len(server.feeds)} run(s) at {server.url}  (Ctrl-C ends)")
            server.read_ahead()
            server.serve_forever()
