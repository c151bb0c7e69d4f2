"""Healthy runs of many kinds of training, as their logs name things: none may raise an alarm."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.debug import MLSystemsDebugger

Log = dict[str, NDArray[np.float64]]
Recipe = Callable[[np.random.Generator, int], Log]
RECIPES: dict[str, tuple[Recipe, int]] = {}


def recipe(count: int) -> Callable[[Recipe], Recipe]:
    def keep(function: Recipe) -> Recipe:
        RECIPES[function.__name__] = (function, count)
        return function

    return keep


def fall(count: int, start: float, end: float, over: float) -> NDArray[np.float64]:
    return np.asarray(end + (start - end) * np.exp(-np.arange(count) / over))


@recipe(200)
def group_relative_policy_optimisation(generator: np.random.Generator, count: int) -> Log:
    done = np.arange(count) / count
    return {
        "loss": generator.normal(0, 0.01, count),
        "reward": 0.2 + 0.5 * done + generator.normal(0, 0.05, count),
        "kl": np.abs(generator.normal(0.01 * done, 0.002)),
        "learning_rate": 1e-6 * (1 - done),
        "grad_norm": np.abs(generator.normal(0.4, 0.1, count)),
    }


@recipe(200)
def proximal_policy_optimisation(generator: np.random.Generator, count: int) -> Log:
    return {
        "policy_loss": generator.normal(-0.01, 0.01, count),
        "value_loss": fall(count, 0.5, 0, 80) + np.abs(generator.normal(0, 0.03, count)),
        "loss": generator.normal(0.2, 0.05, count),
        "entropy": np.linspace(2, 1.5, count),
        "lr": np.full(count, 1.4e-6),
    }


@recipe(60)
def preference_optimisation(generator: np.random.Generator, count: int) -> Log:
    done = np.arange(count) / count
    return {
        "loss": 0.6931 - 0.08 * done + generator.normal(0, 0.02, count),
        "learning_rate": 5e-7 * (1 - done),
        "grad_norm": np.abs(generator.normal(8, 2, count)),
        "rewards/accuracies": 0.5 + 0.2 * done,
    }


@recipe(100)
def short_fine_tuning_of_a_good_model(generator: np.random.Generator, count: int) -> Log:
    done = np.arange(count) / count
    return {
        "loss": 1.25 - 0.05 * done + generator.normal(0, 0.12, count),
        "learning_rate": 2e-6 * (1 - done),
        "grad_norm": np.abs(generator.normal(1.3, 0.2, count)),
    }


@recipe(1200)
def four_tasks_in_turn(generator: np.random.Generator, count: int) -> Log:
    level = np.resize([2.0, 0.7, 1.2, 3.1], count)
    return {"loss": level * (0.3 + fall(count, 1, 0, 900)) + generator.normal(0, 0.05, count)}


@recipe(1200)
def eight_tasks_in_turn(generator: np.random.Generator, count: int) -> Log:
    level = np.resize(0.5 + 0.35 * np.arange(8), count)
    return {"loss": level * (0.5 + fall(count, 1, 0, 900)) + generator.normal(0, 0.05, count)}


@recipe(2000)
def adversarial_networks(generator: np.random.Generator, count: int) -> Log:
    return {
        "Loss_D": 0.4 + np.abs(generator.normal(0, 0.3, count)),
        "Loss_G": np.linspace(2, 4, count) + np.abs(generator.normal(0, 1, count)),
        "D(x)": generator.normal(0.8, 0.05, count),
    }


@recipe(1500)
def distillation(generator: np.random.Generator, count: int) -> Log:
    loss = fall(count, 2.5, 0.5, 300) + generator.normal(0, 0.02, count)
    return {"student_loss": loss, "teacher_loss": generator.normal(0.45, 0.02, count)}


@recipe(1500)
def variational_autoencoder(generator: np.random.Generator, count: int) -> Log:
    recon, kl = fall(count, 270, 70, 200), 20 - fall(count, 20, 0, 200)
    noise = generator.normal(0, 1, count)
    return {"loss": recon + kl + noise, "recon_loss": recon + noise, "kl_loss": kl}


@recipe(1500)
def contrastive_learning_with_a_negative_loss(generator: np.random.Generator, count: int) -> Log:
    return {"loss": fall(count, -0.2, -0.8, 400) + generator.normal(0, 0.02, count)}


@recipe(2000)
def mixture_of_experts(generator: np.random.Generator, count: int) -> Log:
    return {
        "loss": fall(count, 10, 3, 300) + generator.normal(0, 0.05, count),
        "aux_loss": 1.0 + np.abs(generator.normal(0, 0.005, count)),
        "z_loss": 0.002 + np.abs(generator.normal(0, 0.0005, count)),
        "grad_norm": np.abs(generator.normal(0.5, 0.1, count)),
    }


@recipe(2000)
def warm_restarts(generator: np.random.Generator, count: int) -> Log:
    phase = np.arange(count) % 500 / 500
    rate = 0.05 * (1 + np.cos(np.pi * phase))
    return {"loss": fall(count, 3, 1, 500) + 3 * rate + generator.normal(0, 0.03, count), "lr": rate}


@recipe(3000)
def pauses_for_checkpoints(generator: np.random.Generator, count: int) -> Log:
    seconds = 2 + np.abs(generator.normal(0, 0.05, count))
    seconds[::500] = 60
    return {"loss": fall(count, 11, 2.2, 600) + generator.normal(0, 0.01, count), "step_time": seconds}


@recipe(1000)
def reinforcement_learning(generator: np.random.Generator, count: int) -> Log:
    return {
        "rollout/ep_rew_mean": 200 - fall(count, 190, 0, 300) + generator.normal(0, 5, count),
        "train/loss": generator.normal(0, 5, count),
        "train/value_loss": np.abs(generator.normal(50, 20, count)),
        "train/entropy_loss": np.linspace(-0.69, -0.4, count),
    }


@recipe(4000)
def diffusion(generator: np.random.Generator, count: int) -> Log:
    return {
        "loss": fall(count, 0.92, 0.02, 100) + np.abs(generator.normal(0, 0.008, count)),
        "lr": np.full(count, 1e-4),
        "grad_norm": np.abs(generator.normal(0.1, 0.04, count)),
    }


@recipe(3000)
def longer_sequences_half_way(generator: np.random.Generator, count: int) -> Log:
    length = np.where(np.arange(count) < 1500, 512.0, 4096.0)
    loss = fall(count, 11, 2.2, 600) * np.where(length > 512, 0.93, 1.0)
    return {"loss": loss + generator.normal(0, 0.02, count), "seq_len": length}


@recipe(300)
def segmentation_with_a_bounded_loss(generator: np.random.Generator, count: int) -> Log:
    loss = np.clip(fall(count, 0.9, 0.15, 60) + generator.normal(0, 0.03, count), 0, 1)
    return {"dice_loss": loss, "iou": 1 - loss, "lr": np.full(count, 1e-3)}


@recipe(90)
def epochs_of_an_image_classifier(generator: np.random.Generator, count: int) -> Log:
    rate = 0.1 * 0.1 ** (np.arange(count) // 30)
    drop = np.array([0.0, 0.6, 0.8])[np.arange(count) // 30]
    loss = fall(count, 6.9, 2.2, 6) - drop + generator.normal(0, 0.03, count)
    return {"train_loss": loss, "val_loss": loss + 0.15 + generator.normal(0, 0.05, count), "lr": rate}


@recipe(1500)
def summed_losses_of_a_detector(generator: np.random.Generator, count: int) -> Log:
    box, classes = fall(count, 2.4, 0.8, 300), fall(count, 4, 0.5, 200)
    noise = generator.gamma(4, 0.05, count)
    return {"loss": box + classes + noise, "loss_box_reg": box + noise / 2, "loss_cls": classes + noise / 2}


@pytest.mark.parametrize("name", RECIPES)
def test_a_healthy_run_of_this_kind_raises_no_alarm(name: str) -> None:
    make, count = RECIPES[name]
    debugger = MLSystemsDebugger()
    for seed in range(5):
        log = make(np.random.default_rng(seed), count)
        report = debugger.debug({"step": np.arange(count), **log})
        found = [f"{f.detection.failure}: {f.detection.evidence[0].claim}" for run in report.runs for f in run.findings]
        assert found == [], seed
