"""The page of a run of a million steps: how fast it opens, how much is sent, how soon a new step shows, file size.

The run's log is written and compacted by the code that does so in a run. The page is opened in headless Chromium, live
from ``PageServer`` and from the mailed file; every byte the browser receives is counted by the browser itself.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from common import arguments, publish
from holdfast.page import page_of_run, render_page
from holdfast.run.chain import START
from holdfast.run.compact import compact
from holdfast.run.layout import RunFolder
from holdfast.run.recorder import Recorder

STEPS, SERIES, ROUNDS, NEW_STEPS = 1_000_000, 20, 5, 9
LOOKED = "!document.querySelector('.lead').textContent.startsWith('The detectors are looking')"
"""Whether the detectors have looked at the run."""
SETTLE_TAB = 1_500
"""Milliseconds in which the browser is done with a new tab, for which it loads much of its own."""
LAST_CHART = ".charts .chart:last-child .uplot canvas"


def write_run(folder: Path, steps: int, series: int) -> Recorder:
    """Write a run's folder with this many steps of this many series; all but the last part of its log is compacted."""
    place = RunFolder(folder)
    folder.mkdir(parents=True)
    place.identity.write_text(
        json.dumps({"holdfast": "run", "version": 1, "run": "0" * 16, "created": "2026-01-01", "data": {}, "model": {}})
    )
    header: dict[str, Any] = {"run": "0" * 16, "world_size": 1, "time": 0.0, "monotonic": 0.0, "boot": "", "pid": 1}
    recorder = Recorder(place, rank=0, attempt=1, header=header, head=START)
    recorder.write({"event": "start", "step": 0, "batch": 0, "at": 0.0})
    rng = np.random.default_rng(0)
    loss = 2 + 8 * np.exp(-np.arange(steps) / (steps / 8)) + 0.1 * rng.normal(size=steps)
    others = rng.normal(size=(steps, series - 3)).astype(np.float32).astype(float) + 5
    for step in range(steps):
        fields: dict[str, Any] = {"step": step, "batches": [step, step + 1], "loss": loss[step], "grad_norm": 1.0}
        fields |= {f"metric_{number}": value for number, value in enumerate(others[step].tolist())}
        recorder.write({**fields, "step_time": 0.1, "at": step * 0.1})
        if step % 1000 == 999:  # a checkpoint, which makes the log durable
            recorder.write({"event": "checkpoint", "step": step + 1, "path": f"step-{step + 1:08d}", "save_time": 1.0})
            recorder.sync()
    for file in place.log_files()[:-1]:
        compact(file)
    return recorder


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the run's page live, as ``holdfast serve`` does in a process of its own; yields its address."""
    command = [sys.executable, "-c", "from holdfast.cli.main import run; run()", "serve", str(folder)]
    with subprocess.Popen([*command, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["url"]
        finally:
            server.terminate()


def new_tab(browser: Any) -> Any:
    """Return an empty tab of a browser that is at rest."""
    tab = browser.new_page(viewport={"width": 1200, "height": 900})
    tab.wait_for_timeout(SETTLE_TAB)
    return tab


def open_live(tab: Any, url: str) -> tuple[float, float]:
    """Open the page; returns seconds until all of its charts are drawn, and bytes received."""
    received: list[float] = []
    session = tab.context.new_cdp_session(tab)
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    began = time.perf_counter()
    tab.goto(url)
    tab.wait_for_selector(LAST_CHART)
    seconds = time.perf_counter() - began
    tab.wait_for_timeout(50)
    return seconds, sum(received)


def main() -> None:
    """Measure, and print the figures."""
    options = arguments(__doc__ or "")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        publish({}, {"page": "chromium is not installed: make services"}, as_json=options.json)
        return
    from playwright.sync_api import sync_playwright

    steps = STEPS // 10 if options.quick else STEPS
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        recorder = write_run(Path(name) / "exp7", steps, SERIES)
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        figures = measure(browser, Path(name) / "exp7", recorder.write, steps)
        browser.close()
        recorder.close()
    load = os.getloadavg()[0]
    about = {"run": f"{steps:,} steps of {SERIES} series", "browser": "headless Chromium", "load": f"{load:.1f}"}
    publish(figures, about, as_json=options.json)


def measure(browser: Any, folder: Path, write: Callable[[dict[str, Any]], None], steps: int) -> dict[str, float]:
    """Open the page of a run again and again, live and from a file; returns the figures."""
    figures: dict[str, float] = {}
    opened: list[float] = []
    for number in range(ROUNDS):  # every round with a server that has read nothing yet
        tab = new_tab(browser)
        with served(folder) as url:
            seconds, received = open_live(tab, url)
            opened.append(seconds)
            if number == ROUNDS - 2:
                figures["opened again while the detectors look, seconds"] = open_live(tab, url)[0]
            elif number == ROUNDS - 1:
                early = list(new_steps(tab, write, steps))
                tab.wait_for_function(LOOKED)
                shown = list(new_steps(tab, write, steps + NEW_STEPS))
                figures["new step visible, seconds"] = statistics.median(shown)
                figures["new step visible at the latest, seconds"] = max(shown)
                figures["new step visible at the latest, from the opening on while the detectors look, seconds"] = max(
                    early
                )
            tab.close()
    figures["opened with a cold server, seconds"] = statistics.median(opened)
    figures["opened with a cold server at the latest, seconds"] = max(opened)
    figures["received for opening, bytes"] = received
    mailed = folder.parent / "page.html"
    mailed.write_text(render_page(page_of_run(folder)), encoding="utf-8")
    figures["mailed file, bytes"] = mailed.stat().st_size
    tab = new_tab(browser)
    began = time.perf_counter()
    tab.goto(mailed.as_uri())
    tab.wait_for_selector(LAST_CHART)
    figures["mailed file opened, seconds"] = time.perf_counter() - began
    return figures


def new_steps(tab: Any, write: Callable[[dict[str, Any]], None], first: int) -> Iterator[float]:
    """Write steps one by one; yields how long each took to show."""
    for step in range(first, first + NEW_STEPS):
        began = time.perf_counter()
        write({"step": step, "batches": [step, step + 1], "loss": 2.0, "step_time": 0.1, "at": step * 0.1})
        tab.wait_for_selector(f"text={step + 1:,} steps", timeout=30_000)
        yield time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
