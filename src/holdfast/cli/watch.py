"""``holdfast watch STORE``: a live table of a job's workers and the progress of its leased jobs."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json
from holdfast.errors import ConfigError, CoordinatorLost

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

    from holdfast.coordinate.health import WorkerHealth
    from holdfast.coordinate.survey import JobProgress, Snapshot, Survey

__all__ = ["register"]

AT_WORK = ("active", "idle", "slow")
COLOURS = {"active": "green", "idle": "cyan", "slow": "yellow", "failed": "bold red", "unknown": "dim"}


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _job_line(job: JobProgress) -> str:
    parts = [f"job {job.name} ({job.job}, generation {job.generation}): {job.ended:,} of {job.chunks:,} chunks"]
    parts.append(f"{job.ended / job.chunks:.1%}")
    if job.ended < job.chunks:
        parts.append(f"{job.leased:,} under lease")
        parts.append("no progress" if job.seconds_left is None else f"{_duration(job.seconds_left)} left")
    parts.append(f"{job.taken_over:,} taken over")
    parts.append(f"{job.dead:,} dead letters")
    return ", ".join(parts)


def _table(workers: list[WorkerHealth], now: float) -> Table:
    from rich.table import Table

    statuses = Counter(worker.status.value for worker in workers)
    title = ", ".join(f"{statuses[status]} {status}" for status in COLOURS if statuses[status])
    speed = sum(worker.average_throughput for worker in workers if worker.status.value in AT_WORK)
    table = Table("rank", "host", "status", title=f"{title or 'no workers'}; {speed:,.1f} samples/s")
    for column in ("seen", "step", "share", "leases", "samples", "samples/s"):
        table.add_column(column, justify="right")
    for worker in workers:
        status = worker.status.value
        table.add_row(
            str(worker.rank),
            worker.host,
            f"[{COLOURS[status]}]{status}[/]",
            f"{now - worker.last_heartbeat:.1f} s ago",
            str(worker.step) if worker.step else "",
            f"{100 * worker.share:.1f}%" if worker.share else "",
            str(worker.leases) if worker.leases else "",
            f"{worker.samples_processed:,}",
            f"{worker.average_throughput:,.1f}",
        )
    return table


def _view(snapshot: Snapshot) -> Group:
    from rich.console import Group
    from rich.text import Text

    times = f"ttl {snapshot.ttl:g} s, heartbeat {snapshot.heartbeat:g} s"
    if not snapshot.certain:
        times += "; waiting for a heartbeat of each worker: until then, dead workers look alive"
    lines = [Text(_job_line(job), style="bold red" if job.dead else "") for job in snapshot.jobs]
    return Group(_table(snapshot.workers, time.monotonic()), Text(times, style="dim"), *lines)


def _plain(snapshot: Snapshot) -> dict[str, Any]:
    now = time.monotonic()
    workers = [
        {**asdict(worker), "status": worker.status.value, "last_heartbeat": now - worker.last_heartbeat}
        for worker in snapshot.workers
    ]
    jobs = [asdict(job) for job in snapshot.jobs]
    times = {"ttl": snapshot.ttl, "heartbeat": snapshot.heartbeat, "certain": snapshot.certain}
    return {"workers": workers, "jobs": jobs, **times}


def _watch_live(survey: Survey, console: Console, *, interval: float, looks: int | None) -> None:
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        for look in itertools.count(1):
            live.update(_view(survey.look()), refresh=True)
            if look == looks:
                return
            time.sleep(interval)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=examples("holdfast watch redis://10.0.0.5:6379 --once"))
    def watch(
        store: Annotated[
            str,
            typer.Argument(
                metavar="STORE", help="redis://HOST:PORT, etcd://HOST:PORT, HOST:PORT of a TCPStore, or file:PATH."
            ),
        ],
        prefix: str = typer.Option("holdfast", help="The coordinator's prefix in the store."),
        ttl: Annotated[
            float | None,
            typer.Option(help="Seconds of silence after which a worker has failed; by default the job's own."),
        ] = None,
        interval: float = typer.Option(1.0, help="Seconds between looks."),
        looks: Annotated[int | None, typer.Option(help="End after this many looks; by default only on Ctrl-C.")] = None,
        once: bool = typer.Option(False, "--once", help="Print one table and exit, as in a pipe."),
        as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
    ) -> None:
        """Show a job's workers and the progress of its leased jobs, live.

        A single table (--once, --json, a pipe) takes one heartbeat if all workers are alive, and one TTL if one is
        dead: it cannot be known sooner.
        """
        from rich.console import Console

        # torch reads this once, when it is loaded: its pages about a lost connection would push the table off the
        # screen.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from holdfast.coordinate.store import StoreClient
        from holdfast.coordinate.stores import open_store
        from holdfast.coordinate.survey import Survey

        if not interval > 0 or (ttl is not None and not ttl > 0) or (looks is not None and looks < 1):
            raise ConfigError("interval, ttl and looks must be positive", interval=interval, ttl=ttl, looks=looks)
        console = Console()
        # A look changes nothing, so the server need not be durable.
        client = StoreClient(open_store(store, durable=False), prefix=prefix, timeout=10.0, patience=5.0)
        survey = Survey(client, ttl=ttl)
        try:
            if as_json:
                print_json(_plain(survey.watch_until_certain()))
            elif once or not console.is_terminal:
                console.print(_view(survey.watch_until_certain()), soft_wrap=True)  # one line per job, even in a pipe
            else:
                _watch_live(survey, console, interval=interval, looks=looks)
        except CoordinatorLost as error:
            raise CoordinatorLost(
                "the connection to the store was lost, or could not be made",
                store=store,
                hint="the job has ended, or the store's host is gone",
            ) from error
        finally:
            client.close()
