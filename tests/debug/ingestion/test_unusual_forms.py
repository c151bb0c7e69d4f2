"""Forms of single scripts: what Python prints, tables on their side, sections, counters of other names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from holdfast.debug import MLSystemsDebugger, RunReport, Verdict
from holdfast.errors import UnreadableLogError

DEBUGGER = MLSystemsDebugger(plugins=False)
LOSSES = [round(2.0 / (n + 1) + 0.2, 4) for n in range(24)]
SHARES = [round(1 - loss / 3, 4) for loss in LOSSES]
PAIRS = list(zip(LOSSES, SHARES, strict=True))


def run_of(folder: Path, name: str, content: str) -> RunReport:
    (folder / name).write_text(content, encoding="utf-8")
    (run,) = DEBUGGER.debug(folder / name).runs
    return run


def series_of(run: RunReport) -> dict[str, list[float]]:
    return {signal.name: [float(value) for value in signal.values] for signal in run.signals}


@pytest.mark.parametrize(
    "text",
    [
        str({"loss": LOSSES, "acc": SHARES, "note": None}),
        "{'loss': [" + ", ".join(f"np.float32({loss})" for loss in LOSSES) + f"], 'acc': array({SHARES})}}",
        "{'loss': [" + ", ".join(f"tensor({loss}, device='cuda:0')" for loss in LOSSES) + f"], 'acc': {SHARES}}}",
        f"{{'loss': ({', '.join(map(str, LOSSES))}), 'acc': {SHARES}, 'done': True, 'best': nan}}",
    ],
)
def test_a_dictionary_as_python_prints_it_is_read(tmp_path: Path, text: str) -> None:
    series = series_of(run_of(tmp_path, "run.txt", text))
    assert (series["loss"], series["acc"]) == (LOSSES, SHARES)


@pytest.mark.parametrize("text", ["{'loss': [__import__('os').getcwd()]}", "{'a': [" + "(" * 5000])
def test_a_dictionary_that_is_none_is_refused_and_never_evaluated(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnreadableLogError):
        run_of(tmp_path, "run.txt", text)


def test_tensors_line_by_line_are_bare_numbers(tmp_path: Path) -> None:
    text = "".join(f"tensor({loss}, device='cuda:0', grad_fn=<MeanBackward0>)\n" for loss in LOSSES)
    assert series_of(run_of(tmp_path, "loss.txt", text)) == {"loss": LOSSES}


def test_an_array_whose_bracket_closes_on_a_line_of_its_own_is_read(tmp_path: Path) -> None:
    text = "[" + "\n ".join(" ".join(map(str, LOSSES[n : n + 6])) for n in range(0, 24, 6)) + "\n]"
    assert series_of(run_of(tmp_path, "loss.txt", text)) == {"loss": LOSSES}


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_table_on_its_side_is_read(tmp_path: Path, mark: str) -> None:
    rows: dict[str, list[float]] = {"epoch": [*range(24)], "loss": LOSSES, "acc": SHARES}
    text = "".join(mark.join(map(str, (name, *values))) + "\n" for name, values in rows.items())
    assert series_of(run_of(tmp_path, "run.csv", text)) == {"loss": LOSSES, "acc": SHARES}


@pytest.mark.parametrize("form", ["{n} {loss} {share}", "({n}, {loss}, {share})", "{n:5d} {loss} {share}%"])
def test_numbers_after_a_counter_are_read_and_not_judged_where_nothing_names_them(tmp_path: Path, form: str) -> None:
    text = "".join(form.format(n=n, loss=loss, share=share) + "\n" for n, (loss, share) in enumerate(PAIRS))
    run = run_of(tmp_path, "results_7.txt", text)
    assert list(series_of(run).values()) == [LOSSES, SHARES]
    assert run.verdict is Verdict.UNKNOWN


def test_numbers_without_a_counter_in_a_file_of_no_telling_name_are_data(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLogError):
        run_of(tmp_path, "points.txt", "".join(f"{loss} {share}\n" for loss, share in PAIRS))


@pytest.mark.parametrize(
    "form",
    [
        "loss after {n} iterations: {loss}",
        "Game {n} loss {loss}",
        "Generation {n}: loss = {loss}",
        "Round {n}, loss {loss}",
    ],
)
def test_counters_of_other_names_are_places(tmp_path: Path, form: str) -> None:
    run = run_of(tmp_path, "out.log", "".join(form.format(n=10 * n, loss=loss) + "\n" for n, loss in enumerate(LOSSES)))
    assert series_of(run) == {"loss": LOSSES}
    assert run.signals[0].steps[-1] == 230


def test_what_stands_under_the_name_of_a_split_was_measured_there(tmp_path: Path) -> None:
    text = "".join(
        f"--- Epoch {n} ---\nTrain:\n  loss {loss}\n  acc {share}\n== Test ==\n  loss {loss + 9}\n"
        for n, (loss, share) in enumerate(PAIRS)
    )
    run = run_of(tmp_path, "out.log", text)
    assert series_of(run) == {"loss": LOSSES, "acc": SHARES, "val loss": [loss + 9 for loss in LOSSES]}
    assert run.verdict is Verdict.HEALTHY


def test_a_column_that_is_merely_a_value_is_what_the_file_is_called(tmp_path: Path) -> None:
    text = "Wall time,Step,Value\n" + "".join(f"{1.6e9 + n},{n},{loss}\n" for n, loss in enumerate(LOSSES))
    assert run_of(tmp_path, "run-tag-loss.csv", text).signals[0].kind == "loss"


def test_what_stands_in_brackets_after_a_split_is_of_that_split(tmp_path: Path) -> None:
    rows = (f"{n} \tTrain(L={a:.3f}  | A=0.5) \tValid(L={a + 1:.3f}  | A=0.4) \t> Best\n" for n, a in enumerate(LOSSES))
    run = run_of(tmp_path, "log.txt", "".join(rows))
    assert {signal.name: signal.kind for signal in run.signals} == {
        "Train loss": "loss",
        "Train acc": "metric",
        "Valid loss": "eval_loss",
        "Valid acc": "metric",
    }
    assert series_of(run)["Valid loss"] == [round(loss + 1, 3) for loss in LOSSES]


def test_a_record_between_lines_of_text_holds_what_it_measured(tmp_path: Path) -> None:
    tick = "tick {0}     kimg {0}.0    time 1h 02m   sec/tick 646.0   sec/kimg 161.49  augment 0.000\n"
    record = '{{"results": {{"fid50k_full": {}}}, "metric": "fid50k_full", "total_time": 94.2, "num_gpus": 2}}\n'
    text = "".join(tick.format(n) + "Evaluating metrics...\n" + record.format(loss) for n, loss in enumerate(LOSSES))
    assert series_of(run_of(tmp_path, "log.txt", text)) == {"fid50k_full": LOSSES}


def test_losses_between_the_lines_of_a_known_format_are_read(tmp_path: Path) -> None:
    known = (
        "[2025-10-28 20:50:10,790] [INFO] [logging.py:107:log_dist] [Rank 0] "
        "step={0}, skipped=0, lr=[2e-05], mom=[(0.9, 0.999)]\n"
    )
    rows = (known.format(n) + f"[Step {n}/24] Loss: {loss} | Tokens/s: 5854.14\n" for n, loss in enumerate(LOSSES))
    assert series_of(run_of(tmp_path, "log.txt", "".join(rows)))["Loss"] == LOSSES


def test_a_date_in_brackets_opens_no_json(tmp_path: Path) -> None:
    rows = (f"[2023-08-04 16:30:{n:02},661][__main__][INFO] - epoch {n} loss {loss}\n" for n, loss in enumerate(LOSSES))
    assert series_of(run_of(tmp_path, "train.log", "".join(rows))) == {"loss": LOSSES}


@pytest.mark.parametrize("column", ["dataset", "method", "type"])
def test_results_of_many_things_are_no_run(tmp_path: Path, column: str) -> None:
    names = ["iris", "wine", "glass", "yeast"]
    rows = (f"{names[n % 4]},{n % 5},{share}\n" for n, share in enumerate(SHARES))
    with pytest.raises(UnreadableLogError):
        run_of(tmp_path, "results.csv", f"{column},fold,accuracy\n" + "".join(rows))
    rows = (f"{names[n % 4]},{n},{share}\n" for n, share in enumerate(SHARES))
    assert series_of(run_of(tmp_path, "steps.csv", f"{column},step,accuracy\n" + "".join(rows)))


@pytest.mark.parametrize(
    "row",
    [
        "2024-07-07 16:26:29,710 - mylogger - INFO - loss:{1}\n",
        "Epoch {0}: 100%|######| 9000/9000 [00:09<00\nTraining Loss (epoch {0}): {1}\n",
    ],
)
def test_a_logger_with_a_name_and_a_counter_in_brackets_hide_no_loss(tmp_path: Path, row: str) -> None:
    text = "Start Train\n" * 20 + "".join(row.format(n, loss) for n, loss in enumerate(LOSSES))
    (series,) = series_of(run_of(tmp_path, "log.txt", text)).values()
    assert series == LOSSES


def test_a_table_between_bars_without_outer_ones_is_read_with_remarks_behind_its_rows(tmp_path: Path) -> None:
    rows = "".join(
        f"  {n:3d} | {loss:9.4f} | {100 * share:5.2f}% |  19.6s{'  ← best' if n % 2 else ''}\n"
        for n, (loss, share) in enumerate(PAIRS, 1)
    )
    text = "Device: cuda\n\n Epoch | TrainLoss | TrainAcc |   Time\n---------------------\n" + rows
    series = series_of(run_of(tmp_path, "train.log", text))
    assert series["TrainLoss"] == LOSSES
    assert len(series["TrainAcc"]) == len(SHARES)


@pytest.mark.parametrize("printed", ["tensor({})", "tensor({}, device='cuda:0', grad_fn=<NllLossBackward0>)"])
def test_cells_of_a_table_may_be_tensors_as_they_print(tmp_path: Path, printed: str) -> None:
    rows = "".join(f"1\t{n}\t{printed.format(loss)}\t0.1\n" for n, loss in enumerate(LOSSES))
    series = series_of(run_of(tmp_path, "train_batch.log", "epoch\titer\tloss\tlr\n" + rows))
    assert series["loss"] == LOSSES


def test_a_monitor_of_episodes_may_hold_words_beside_its_numbers(tmp_path: Path) -> None:
    rows = "".join(f"{share},{20 + n},{3 * n},state_{n % 7},\"['A', 'B']\"\n" for n, share in enumerate(SHARES))
    run = run_of(tmp_path, "monitor.csv", '#{"t_start": 1.5, "env_id": null}\nr,l,t,state,decisions\n' + rows)
    assert series_of(run)["r"] == SHARES
    assert {signal.kind for signal in run.signals if signal.name == "r"} == {"reward"}


def test_the_steps_that_each_row_took_are_no_counter(tmp_path: Path) -> None:
    took = np.random.default_rng(0).integers(4000, 4150, 200)
    rewards = [round(-0.8 + 0.003 * n, 4) for n in range(200)]
    rows = "".join(f"{reward},{steps}\n" for reward, steps in zip(rewards, took, strict=True))
    assert series_of(run_of(tmp_path, "train_log.csv", "average_reward,steps\n" + rows))["average_reward"] == rewards


@pytest.mark.parametrize(
    "row",
    [
        "2018-12-12_16:11:39 - Loss epoch {n} | train {a} | test {b}",
        "Epoch {n} loss: train {a}, test {b}",
        "Epoch {n} loss train={a} test={b}",
        "Epoch {n} | loss (train: {a} / test: {b})",
        "Epoch {n} - time: train 12.5, test 1.5 - loss: train {a}, test {b} - lr 0.1",
    ],
)
def test_a_name_before_the_splits_names_what_was_measured_on_each(tmp_path: Path, row: str) -> None:
    text = "".join(row.format(n=n, a=loss, b=loss + 0.1) + "\n" for n, loss in enumerate(LOSSES))
    run = run_of(tmp_path, "train.log", text)
    by_kind = {signal.kind: signal.values.tolist() for signal in run.signals if signal.kind in ("loss", "eval_loss")}
    assert by_kind == {"loss": LOSSES, "eval_loss": pytest.approx([loss + 0.1 for loss in LOSSES])}
    assert run.verdict is Verdict.HEALTHY


@pytest.mark.parametrize("what", ["on target", "on the test set", "of the network", "for validation"])
def test_what_a_score_was_measured_on_does_not_hide_it(tmp_path: Path, what: str) -> None:
    rows = [
        f"Task: TV, Iter:{86 * n}/2064;  Acc {what}: {share}\nT: 96.1 82.2\n\n" for n, share in enumerate(SHARES, 1)
    ]
    run = run_of(tmp_path, "test.out", "".join(rows))
    assert [signal.values.tolist() for signal in run.signals if signal.kind == "metric"] == [SHARES]
    assert run.verdict is Verdict.HEALTHY


def test_scores_of_different_things_are_different_series(tmp_path: Path) -> None:
    row = "Epoch {n}\nLoss: {loss}\nAccuracy for class cat: {share}\nAccuracy for class dog: 0.5\n"
    row += "Best accuracy on cats: 1\n"
    run = run_of(tmp_path, "a.log", "".join(row.format(n=n, loss=a, share=b) for n, (a, b) in enumerate(PAIRS)))
    series = [signal.values.tolist() for signal in run.signals if signal.kind == "metric"]
    assert series == [SHARES, [0.5] * 24]


@pytest.mark.parametrize("line", ["Target accuracy: 0.9", "Accuracy of the network on the 10000 images", "took 5 on 3"])
def test_a_number_after_a_preposition_is_no_score(tmp_path: Path, line: str) -> None:
    text = "".join(f"Epoch {n} loss: {loss}\n{line}\n" for n, loss in enumerate(LOSSES))
    assert {signal.kind for signal in run_of(tmp_path, "a.log", text).signals} <= {"loss", None}


@pytest.mark.parametrize("logger", ["", "2024-01-01 10:00:00,123 - INFO - fit.py - train - 224 - ", "fit.py:12 >> "])
@pytest.mark.parametrize("train", ["[train] ", ""])
@pytest.mark.parametrize("split", ["[dev]", "[Valid]", "(test)", "[eval]:"])
def test_a_split_in_brackets_before_the_pairs_of_a_line_is_that_of_all_of_them(
    tmp_path: Path, logger: str, train: str, split: str
) -> None:
    text = "".join(
        f"{logger}{train}epoch:{n} step:{10 * n}/240 loss:{loss}\n{logger}{split} loss:{9 + n}, accuracy:{share}\n"
        for n, (loss, share) in enumerate(PAIRS)
    )
    run = run_of(tmp_path, "train.log", text)
    by_kind = {signal.kind: signal.values.tolist() for signal in run.signals if signal.kind}
    assert by_kind == {"loss": LOSSES, "eval_loss": [9.0 + n for n in range(24)], "metric": SHARES}
    assert run.verdict is Verdict.UNHEALTHY


def test_a_split_in_brackets_after_a_pair_is_not_that_of_the_pair(tmp_path: Path) -> None:
    text = "".join(f"epoch {n} loss: {loss} saved to best [val] acc: 0.5\n" for n, loss in enumerate(LOSSES))
    assert series_of(run_of(tmp_path, "train.log", text))["loss"] == LOSSES


@pytest.mark.parametrize(
    "form", ["- {split} metrics. {pairs}", "{split} metrics: {pairs}", "{split} results - {pairs}"]
)
def test_the_means_of_an_epoch_whose_batches_are_called_epochs_are_series_of_their_own(
    tmp_path: Path, form: str
) -> None:
    text = ""
    for n in range(10):
        text += "".join(f"Epoch {b}/19. Loss: {2 - 0.1 * n - 0.002 * b:.4f}\n" for b in range(20))
        text += form.format(split="Train", pairs=f"accuracy: {0.2 + 0.05 * n:.3f} ; loss: {1.9 - 0.1 * n:.3f}") + "\n"
        text += form.format(split="Eval", pairs=f"accuracy: 0.2{n} ; loss: {1.7 + 0.1 * n:.3f}") + "\n"
    run = run_of(tmp_path, "train.log", text)
    held_out = [signal.values.tolist() for signal in run.signals if signal.kind == "eval_loss"]
    assert held_out == [pytest.approx([1.7 + 0.1 * n for n in range(10)])]
    assert sorted(len(signal.values) for signal in run.signals if signal.kind == "loss") == [10, 200]
    assert run.verdict is Verdict.UNHEALTHY


@pytest.mark.parametrize(
    "losses", ["loss: [landmark: {a}]", "loss: [landmark: {a}, pose: 0.5]", "Losses={{landmark={a}}}"]
)
def test_what_stands_in_brackets_after_a_loss_is_a_part_of_it(tmp_path: Path, losses: str) -> None:
    row = "[20240101_051414] epochs: {n}, step: {s}, lr: 0.00020, " + losses + ",sample/s: 741, sec/step: 1.381\n"
    text = "".join(row.format(n=n, s=31 * n, a=loss) for n, loss in enumerate(LOSSES))
    run = run_of(tmp_path, "train.log", text)
    assert LOSSES in [signal.values.tolist() for signal in run.signals if signal.kind == "loss"]
    assert run.verdict is Verdict.HEALTHY


@pytest.mark.parametrize("counter", ["Eval Epoch num {n}", "Eval epoch {n}", "Epoch no. {n}", "Epoch number: {n}"])
def test_an_epoch_may_be_numbered_in_words(tmp_path: Path, counter: str) -> None:
    text = "".join(
        f"{counter.format(n=2 * n)} | val loss {loss} | dsc {share} \n\nlargest DSC now: {share}\n"
        for n, (loss, share) in enumerate(PAIRS)
    )
    run = run_of(tmp_path, "train.out", text)
    by_kind = {signal.kind: signal for signal in run.signals if signal.kind}
    assert by_kind["eval_loss"].values.tolist() == LOSSES
    assert by_kind["eval_loss"].steps.tolist() == [2 * n for n in range(24)]
    assert by_kind["metric"].values.tolist() == SHARES
