"""Real public logs, end to end: the failures that are there are named, and the healthy ones are left in peace."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from tests.debug.public_reading import read_once

from holdfast.debug import MLSystemsDebugger
from holdfast.debug.types import RunReport, Verdict

HEALTHY = [
    "build_nanogpt_bigger.log.txt",
    "build_nanogpt_no_warmup.log.txt",
    "deepspeed_chat_rlhf_opt1.3b.log",
    "deepspeed_chat_sft_opt1.3b_fp16_overflows.log",
    "events.out.tfevents.1740937367.camels_v140",
    "hf_llama2_one_inf_gradnorm.trainer_state.json",
    "hf_stanford_alpaca.trainer_state.json",
    "lightning_lstm_v8.metrics.csv",
    "llamafactory_qwen25_medical.trainer_log.jsonl",
    "megatron_gpt3_15b_nan_placeholders.golden.json",
    "wandb_imdb_adam_lr3e-4.wandb",
    "wandb_nanogpt.wandb",
    "wordlm_gru_1layer_lr20.stdout.md",
    "wordlm_lstm_2layer_lr20.stdout.md",
]

# The failure each log is known for; a log known by two names may be called by either.
BROKEN = {
    "divergence/lightning_camels_v24.metrics.csv": "divergence",
    "divergence/traincheck_so60335387_missing_zero_grad.json": "divergence",
    "divergence/wordlm_gru_2layer_epoch4_collapse.stdout.md": "divergence",
    "divergence/wordlm_rnn_tanh_1layer_lr20.stdout.md": "divergence",
    "divergence/wordlm_rnn_tanh_2layer_lr20.stdout.md": "divergence",
    "explosion/painn_cafa_vol5_early_explosion_recovers.log": "explosion",
    "explosion/painn_dynamoFix_0.stdout.md": "explosion",
    "nan/fairseq_issue512_loss_scale_collapse.stdout.txt": "nan",
    "nan/lightning_pinn_em_v14.metrics.csv": "nan",
    "nan/wordlm_rnn_relu_2layer_lr20.stdout.md": "nan",
    "plateau/lightning_lstm_v2_const_predictor.metrics.csv": "plateau",
    "plateau/lightning_lstm_v6_const_predictor.metrics.csv": "plateau",
    "plateau/traincheck_forum84911_frozen_params.json": "plateau",
    "plateau/wandb_imdb_lion_lr1e-4.wandb": "plateau",
    "spike/bloom_tr1_13B_megatron_excerpt.md": "spike",
    "spike/mmdetection_issue11708_gradnorm_3e7.stdout.txt": "spike",
    "vanishing/wandb_imdb_sgd_lr3e-3.wandb": "vanishing",
}


@cache
def diagnose(path: Path) -> RunReport:
    return MLSystemsDebugger(plugins=False).diagnose(read_once(path))


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_public_log_has_no_finding(public_logs: Path, name: str) -> None:
    run = diagnose(public_logs / "healthy" / name)
    assert [finding.detection.evidence for finding in run.findings] == []
    assert run.verdict is Verdict.HEALTHY


@pytest.mark.parametrize(("name", "failure"), BROKEN.items())
def test_a_broken_public_log_is_called_by_its_failure(public_logs: Path, name: str, failure: str) -> None:
    run = diagnose(public_logs / name)
    assert failure in [finding.detection.failure.name for finding in run.findings]
    assert run.verdict is Verdict.UNHEALTHY


def test_the_collapse_of_the_loss_scale_is_named_beside_the_nan_it_hides(public_logs: Path) -> None:
    run = diagnose(public_logs / "nan" / "fairseq_issue512_loss_scale_collapse.stdout.txt")
    assert {finding.detection.failure.name for finding in run.findings} == {"loss_scale_collapse", "nan", "crash"}


def test_a_cause_that_is_known_is_among_the_first_three(public_logs: Path) -> None:
    known = {
        "divergence/wordlm_rnn_tanh_2layer_lr20.stdout.md": "learning_rate_too_high",
        "divergence/traincheck_so60335387_missing_zero_grad.json": "missing_zero_grad",
        "plateau/traincheck_forum84911_frozen_params.json": "frozen_parameters",
    }
    for name, cause in known.items():
        causes = [hypothesis.cause for hypothesis in diagnose(public_logs / name).findings[0].causes[:3]]
        assert cause in causes, name


def test_a_log_of_zeros_is_neither_healthy_nor_broken(public_logs: Path) -> None:
    assert diagnose(public_logs / "ambiguous" / "qwen_all_zero_loss_and_grad.csv").verdict is Verdict.UNKNOWN


def test_the_desync_begins_at_the_first_step_after_the_start(public_logs: Path) -> None:
    (finding,) = diagnose(public_logs / "desync" / "traincheck_x-jxmnop-ddp").findings
    assert (finding.detection.failure.name, finding.detection.first_step) == ("desync", 1.0)


@pytest.mark.parametrize("name", ["gpu_error_2nd", "lock_gil_2nd"])
def test_exactly_the_ranks_that_were_made_to_hang_are_named(public_logs: Path, name: str) -> None:
    folder = public_logs / "hang" / name
    truth = next(
        line for line in (folder / "fault_injection.log").read_text().splitlines() if line.startswith("Fault ranks")
    )
    injected = [int(rank) for rank in truth.split("[")[1].rstrip("]").split(",")]
    found = diagnose(folder).findings
    assert sorted(finding.detection.replica or 0 for finding in found) == injected
    assert {finding.detection.failure.name for finding in found} == {"hang"}
