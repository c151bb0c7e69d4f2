"""Losses in parts of which one rises, losses that are flat in much noise, and held-out losses that only seem to turn.

Each class of error beside the healthy runs that nearly look like it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from tests.debug.detectors.series import falling_loss, found_by, signal

from holdfast.debug import MLSystemsDebugger
from holdfast.debug.detectors import DivergentTrainingDetector, LossPlateauDetector, OverfittingDetector
from holdfast.debug.types import Signal, Verdict

DEBUGGER = MLSystemsDebugger(plugins=False)
COUNT = 1200


def rng(seed: int = 5) -> np.random.Generator:
    return np.random.default_rng(seed)


def rising(start: float, end: float, noise: float, seed: int = 1) -> np.ndarray:
    level = end + (start - end) * np.exp(-np.linspace(0, 4, COUNT))
    return np.asarray(level + noise * rng(seed).standard_normal(COUNT))


def losses(**parts: np.ndarray) -> list[Signal]:
    return [signal(name.replace("_", " "), values, kind="loss") for name, values in parts.items()]


def share(name: str, start: float, end: float) -> Signal:
    values = end + (start - end) * np.exp(-np.linspace(0, 4, 25)) + 0.002 * rng(9).standard_normal(25)
    where = {"higher_is_better": True, "split": "eval"}
    return signal(name, values, kind="metric", steps=np.linspace(48, COUNT - 1, 25), metadata=where)


def test_a_task_loss_that_rises_with_all_parts_together_diverged_though_another_part_falls() -> None:
    parts = losses(task_loss=rising(3.3, 7.3, 0.4), kd_loss=rising(0.5, 0.3, 0.05, seed=2))
    (found,) = found_by(DivergentTrainingDetector(), *parts, share("mIoU", 0.02, 0.027))
    assert found.signal == "task loss"


HEALTHY_PARTS: Mapping[str, list[Signal]] = {
    "a consistency that grows out of nothing": losses(
        sup_loss=rising(2.3, 0.2, 0.05), cons_loss=rising(0.0, 0.4, 0.02)
    ),
    "distillation that grows": losses(task_loss=rising(3.0, 0.6, 0.1), kd_loss=rising(0.5, 0.9, 0.05)),
    "a smaller part that rises": losses(box_loss=rising(3.0, 1.0, 0.05), cls_loss=rising(0.4, 0.8, 0.02)),
    "two tasks that trade": losses(depth_loss=rising(1.0, 0.5, 0.02), normal_loss=rising(0.6, 0.7, 0.02)),
    "answers that get better": [
        *losses(task_loss=rising(3.3, 5.3, 0.1), kd_loss=rising(0.5, 0.3, 0.02)),
        share("val acc", 0.1, 0.7),
    ],
    "a total beside its parts": losses(
        total_loss=rising(3.0, 4.0, 0.05), rec_loss=rising(3.0, 0.5, 0.05), feat_loss=rising(0.02, 0.01, 0.0005)
    ),
    "an adversarial game": losses(d_loss=rising(1.2, 0.3, 0.05), g_loss=rising(1.0, 5.0, 0.3)),
    "a divergence that is annealed in": losses(rec_loss=rising(0.3, 0.1, 0.01), kl_loss=rising(0.0, 8.0, 0.1)),
    "an agent's terms": losses(policy_loss=rising(0.01, -0.01, 0.005), value_loss=rising(0.2, 6.0, 0.1)),
    "a penalty on the weights": losses(ce_loss=rising(2.3, 0.4, 0.05), reg_loss=rising(0.1, 1.2, 0.01)),
    "codes that spread": losses(rec_loss=rising(0.5, 0.1, 0.01), commit_loss=rising(0.1, 2.0, 0.05)),
}


@pytest.mark.parametrize("name", HEALTHY_PARTS)
def test_parts_that_trade_with_each_other_do_not_diverge(name: str) -> None:
    assert not found_by(DivergentTrainingDetector(), *HEALTHY_PARTS[name])


def _stepped(held_out: tuple[float, float, float], end: float = 0.0007) -> list[Signal]:
    """A training loss near zero that steps up for good, and the held-out loss before, around and after that."""
    train = np.concatenate((np.geomspace(0.0014, 0.00023, 800), np.full(400, end))) * (
        1 + 0.02 * rng().standard_normal(1200)
    )
    first, before, after = held_out
    held = np.concatenate((np.geomspace(first, before, 16), np.full(8, after))) * (
        1 + 0.02 * rng(4).standard_normal(24)
    )
    return [
        signal("loss", train, kind="loss"),
        signal("val loss", held, kind="eval_loss", steps=np.linspace(40, 1199, 24)),
    ]


@pytest.mark.parametrize(
    ("held_out", "alarms"),
    [((0.003, 0.0002, 0.0002), 0), ((0.003, 0.0002, 0.0009), 1), ((0.0002, 0.0002, 0.0002), 1)],
    ids=["kept what it gained", "rose too", "never gained anything"],
)
def test_a_step_of_the_training_loss_is_no_divergence_where_the_held_out_loss_stays(
    held_out: tuple[float, float, float], alarms: int
) -> None:
    assert len(found_by(DivergentTrainingDetector(), *_stepped(held_out))) == alarms


def test_a_held_out_loss_that_stays_excuses_nothing_where_the_training_loss_gives_up_most_of_its_gain() -> None:
    assert len(found_by(DivergentTrainingDetector(), *_stepped((0.003, 0.0002, 0.0002), end=0.0012))) == 1


def test_a_held_out_loss_that_stays_excuses_nothing_where_the_answers_are_lost() -> None:
    dice = np.concatenate((np.linspace(0.4, 0.75, 16), np.zeros(8)))
    where = {"higher_is_better": True, "split": "eval"}
    lost = signal("val_dice", dice, kind="metric", steps=np.linspace(40, 1199, 24), metadata=where)
    assert len(found_by(DivergentTrainingDetector(), *_stepped((0.003, 0.0002, 0.0002)), lost)) == 1


def test_a_loss_that_no_trained_model_pays_is_stuck_however_loud() -> None:
    values = 118.0 * (1 + 0.3 * rng().standard_normal(3000))
    (found,) = found_by(LossPlateauDetector(), signal("Train_Loss", np.abs(values), kind="loss"))
    assert found.failure.name == "plateau"


HEALTHY_NOISE: Mapping[str, np.ndarray] = {
    "a diffusion model that is tuned": np.abs(0.12 * (1 + 0.6 * rng().standard_normal(3000))),
    "language, tuned a little": 2.1 * (1 + 0.25 * rng(2).standard_normal(3000)),
    "too short": np.abs(118.0 * (1 + 0.3 * rng(3).standard_normal(400))),
    "a sum that falls slowly": np.linspace(130, 112, 3000) * (1 + 0.3 * rng(4).standard_normal(3000)),
    "a sum that fell at once": np.concatenate((np.full(60, 400.0), np.full(2940, 118.0)))
    * (1 + 0.3 * rng(6).standard_normal(3000)),
    "a large vocabulary": 10.8 * (1 + 0.2 * rng(7).standard_normal(3000)),
    "energies of either sign": 40.0 * rng(8).standard_normal(3000),
}


@pytest.mark.parametrize("name", HEALTHY_NOISE)
def test_other_loud_losses_are_not_called_stuck(name: str) -> None:
    found = found_by(LossPlateauDetector(), signal("loss", HEALTHY_NOISE[name], kind="loss"))
    assert not [
        seen for seen in found if "stays at" in seen.evidence[0].claim and "guess" not in seen.evidence[0].claim
    ]


@pytest.mark.parametrize("seed", range(10))
def test_the_luckiest_of_many_noisy_evaluations_is_no_turn(seed: int) -> None:
    train = signal("train_loss", falling_loss(191, start=6.1, end=4.5, noise=0.7, seed=seed), kind="loss")
    values = falling_loss(191, start=7.0, end=5.2, noise=0.6, seed=seed + 50)
    values[120], values[-3:] = 3.9, (5.5, 5.7, 5.6)
    assert not found_by(OverfittingDetector(), train, signal("valid_loss", values, kind="eval_loss"))


def test_a_held_out_loss_that_is_ruined_is_found_in_any_noise() -> None:
    train = signal("train_loss", falling_loss(40, start=1.0, end=0.05, noise=0.005), kind="loss")
    swinging = np.concatenate((np.geomspace(2.0, 1.05, 8), np.linspace(1.1, 2.7, 32))) * np.tile(
        (1.0, 1.3, 0.9, 1.15), 10
    )
    assert len(found_by(OverfittingDetector(), train, signal("val_loss", swinging, kind="eval_loss"))) == 1


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_a_held_out_loss_that_really_turns_is_found_among_as_many(noise: float) -> None:
    train = signal("train_loss", falling_loss(191, start=6.1, end=0.5, noise=0.05), kind="loss")
    turned = np.concatenate((np.geomspace(6.0, 3.0, 60), np.linspace(3.0, 5.0, 131)))
    held_out = signal("valid_loss", turned * (1 + noise * rng().standard_normal(191)), kind="eval_loss")
    assert len(found_by(OverfittingDetector(), train, held_out)) == 1


@pytest.mark.parametrize(("kind", "alarms"), [("metric", 0), ("eval_loss", 1)])
def test_an_error_in_other_units_is_not_held_against_the_training_loss(kind: str, alarms: int) -> None:
    train = signal("train_loss", falling_loss(900, start=1.1, end=0.09, noise=0.005), kind="loss")
    values = np.concatenate((np.linspace(0.92, 0.88, 20), np.linspace(0.91, 0.954, 80)))
    where = {"split": "eval", "higher_is_better": False}
    held_out = signal("validation_rmse", values, kind=kind, steps=np.linspace(9, 899, 100), metadata=where)
    assert len(found_by(OverfittingDetector(), train, held_out)) == alarms


def detector_rows(count: int, *, total_rises: float) -> list[dict[str, float]]:
    """Return rows as detection transformers log them: a total, its weighted parts, and the same parts unscaled."""
    down = np.exp(-np.linspace(0, 5, count))
    turn = np.concatenate((np.linspace(0.9, 0.27, count // 2), np.linspace(0.27, 0.45, count - count // 2)))
    box = 0.5 + 1.5 * down
    rest = np.concatenate((np.zeros(count // 2), np.linspace(0, total_rises, count - count // 2)))
    return [
        {
            "epoch": n,
            "train_loss": float(1 + 10 * down[n]),
            "test_loss_ce_unscaled": float(turn[n]),
            "test_loss_ce": float(turn[n]),
            "test_loss_bbox": float(5 * box[n]),
            "test_loss_bbox_unscaled": float(box[n]),
            "test_loss": float(turn[n] + 5 * box[n] + rest[n]),
        }
        for n in range(count)
    ]


@pytest.mark.parametrize(("total_rises", "said"), [(0.0, Verdict.HEALTHY), (4.0, Verdict.UNHEALTHY)])
def test_the_named_total_decides_whatever_a_part_or_an_unscaled_copy_does(total_rises: float, said: Verdict) -> None:
    report = DEBUGGER.debug(detector_rows(240, total_rises=total_rises))
    assert report.verdict is said
    names = [finding.detection.evidence[0].signal for finding in report.runs[0].findings]
    assert names == ([] if said is Verdict.HEALTHY else ["test_loss"])


def test_a_total_that_was_seldom_logged_does_not_hide_its_parts() -> None:
    training = signal("loss", falling_loss(180, start=0.6, end=0.02, noise=0.002))
    part = np.concatenate((np.linspace(0.5, 0.2, 6), np.linspace(0.22, 0.5, 12)))
    held_out = signal("val_ce_loss", part, kind="eval_loss", steps=np.arange(18) * 10.0)
    total = signal("val_loss", np.array([0.5, 0.4]), kind="eval_loss", steps=np.array([0.0, 170.0]))
    assert len(found_by(OverfittingDetector(), training, held_out, total)) == 1


def test_the_whole_debugger_says_the_same_of_parts() -> None:
    rows = [
        {"step": n, "task_loss": float(task), "kd_loss": float(kd)}
        for n, (task, kd) in enumerate(zip(rising(3.3, 7.3, 0.4), rising(0.5, 0.3, 0.05), strict=True))
    ]
    assert DEBUGGER.debug(rows).verdict is Verdict.UNHEALTHY
