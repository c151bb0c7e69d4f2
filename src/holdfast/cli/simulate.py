"""``holdfast simulate``: what failures, stragglers and coordination will cost at a given size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from holdfast.cli.console import working
from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json
from holdfast.cli.write_whole import write_whole
from holdfast.errors import ConfigError

__all__ = ["plot_svg", "register"]

BARS = " ▁▂▃▄▅▆▇█"
WIDTH, HEIGHT = 720, 200
Point = tuple[float, float]


def _spark(values: Sequence[float], width: int = 60) -> str:
    """Draw a series as one line of bars."""
    if not values:
        return ""
    picked = [values[int(i * len(values) / width)] for i in range(min(width, len(values)))] or list(values)
    top = max(picked) or 1.0
    return "".join(BARS[round((len(BARS) - 1) * max(0.0, value) / top)] for value in picked)


def _short(value: float) -> str:
    """Format a number for reading: 443 M, 24.6 k, 70."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == ' k' else size):.3g}{unit}"
    return f"{value:,.4g}"


def _steps(points: Sequence[Point]) -> list[Point]:
    """Return the points of a step function: each value holds until the next point."""
    held = [(later[0], earlier[1]) for earlier, later in pairwise(points)]
    return [point for pair in zip_longest(points, held) for point in pair if point is not None]


def plot_svg(plots: Sequence[tuple[str, Sequence[Point], str, str]]) -> str:
    """Draw series of (x, y), one below the other, as one SVG document.

    Args:
        plots: the title, the points and the names of x and y of each plot.
    """
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 100}" height="{len(plots) * (HEIGHT + 80)}" '
        'font-family="sans-serif" font-size="12">'
    ]
    for number, (title, points, x_name, y_name) in enumerate(plots):
        top = number * (HEIGHT + 80) + 30
        right = max((x for x, _ in points), default=1.0) or 1.0
        low, high = min((y for _, y in points), default=0.0), max((y for _, y in points), default=1.0) or 1.0
        # From 0, unless the plot would then be a line along the upper edge.
        base = 0.0 if low <= high / 2 else max(0.0, low - (high - low) / 4)
        scale = HEIGHT / ((high - base) or 1.0)
        line = " ".join(f"{70 + WIDTH * x / right:.1f},{top + HEIGHT - scale * (y - base):.1f}" for x, y in points)
        parts += [
            f'<text x="70" y="{top - 10}" font-size="14">{title}</text>',
            f'<rect x="70" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>',
            f'<polyline points="{line}" fill="none" stroke="#0a6" stroke-width="1.5"/>',
            f'<text x="65" y="{top + 10}" text-anchor="end">{_short(high)}</text>',
            f'<text x="65" y="{top + HEIGHT}" text-anchor="end">{_short(base)}</text>',
            f'<text x="{70 + WIDTH}" y="{top + HEIGHT + 16}" text-anchor="end">{_short(right)} {x_name}</text>',
            f'<text x="70" y="{top + HEIGHT + 16}">{y_name}</text>',
        ]
    return "\n".join([*parts, "</svg>"])


def _series(results: dict[str, Any]) -> list[tuple[str, list[Point], str, str]]:
    plots: list[tuple[str, list[Point], str, str]] = []
    if "training" in results:
        line = results["training"]["timeline"]
        ranks = _steps([(hours, float(count)) for hours, count, _ in line])
        plots.append(("Training: ranks at work", ranks, "hours", "ranks"))
        delivered = [(hours, float(samples)) for hours, _, samples in line]
        plots.append(("Training: samples delivered", delivered, "hours", "samples"))
    if "leases" in results:
        line = results["leases"]["timeline"]
        plots.append(("Leased: chunks committed", [(t, float(done)) for t, done, _ in line], "seconds", "chunks"))
        rate = [(t, float(operations)) for t, _, operations in line[:-1]]  # the last second is incomplete
        plots.append(("Leased: store operations per second", rate, "seconds", "operations"))
    return plots


def _show(results: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for name, result in results.items():
        table = Table(name, "")
        table.columns[1].justify = "right"
        for key, value in result.items():
            if key not in ("timeline", "conclusion"):
                table.add_row(key.replace("_", " "), f"{value:,.4g}" if isinstance(value, float) else f"{value:,}")
        console.print(table)
        console.print(result["conclusion"], highlight=False)
    for title, points, _, _ in _series(results):
        console.print(f"{title}, up to {_short(max((y for _, y in points), default=0))}")
        console.print(_spark([y for _, y in points]), style="green", highlight=False)


def _save(path: Path, results: dict[str, Any]) -> None:
    svg = plot_svg(_series(results))
    if path.suffix == ".html":
        svg = f'<!doctype html><meta charset="utf-8"><title>holdfast simulate</title>\n{svg}\n'
    elif path.suffix != ".svg":
        raise ConfigError("the output must be an .svg or .html file", output=str(path))
    write_whole(path, svg)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(
        cls=Command,
        epilog=examples(
            "holdfast simulate --ranks 1024 --hours 24",
            "holdfast simulate --ranks 1024 --mode leased --output plot.svg",
        ),
    )
    def simulate(
        ranks: int = typer.Option(1024, help="Data-parallel ranks, up to 100,000."),
        mode: Annotated[Literal["training", "leased", "both"], typer.Option(help="What to simulate.")] = "both",
        ranks_per_node: int = typer.Option(8, help="Ranks lost when a node fails."),
        hours: float = typer.Option(24.0, help="Length of the training run."),
        node_mtbf_hours: float = typer.Option(20_000.0, help="Mean time between failures of one node."),
        step_seconds: float = typer.Option(10.0, help="Duration of a step."),
        checkpoint_steps: int = typer.Option(60, help="Steps between checkpoints."),
        save_seconds: float = typer.Option(30.0, help="How long a checkpoint blocks the training."),
        restart_seconds: float = typer.Option(300.0, help="Time from a failure to the next step."),
        spare_nodes: int = typer.Option(0, help="Nodes that wait to replace failed ones."),
        hang_fraction: float = typer.Option(0.1, help="Fraction of failures that hang instead of crashing."),
        hang_seconds: float = typer.Option(600.0, help="Time until a hang is noticed."),
        repair_hours: float = typer.Option(4.0, help="Time until a failed node is back."),
        stragglers: float = typer.Option(0.01, help="Fraction of ranks that are slow."),
        slowdown: float = typer.Option(2.0, help="How many times slower they are."),
        ttl: float = typer.Option(15.0, help="Seconds of silence after which a lease may be taken over."),
        heartbeat: float = typer.Option(5.0, help="Seconds between heartbeats."),
        chunks_per_rank: int = typer.Option(4, help="Chunks per rank in the leased job."),
        chunk_seconds: float = typer.Option(5.0, help="Duration of a chunk."),
        replication: int = typer.Option(1, help="Standbys per chunk."),
        seed: int = typer.Option(0, help="Seed of the random failures."),
        output: Annotated[Path | None, typer.Option(help="Write the plot to this .svg or .html file.")] = None,
        as_json: bool = typer.Option(False, "--json", help="Print JSON instead of tables."),
    ) -> None:
        """Estimate the cost of failures, stragglers and coordination at a given size, with the library's own code."""
        from holdfast.coordinate.scenario import Scenario
        from holdfast.coordinate.simulate_leases import simulate_leases
        from holdfast.coordinate.simulate_training import simulate_training

        scenario = Scenario(
            ranks=ranks,
            ranks_per_node=ranks_per_node,
            hours=hours,
            node_mtbf_hours=node_mtbf_hours,
            step_seconds=step_seconds,
            checkpoint_steps=checkpoint_steps,
            save_seconds=save_seconds,
            restart_seconds=restart_seconds,
            spare_nodes=spare_nodes,
            hang_fraction=hang_fraction,
            hang_seconds=hang_seconds,
            repair_hours=repair_hours,
            stragglers=stragglers,
            slowdown=slowdown,
            ttl=ttl,
            heartbeat=heartbeat,
            chunks_per_rank=chunks_per_rank,
            chunk_seconds=chunk_seconds,
            replication=replication,
            seed=seed,
        )
        results: dict[str, Any] = {}
        with working(f"simulating {ranks:,} ranks"):
            if mode != "leased":
                results["training"] = asdict(simulate_training(scenario))
            if mode != "training":
                results["leases"] = asdict(simulate_leases(scenario))
        if output is not None:
            _save(output, results)
        if as_json:
            print_json({"scenario": asdict(scenario), **results})
        else:
            _show(results)
