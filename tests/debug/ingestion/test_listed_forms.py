"""Forms of tables and of free text that public logs have and that were once misread: one test per form."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from holdfast.debug import MLSystemsDebugger, RunReport, Verdict
from holdfast.debug.types import ReasonCode, Signal
from holdfast.errors import UnreadableLogError

DEBUGGER = MLSystemsDebugger(plugins=False)
LOSSES = [round(2.0 / (n + 1) + 0.2, 4) for n in range(24)]


def run_of(folder: Path, name: str, content: str | bytes) -> RunReport:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (run,) = DEBUGGER.debug(path).runs
    return run


def series(run: RunReport, name: str) -> Signal:
    return {signal.name: signal for signal in run.signals}[name]


def table(header: str, row: str = "{n},{loss}") -> str:
    return header + "\n" + "".join(row.format(n=n, loss=loss) + "\n" for n, loss in enumerate(LOSSES))


# Tables.


def test_a_header_with_a_colon_names_a_column(tmp_path: Path) -> None:
    run = run_of(tmp_path, "results.csv", table("epoch,train/loss,metrics/mAP_0.5:0.95", "{n},{loss},0.{n:02d}"))
    assert series(run, "metrics/mAP_0.5:0.95").values[10] == 0.10
    assert series(run, "train/loss").values.tolist() == LOSSES


def test_cells_that_are_all_quoted_are_numbers(tmp_path: Path) -> None:
    run = run_of(tmp_path, "wandb_export.csv", table('"Step","run - loss"', '"{n}","{loss}"'))
    assert [signal.values.tolist() for signal in run.signals if signal.kind == "loss"] == [LOSSES]


def test_a_separator_at_the_end_of_every_row_makes_no_column(tmp_path: Path) -> None:
    run = run_of(tmp_path, "log.csv", table("step,loss,", "{n},{loss},"))
    assert series(run, "loss").values.tolist() == LOSSES


@pytest.mark.parametrize("name", ["log.csv", "train.log"])
def test_nul_bytes_before_the_first_line_hide_nothing(tmp_path: Path, name: str) -> None:
    text = table("step,loss") if name == "log.csv" else table("start", "step: {n} loss: {loss}")
    run = run_of(tmp_path, name, b"\0" * 4096 + text.encode())
    assert series(run, "loss").values.tolist() == LOSSES


@pytest.mark.parametrize(
    "document",
    [
        {"epochs": list(range(24)), "metrics": {"loss": LOSSES, "val_loss": LOSSES}},
        {"history": {"train": {"loss": LOSSES}, "epochs": list(range(24))}},
    ],
)
def test_a_nested_history_is_read(tmp_path: Path, document: dict[str, object]) -> None:
    run = run_of(tmp_path, "history.json", json.dumps(document))
    assert LOSSES in [signal.values.tolist() for signal in run.signals if signal.kind == "loss"]


def test_rows_of_an_array_under_a_header_row_are_a_table(tmp_path: Path) -> None:
    rows = [["epoch", "loss"], *([n, loss] for n, loss in enumerate(LOSSES))]
    run = run_of(tmp_path, "log.json", json.dumps(rows))
    assert series(run, "loss").values.tolist() == LOSSES


def test_an_array_after_a_line_of_text_is_read(tmp_path: Path) -> None:
    rows = [{"epoch": n, "loss": loss} for n, loss in enumerate(LOSSES)]
    run = run_of(tmp_path, "log.json", "training history:\n" + json.dumps(rows))
    assert series(run, "loss").values.tolist() == LOSSES


def test_a_table_of_one_column_with_a_known_name_is_read(tmp_path: Path) -> None:
    run = run_of(tmp_path, "rewards.csv", "Reward\n" + "".join(f"{n / 10}\n" for n in range(24)))
    assert series(run, "Reward").values.tolist() == [n / 10 for n in range(24)]


def test_two_tables_whose_rows_alternate_in_one_file_do_not_hide_the_one_with_the_header(tmp_path: Path) -> None:
    head = "loss,vf_loss,KL,Entropy,AverageReturn,Timesteps"
    rows = "".join(f"{loss},{loss},0.01,1.2,{n},{n}\n[0.4 0.6],[0.1 0.9]\n" for n, loss in enumerate(LOSSES))
    run = run_of(tmp_path, "progress.csv", f"{head}\n{rows}")
    assert series(run, "AverageReturn").values.tolist() == list(range(24))


# Free text.


def test_a_unit_before_the_next_name_does_not_hide_its_nan(tmp_path: Path) -> None:
    lines = [f"Step {n}  {2178 + n} samples/sec   Loss {'nan' if n > 12 else loss}" for n, loss in enumerate(LOSSES)]
    run = run_of(tmp_path, "train.log", "\n".join(lines))
    assert np.isnan(series(run, "Loss").values).sum() == 11
    assert run.findings[0].detection.failure.name == "nan"


def test_settings_are_no_series(tmp_path: Path) -> None:
    settings = "val_loss_every: 4000\nsave_every: 5000\nwarmup_loss_scale: 65536\n"
    run = run_of(tmp_path, "train.log", settings + "".join(f"step:{n} loss:{x}\n" for n, x in enumerate(LOSSES)))
    assert run.verdict is Verdict.HEALTHY
    assert not [signal.name for signal in run.signals if "every" in signal.name]


def test_words_of_the_models_own_answers_are_no_metrics(tmp_path: Path) -> None:
    answer = "The accuracy: 3 out of 4 people agree, score: 900 points, and the total loss: 77 million.\n"
    lines = [f"step {n} | loss {x}\n" + (answer if n % 8 == 7 else "") for n, x in enumerate(LOSSES)]
    run = run_of(tmp_path, "train.log", "".join(lines))
    assert run.verdict is Verdict.HEALTHY
    assert series(run, "loss").values.tolist() == LOSSES


def test_chatter_before_training_does_not_spoil_the_rest(tmp_path: Path) -> None:
    chatter = "".join(f"Loading shard {n}: took {n / 7:.2f} s, total: {n * 3}\n" for n in range(40))
    lines = [f"step {n:5d} | loss: {x:.4f} | norm: 0.5 | tok/sec: 123.4\n" for n, x in enumerate(LOSSES * 10)]
    run = run_of(tmp_path, "train.log", chatter + "".join(lines))
    assert len(series(run, "loss").values) == 240
    assert run.coverage is not None
    assert run.coverage.share > 0.9


def test_a_score_told_in_a_sentence_is_read(tmp_path: Path) -> None:
    run = run_of(tmp_path, "train.log", "".join(f"Score at iteration {n} is {x}\n" for n, x in enumerate(LOSSES)))
    (only,) = [signal for signal in run.signals if signal.kind == "loss"]  # What DL4J calls a score it minimises.
    assert (only.values.tolist(), only.steps.tolist()) == (LOSSES, list(map(float, range(24))))


def test_the_losses_of_a_cyclegan_are_losses(tmp_path: Path) -> None:
    row = "(epoch: 1, iters: {n}00, time: 0.2, data: 0.1) D_A: 0.3 G_A: 0.5 cycle_A: {x} idt_A: 0.2 D_B: 0.3 G_B: 0.4\n"
    run = run_of(tmp_path, "loss_log.txt", "".join(row.format(n=n + 1, x=x) for n, x in enumerate(LOSSES)))
    assert series(run, "cycle_A").kind == "loss"
    assert series(run, "cycle_A").values.tolist() == LOSSES


def test_a_batch_counter_beside_the_epoch_is_the_step(tmp_path: Path) -> None:
    lines = [f"Epoch {n // 8 + 1} [{n % 8 + 1}/8] loss: {x}\n" for n, x in enumerate(LOSSES)]
    steps = series(run_of(tmp_path, "train.log", "".join(lines)), "loss").steps
    assert len(set(steps.tolist())) == 24


def test_a_log_that_resumes_at_a_later_epoch_does_not_begin_at_the_first_step(tmp_path: Path) -> None:
    lines = [f"Epoch[{145 + n // 8}] Batch [{20 * (n % 8 + 1)}] loss={x}\n" for n, x in enumerate(LOSSES)]
    steps = series(run_of(tmp_path, "train.log", "".join(lines)), "loss").steps
    assert float(steps[0]) > 0.9 * float(steps[-1])


def test_a_format_that_reads_few_of_the_training_lines_gives_way(tmp_path: Path) -> None:
    engine = (
        "[2025-04-09 02:39:37,607] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05], mom=[0.9]"
    )
    lines = [f"Epoch 0, Loss: {x}, Positive Score: 0.1, Negative Score: 0.2\n" for x in LOSSES]
    run = run_of(tmp_path, "output.log", engine + "\n" + "".join(lines) + engine.replace("step=10", "step=20") + "\n")
    assert series(run, "Loss").values.tolist() == LOSSES


# What is missing, and what only seems to be there.


def test_a_loss_that_later_rows_of_another_kind_do_not_have_is_not_lost(tmp_path: Path) -> None:
    training = [{"step": n, "loss": x, "lr": 0.1} for n, x in enumerate(LOSSES)]
    inference = [{"step": 24 + n, "images_per_second": 90.0 + n} for n in range(24)]
    rows = "".join(json.dumps(row) + "\n" for row in (*training, *inference))
    assert run_of(tmp_path, "log.jsonl", rows).findings == ()


@pytest.mark.parametrize("points", [3, 4, 5])
def test_a_handful_of_falling_points_is_not_enough_for_healthy(tmp_path: Path, points: int) -> None:
    run = run_of(tmp_path, "log.csv", "epoch,loss\n" + "".join(f"{n},{2.0 - n / 10}\n" for n in range(points)))
    assert (run.verdict, run.reason and run.reason.code) == (Verdict.UNKNOWN, ReasonCode.TOO_FEW_POINTS)


def test_what_logging_prints_of_a_message_it_cannot_format_is_no_crash(tmp_path: Path) -> None:
    error = (
        "--- Logging error ---\nTraceback (most recent call last):\n"
        '  File "/usr/lib/python3.11/logging/__init__.py", line 1110, in emit\n    msg = self.format(record)\n'
        "TypeError: not all arguments converted during string formatting\nCall stack:\n"
        "  File \"test.py\", line 110, in <module>\nMessage: 'be quick'\nArguments: (<class 'UserWarning'>,)\n"
    )
    lines = "".join(f"step: {n} loss: {x}\n" for n, x in enumerate(LOSSES))
    assert run_of(tmp_path, "train.log", lines + error).verdict is Verdict.HEALTHY
    assert run_of(tmp_path, "died.log", lines + error + error.split("\n", 1)[1]).verdict is Verdict.UNHEALTHY


def test_a_number_printed_as_a_tensor_is_a_number(tmp_path: Path) -> None:
    lines = [f"step: {n} loss: tensor({x}, device='cuda:0', grad_fn=<NegBackward0>)\n" for n, x in enumerate(LOSSES)]
    assert series(run_of(tmp_path, "loss.txt", "".join(lines)), "loss").values.tolist() == LOSSES


def test_numbers_under_a_title_are_a_column(tmp_path: Path) -> None:
    run = run_of(
        tmp_path, "test.log", "% mean class accuracy (train set)\t\n" + "".join(f" {60 + n}.5\t\n" for n in range(30))
    )
    assert [signal.kind for signal in run.signals] == ["metric"]
    assert run.verdict is Verdict.HEALTHY


@pytest.mark.parametrize(("after", "readable"), [(5, True), (500, False)])
def test_an_error_that_other_lines_follow_was_no_end(tmp_path: Path, after: int, readable: bool) -> None:
    error = 'Traceback (most recent call last):\n  File "serve.py", line 3, in <module>\nOSError: no route to host\n'
    path = tmp_path / "nohup.out"
    path.write_text("GET /events 200\n" * 20 + error + "POST /update 200\n" * after)
    if readable:
        assert DEBUGGER.debug(path).verdict is Verdict.UNHEALTHY
    else:
        with pytest.raises(UnreadableLogError):
            DEBUGGER.debug(path)


def test_a_table_between_bars_after_pages_of_settings_is_read(tmp_path: Path) -> None:
    settings = "[[33449,1],0]: A point-to-point messaging module\n" + "".join(f"_option_{n}: {n}\n" for n in range(300))
    tables = "".join(
        f"{'-' * 30}\n| epoch              | {n} |\n"
        f"| train/episode      | {n * 100} |\n| train/success_rate | 0.{n + 10} |\n"
        for n in range(9)
    )
    run = run_of(tmp_path, "log.txt", settings + tables + "-" * 30 + "\n")
    assert series(run, "train/success_rate").values.tolist() == [float(f"0.{n + 10}") for n in range(9)]


@pytest.mark.parametrize(
    ("line", "name", "kind"),
    [
        ("Episode {n}\tFrame {n}98 \tAverage100 Score: {loss}", "Average100 Score", "reward"),
        ("(epoch: 1, iters: {n}, time: 0.3) D: 0.1, 0.2 | G: 0.1, 0.2 | Cyc: {loss}, 0.04 | ", "Cyc", "loss"),
        ("Loss at epoch 0 and iteration {n} is {loss}", "Loss", "loss"),
        ("idx: {n}loss: tensor({loss}, device='cuda:0')", "loss", "loss"),
        ("{n}: loss={loss}", "loss", "loss"),
        ("(TaskRunner pid=62{n:02d}, ip=10.0.0.1) step:{n} - actor/pg_loss:{loss} - lr:1e-06", "actor/pg_loss", "loss"),
        (
            "iter {n} || Loss: {loss} || /usr/lib/ssd.pytorch/utils/augmentations.py:238: VisibleDeprecationWarning: "
            "Creating an ndarray from ragged nested sequences (which is a list-or-tuple of lists-or-tuples-or ndarrays "
            "with different lengths or shapes) is deprecated. If you meant to do this, you must specify 'dtype=object' "
            "when creating the ndarray.",
            "Loss",
            "loss",
        ),
        ("Epoch[2] Batch [0-{n}]\tSpeed: 25.20 samples/sec\tRPNLoss={loss}", "RPNLoss", "loss"),
    ],
)
def test_forms_of_rows_seen_in_public_logs(tmp_path: Path, line: str, name: str, kind: str) -> None:
    text = "".join(line.format(n=n, loss=loss) + "\n" for n, loss in enumerate(LOSSES))
    run = run_of(tmp_path, "output.log", text)
    assert series(run, name).values.tolist() == LOSSES
    assert series(run, name).steps.tolist() == list(range(24))
    assert series(run, name).kind == kind


def test_rows_of_an_evaluation_that_counts_down_move_no_training_row(tmp_path: Path) -> None:
    rows = "".join(f"{n + 1}/20000 train_loss: {loss} tok/s: 99\n" for n, loss in enumerate(LOSSES))
    down = "".join(f"ttt_progress: batch {n}/782 batch_loss:{3 - n / 782:.4f}\n" for n in range(781, 0, -40))
    run = run_of(tmp_path, "log.txt", rows + down)
    assert series(run, "train_loss").steps.tolist() == list(range(1, 25))
    assert run.verdict is Verdict.HEALTHY


# Tables and lines whose names stand elsewhere.


def test_splits_without_the_word_loss_are_losses_where_they_fall(tmp_path: Path) -> None:
    body = {"train": [34 - 3 * n for n in range(20)], "val": [28 - 2.5 * n for n in range(20)], "beta": [0.1] * 20}
    run = run_of(tmp_path, "history.json", json.dumps(body))
    assert {signal.name: signal.kind for signal in run.signals}["train loss"] == "loss"
    assert {signal.name: signal.kind for signal in run.signals}["val loss"] == "eval_loss"


def test_splits_that_rise_are_not_taken_for_losses(tmp_path: Path) -> None:
    body = {"train": [n / 20 for n in range(20)], "val": [n / 25 for n in range(20)]}
    assert run_of(tmp_path, "history.json", json.dumps(body)).verdict is Verdict.UNKNOWN


def test_a_table_of_runs_side_by_side_holds_what_its_file_is_called(tmp_path: Path) -> None:
    run = run_of(tmp_path, "chunk_len_error.csv", table("chunk_len_50.0,chunk_len_100.0", "{loss},{loss}"))
    assert {signal.kind for signal in run.signals} == {"metric"}
    assert series(run, "chunk_len_100.0 error").values.tolist() == LOSSES


def test_a_table_of_unlike_columns_is_not_named_by_its_file(tmp_path: Path) -> None:
    run = run_of(tmp_path, "error.csv", table("age,height", "{loss},{loss}"))
    assert {signal.kind for signal in run.signals} == {None}


def test_a_table_with_one_row_per_metric_is_read_at_its_epoch(tmp_path: Path) -> None:
    text = "".join(
        f"2026-01-20 17:59:13 - Epoch {n + 1}/24\n2026-01-20 17:59:34 - METRIC     | TRAIN      | VALIDATION\n"
        f"2026-01-20 17:59:34 - Loss       | {loss}     | {loss + 0.1:.4f}\n"
        f"2026-01-20 17:59:34 - F1 Score   | 0.91       | 0.90\n"
        for n, loss in enumerate(LOSSES)
    )
    run = run_of(tmp_path, "train.log", text)
    assert series(run, "train Loss").values.tolist() == LOSSES
    assert series(run, "validation Loss").kind == "eval_loss"
    assert series(run, "train Loss").steps.tolist() == list(range(1, 25))


def test_names_set_off_by_dashes_and_counters_by_a_bracket(tmp_path: Path) -> None:
    text = "".join(f"{n:08d}) perceptual - {loss}; warp_loss - 0.4838\n" for n, loss in enumerate(LOSSES))
    run = run_of(tmp_path, "log.txt", text)
    assert series(run, "perceptual").values.tolist() == LOSSES
    assert series(run, "perceptual").steps.tolist() == list(range(24))


def test_a_dash_before_a_number_names_nothing_by_itself(tmp_path: Path) -> None:
    text = "".join(f"worker - {n} step {n} loss: {loss}\n" for n, loss in enumerate(LOSSES))
    assert {signal.name for signal in run_of(tmp_path, "train.log", text).signals} == {"loss"}


def test_names_and_numbers_in_turn_between_commas(tmp_path: Path) -> None:
    text = "".join(
        f"train:fold,0,epoch,0, userid: A{n}, user: {n + 1}/24, total loss, {loss},curr loss, 0.6, mae, 0.61\n"
        for n, loss in enumerate(LOSSES)
    )
    assert series(run_of(tmp_path, "train_log.csv", text), "loss").values.tolist() == LOSSES


def test_the_best_so_far_is_no_series_of_the_run(tmp_path: Path) -> None:
    text = "".join(f"model {chr(97 + n)}\nBest val acc 0.{30 + n}\n" for n in range(20))
    with pytest.raises(UnreadableLogError):
        run_of(tmp_path, "log.txt", text)


def test_kaldi_prints_an_objective_whose_negative_is_the_loss(tmp_path: Path) -> None:
    source = "LOG (nnet3-chain-train[5.5.0~1-12]:PrintStatsForThisPhase():nnet-training.cc:396)"
    text = "".join(
        f"{source} Average objective function for 'output' for minibatches {10 * n}-{10 * n + 9} is -0.1 + -0.01 "
        f"= {-loss} over 64000 frames.\n"
        for n, loss in enumerate(LOSSES)
    )
    total = f"{source} Overall average objective function for 'output' is -0.9 over 1.9e+06 frames.\n"
    run = run_of(tmp_path, "train.1.1.log", text + total)
    assert (run.format, run.verdict) == ("kaldi", Verdict.HEALTHY)
    assert series(run, "output loss").values.tolist() == LOSSES
    assert series(run, "output loss").steps.tolist() == [10 * n + 9 for n in range(24)]


def test_the_time_may_stand_before_bare_numbers(tmp_path: Path) -> None:
    text = "".join(f"2021-03-04 12:00:{n:02d}\t{n}\t{loss}\n" for n, loss in enumerate(LOSSES))
    assert series(run_of(tmp_path, "train_log.txt", text), "loss").values.tolist() == LOSSES


@pytest.mark.parametrize(("name", "is_run"), [("img_{n}.npy", False), ("step_{n}.ckpt", True), ("epoch {n}", True)])
def test_a_table_that_names_a_file_in_each_row_lists_samples(tmp_path: Path, name: str, is_run: bool) -> None:
    text = table("name,loss", name + ",{loss}")
    if is_run:
        assert series(run_of(tmp_path, "results.csv", text), "loss").values.tolist() == LOSSES
    else:
        with pytest.raises(UnreadableLogError):
            run_of(tmp_path, "results.csv", text)


def test_settings_above_a_table_and_its_column_of_splits_are_understood(tmp_path: Path) -> None:
    rows = "".join(f"train\t{n}\t0.9\t0.8\t{1 - x}\neval\t{n}\t0.7\t0.6\t0.5\n" for n, x in enumerate(LOSSES))
    text = f"Run configurations: model=base train=./a.json epochs=24\nDataset\tEpoch\tPrecision\tRecall\tF1\n{rows}"
    run = run_of(tmp_path, "train.log", text)
    assert len(series(run, "F1").values) == 24
    assert set(series(run, "eval/F1").values.tolist()) == {0.5}


def test_a_single_letter_is_the_loss_where_no_other_is_named(tmp_path: Path) -> None:
    run = run_of(tmp_path, "train.out", "".join(f"[ep 0 step {n}] L={x}  PSNR= 9.47\n" for n, x in enumerate(LOSSES)))
    assert (series(run, "L").kind, series(run, "L").values.tolist()) == ("loss", LOSSES)
