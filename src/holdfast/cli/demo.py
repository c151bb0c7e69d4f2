"""`holdfast demo`: the product at work in about two minutes, every figure measured in that very run."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command()
    def demo() -> None:
        """Show holdfast at work."""
