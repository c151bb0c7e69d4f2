"""Real logs of other projects, where they lie beside this one: each must read into signals that make sense."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.debug.public_reading import read_once

from holdfast.debug.ingestion import read_path

FORMATS = {
    "ambiguous/qwen_all_zero_loss_and_grad.csv": "csv",
    "ambiguous/wandb_nanogpt_overfit.wandb": "wandb",
    "desync/traincheck_x-jxmnop-ddp": "parameter-hashes",
    "divergence/lightning_camels_v24.metrics.csv": "csv",
    "divergence/traincheck_so60335387_missing_zero_grad.json": "json",
    "divergence/wordlm_gru_2layer_epoch4_collapse.stdout.md": "pytorch-examples",
    "divergence/wordlm_rnn_tanh_1layer_lr20.stdout.md": "pytorch-examples",
    "divergence/wordlm_rnn_tanh_2layer_lr20.stdout.md": "pytorch-examples",
    "explosion/painn_cafa_vol5_early_explosion_recovers.log": "text",
    "explosion/painn_dynamoFix_0.stdout.md": "text",
    "hang/gpu_error_2nd": "flight-recorder",
    "hang/lock_gil_2nd": "flight-recorder",
    "healthy/build_nanogpt_bigger.log.txt": "nanogpt",
    "healthy/build_nanogpt_no_warmup.log.txt": "nanogpt",
    "healthy/deepspeed_chat_rlhf_opt1.3b.log": "deepspeed",
    "healthy/deepspeed_chat_sft_opt1.3b_fp16_overflows.log": "deepspeed",
    "healthy/events.out.tfevents.1740937367.camels_v140": "tensorboard",
    "healthy/hf_llama2_one_inf_gradnorm.trainer_state.json": "hf-trainer-state",
    "healthy/hf_stanford_alpaca.trainer_state.json": "hf-trainer-state",
    "healthy/lightning_lstm_v8.metrics.csv": "csv",
    "healthy/llamafactory_qwen25_medical.trainer_log.jsonl": "llamafactory",
    "healthy/megatron_gpt3_15b_nan_placeholders.golden.json": "megatron-golden",
    "healthy/wandb_imdb_adam_lr3e-4.wandb": "wandb",
    "healthy/wandb_nanogpt.wandb": "wandb",
    "healthy/wordlm_gru_1layer_lr20.stdout.md": "pytorch-examples",
    "healthy/wordlm_lstm_2layer_lr20.stdout.md": "pytorch-examples",
    "nan/fairseq_issue512_loss_scale_collapse.stdout.txt": "fairseq",
    "nan/lightning_pinn_em_v14.metrics.csv": "csv",
    "nan/wordlm_rnn_relu_2layer_lr20.stdout.md": "pytorch-examples",
    "plateau/lightning_lstm_v2_const_predictor.metrics.csv": "csv",
    "plateau/lightning_lstm_v6_const_predictor.metrics.csv": "csv",
    "plateau/traincheck_forum84911_frozen_params.json": "json",
    "plateau/wandb_imdb_lion_lr1e-4.wandb": "wandb",
    "spike/bloom_tr1_13B_megatron_excerpt.md": "megatron",
    "spike/mmdetection_issue11708_gradnorm_3e7.stdout.txt": "mmengine",
    "vanishing/wandb_imdb_sgd_lr3e-3.wandb": "wandb",
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_public_log_reads_into_ordered_signals(public_logs: Path, name: str) -> None:
    log = read_once(public_logs / name)
    assert log.format == FORMATS[name]
    kinds = {signal.kind for signal in log.signals}
    assert kinds & {"loss", "perplexity", "param_hash", "collective"}
    for signal in log.signals:
        assert len(signal.steps) == len(signal.values)
        assert np.all(np.diff(signal.steps) >= 0), signal.name


def test_a_folder_of_public_logs_is_many_runs(public_logs: Path) -> None:
    stuck = [name for name in FORMATS if name.startswith("plateau/")]
    assert len(read_path(public_logs / "plateau")) == len(stuck) > 3


def test_zeros_and_placeholders_of_public_logs_are_not_values(public_logs: Path) -> None:
    bloom = read_once(public_logs / "spike/bloom_tr1_13B_megatron_excerpt.md")
    norm = next(signal for signal in bloom.signals if signal.kind == "grad_norm")
    assert "not_collected" in norm.metadata
    golden = read_once(public_logs / "healthy/megatron_gpt3_15b_nan_placeholders.golden.json")
    loss = next(signal for signal in golden.signals if signal.kind == "loss")
    assert np.isfinite(loss.values).all()
    assert "missing_steps" not in loss.metadata
