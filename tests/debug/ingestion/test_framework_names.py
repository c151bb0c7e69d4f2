"""What the names that frameworks give their metrics mean, framework by framework; "-" is: known to mean nothing."""

from __future__ import annotations

import pytest

from holdfast.debug.ingestion.names import meaning_of

NAMES: dict[str, dict[str, str]] = {
    "lightning": {
        "train_loss_step": "loss", "train_loss_epoch": "loss", "val_loss": "eval_loss", "lr-AdamW": "lr",
        "lr-Adam/pg1": "lr", "grad_2.0_norm_total": "grad_norm", "val/acc": "metric", "epoch": "-",
    },
    "hugging face": {
        "loss": "loss", "eval_loss": "eval_loss", "learning_rate": "lr", "train/grad_norm": "grad_norm",
        "eval_runtime": "-", "eval_samples_per_second": "-", "train_samples_per_second": "throughput",
        "total_flos": "-", "eval_accuracy": "metric", "train_runtime": "-",
    },
    "keras": {
        "accuracy": "metric", "val_accuracy": "metric", "val_mae": "metric", "sparse_categorical_accuracy": "metric",
        "val_auc": "metric",
    },
    "torchtune": {
        "tokens_per_second_per_gpu": "throughput", "peak_memory_active": "memory", "peak_memory_reserved": "memory",
        "log_probs_chosen": "-",
    },
    "axolotl": {
        "memory/max_allocated": "memory", "tokens/train_per_sec_per_gpu": "throughput", "eval/perplexity": "perplexity",
        "ppl": "perplexity",
    },
    "trl": {
        "rewards/chosen": "-", "rewards/rejected": "-", "rewards/accuracies": "metric", "rewards/margins": "-",
        "objective/kl": "kl", "objective/rlhf_reward": "reward", "policy/clipfrac_avg": "-", "loss/policy_avg": "loss",
        "reward_std": "-", "mean_token_accuracy": "metric", "entropy": "entropy", "frac_reward_zero_std": "-",
        "completions/mean_length": "-", "kl": "kl",
    },
    "nemo": {
        "reduced_train_loss": "loss", "train_step_timing in s": "step_time", "validation_step_timing in s": "-",
        "TFLOPS_per_GPU": "throughput", "global_step": "-",
    },
    "megatron": {
        "lm loss": "loss", "grad-norm": "grad_norm", "loss-scale": "loss_scale", "params-norm": "weight_norm",
        "iteration-time": "step_time", "elapsed time per iteration (ms)": "step_time", "num-zeros": "-",
        "throughput per GPU (TFLOP/s/GPU)": "throughput", "number of skipped iterations": "skipped",
        "number of nan iterations": "nan_count", "lm loss validation": "eval_loss", "batch-size": "-",
    },
    "composer": {
        "metrics/train/LanguageCrossEntropy": "loss", "metrics/eval/LanguageCrossEntropy": "eval_loss",
        "metrics/train/LanguagePerplexity": "perplexity", "metrics/eval/MulticlassAccuracy": "metric",
        "loss/train/total": "loss", "lr-DecoupledAdamW/group0": "lr", "l2_norm/grad/global": "grad_norm",
        "l2_norm/moment/layer1": "-", "time/train": "-", "throughput/batches_per_sec": "throughput",
        "memory/peak_allocated_mem": "memory",
    },
    "timm": {"train_loss": "loss", "eval_top1": "metric", "eval_top5": "metric"},
    "ultralytics": {
        "train/box_loss": "loss", "val/dfl_loss": "eval_loss", "metrics/mAP50-95(B)": "metric", "lr/pg0": "lr",
        "metrics/precision(B)": "metric", "GPU_mem": "memory",
    },
    "detectron2": {
        "total_loss": "loss", "loss_box_reg": "loss", "data_time": "data_time", "rank_data_time": "data_time",
        "time": "step_time", "eta_seconds": "-", "bbox/AP50": "metric", "segm/APs": "metric",
        "fast_rcnn/cls_accuracy": "metric", "validation_loss": "eval_loss",
    },
    "paddle": {"avg_reader_cost": "data_time", "avg_batch_cost": "step_time", "ips": "throughput", "acc1": "metric"},
    "maxtext": {
        "learning/loss": "loss", "learning/raw_grad_norm": "grad_norm", "learning/param_norm": "weight_norm",
        "perf/step_time_seconds": "step_time", "perf/per_device_tokens_per_sec": "throughput",
        "learning/current_learning_rate": "lr", "evaluation/avg_loss": "eval_loss",
    },
    "levanter": {
        "optim/learning_rate": "lr", "throughput/duration": "step_time", "throughput/loading_time": "data_time",
        "throughput/hook_time": "-", "grad/norm/total": "grad_norm", "params/norm/total": "weight_norm",
        "updates/norm/total": "update_norm", "eval/bpb": "eval_loss", "throughput/mfu": "throughput",
    },
    "litgpt": {"iter_time": "step_time", "val_ppl": "perplexity", "iter": "-", "remaining_time": "-"},
    "trlx": {"losses/total_loss": "loss", "policy/sqrt_kl": "kl", "reward/mean": "reward", "time/exp": "-"},
    "stable-baselines3": {
        "rollout/ep_rew_mean": "reward", "rollout/ep_len_mean": "-", "train/value_loss": "value_loss",
        "time/fps": "throughput",
        "train/approx_kl": "kl", "train/clip_fraction": "-", "train/explained_variance": "-",
        "time/total_timesteps": "-",
        "train/ent_coef": "-",
    },
    "verl": {
        "actor/pg_loss": "loss", "actor/grad_norm": "grad_norm", "critic/score/mean": "reward", "actor/ppo_kl": "kl",
        "timing_s/step": "step_time", "timing_s/gen": "-", "perf/mfu/actor": "throughput", "actor/entropy": "entropy",
        "val-core/acc/mean@1": "metric",
    },
    "olmo": {
        "train/CrossEntropyLoss": "loss", "train/Perplexity": "perplexity", "optim/total_grad_norm": "grad_norm",
        "optim/step_skipped": "skipped", "throughput/device/data loading (s)": "data_time",
        "throughput/device/data loading (%)": "-", "train/CE loss": "loss", "eval/c4/Perplexity": "perplexity",
    },
    "fairseq": {"gnorm": "grad_norm", "ups": "throughput", "nll_loss": "loss", "best_loss": "-", "train_wall": "-"},
    "by hand": {
        "loss_G": "loss", "Prec@1": "metric", "bits_per_byte": "loss", "tok/s": "throughput", "s/it": "step_time",
        "ms/step": "step_time", "it/s": "throughput", "fp16_scale": "loss_scale", "amp/scale": "loss_scale",
        "Acc@5": "metric", "kl_loss": "loss", "kl_coef": "-",
    },
    "drift monitors": {
        "psi/age": "distribution", "kl/income": "distribution", "ks/clicks": "distribution", "js/age": "distribution",
        "drift/psi/age": "distribution", "kl/mean": "kl",
    },
}  # fmt: skip


@pytest.mark.parametrize("framework", NAMES)
def test_a_framework_s_own_names_are_understood(framework: str) -> None:
    table = NAMES[framework]
    assert {name: meaning_of(name).kind or "-" for name in table} == table


def test_metrics_say_in_which_direction_they_improve() -> None:
    directions = {name: meaning_of(name).metadata.get("higher_is_better") for name in ("bbox/AP", "val_mae", "wer")}
    assert directions == {"bbox/AP": True, "val_mae": False, "wer": False}


def test_a_distance_names_its_statistic_and_its_feature() -> None:
    assert dict(meaning_of("psi/age").metadata) == {"statistic": "psi", "feature": "age"}


@pytest.mark.parametrize("name", ["l2_norm/grad/model.layers.0.weight", "grad_2.0_norm/model.layers.0.weight"])
def test_a_norm_of_one_layer_names_it(name: str) -> None:
    meaning = meaning_of(name)
    assert (meaning.kind, meaning.layer) == ("grad_norm", "model.layers.0.weight")
