"""Make the pictures of the page in README and docs: a real run that is stopped, resumed, poisoned and rolled back.

``make screenshots`` runs it. Nothing is drawn by hand: the run is trained here, in a few seconds, and its page is
opened in Chromium.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import holdfast as hfast
from holdfast.page import page_of_run, render_page

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
SAMPLES, WIDTH, BATCH, STEPS, SPOILT_STEP, SPOILT = 6400, 16, 16, 400, 261, 3
SOURCES = {"crawl": 0.7, "books": 0.3}
VIEWS = {"light": (1200, 1180), "dark": (1200, 1180), "phone": (390, 844)}


def make_data(seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Return a regression task from two sources."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(WIDTH, 1))
    data = {}
    for number, name in enumerate(SOURCES):
        x = rng.normal(size=(SAMPLES, WIDTH)).astype(np.float32)
        noise = 0.05 * rng.normal(size=(SAMPLES, 1)).astype("f4")
        y = np.tanh(x @ true).astype(np.float32) + noise
        data[name] = {"x": x, "y": y, "source": np.full(SAMPLES, number)}
    return data


def make_loader(data: dict[str, dict[str, np.ndarray]]) -> hfast.StreamingShardLoader:
    """Return the stream over the data."""
    parts = [hfast.StreamDataset(hfast.ArraySource(columns), name=name, seed=7) for name, columns in data.items()]
    dataset = hfast.InterleavedDataset(parts, weights=SOURCES, seed=7, name="mix")
    return hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=BATCH))


def train(folder: Path, data: dict[str, dict[str, np.ndarray]], steps: int, *, rate: float = 3e-3) -> None:
    """Train the run up to a step, resuming where it stands."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

    def train_step(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        errors = (model(batch["x"]) - batch["y"]).square()[:, 0]
        valid = batch.get("__valid__", torch.ones(len(errors), dtype=torch.bool))
        loss = (errors * valid).sum() / valid.sum().clamp(min=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = {"loss": loss.detach()}
        for number, name in enumerate(SOURCES):
            chosen = (batch["source"] == number) & valid
            if chosen.any():
                shown[f"loss/{name}"] = errors[chosen].mean().detach()
        return shown

    run = hfast.Run(
        folder,
        model=model,
        optimizer=optimizer,
        loader=make_loader(data),
        train_step=train_step,
        steps=steps,
        config={"lr": rate, "batch_size": BATCH, "model": "MLP 16-64-64-1"},
        options=hfast.RunOptions(save_every=50, stats_every=5),
        on_finding={"critical": "rollback", "warning": "rollback"},
        rollback=hfast.run.RollbackOptions(cure="prove"),
    )
    with run:
        run.train()


def photograph(page: Path, images: Path) -> None:
    """Take the pictures."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("chromium is not installed: make services")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, (width, height) in VIEWS.items():
            scheme = "dark" if name == "dark" else "light"
            tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            tab.goto(page.as_uri())
            tab.wait_for_selector(".uplot canvas")
            tab.wait_for_timeout(300)
            tab.screenshot(path=images / f"page-{name}.png")
            if name == "light":
                tab.click(".flag")
                tab.wait_for_selector("#detail canvas")
                tab.wait_for_timeout(300)
                tab.screenshot(path=images / "page-finding.png")
        browser.close()


def main() -> None:
    """Train, draw, photograph."""
    data = make_data()
    refs = [ref for ref in make_loader(data).samples_in(SPOILT_STEP) if ref.source == "crawl"]
    with tempfile.TemporaryDirectory() as name:
        train(Path(name) / "exp6", data, 60, rate=1e-3)  # the last good run
        for ref in refs[:SPOILT]:
            data["crawl"]["y"][ref.index] = 120.0
        folder = Path(name) / "exp7"
        train(folder, data, 140)  # the job ends early, as a preempted one would, and is started again
        train(folder, data, STEPS)
        page = Path(name) / "page.html"
        page.write_text(render_page(page_of_run(folder)).replace(f"{name}/", "runs/"), encoding="utf-8")
        IMAGES.mkdir(parents=True, exist_ok=True)
        photograph(page, IMAGES)
    print(f"pictures in {IMAGES}")


if __name__ == "__main__":
    main()
