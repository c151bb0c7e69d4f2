"""How training frameworks print a step, in their own style: a function of the step and the loss gives the text.

Made up line by line after what each framework's logging code prints; no line is from a real run.
"""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["STYLES", "TOTAL", "write"]

TOTAL = 240
Style = Callable[[int, float], str]


def num(value: float, form: str = ".4f") -> str:
    """A number as Python prints it."""
    return format(value, form) if math.isfinite(value) else str(value)


def stamp(i: int) -> str:
    """A time of day that moves on."""
    return f"12:{i // 60 % 60:02d}:{i % 60:02d}"


def bar(i: int) -> str:
    """The middle of a progress bar."""
    return f"{i * 100 // TOTAL:3d}%|███▌      | {i}/{TOTAL} [00:{i % 60:02d}<01:00,  1.95it/s"


def _megatron(i: int, v: float) -> str:
    loss = f" lm loss: {v:.6E} |" if v == v else ""
    return (
        f" [2024-08-01 {stamp(i)}] iteration {i:8d}/{TOTAL:8d} | consumed samples: {i * 256:12d} | elapsed time per"
        f" iteration (ms): 912.3 | throughput per GPU (TFLOP/s/GPU): 401.2 | learning rate: 1.500000E-04 | global batch"
        f" size:   256 |{loss} loss scale: 1.0 | grad norm: 0.812 | number of skipped iterations:   0 | number of nan"
        f" iterations:   {int(v != v)} |\n"
    )


STYLES: dict[str, tuple[str, Style]] = {
    "diffusers": ("text", lambda i, v: f"\rSteps: {bar(i)}, lr=1e-5, step_loss={num(v)}]"),
    "lightning bar": (
        "text",
        lambda i, v: f"Epoch {(i - 1) // 60}:  {i % 60}%|█| {(i - 1) % 60 + 1}/60 [00:03<00:12, train_loss={num(v)}]\r",
    ),
    "loguru": (
        "text",
        lambda i, v: (
            f"2024-05-17 {stamp(i)}.123 | INFO     | loop:train:142 - step {i}/{TOTAL} loss={num(v)} lr=3e-4\n"
        ),
    ),
    "absl": (
        "text",
        lambda i, v: f"I0517 {stamp(i)}.123456 139841 train.py:88] Step {i}: loss = {num(v)}, accuracy = 0.51\n",
    ),
    "logging": (
        "text",
        lambda i, v: (
            f"2024-05-17 {stamp(i)},123 - __main__ - INFO - Iteration [{i}/{TOTAL}], Loss: {num(v)}, Time: 0.1s\n"
        ),
    ),
    "colours": (
        "text",
        lambda i, v: (
            f"\x1b[32m[INFO]\x1b[0m \x1b[1mstep\x1b[0m=\x1b[36m{i}\x1b[0m \x1b[1mloss\x1b[0m=\x1b[33m{num(v)}\x1b[0m\n"
        ),
    ),
    "torchtitan": (
        "text",
        lambda i, v: (
            f"[rank0]:[titan] 2024-07-01 {stamp(i)},901 - INFO - \x1b[31mstep: {i:2d}  \x1b[32mloss: {num(v, '7.4f')}"
            f"  \x1b[33mmemory: 21.32GiB(22.44%)  \x1b[34mtps: 6,442  \x1b[35mmfu: 37.62%\x1b[39m\n"
        ),
    ),
    "torchtune file": (
        "text",
        lambda i, v: f"Step {i} | loss:{num(v)} lr:2e-05 tokens_per_second_per_gpu:1543.2 grad_norm:1.25 \n",
    ),
    "torchtune bar": ("text", lambda i, v: f"\r1|{i}|Loss: {num(v, '.16f')}: {bar(i)}]"),
    "nemo bar": (
        "text",
        lambda i, v: (
            f"Epoch 0: : {bar(i)}, reduced_train_loss={num(v)}, global_step={i:.1f}, train_step_timing in s=0.81]\r"
        ),
    ),
    "nemo 2": (
        "megatron",
        lambda i, v: (
            f"Training epoch 0, iteration {i}/{TOTAL} | lr: 1.499e-07 | global_batch_size: 512 | global_step: {i} |"
            f" reduced_train_loss: {num(v)} | train_step_timing in s: 12.64 | consumed_samples: {i * 512}\n"
        ),
    ),
    "megatron core": ("megatron", _megatron),
    "detectron2": (
        "text",
        lambda i, v: (
            f"[05/17 {stamp(i)} d2.utils.events]:  eta: 1:12:23  iter: {i * 20 - 1}  total_loss: {num(v)}  loss_cls: 1"
            f"  time: 0.4211  data_time: 0.0123  lr: 0.00019981  max_mem: 5421M\n"
        ),
    ),
    "timm": (
        "text",
        lambda i, v: (
            f"Train: {i // 60} [{i % 60 * 20:4d}/1251 ({i % 60 * 20 / 12.5:3.0f}%)]  Loss: {num(v)} ({num(v)})"
            f"  Time: 0.312s,  820.5/s  (0.315s,  812.7/s)  LR: 1.000e-03  Data: 0.011 (0.013)\n"
        ),
    ),
    "ultralytics": (
        "column-table",
        lambda i, v: (
            "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
            f"{f'{i}/{TOTAL}':>11s}      2.31G {num(v, '10.4f')} {num(v, '10.4f')} {num(v, '10.4f')}   34   640:"
            f"  50%|█████     | 4/8 [00:01<00:00,  5.51it/s]\r"
            f"{f'{i}/{TOTAL}':>11s}      2.31G {num(v, '10.4f')} {num(v, '10.4f')} {num(v, '10.4f')}   34   640:"
            f" 100%|██████████| 8/8 [00:01<00:00,  5.51it/s]\n"
        ),
    ),
    "litgpt": (
        "text",
        lambda i, v: f"Epoch 1 | iter {i} step {i} | loss train: {num(v)}, val: n/a | iter time: 312.51 ms (step)\n",
    ),
    "nanotron": (
        "text",
        lambda i, v: (
            f"07/01/2024 {stamp(i)} [INFO|DP=0|PP=0|TP=0]: iteration: {i} / {TOTAL} | consumed_tokens: {i * 131}K |"
            f" elapsed_time_per_iteration_ms: 1.2K | tokens_per_sec: 109K | lm_loss: {num(v)} | grad_norm: 1.2\n"
        ),
    ),
    "olmo core": (
        "olmo",
        lambda i, v: (
            f"2024-09-01 {stamp(i)}.123\thost:0\tolmo_core.train:74\tINFO\t[step={i}/{TOTAL},epoch=1,eta=0:12:10]\n"
            f"    optim/LR (group 0)=1.0000E-04\n    optim/total grad norm=0.8120\n    train/CE loss={num(v)}\n"
        ),
    ),
    "composer": (
        "olmo",
        lambda i, v: f"[batch={i}/{TOTAL}]:\n\t Train time/epoch: 0\n\t Train loss/train/total: {num(v)}\n",
    ),
    "paddle classification": (
        "text",
        lambda i, v: (
            f"[2024/05/17 {stamp(i)}] ppcls INFO: [Train][Epoch {1 + (i - 1) // 60}/4][Iter: {(i - 1) % 60}/60]lr(Cos):"
            f" 0.00100000, top1: 0.51, loss: {num(v)}, batch_cost: 0.31s, reader_cost: 0.02, ips: 203.1 samples/s\n"
        ),
    ),
    "paddle nlp": (
        "text",
        lambda i, v: (
            f"[2024-05-17 {stamp(i)},123] [    INFO] - loss: {num(v)}, learning_rate: 3e-05, global_step: {i * 10},"
            f" interval_samples_per_second: 61.1, progress_or_epoch: {i / 50:.4f}\n"
        ),
    ),
    "fairseq2": (
        "text",
        lambda i, v: (
            f"[06/01/24 {stamp(i)}] INFO     fairseq2 - Train Metrics (step {i * 50}) - Loss: {num(v)} | Gradient Norm:"
            f" 1.2345 | Learning Rate: 5e-05 | Tokens: 1,234,567\n"
        ),
    ),
    "maxtext": ("text", lambda i, v: f"completed step: {i}, seconds: 1.234, Tokens/s/device: 6637.1, loss: {num(v)}\n"),
    "stable-baselines3": (
        "bordered-table",
        lambda i, v: (
            "-" * 41 + f"\n| rollout/                |             |\n|    ep_rew_mean          | {i:<11d} |\n"
            f"| time/                   |             |\n|    total_timesteps      | {i * 2048:<11d} |\n"
            f"| train/                  |             |\n|    loss                 | {num(v, '<11.4f')} |\n"
            + "-" * 41
            + "\n"
        ),
    ),
    "steps in thousands": ("text", lambda i, v: f"step {i / 10:.1f}k | loss {num(v)} | lr 1e-4\n"),
    "commas": ("text", lambda i, v: f"Step {i * 1000:,} of {TOTAL * 1000:,}: loss {num(v)} (1,234 samples/s)\n"),
    "decimal commas": ("text", lambda i, v: f"step: {i} loss: {num(v).replace('.', ',')} lr: 0,0001\n"),
    "fractional epochs": ("text", lambda i, v: f"epoch {i / 40:.3f} loss {num(v)} acc {50 + i / 10:.1f}%\n"),
    "wrapped": ("text", lambda i, v: f"Step {i}/{TOTAL}:\n    loss     = {num(v)}\n    lr       = 1e-4\n"),
    "keras": (
        "text",
        lambda i, v: (
            f"Epoch {i}/{TOTAL}\n1875/1875 [==============================] - 4s 2ms/step - loss: {num(v)}"
            f" - accuracy: 0.9123 - val_loss: {num(v)}\n"
        ),
    ),
    "keras 3": (
        "text",
        lambda i, v: (
            f"Epoch {i}/{TOTAL}\n\x1b[1m1875/1875\x1b[0m \x1b[32m━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m4s\x1b[0m 2ms/step"
            f" - accuracy: 0.9123 - loss: {num(v)}\n"
        ),
    ),
    "trainer": (
        "hf-stdout",
        lambda i, v: (
            f"{{'loss': {num(v)}, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': {i / 30:.2f}}}\n {bar(i)}]\r"
        ),
    ),
    "trainer 5": (
        "hf-stdout",
        lambda i, v: f"{{'loss': '{num(v)}', 'grad_norm': '1.2', 'learning_rate': '1e-05', 'epoch': '{i / 30:.2f}'}}\n",
    ),
    "deepspeed": (
        "deepspeed",
        lambda i, v: (
            f"[2024-05-17 {stamp(i)},123] [INFO] [logging.py:96] [Rank 0] step={i * 10}, skipped=0, lr=[1e-05]\n"
            f"steps: {i * 10} loss: {num(v)} iter time (s): 0.512 samples/sec: 62.5\n"
        ),
    ),
    "mmdetection": (
        "mmengine",
        lambda i, v: (
            f"05/17 {stamp(i)} - mmengine - INFO - Epoch(train) [{1 + (i - 1) // 60}][{((i - 1) % 60 + 1) * 50}/3000]"
            f"  lr: 1.0000e-02  eta: 1:12:11  time: 0.3112  data_time: 0.0123  loss: {num(v)}\n"
        ),
    ),
    "python dicts": ("text", lambda i, v: f"INFO {{'step': {i}, 'train/loss': {num(v)}, 'lr': 0.0001}}\n"),
    "json in text": ("text", lambda i, v: f'INFO:trainer:{{"step": {i}, "train/loss": {num(v)}, "lr": 0.0001}}\n'),
    "units": (
        "text",
        lambda i, v: f"it {i:05d} | loss {num(v, '.4e')} | dt 312.4ms | 1234tok/s | mem 12.3GB | mfu 41.2%\n",
    ),
    "verl": ("text", lambda i, v: f"step:{i} - train/loss:{num(v)} - actor/grad_norm:0.3 - timing_s/step:31.2\n"),
    "dcgan": ("text", lambda i, v: f"[{(i - 1) // 60}/4][{(i - 1) % 60}/60] loss: {num(v)} D(x): 0.8\n"),
    "rich": ("text", lambda i, v: f"[{stamp(i)}] INFO     Step {i}: loss={num(v)}              train.py:42\n"),
    "clu": (
        "text",
        lambda i, v: f"I0517 {stamp(i)}.123456 139841 logging_writer.py:48] [{i * 100}] accuracy=0.5, loss={num(v)}\n",
    ),
    "marian": (
        "text",
        lambda i, v: (
            f"[2024-05-17 {stamp(i)}] Ep. 1 : Up. {i * 100} : Sen. {i * 6400:,} : Cost {num(v)} : Time 12.1s\n"
        ),
    ),
    "estimator": (
        "text",
        lambda i, v: (
            f"INFO:tensorflow:loss = {num(v)}, step = {i * 100} (0.5 sec)\nINFO:tensorflow:global_step/sec: 195.3\n"
        ),
    ),
    "ignite": ("text", lambda i, v: f"Epoch[{1 + (i - 1) // 60}] Iteration[{(i - 1) % 60 + 1}/60] Loss: {num(v)}\n"),
    "allennlp": ("text", lambda i, v: f"accuracy: 0.51, loss: {num(v)} ||: {bar(i)}]\r"),
    "icefall": (
        "text",
        lambda i, v: (
            f"2024-05-17 {stamp(i)},123 INFO [train.py:1020] (0/4) Epoch 1, batch {i * 50}, loss[loss={num(v)},"
            f" simple_loss=0.3, over 25000.00 frames. ], batch size: 86, lr: 3.94e-02\n"
        ),
    ),
    "ray": ("text", lambda i, v: f"(RayTrainWorker pid=123, ip=10.0.0.1) step={i} loss={num(v)} lr=0.001\n"),
    "kubernetes": ("text", lambda i, v: f"2024-05-17T{stamp(i)}.123456789Z stdout F step {i} loss {num(v)}\n"),
    "logfmt": (
        "text",
        lambda i, v: f'time="2024-05-17T{stamp(i)}Z" level=info msg="step done" step={i} loss={num(v)}\n',
    ),
    "gpt-neox": (
        "megatron",
        lambda i, v: (
            f" samples/sec: 12.3 | iteration {i:8d}/ 240 | learning rate: 1.0E-04 | lm_loss: {num(v, '.6E')} |\n"
        ),
    ),
    "swift": (
        "hf-stdout",
        lambda i, v: (
            f"{{'loss': {num(v)}, 'grad_norm': 1.2, 'memory(GiB)': 21, 'epoch': {i / 30:.2f}, 'elapsed_time': '1m'}}\n"
        ),
    ),
    "darknet": (
        "darknet",
        lambda i, v: (
            f"v3 (iou loss, Normalizer: (iou: 0.07, cls: 1.00) Region 82 Avg (IOU: 0.81, GIOU: 0.79), count: 3\n"
            f" {i}: {num(v, 'f')}, {num(v, 'f')} avg loss, 0.002610 rate, 0.5 seconds, {i * 64} images, 12 hours left\n"
        ),
    ),
    "catboost": (
        "catboost",
        lambda i, v: (
            f"{i}:\tlearn: {num(v, '.7f')}\ttest: {num(v, '.7f')}\tbest: 0.5 ({i})\ttotal: 9ms\tremaining: 4.2s\n"
        ),
    ),
    "deepxde": ("deepxde", lambda i, v: f"{i * 1000:<10d}[{num(v, '.3e')}, 0.00e+00]    [{num(v, '.3e')}]    []  \n"),
    "detectron": (
        "text",
        lambda i, v: (
            f'json_stats: {{"accuracy_cls": "0.98", "eta": "1:00:00", "iter": {i * 20}, "loss": "{num(v)}"}}\n'
        ),
    ),
    "jax arrays": ("text", lambda i, v: f"step {i} loss Array({num(v)}, dtype=float32)\n"),
    "tutorial": ("text", lambda i, v: f"[{(i - 1) // 60 + 1}, {((i - 1) % 60 + 1) * 2000:5d}] loss: {num(v, '.3f')}\n"),
    "gpt-2": ("text", lambda i, v: f"[{i * 10} | {i * 12.34:.2f}] loss={num(v)} avg={num(v)}\n"),
    "tacotron": ("text", lambda i, v: f"Train loss {i} {num(v, '.6f')} Grad Norm 1.234567 0.81s/it\n"),
    "comma pairs": ("text", lambda i, v: f"Loss, {num(v, 'f')}\n"),
    "json with a message": (
        "text",
        lambda i, v: f'{{"level": "INFO", "message": "epoch {i}: loss={num(v)}", "pid": 7}}\n',
    ),
    "whole numbers on a bar": (
        "text",
        lambda i, v: f"Epoch {i}: 100%|██████████| 60/60 [00:12<00:00, loss={num(v, '.4g')}, v_num=0]\n",
    ),
    "bar without a total": ("text", lambda i, v: f"Epoch 1: {i}it [04:02, 18.76s/it, loss={num(v)}]\r"),
    "rich table": (
        "column-table",
        lambda i, v: ("┃ Epoch ┃ Train Loss ┃ α ┃\n" if i == 1 else "") + f"│ {i:<5d} │ {num(v):<10s} │ 0.5 │\n",
    ),
    "matlab": (
        "column-table",
        lambda i, v: (
            (
                "|  Epoch  |  Iteration  |  Time Elapsed  |  Mini-batch  |  Base Learning  |\n"
                "|         |             |   (hh:mm:ss)   |     Loss     |      Rate       |\n"
                if i == 1
                else ""
            )
            + f"| {(i - 1) // 60 + 1:7d} | {i * 50:11d} |       00:00:12 | {num(v):>12s} |          0.0100 |\n"
        ),
    ),
    "marks behind a row": (
        "column-table",
        lambda i, v: (
            ("    Ep    Loss  L_bit    Acc%      α\n====================\n" if i == 1 else "")
            + f"{i:6d}  {num(v)} {num(v)}  50.20% 0.4990 ★\n"
        ),
    ),
    "commented header": (
        "csv",
        lambda i, v: (
            ("#  step      rmse_val    loss\n" if i == 1 else "") + f"{i * 100:7d}      1.2e-02  {num(v, '.4e')}\n"
        ),
    ),
}


def write(style: str, losses: list[float]) -> str:
    """A log of these losses in a framework's style."""
    form = STYLES[style][1]
    return "".join(form(i, value) for i, value in enumerate(losses, 1)) + "\n"
