"""`holdfast watch STORE`: a live table of a job's workers, shares and throughput."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.errors import ConfigError, CoordinatorLost

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from holdfast.coordinate import StreamCoordinator, WorkerHealth

__all__ = ["open_store", "register"]

AT_WORK = ("active", "idle", "slow")
COLOURS = {"active": "green", "idle": "cyan", "slow": "yellow", "failed": "bold red", "unknown": "dim"}


def open_store(address: str) -> Any:
    """Open ``HOST:PORT`` (a TCPStore's server) or ``file:PATH`` (a FileStore)."""
    from datetime import timedelta

    import torch.distributed as dist

    if address.startswith("file:"):
        from pathlib import Path

        path = Path(address.removeprefix("file:"))
        if not path.is_file():
            raise ConfigError("there is no such store file", path=str(path))
        return dist.FileStore(str(path), -1)  # type: ignore[attr-defined]
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError("a store is HOST:PORT or file:PATH", store=address)
    try:
        return dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=10))  # type: ignore[attr-defined]
    except RuntimeError as error:
        raise CoordinatorLost(
            "the store cannot be reached", store=address, hint="torchrun's is MASTER_ADDR:MASTER_PORT"
        ) from error


def _table(workers: list[WorkerHealth], now: float) -> Table:
    from rich.table import Table

    statuses = Counter(worker.status.value for worker in workers)
    title = ", ".join(f"{statuses[status]} {status}" for status in COLOURS if statuses[status])
    speed = sum(worker.average_throughput for worker in workers if worker.status.value in AT_WORK)
    table = Table("rank", "status", title=f"{title or 'no workers yet'}; {speed:,.1f} samples/s")
    for column in ("seen", "step", "share", "leases", "samples", "samples/s"):
        table.add_column(column, justify="right")
    for worker in workers:
        status = worker.status.value
        table.add_row(
            str(worker.rank),
            f"[{COLOURS[status]}]{status}[/]",
            f"{now - worker.last_heartbeat:.1f} s ago",
            str(worker.step) if worker.step else "",
            f"{100 * worker.share:.1f}%" if worker.share else "",
            str(worker.leases) if worker.leases else "",
            f"{worker.samples_processed:,}",
            f"{worker.average_throughput:,.1f}",
        )
    return table


def _rows(workers: list[WorkerHealth], now: float) -> list[dict[str, Any]]:
    return [
        {**asdict(worker), "status": worker.status.value, "last_heartbeat": now - worker.last_heartbeat}
        for worker in workers
    ]


def _watch_live(coordinator: StreamCoordinator, console: Console, *, interval: float, looks: int | None) -> None:
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        for look in itertools.count(1):
            live.update(_table(coordinator.workers(), time.monotonic()), refresh=True)
            if look == looks:
                return
            time.sleep(interval)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command()
    def watch(
        store: Annotated[str, typer.Argument(help="HOST:PORT of a TCPStore, or file:PATH.", show_default=False)],
        prefix: str = typer.Option("holdfast", help="The coordinator's prefix in the store."),
        ttl: float = typer.Option(15.0, help="Seconds of silence after which a worker counts as failed."),
        interval: float = typer.Option(1.0, help="Seconds between looks."),
        looks: Annotated[int | None, typer.Option(help="End after this many looks; else with Ctrl-C.")] = None,
        once: bool = typer.Option(False, "--once", help="Look once and end; so does a pipe."),
        as_json: bool = typer.Option(False, "--json", help="Print JSON once instead of a table."),
    ) -> None:
        """Show a job's workers, their shares and throughput, live."""
        from rich.console import Console

        # Read once, when torch is loaded: its own pages about a lost connection would push the table off the screen.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from holdfast.coordinate import StreamCoordinator

        if not interval > 0 or not ttl > 0 or (looks is not None and looks < 1):
            raise ConfigError("interval, ttl and looks must be positive", interval=interval, ttl=ttl, looks=looks)
        console = Console()
        opened = open_store(store)
        try:
            with StreamCoordinator(opened, 1, heartbeat=ttl / 3, ttl=ttl, prefix=prefix) as coordinator:
                if as_json:
                    typer.echo(json.dumps(_rows(coordinator.workers(), time.monotonic())))
                elif once or not console.is_terminal:
                    console.print(_table(coordinator.workers(), time.monotonic()))
                else:
                    _watch_live(coordinator, console, interval=interval, looks=looks)
        except CoordinatorLost as error:
            raise CoordinatorLost(
                "the store has gone away", store=store, hint="the job has ended, or the store's host is gone"
            ) from error
