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
SAMPLES, WIDTH, BATCH, STEPS, POISONED_STEP = 6400, 16, 16, 400, 261
VIEWS = {"light": (1200, 1180), "dark": (1200, 1180), "phone": (390, 844)}


def make_data(seed: int = 0) -> dict[str, np.ndarray]:
    """Return a regression task from two sources' worth of rows; the rows of one batch are spoilt."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(SAMPLES, WIDTH)).astype(np.float32)
    y = np.tanh(x @ rng.normal(size=(WIDTH, 1))).astype(np.float32) + 0.05 * rng.normal(size=(SAMPLES, 1)).astype("f4")
    return {"x": x, "y": y}


def make_loader(data: dict[str, np.ndarray]) -> hfast.StreamingShardLoader:
    """Return the stream over the data."""
    dataset = hfast.StreamDataset(hfast.ArraySource(data), name="crawl", seed=7)
    return hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=BATCH))


def train(folder: Path, data: dict[str, np.ndarray], steps: int) -> None:
    """Train the run up to a step, resuming where it stands."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    run = hfast.Run(
        folder,
        model=model,
        optimizer=optimizer,
        loader=make_loader(data),
        steps=steps,
        config={"lr": 3e-3, "batch_size": BATCH, "model": "MLP 16-64-64-1"},
        options=hfast.RunOptions(save_every=50, stats_every=5),
        on_finding={"critical": "rollback", "warning": "rollback"},
        rollback=hfast.run.RollbackOptions(cure="window", before=2, after=6),
    )
    with run:
        for batch in run:
            loss = ((model(batch["x"]) - batch["y"]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step(loss=loss)


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
            tab.wait_for_selector(".chart canvas")
            tab.wait_for_timeout(300)
            tab.screenshot(path=images / f"page-{name}.png")
        browser.close()


def main() -> None:
    """Train, draw, photograph."""
    data = make_data()
    spoilt = [ref.index for ref in make_loader(data).samples_in(POISONED_STEP)]
    data["y"][spoilt] = 60.0
    with tempfile.TemporaryDirectory() as name:
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
