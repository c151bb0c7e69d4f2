"""The page of a run: what the log says, as it grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import holdfast as hfast
from holdfast.page import page_of_run, render_page
from holdfast.page.feeds import feeds_of
from holdfast.page.from_run import RunFeed
from holdfast.page.good_run import config_difference
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


def test_runs_of_the_same_name_in_two_folders_are_both_served(tmp_path: Path) -> None:
    for folder in ("monday", "tuesday"):
        train(tmp_path / folder / "exp7", 2)
    names = [feed.name for feed in feeds_of([tmp_path / "monday", tmp_path / "tuesday", tmp_path / "monday" / "exp7"])]
    assert names == [str(tmp_path / folder / "exp7") for folder in ("monday", "tuesday")]


def make_mixed(folder: Path, steps: int, *, lr: float = 0.05, weights: dict[str, float] | None = None) -> Run:
    """Return a run over two sources, with a loss for each."""
    torch.manual_seed(0)
    values = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
    sources = [
        hfast.StreamDataset(hfast.ArraySource({"x": values, "source": np.full(256, number)}), name=name, seed=1)
        for number, name in enumerate(("wiki", "chat"))
    ]
    dataset = hfast.InterleavedDataset(sources, weights=weights or {"wiki": 0.75, "chat": 0.25}, seed=1, name="mix")
    loader = hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=8))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    run = Run(folder, model=model, optimizer=optimizer, loader=loader, steps=steps, config={"lr": lr, "size": 4})
    with run:
        for batch in run:
            losses = model(batch["x"])[:, 0] ** 2
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            by_source = {
                f"loss/{name}": losses[batch["source"] == number].mean()
                for number, name in enumerate(("wiki", "chat"))
                if (batch["source"] == number).any()
            }
            run.step(loss=losses.mean(), **by_source)
    return run


def test_sources_have_their_own_losses_and_their_share_of_the_samples(tmp_path: Path) -> None:
    make_mixed(tmp_path / "exp7", 60)
    charts = {chart.title: chart for chart in page_of_run(tmp_path / "exp7").charts}
    assert {line.name for line in charts["Loss by source"].lines} == {"wiki", "chat"}
    assert [line.name for line in charts["Loss"].lines] == ["loss"]
    shares = {line.name: line.values for line in charts["Share of the samples by source"].lines}
    assert abs(shares["wiki"].mean() - 0.75) < 0.01
    assert np.allclose(shares["wiki"] + shares["chat"], 1)


def test_the_configuration_is_compared_with_the_last_good_run(tmp_path: Path) -> None:
    make_mixed(tmp_path / "exp6", 6, lr=0.05)
    make_mixed(tmp_path / "exp7", 6, lr=0.5)
    page = page_of_run(tmp_path / "exp7")
    assert (page.changed, page.compared_with) == ((("lr", "0.5", "0.05"),), "exp6")
    assert page_of_run(tmp_path / "exp6").changed == (), "a later run is not the one before"


def test_runs_that_have_no_setting_in_common_are_not_compared(tmp_path: Path) -> None:
    make_mixed(tmp_path / "exp6", 6, lr=0.05)
    good = tmp_path / "exp6"
    assert config_difference({"lr": 0.5}, good)
    assert config_difference({"learning_rate": 0.5, "optim": "adamw"}, good) == ()


def test_what_blame_and_proof_found_stands_with_the_finding(tmp_path: Path) -> None:
    from holdfast.page.model import Flag
    from holdfast.page.run_flags import with_investigations
    from holdfast.run.investigations import keep_investigation, read_investigations

    suspect = {"source": "chat", "index": 5, "score": 9.5, "preview": {"text": "<b>bad</b>"}}
    result = {
        "verdict": "these samples",
        "reason": "gone without them",
        "window": [10, 12],
        "suspects": [suspect],
        "steps": [10, 11, 12],
        "as_it_was": [1.0, 9.0, 8.0],
        "without_suspects": [1.0, 1.1, 1.0],
        "without_random": [[1.0, 8.9, float("nan")]],
        "cure": "loader.mask(samples={'chat': [5]})",
    }
    keep_investigation(tmp_path, "proof", 11, result)
    keep_investigation(tmp_path, "blame", 500, {"ranked": [suspect]})
    (tmp_path / "investigations" / "proof-00000012.json").write_text("{")
    found = read_investigations(tmp_path)
    assert [(each.kind, each.step) for each in found] == [("proof", 11), ("blame", 500)]
    flag = Flag("Loss spike", "critical", 11.0, 11.0, 14.0, "loss", 0.9)
    shown = with_investigations(flag, found, "runs/exp 7")
    assert [(each.source, each.index, each.preview) for each in shown.suspects] == [("chat", 5, "text: <b>bad</b>")]
    assert shown.proof is not None
    assert [line.name for line in shown.proof.lines] == [
        "as it was",
        "without the suspects",
        "without random samples, draw 1",
    ]
    assert shown.command == "loader.mask(samples={'chat': [5]})"
    assert shown.proof_verdict == "these samples: gone without them"
    alone = with_investigations(flag, (), "runs/exp 7")
    assert alone.command == "holdfast prove 'runs/exp 7' --step 11 --program train.py:build"


def test_a_run_shows_its_page_in_a_notebook(tmp_path: Path) -> None:
    run = make_mixed(tmp_path / "exp7", 5)
    markup = run._repr_html_()
    assert markup is not None
    assert markup.startswith("<iframe srcdoc=")
    assert len(markup) < 1_000_000
    empty = Run(tmp_path / "new", model=torch.nn.Linear(1, 1), loader=run.components.loader)
    assert empty._repr_html_() is None
