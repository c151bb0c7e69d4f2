"""The page of a run: what the log says, as it grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import holdfast as hfast
from holdfast.page import page_of_run, render_page
from holdfast.page.feeds import feeds_of
from holdfast.page.from_run import RunFeed
from holdfast.run import Run


def train(folder: Path, steps: int) -> None:
    torch.manual_seed(0)
    values = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
    dataset = hfast.StreamDataset(hfast.ArraySource({"x": values}), name="toy", seed=1)
    loader = hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=8))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Run(folder, model=model, optimizer=optimizer, loader=loader, steps=steps, config={"lr": 0.05}) as run:
        for batch in run:
            loss = (model(batch["x"]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step(loss=loss)


def test_the_page_shows_every_step_restart_checkpoint_and_second(tmp_path: Path) -> None:
    folder = tmp_path / "exp7"
    train(folder, 30)
    train(folder, 60)
    page = page_of_run(folder)
    assert page.facts == ("60 steps", "2 attempts", "1 rank")
    loss = page.charts[0].lines[0]
    assert (page.charts[0].title, loss.steps.tolist()) == ("Loss", list(range(60)))
    assert {(event.step, event.kind) for event in page.events} >= {
        (30, "restart"),
        (30, "checkpoint"),
        (60, "checkpoint"),
    }
    assert {"step", "startup", "save"} <= {bucket.name for bucket in page.goodput}
    assert [heat_map.title for heat_map in page.heat_maps][:1] == ["Gradient norm by layer"]
    assert page.config == {"lr": "0.05"}
    assert "torch" in str(page.environment)
    assert "exp7" in render_page(page)


def test_a_feed_notices_new_steps_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "exp7"
    train(folder, 5)
    feed = RunFeed(folder)
    version = feed.version()
    assert feed.version() == version
    train(folder, 8)
    assert feed.version() != version
    assert len(feed.page().charts[0].lines[0].steps) == 8


def test_a_folder_of_runs_gives_each_of_them_by_name(tmp_path: Path) -> None:
    train(tmp_path / "a", 2)
    train(tmp_path / "b", 2)
    assert [feed.name for feed in feeds_of([tmp_path])] == ["a", "b"]
