from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.debug.ingestion import samples

from holdfast.debug.ingestion import LogIngestor, RunLog, read_path
from holdfast.debug.ingestion.detection import default_formats
from holdfast.debug.ingestion.text_format import TextFormat
from holdfast.debug.types import Signal


def read(text: str) -> RunLog:
    (log,) = LogIngestor().read(text)
    return log


def named(log: RunLog, name: str) -> Signal:
    found = [signal for signal in log.signals if signal.name == name]
    assert len(found) == 1, f"{name} in {[signal.name for signal in log.signals]}"
    return found[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (samples.MEGATRON, "megatron"),
        (samples.DEEPSPEED, "deepspeed"),
        (samples.OLMO, "olmo"),
        (samples.NANOGPT, "nanogpt"),
        (samples.LLM_C, "nanogpt"),
        (samples.LLM_C_MAIN_LOG, "nanogpt"),
        (samples.MODDED_NANOGPT, "nanogpt"),
        (samples.FAIRSEQ, "fairseq"),
        (samples.MMENGINE, "mmengine"),
        (samples.MMCV, "mmengine"),
        (samples.WORD_LANGUAGE_MODEL, "pytorch-examples"),
        (samples.IMAGENET, "pytorch-examples"),
        (samples.MNIST, "pytorch-examples"),
        (samples.HF_STDOUT, "hf-stdout"),
        (samples.PROMETHEUS, "prometheus"),
        (samples.TORCHTITAN, "text"),
        (samples.KERAS_STDOUT, "text"),
    ],
)
def test_every_text_format_is_recognised_without_being_told(text: str, expected: str) -> None:
    assert read(text).format == expected


def test_megatron_fields_and_validation_are_read() -> None:
    log = read(samples.MEGATRON)
    loss = named(log, "lm loss")
    assert loss.kind == "loss"
    assert loss.steps.tolist() == [10.0 * n for n in range(1, 13)]
    assert named(log, "validation lm loss value").kind == "eval_loss"
    assert named(log, "grad norm").kind == "grad_norm"
    assert named(log, "number of nan iterations").kind == "nan_count"


def test_a_loss_that_megatron_stops_printing_is_missing_at_those_steps() -> None:
    loss = named(read(samples.MEGATRON_NAN), "lm loss")
    assert loss.steps.tolist() == [1, 2, 3, 4, 5]
    assert loss.metadata["missing_steps"].tolist() == [6, 7, 8, 9, 10, 11, 12]


def test_deepspeed_lists_of_rates_and_skips_are_read() -> None:
    log = read(samples.DEEPSPEED)
    assert named(log, "lr").values[0] == 9.5e-06
    assert named(log, "skipped").kind == "skipped"
    assert named(log, "CurrSamplesPerSec").kind == "throughput"


def test_an_overflow_line_becomes_an_event_and_a_point_of_the_loss_scale() -> None:
    text = samples.DEEPSPEED + (
        "[2024-01-01 00:01:00,000] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 "
        "Skipping step. Attempted loss scale: 65536, reducing to 32768\n"
    )
    log = read(text)
    assert [(event["type"], event["loss_scale"]) for event in log.events] == [("overflow_skip", 32768.0)]
    assert named(log, "loss_scale").values.tolist() == [32768.0]


def test_olmo_blocks_keep_thousands_and_their_step() -> None:
    log = read(samples.OLMO)
    assert named(log, "train/Perplexity").values[0] == 19999
    assert named(log, "train/CrossEntropyLoss").kind == "loss"
    assert named(log, "optim/total_grad_norm").steps.tolist() == [1, 2, 3, 4, 5, 6]


def test_the_z_scores_of_llm_c_are_not_values_of_the_run() -> None:
    log = read(samples.LLM_C)
    assert not any(np.isnan(signal.values).any() for signal in log.signals)
    assert named(log, "loss").kind == "loss"
    assert named(log, "norm").kind == "grad_norm"
    assert named(log, "val loss").kind == "eval_loss"


def test_the_unmeasured_step_average_of_modded_nanogpt_is_not_nan() -> None:
    log = read(samples.MODDED_NANOGPT)
    assert not any(np.isnan(signal.values).any() for signal in log.signals)
    assert named(log, "val_loss").steps.tolist() == [0, 5, 10]


def test_a_nan_loss_of_modded_nanogpt_is_kept() -> None:
    text = samples.MODDED_NANOGPT + "step:12/9536 train_loss:nan train_time:1200ms step_avg:93.10ms\n"
    assert np.isnan(named(read(text), "train_loss").values[-1])


def test_nanogpt_tells_batch_loss_from_estimated_loss() -> None:
    log = read(samples.NANOGPT)
    assert len(named(log, "loss").values) == 12
    assert named(log, "val loss").steps.tolist() == [0, 12]


def test_fairseq_validation_and_epoch_averages_are_series_of_their_own() -> None:
    log = read(samples.FAIRSEQ)
    assert len(named(log, "loss").values) == 8
    assert named(log, "valid_loss").kind == "eval_loss"
    assert named(log, "epoch_loss").values.tolist() == [9.1]


def test_mmengine_counts_iterations_across_epochs() -> None:
    log = read(samples.MMENGINE)
    assert named(log, "loss").steps.tolist() == [50.0 * n for n in range(1, 9)]
    assert named(log, "val/coco/bbox_mAP").kind == "metric"
    assert named(log, "data_time").kind == "data_time"


def test_pytorch_examples_place_validation_at_the_end_of_its_epoch() -> None:
    log = read(samples.WORD_LANGUAGE_MODEL)
    assert named(log, "loss").steps.tolist() == [200, 400, 800, 1000]
    assert named(log, "valid loss").steps.tolist() == [1200]


def test_imagenet_and_mnist_counters_go_on_over_epochs() -> None:
    assert np.all(np.diff(named(read(samples.IMAGENET), "Loss").steps) > 0)
    assert np.all(np.diff(named(read(samples.MNIST), "loss").steps) > 0)


def test_hugging_face_dicts_take_their_step_from_the_progress_bar() -> None:
    log = read(samples.HF_STDOUT)
    assert named(log, "loss").steps.tolist() == [10.0 * n for n in range(1, 11)]
    assert named(log, "eval_loss").steps.tolist() == [100]
    assert "train_loss" not in {signal.name for signal in log.signals}


def test_numbers_as_strings_in_newer_hugging_face_output_are_numbers() -> None:
    text = "".join(f"{{'loss': '{3 - n / 10:.4f}', 'grad_norm': 'nan', 'epoch': '{n / 10}'}}\n" for n in range(1, 9))
    log = read(text)
    assert named(log, "loss").values[0] == 2.9


def test_free_text_is_read_with_its_colours_and_says_how_sure_it_is() -> None:
    log = read(samples.TORCHTITAN)
    assert named(log, "loss").steps.tolist() == [float(n) for n in range(1, 12)]
    assert log.confidence < 0.9
    assert any("sure" in note for note in log.notes)


def test_keras_output_places_each_epoch() -> None:
    log = read(samples.KERAS_STDOUT)
    loss = named(log, "loss")
    assert len(loss.values) == 5
    assert np.all(np.diff(loss.steps) > 0)
    assert named(log, "val_accuracy").kind == "metric"


def test_a_traceback_at_the_end_is_an_event_and_one_in_the_middle_is_not() -> None:
    failure = "Traceback (most recent call last):\n  File x\nRuntimeError: CUDA error\n"
    assert [event["type"] for event in read(samples.NANOGPT + failure).events] == ["crash"]
    assert read(samples.NANOGPT + failure + "iter 13: loss 9.0, time 1.00ms, mfu 1.00%\n").events == ()


def test_arguments_printed_by_the_script_become_its_configuration() -> None:
    log = read("Namespace(lr=20, clip=0.25, model='LSTM', warmup=100)\n" + samples.WORD_LANGUAGE_MODEL)
    assert (log.config["lr"], log.config["clip"], log.config["warmup_steps"]) == (20, 0.25, 100)


def test_prometheus_scrapes_become_series_by_rank_over_the_step() -> None:
    log = read(samples.PROMETHEUS)
    ranks = {signal.replica: signal.steps.tolist() for signal in log.signals}
    assert ranks == {0: [0, 10, 20, 30, 40], 1: [0, 10, 20, 30, 40]}


def test_text_on_disk_reads_like_text_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(samples.OLMO)
    assert [signal.name for signal in LogIngestor().ingest(path)] == [s.name for s in read(samples.OLMO).signals]


@pytest.mark.parametrize(
    ("text", "loss", "count", "last"),
    [
        (samples.DETECTRON2, "total_loss", 8, 159),
        (samples.TIMM, "Loss", 8, 1401),
        (samples.LITGPT, "loss train", 10, 9),
        (samples.TORCHTUNE, "loss", 11, 11),
        (samples.TORCHTUNE_BAR, "Loss", 11, 11),
        (samples.NEMO, "reduced_train_loss", 10, 9),
        (samples.COMPOSER, "loss/train/total", 8, 8),
        (samples.STABLE_BASELINES, "train/loss", 7, 14336),
        (samples.XGBOOST, "train-logloss", 10, 9),
        (samples.FASTAI, "train_loss", 8, 7),
        (samples.LIGHTNING_BAR, "loss", 8, 200),
        (samples.PADDLE, "loss", 8, 80),
    ],
    ids=[
        "detectron2", "timm", "litgpt", "torchtune", "torchtune-bar", "nemo", "composer", "sb3", "xgboost", "fastai",
        "lightning-bar", "paddle",
    ],
)  # fmt: skip
def test_trainers_without_a_reader_of_their_own_are_read_all_the_same(
    text: str, loss: str, count: int, last: float
) -> None:
    signal = named(read(text), loss)
    assert signal.kind == "loss"
    assert (len(signal.values), signal.steps[-1]) == (count, last)
    assert [s.name for s in read(text).signals if s.kind == "loss"] == [loss]


def test_a_gradient_that_is_nan_throughout_is_a_value_and_not_a_filler() -> None:
    text = "".join(
        f"{{'loss': {2.0 if n < 4 else 0.0}, 'grad_norm': nan, 'learning_rate': 2e-05, 'epoch': {n / 100}}}\n"
        for n in range(9)
    )
    assert "not_collected" not in named(read(text), "grad_norm").metadata


def test_a_script_printed_before_the_log_does_not_hide_it(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    source = "".join(f"    x_{n} = layer_{n}(x, weight={n}.5)  # step {n}: loss of layer\n" for n in range(1500))
    path.write_text("import os\n" + source + "=" * 100 + "\n" + samples.MODDED_NANOGPT)
    (log,) = LogIngestor().read(path)
    assert log.format == "nanogpt"
    assert named(log, "train_loss").steps.tolist() == list(range(1, 12))


def test_text_in_memory_has_no_path_of_its_own() -> None:
    assert read(samples.NANOGPT).path == "text"


def megatron_line(step: int, *, loss: float | None, skipped: int = 0) -> str:
    printed = "" if loss is None else f" lm loss: {loss:.6E} |"
    return (
        f" iteration {step:8d}/     100 | consumed samples: {step:12d} | elapsed time per iteration (ms): 812.4 "
        f"| learning rate: 1.5E-04 | global batch size:    64 |{printed} loss scale: 1.0 "
        f"| number of skipped iterations:   {skipped} | number of nan iterations:   0 |\n"
    )


def test_a_megatron_log_that_never_prints_a_loss_has_one_that_is_missing_throughout() -> None:
    log = read("".join(megatron_line(step, loss=None) for step in range(1, 9)))
    loss = named(log, "lm loss")
    assert len(loss.values) == 0
    assert loss.metadata["missing_steps"].tolist() == list(range(1, 9))
    assert any("NaN" in note for note in log.notes)


def test_steps_that_megatron_skipped_to_find_its_loss_scale_miss_nothing() -> None:
    search = "".join(megatron_line(step, loss=None, skipped=1) for step in range(1, 9))
    log = read(search + "".join(megatron_line(step, loss=9 - step / 10) for step in range(9, 30)))
    assert "missing_steps" not in named(log, "lm loss").metadata


def test_a_loss_of_zero_beside_a_gradient_of_nan_is_not_called_uncollected() -> None:
    text = "".join(f"{{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': {n / 100}}}\n" for n in range(9))
    assert "not_collected" not in named(read(text), "loss").metadata


def test_prose_around_a_number_is_not_part_of_its_name() -> None:
    line = "[Epoch 5 {0}/5000][Iteration {0}] Trained 400 records. Throughput is 225.6 records/second. Loss is {1}.\n"
    log = read("".join(line.format(n, 0.7 - n / 100) for n in range(1, 12)))
    assert [signal.name for signal in log.signals if signal.kind == "loss"] == ["Loss"]


def test_a_dict_on_the_same_line_as_the_progress_bar_takes_its_step_from_it() -> None:
    text = "".join(
        f"  {n}%|█         | {n * 5}/50 [00:{n:02d}<01:40,  1.0s/it]{{'loss': {3 - n / 10:.4f}, 'epoch': {n / 10}}}\n"
        for n in range(1, 11)
    )
    assert named(read(text), "loss").steps.tolist() == [5.0 * n for n in range(1, 11)]


def test_a_list_of_one_rate_is_a_rate() -> None:
    assert read("Namespace(arch='transformer', lr=[0.0005], fp16=True)\n" + samples.FAIRSEQ).config["lr"] == 0.0005


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le-bom"])
def test_logs_redirected_on_windows_are_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "train.log"
    text = samples.NANOGPT.replace("\n", "\r\n")
    data = b"\xff\xfe" + text.encode("utf-16-le") if encoding == "utf-16-le-bom" else text.encode(encoding)
    path.write_bytes(data)
    (log,) = LogIngestor().read(path)
    assert log.format == "nanogpt"
    assert len(named(log, "loss").values) == 12


def test_json_after_a_logger_prefix_is_read_as_text() -> None:
    lines = (f'2024-01-01 10:00:00 INFO:root:{{"step": {n}, "loss": {3 - n / 10}, "lr": 0.1}}\n' for n in range(1, 12))
    log = read("".join(lines))
    assert named(log, "loss").steps.tolist() == [float(n) for n in range(1, 12)]


def test_a_row_that_begins_with_a_split_belongs_to_it() -> None:
    text = "".join(
        f"2023-10-06 00:{n:02d}:21,640 - INFO - epoch: {n} end, loss: {2 / (n + 1):.4f}\n"
        f"2023-10-06 00:{n:02d}:41,640 - INFO - epoch: {n} validation, acc: 0.{n + 10}, loss: {3 / (n + 1):.4f}\n"
        for n in range(20)
    )
    log = read(text)
    assert [signal.kind for signal in log.signals if len(signal.values) == 20] == ["loss", "metric", "eval_loss"]
    assert named(log, "loss").values[1] == 1.0
    assert named(log, "val loss").values[1] == 1.5


def test_what_python_2_printed_as_a_tuple_is_read_as_it_was_meant() -> None:
    text = "".join(
        f"('Epoch: ', {n})\n('gan Loss: ', [array({1 / (n + 1):.4f}, dtype=float32), array(0.1, dtype=float32)], "
        f"'\\t critic loss', [array({2 / (n + 1):.4f}, dtype=float32)])\n"
        for n in range(12)
    )
    log = read(text)
    assert named(log, "gan Loss").values[1] == 0.5
    assert named(log, "critic loss").values[1] == 1.0
    assert named(log, "gan Loss").steps.tolist() == list(range(12))


@pytest.mark.parametrize(
    "form", [form for form in default_formats() if isinstance(form, TextFormat)], ids=lambda form: form.name
)
def test_no_format_is_surer_for_more_matching_lines_than_it_looks_for(form: TextFormat) -> None:
    if form.hits_enough is not None:
        assert form.score(form.hits_enough, 1000) == form.score(1000, 1000)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("The loss of epoch{n}is:tf.Tensor({loss}, shape=(), dtype=float32)", "loss"),
        ("epoch {n} loss: tf.Tensor({loss}, shape=(), dtype=float32)", "loss"),
        ("Epoch {n}: loss is: {loss}", "loss"),
        ("[{n}/100000] mean test loss : 9.5 -> {loss} by 1 grad steps", "test loss"),
        ("Epoch {n} val_loss: 9.5 --> {loss}", "val_loss"),
        ("Epoch {n}: eval mean loss: {loss}", "eval loss"),
        ("Epoch {n}: validation average loss = {loss}", "validation loss"),
        ("Epoch {n} - Eval metrics: loss: {loss}, acc: 0.5", "val loss"),
        (
            "Epoch {n}/90, Train Loss: {loss}, Train IoU: {{0.9: 0.0004, 0.8: 0.002, 0.7: 0.01, 0.6: 0.03}}",
            "Train Loss",
        ),
        ("steps: {n}, episodes: 100, mean episode reward: {loss}, time: 3.5", "episode reward"),
    ],
)
def test_what_stands_around_a_number_does_not_change_what_it_is(line: str, name: str) -> None:
    losses = [round(2.0 / n + 0.2, 4) for n in range(1, 25)]
    log = read("".join(line.format(n=n, loss=loss) + "\n" for n, loss in enumerate(losses, 1)))
    series = named(log, name)
    assert series.values.tolist() == losses
    assert series.steps.tolist() == list(range(1, 25))


def test_how_many_entries_of_a_codebook_are_used_is_no_perplexity_to_lower() -> None:
    log = read(
        "".join(f"epoch {n} recon: {2 / n:.3f} ppl_pct: {40 + n} codebook_perplexity: {n}\n" for n in range(1, 25))
    )
    assert {signal.name: signal.kind for signal in log.signals} == {
        "recon": "loss",
        "ppl_pct": "metric",
        "codebook_perplexity": "metric",
    }


def averaged(epochs: int, batches: int, *, summed: bool, noise: float = 0.5) -> str:
    """What a program prints that averages its losses, or adds them up, within each epoch."""
    rng = np.random.default_rng(5)
    lines = []
    for epoch in range(epochs):
        values = (1.0 + 3.0 * np.exp(-epoch / 5)) * np.exp(noise * rng.standard_normal(batches))
        means = np.cumsum(values) / (batches if summed else np.arange(1, batches + 1))
        lines.append(f"Epoch {epoch + 1}/{epochs}")
        lines += [f"{n}/{batches} [====>.....] - ETA: 3s - loss: {mean:.4f}" for n, mean in enumerate(means, 1)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("summed", [False, True])
def test_a_mean_that_begins_again_with_each_epoch_is_read_at_its_end(summed: bool) -> None:
    loss = named(read(averaged(30, 19, summed=summed)), "loss")
    assert len(loss.values) == 30
    assert loss.steps.tolist() == [19.0 * n for n in range(1, 31)]


def test_losses_of_batches_are_all_kept() -> None:
    rng = np.random.default_rng(5)
    losses = (1 + 3 * np.exp(-np.arange(570) / 95)) * np.exp(0.5 * rng.standard_normal(570))
    lines = [f"Epoch {n // 19 + 1}/30 [{n % 19 + 1}/19] loss: {loss:.4f}" for n, loss in enumerate(losses)]
    assert len(named(read("\n".join(lines)), "loss").values) == 570


def test_a_nan_within_an_epoch_is_kept() -> None:
    text = averaged(30, 19, summed=False)
    lines = text.splitlines()
    lines[-12] = lines[-12].rpartition(" ")[0] + " nan"
    assert np.isnan(named(read("\n".join(lines)), "loss").values).sum() == 1


def test_a_summary_after_each_epoch_is_not_taken_for_its_mean() -> None:
    lines = averaged(30, 19, summed=False).splitlines()
    lines = [part for line in lines for part in ([line, "loss: 9.5"] if line.startswith("19/19") else [line])]
    loss = named(read("\n".join(lines)), "loss")
    assert 9.5 not in loss.values
    assert len(loss.values) == 30


@pytest.mark.parametrize("objective", ["MLL: tf.Tensor({:.2f}, shape=(), dtype=float64)", "ELBO {:.2f}"])
def test_lines_with_an_objective_that_is_not_read_look_like_training(objective: str) -> None:
    steps = [f"Lasso Step: {100 * step} " + objective.format(-900 / (step + 1)) for step in range(200)]
    ends = [f"Train error: {0.7 - 0.01 * run:.3f} Test error {0.8 - 0.01 * run:.3f}" for run in range(8)]
    coverage = read("\n".join(steps + ends)).coverage
    assert coverage is not None
    assert coverage.training_lines >= 200


def test_a_loss_after_the_accuracy_of_a_split_is_a_loss_of_that_split(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "".join(
            f"[Epoch: {n:02}] Train acc: {0.5 + n / 50:.4f} | loss: {9 / (n + 1):.4f}\n"
            f"[Epoch: {n:02}] Valid acc: {0.5 + n / 60:.4f} | loss: {12 - n / 10:.4f}\n"
            for n in range(12)
        )
    )
    (log,) = read_path(path)
    values = {signal.name.lower(): signal.values for signal in log.signals}
    assert values["valid loss"].tolist() == [round(12 - n / 10, 4) for n in range(12)]
    assert values["loss"].tolist() == [round(9 / (n + 1), 4) for n in range(12)]
