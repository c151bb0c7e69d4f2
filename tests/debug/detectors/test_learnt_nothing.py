"""Runs that move and learn nothing that matters, and losses that run away below zero; each beside a healthy one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.debug.detectors.series import falling_loss, found_by, signal

from holdfast.debug import MLSystemsDebugger, Verdict
from holdfast.debug.detectors import GradientExplosionDetector, LossPlateauDetector
from holdfast.debug.detectors.steps.doubt import DoubtRule
from holdfast.debug.ingestion.names import meaning_of
from holdfast.debug.types import DetectionContext, Severity, Signal
from holdfast.errors import UnreadableLogError

DEBUGGER = MLSystemsDebugger(plugins=False)
EPOCHS = np.arange(51.0, 121.0)
NOISE = np.random.default_rng(3).standard_normal(20_000)


def verdict(*signals: Signal) -> Verdict:
    return DEBUGGER.debug(list(signals)).verdict


def share(name: str, values: np.ndarray, *, steps: np.ndarray | None = None, split: str | None = None) -> Signal:
    metadata = {"higher_is_better": True, **({"split": split} if split else {})}
    return signal(name, values, kind="metric", steps=steps, metadata=metadata)


def creeping(*, rate: float, fall: float = 0.004, gain: float = 0.003) -> list[Signal]:
    along = np.linspace(0.0, 1.0, 70)
    return [
        signal("loss", 0.786 * (1 - fall * along) + 3e-4 * NOISE[:70], steps=EPOCHS),
        share("val_accuracy", 0.5 + gain * along + 1e-3 * NOISE[70:140], steps=EPOCHS, split="eval"),
        signal("learning rate", np.where(along < 0.1, 2e-7, rate), kind="lr", steps=EPOCHS),
    ]


def test_a_run_whose_rate_is_printed_as_zero_and_that_stands_still_is_a_plateau() -> None:
    (found,) = found_by(LossPlateauDetector(), *creeping(rate=0.0))
    assert (found.failure.name, found.severity) == ("plateau", Severity.WARNING)
    assert "rate" in found.evidence[1].signal
    assert verdict(*creeping(rate=1e-3)) is Verdict.UNKNOWN  # An excerpt that hardly gained: nothing is proven.


def test_a_rate_that_is_printed_with_few_digits_is_not_zero() -> None:
    signals = creeping(rate=0.0, fall=0.015)
    coarse = signal("learning rate", np.where(np.arange(70) < 7, 1e-3, 0.0), kind="lr", steps=EPOCHS)
    for rate in (coarse, signal("learning rate", np.zeros(70), kind="lr", steps=EPOCHS)):
        assert found_by(LossPlateauDetector(), *signals[:2], rate) == ()


@pytest.mark.parametrize(("fall", "gain"), [(0.3, 0.2), (0.3, 0.0), (0.004, 0.2)])
def test_a_run_that_gains_has_a_rate_that_is_rounded_and_no_plateau(fall: float, gain: float) -> None:
    assert verdict(*creeping(rate=0.0, fall=fall, gain=gain)) is Verdict.HEALTHY


@pytest.mark.parametrize(("begins", "ends", "said"), [(0.98, 0.99, Verdict.HEALTHY), (0.5, 0.502, Verdict.UNKNOWN)])
def test_a_share_got_better_by_what_it_was_or_by_what_was_missing(begins: float, ends: float, said: Verdict) -> None:
    along = np.arange(15.0) + 60
    loss = signal("loss", 0.3 - 1e-5 * np.arange(15), steps=along)
    assert verdict(loss, share("accuracy", np.linspace(begins, ends, 15), steps=along)) is said


def away(end: float) -> np.ndarray:
    values = 0.5 + 0.2 * NOISE[:900]
    values[450:] = -np.geomspace(1.0, end, 450) * (1 + 0.2 * np.abs(NOISE[450:900]))
    return values


def test_a_loss_that_runs_away_below_zero_explodes() -> None:
    (found,) = found_by(GradientExplosionDetector(), signal("loss", away(1e9)))
    assert (found.failure.name, found.severity) == ("explosion", Severity.CRITICAL)
    assert found.first_step is not None
    assert 440 <= found.first_step <= 700


def test_a_signed_loss_that_runs_away_above_zero_explodes() -> None:
    assert len(found_by(GradientExplosionDetector(), signal("loss", -away(1e9)))) == 1


@pytest.mark.parametrize(
    "values",
    [
        away(400.0),  # an actor's loss is less what it expects to earn
        np.linspace(9000.0, -30_000.0, 900) + 50 * NOISE[:900],  # a likelihood per image
        1e7 * (1 + 0.1 * NOISE[:900]) * np.sign(NOISE[1000:1900]),  # huge from the first row on, and of both signs
    ],
)
def test_a_loss_that_lives_below_zero_is_no_explosion(values: np.ndarray) -> None:
    assert found_by(GradientExplosionDetector(), signal("loss", values)) == ()


def test_an_agent_that_gets_better_may_expect_more_and_more() -> None:
    rises = signal("episode_reward", np.geomspace(1.0, 1e6, 900) + NOISE[:900], kind="reward")
    assert found_by(GradientExplosionDetector(), signal("actor_loss", away(3e6), kind="loss"), rises) == ()


STEPS = np.linspace(1250, 12_500, 10)
LEARNS = signal("loss", falling_loss(350, start=5.7, end=1.3, noise=0.1), steps=np.linspace(50, 12_500, 350))
WORTHLESS = np.array([0.0, 4e-6, 2.7e-3, 0.0, 2e-4, 9e-4, 3e-4, 5e-4, 1e-4, 1.2e-4])


@pytest.mark.parametrize("name", ["mean_dice", "val/mIoU", "mAP@0.5", "eval_bleu", "exact_match"])
def test_a_score_that_stays_at_nothing_while_the_loss_falls_is_a_plateau(name: str) -> None:
    (found,) = found_by(LossPlateauDetector(), LEARNS, share(name, WORTHLESS, steps=STEPS))
    assert (found.failure.name, found.severity) == ("plateau", Severity.WARNING)
    assert found.evidence[0].signal == name
    assert found_by(LossPlateauDetector(), LEARNS, share(name, WORTHLESS, steps=STEPS), context=LIVE) == ()


LIVE = DetectionContext(live=True)


@pytest.mark.parametrize(
    ("name", "values", "steps", "expected"),
    [
        ("mAP", np.geomspace(1e-5, 0.009, 10), STEPS, Verdict.UNKNOWN),  # has only begun, and may get no further
        ("mAP", np.append(np.zeros(7), [0.02, 0.1, 0.2]), STEPS, Verdict.HEALTHY),  # begins late
        ("mAP", WORTHLESS[:6], STEPS[:6], Verdict.HEALTHY),  # few
        ("bleu", 100 * np.linspace(0.001, 0.2, 10), STEPS, Verdict.HEALTHY),
        ("grad_overlap_penalty", WORTHLESS, STEPS, Verdict.HEALTHY),  # not a score anyone named
    ],
)
def test_a_score_that_climbs_or_is_new_or_is_no_score_is_none(
    name: str, values: np.ndarray, steps: np.ndarray, expected: Verdict
) -> None:
    loss = signal("loss", LEARNS.values, steps=np.linspace(1, steps[-1], 350))
    assert found_by(LossPlateauDetector(), loss, share(name, values, steps=steps)) == ()
    assert verdict(loss, share(name, values, steps=steps)) is expected


def test_a_score_at_nothing_in_a_short_run_is_no_plateau_and_leaves_health_unproven() -> None:
    loss, score = (
        signal("loss", LEARNS.values, steps=np.linspace(1, 250, 350)),
        share("mAP", WORTHLESS, steps=STEPS / 50),
    )
    assert found_by(LossPlateauDetector(), loss, score) == ()
    assert verdict(loss, score) is Verdict.UNKNOWN


def test_a_class_that_is_never_found_beside_others_that_are_is_no_plateau() -> None:
    rare, common = share("dice_rare", WORTHLESS, steps=STEPS), share("dice_liver", np.linspace(0, 0.9, 10), steps=STEPS)
    assert found_by(LossPlateauDetector(), LEARNS, rare, common) == ()


def test_a_score_of_exactly_zero_may_not_be_measured_and_proves_nothing() -> None:
    zeros = share("val_dice", np.zeros(10), steps=STEPS)
    assert found_by(LossPlateauDetector(), LEARNS, zeros) == ()
    assert verdict(LEARNS, zeros) is Verdict.UNKNOWN
    assert verdict(LEARNS, share("accuracy", np.zeros(10), steps=STEPS)) is Verdict.HEALTHY  # of a regression


def test_a_held_out_accuracy_that_is_the_same_to_the_last_digit_proves_nothing() -> None:
    frozen = share("val_acc", np.full(40, 0.1), split="eval")
    loss = signal("train_loss", falling_loss(40, start=2.3, end=0.2, noise=0.01), kind="loss")
    assert verdict(loss, frozen) is not Verdict.HEALTHY
    assert verdict(loss, share("val_acc", np.full(40, 0.97), split="eval")) is Verdict.HEALTHY
    better = signal("val_loss", falling_loss(40, start=2.3, end=0.4, noise=0.01), kind="eval_loss")
    assert verdict(loss, frozen, better) is Verdict.HEALTHY


def test_a_huge_loss_that_falls_for_good_is_a_sum() -> None:
    falls = signal("loss", np.geomspace(2.8e7, 9.7e6, 5000))
    assert found_by(GradientExplosionDetector(), falls) == ()
    stays = signal("loss", 2.8e7 * (1 + 0.05 * NOISE[:5000]))
    assert len(found_by(GradientExplosionDetector(), stays)) == 1


def test_a_held_out_loss_is_not_measured_by_one_point_of_the_training_loss() -> None:
    training = signal("Training Loss", [0.1, 450, 360, 250, 90, 60, 40, 20, 9, 7.2, 5.8, 0.7, 0.7], kind="loss")
    held_out = signal("Validation Loss", [0.6, 95.8, 63, 49, 45, 40, 36, 33, 31, 30, 30, 1.4, 1.4], kind="eval_loss")
    assert found_by(GradientExplosionDetector(), training, held_out) == ()
    lower = signal("Training Loss", np.linspace(0.12, 0.1, 13), kind="loss")
    assert len(found_by(GradientExplosionDetector(), lower, held_out)) == 1
    nowhere = [signal(s.name, s.values, kind=s.kind, steps=np.zeros(13)) for s in (lower, held_out)]
    assert found_by(GradientExplosionDetector(), *nowhere) == ()  # Numbers that a text quotes, without any order.


MEAN = "rollout/ep_rew_mean"
LATE = 19_987_456 + 1024.0 * np.arange(13)


def rewarded(values: np.ndarray, steps: np.ndarray, name: str = MEAN) -> Signal:
    return signal(name, values, kind="reward", steps=steps)


def test_a_mean_reward_of_zero_after_millions_of_steps_is_a_plateau_even_in_an_excerpt() -> None:
    (found,) = found_by(LossPlateauDetector(), rewarded(np.zeros(13), LATE))
    assert found.severity is Severity.WARNING
    idle = signal("train/value_loss", np.full(13, 5e-8), kind="value_loss", steps=LATE)
    assert len(found_by(LossPlateauDetector(), rewarded(np.full(13, 0.016), LATE), idle)) == 1


@pytest.mark.parametrize(
    ("values", "steps", "error"),
    [
        (np.zeros(13), LATE - 19_900_000, 1e-9),  # 87,000 steps: a first reward may come yet
        (np.zeros(5), LATE[:5], 1e-9),
        (np.append(np.zeros(10), [0.1, 0.3, 0.6]), LATE, 1e-3),
        (np.full(13, 0.016), LATE, 0.02),  # The value function has something to learn from.
        (np.full(13, 0.97), LATE, 1e-8),  # solved
        (np.full(13, -8.0), LATE, 1e-8),  # the shortest way, perhaps
    ],
)
def test_a_reward_that_comes_or_is_new_or_may_be_the_best_is_none(
    values: np.ndarray, steps: np.ndarray, error: float
) -> None:
    critic = signal("train/value_loss", np.full(len(steps), error), kind="value_loss", steps=steps)
    assert found_by(LossPlateauDetector(), rewarded(values, steps), critic) == ()


LONG = np.linspace(16_384, 1_490_944, 91)


def test_a_mean_reward_below_zero_that_hardly_moves_in_a_million_steps_is_a_plateau() -> None:
    wanders = -9.75 + 0.12 * NOISE[:91] + 0.2 * np.sin(np.arange(91) / 15)
    (found,) = found_by(LossPlateauDetector(), rewarded(wanders, LONG))
    assert found.failure.name == "plateau"


@pytest.mark.parametrize(
    "values",
    [
        -9.75 + np.linspace(0, 1.5, 91) + 0.12 * NOISE[:91],
        np.append(np.linspace(-1200, -160, 8), -150 + 3 * NOISE[:83]),  # learnt at once
        9.75 + 0.12 * NOISE[:91],  # may be the best there is
        np.append(-9.75 + 0.1 * NOISE[:80], np.linspace(-9.6, -7.0, 11)),  # comes late
        0.01 * NOISE[:91] - 0.001,  # normalised
    ],
)
def test_a_mean_reward_that_moves_is_none(values: np.ndarray) -> None:
    assert found_by(LossPlateauDetector(), rewarded(values, LONG)) == ()
    assert found_by(LossPlateauDetector(), rewarded(values, LONG, name="eval/ep_rew_mean")) == ()


def counted(count: int, *, true_positives: float = 0.0, false_positives: float = 0.0) -> list[dict[str, float]]:
    wrong = {"FP": false_positives, "FN": 35_809.0, "TP": true_positives, "TN": 162_444.0}
    return [{"Epoch": n, "Precision": 0.0, "Recall": 0.0, "F1": 0.0, **wrong} for n in range(count)]


def test_counts_that_show_one_answer_for_every_sample_are_a_plateau() -> None:
    report = DEBUGGER.debug(counted(11))
    assert [finding.detection.failure.name for finding in report.runs[0].findings] == ["plateau"]


@pytest.mark.parametrize(
    "rows",
    [
        counted(5),  # too few
        counted(11, false_positives=3.0),  # answers differ
        [{name: row[name] for name in ("Epoch", "Precision", "Recall", "F1")} for row in counted(11)],  # not measured
    ],
)
def test_scores_of_zero_without_counts_that_prove_them_are_none(rows: list[dict[str, float]]) -> None:
    assert DEBUGGER.debug(rows).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("name", ["x_hit_id", "hit_count", "recall_idx"])
def test_identifiers_and_counts_of_data_are_no_scores(name: str) -> None:
    assert meaning_of(name).kind is None


@pytest.mark.parametrize("name", ["Hits@10", "hit_rate", "HitRatio", "hits_at_1"])
def test_a_share_of_hits_is_a_score(name: str) -> None:
    assert meaning_of(name).kind == "metric"


def test_the_shapes_of_a_printed_object_are_no_series_that_could_stand_still(tmp_path: Path) -> None:
    sizes = (110_000 + 9_000 * np.random.default_rng(3).standard_normal(120)).astype(int)
    bar = "Predicting DataLoader 0:   0%|          | {n}/1000 [00:02<24:11,  1.45s/it]"
    shapes = "Data(edges=[2, {s}], pt=[{s}], event_id='000021000', truth_map=[{s}], precision=[{s}])"
    lines = [f"{bar}{shapes}".format(n=n, s=size) for n, size in enumerate(sizes.tolist())]
    path = tmp_path / "output.log"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UnreadableLogError):
        DEBUGGER.debug(path)


@pytest.mark.parametrize("name", ["r2", "score", "return", "f1"])
@pytest.mark.parametrize("level", [9.0, 0.004])
def test_a_table_in_which_nothing_says_training_is_no_plateau(tmp_path: Path, name: str, level: float) -> None:
    draws = np.tile(level * (1 + 0.3 * np.random.default_rng(1).uniform(-1, 1, (700, 3))), (3, 1))
    path = tmp_path / "draws.csv"
    path.write_text("\n".join((f"red,{name},blue", *(",".join(map(str, row)) for row in draws.tolist()))) + "\n")
    assert DEBUGGER.debug(path).runs[0].findings == ()


@pytest.mark.parametrize("header", ["epoch,accuracy", "lr,accuracy", "val_accuracy"])
def test_a_table_without_a_loss_that_says_training_can_stand_still(tmp_path: Path, header: str) -> None:
    rows = [f"{n},{0.3 + 0.01 * NOISE[n]}" for n in range(1, 41)]
    rows = rows if "," in header else [row.split(",")[1] for row in rows]
    rows = [f"0.001,{row.split(',')[1]}" for row in rows] if header.startswith("lr") else rows
    path = tmp_path / "history.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    assert DEBUGGER.debug(path).verdict is Verdict.UNHEALTHY


def preference(margin: np.ndarray, right: np.ndarray) -> list[Signal]:
    """A preference loss that creeps down from ln 2 at a tiny rate, with what such trainers log beside it."""
    steps = np.arange(10.0, 170.0, 10.0)
    loss = np.log(2) - np.linspace(0.001, 0.0135, 16) + 0.0005 * NOISE[:16]
    return [
        signal("loss", loss, steps=steps),
        signal("learning_rate", np.full(16, 1e-6), kind="lr", steps=steps),
        signal("grad_norm", np.full(16, 0.3), steps=steps),
        signal("rewards/margins", margin, kind="other", steps=steps),
        share("rewards/accuracies", right, steps=steps),
    ]


def test_a_preference_loss_that_creeps_while_the_better_answers_are_told_apart_is_no_plateau() -> None:
    right = np.array([0.48, 0.7, 0.68, 0.85, 0.79, 0.9, 0.9, 0.86, 0.9, 0.84, 0.84, 0.89, 0.88, 0.94, 0.95, 0.88])
    assert verdict(*preference(np.linspace(0.002, 0.03, 16), right)) is Verdict.HEALTHY
    guessed = 0.5 + 0.05 * NOISE[40:56]
    assert verdict(*preference(0.002 * NOISE[20:36], guessed)) is Verdict.UNHEALTHY


@pytest.mark.parametrize(
    ("shares", "end", "stuck"),
    [
        (np.linspace(0.22, 0.06, 15), 3.037, True),
        (np.linspace(0.02, 0.16, 15), 3.037, False),
        (np.linspace(0.22, 0.06, 15), 2.7, False),
        (np.linspace(0.45, 0.4, 15), 3.037, False),
    ],
)
def test_a_loss_at_the_cost_of_guessing_beside_a_held_out_accuracy_that_agrees_is_a_plateau(
    shares: np.ndarray, end: float, stuck: bool
) -> None:
    loss = signal("loss", np.linspace(3.046, end, 15), steps=np.arange(1.0, 16.0))
    found = found_by(LossPlateauDetector(), loss, share("val_acc", 100 * shares, steps=loss.steps, split="eval"))
    assert ["21 classes" in seen.evidence[0].claim for seen in found] == [True] * stuck


SINGLE = np.random.default_rng(11).random(600)
UNSURE = 1.9 + 0.4 * np.random.default_rng(12).standard_normal(600)


@pytest.mark.parametrize("right", [0.42, 0.48])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_answers_to_single_samples_are_right_more_often_than_by_chance_though_most_are_wrong(
    right: float, scale: float
) -> None:
    answers = scale * (right > SINGLE)
    signals = [signal("loss", UNSURE), share("train_acc", answers)]
    assert DoubtRule().chance(signals) is None


@pytest.mark.parametrize("right", [0.1, 0.18])
def test_answers_to_single_samples_that_are_right_by_chance_are_a_guess(right: float) -> None:
    guess = DoubtRule().chance([signal("loss", UNSURE), share("train_acc", 1.0 * (right > SINGLE))])
    assert guess is not None
    assert "7 classes" in guess.guess


@pytest.mark.parametrize(("late", "alarms"), [(0.0, 1), (0.035, 0)])
def test_a_loss_of_guessing_that_has_begun_to_fall_at_the_end_is_no_plateau(late: float, alarms: int) -> None:
    falls = np.maximum(np.arange(30) - 17, 0)
    loss = signal("train_loss", np.log(24) - 1e-4 * np.arange(30) - late * falls, kind="loss")
    accuracy = share("train_acc", 0.06 + 0.1 * late * falls)
    found = [seen for seen in found_by(LossPlateauDetector(), loss, accuracy) if seen.severity is Severity.CRITICAL]
    assert len(found) == alarms


@pytest.mark.parametrize(("name", "alarms"), [("val_accuracy", 1), ("match score", 0)])
def test_only_a_fraction_that_never_changes_shows_without_a_loss_that_nothing_is_learnt(name: str, alarms: int) -> None:
    assert len(found_by(LossPlateauDetector(), share(name, np.full(8, 4.0)))) == alarms


@pytest.mark.parametrize(("peak", "alarms"), [(15.0, 0), (15_000.0, 1)])
def test_the_loss_of_an_agent_grows_from_almost_nothing_as_it_finds_rewards(peak: float, alarms: int) -> None:
    along = np.linspace(0.0, 1.0, 200)
    loss = np.where(along < 0.02, 1e-4, 0.03 + peak * np.maximum(along - 0.3, 0.0) * np.exp(0.3 * NOISE[:200]))
    reward = signal("reward", 0.3 + 6.0 * along + 0.1 * NOISE[200:400], kind="reward")
    assert len(found_by(GradientExplosionDetector(), signal("loss", loss), reward)) == alarms


@pytest.mark.parametrize("name", ["TimeLoss", "packet_loss", "stop_loss"])
def test_a_loss_that_no_model_has_is_none(name: str) -> None:
    assert meaning_of(name).kind is None


def _one_answer(*, own: np.ndarray, held_out: np.ndarray, loss: float) -> list[Signal]:
    return [
        signal("train_loss", np.append(0.49, np.linspace(0.392, 0.374, 11)), kind="loss"),
        share("train_acc", own),
        signal("val_loss", np.linspace(0.389, loss, 12), kind="eval_loss"),
        share("val_acc", held_out, split="eval"),
    ]


SAME = np.full(12, 0.44226)
STARTS_LOWER = np.append(0.40815, SAME[1:] + 1e-6)


def test_an_accuracy_that_never_changes_held_out_or_in_training_is_one_answer() -> None:
    (found,) = found_by(LossPlateauDetector(), *_one_answer(own=STARTS_LOWER, held_out=SAME, loss=0.369))
    assert (found.failure.name, found.severity, found.signal) == ("plateau", Severity.WARNING, "val_acc")


@pytest.mark.parametrize(
    ("own", "held_out", "loss"),
    [
        (np.linspace(0.40, 0.46, 12), SAME, 0.369),  # training moves
        (STARTS_LOWER, SAME, 0.2),  # the accuracy does not fit the task
        (STARTS_LOWER, STARTS_LOWER + 1e-3 * NOISE[:12], 0.369),
        (np.full(12, 0.97), np.full(12, 0.97), 0.369),
    ],
)
def test_an_accuracy_that_moves_or_is_high_or_beside_a_loss_that_falls_is_none(
    own: np.ndarray, held_out: np.ndarray, loss: float
) -> None:
    assert found_by(LossPlateauDetector(), *_one_answer(own=own, held_out=held_out, loss=loss)) == ()
