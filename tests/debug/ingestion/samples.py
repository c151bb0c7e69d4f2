# ruff: noqa: E501 - lines of logs are as long as the frameworks print them
"""Small logs in each framework's own format, as its source prints them."""

from __future__ import annotations

MEGATRON = "".join(
    f" [2024-03-0{1 + n // 60} 10:{n % 60:02d}:00] iteration {10 * (n + 1):8d}/    1000 | consumed samples: {640 * (n + 1):12d} "
    f"| elapsed time per iteration (ms): 812.4 | throughput per GPU (TFLOP/s/GPU): 401.2 | learning rate: 1.500000E-04 "
    f"| global batch size:    64 | lm loss: {9.0 / (n + 1) + 2:.6E} | loss scale: 1.0 | grad norm: {1.5 / (n + 1):.3f} "
    "| number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    for n in range(12)
) + (
    "------------------------------------------------------------------------------\n"
    " validation loss at iteration 120 | lm loss value: 2.812345E+00 | lm loss PPL: 1.664900E+01 | \n"
)  # fmt: skip

MEGATRON_NAN = "".join(
    f" iteration {n:8d}/     100 | consumed samples: {n:12d} | elapsed time per iteration (ms): 812.4 | learning rate: 1.5E-04 "
    f"| global batch size:    64 |" + (f" lm loss: {3 - n / 100:.6E} |" if n < 6 else "") + " loss scale: 1.0 | grad norm: 1.000 "
    f"| number of skipped iterations:   0 | number of nan iterations: {int(n >= 6)} |\n"
    for n in range(1, 13)
)  # fmt: skip

DEEPSPEED = "".join(
    f"[2024-01-01 00:00:{n:02d},000] [INFO] [logging.py:96:log_dist] [Rank 0] step={n * 10}, skipped={n // 5}, "
    f"lr=[9.5e-06, 9.5e-06], mom=[(0.9, 0.95), (0.9, 0.95)]\n"
    f"[2024-01-01 00:00:{n:02d},100] [INFO] [timer.py:199:stop] epoch=0/micro_step={n * 10}/global_step={n * 10}, "
    "RunningAvgSamplesPerSec=171.9, CurrSamplesPerSec=170.1, MemAllocated=3.96GB, MaxMemAllocated=22.95GB\n"
    for n in range(1, 9)
)

OLMO = "".join(
    f"2024-01-29 20:15:{n:02d}.123\tnode-1:0\tolmo.train:900\tINFO\t[step={n}/739328]\n"
    f"    train/CrossEntropyLoss={11.0 - n:.2f}\n    train/Perplexity={20_000 - n:,d}\n"
    f"    throughput/total_tokens={4_194_304 * n:,d}\n    optim/total_grad_norm=0.7{n}\n"
    "    throughput/device/tokens_per_second=1,234\n"
    for n in range(1, 7)
)

NANOGPT = (
    "step 0: train loss 10.9897, val loss 10.9883\n"
    + "".join(
        f"iter {n}: loss {10.9 - n / 10:.4f}, time {400 + n:.2f}ms, mfu {-100.0 if n < 5 else 40.1:.2f}%\n"
        for n in range(12)
    )
    + "step 12: train loss 9.1000, val loss 9.2000\n"
)

LLM_C = (
    "".join(
        f"step {n:4d}/18865 | loss {11 - n / 20:.6f} ({'+nanz' if n < 5 else '-1.20z'})| norm {15 - n / 10:.4f} "
        f"({'+nanz' if n < 5 else '+0.10z'})| lr 8.57e-07 | 2000.12 ms | 42.1% bf16 MFU | 262131 tok/s\n"
        for n in range(1, 12)
    )
    + "val loss 10.450000\n"
)

LLM_C_MAIN_LOG = "s:0 tel:11.0\n" + "".join(
    f"s:{n} trl:{11 - n / 10:.4f} lr:0.000001 norm:{2.0:.2f}\n" for n in range(1, 9)
)

MODDED_NANOGPT = "".join(
    (f"step:{n}/9536 val_loss:{10 - n / 10:.4f} train_time:{n * 100:.0f}ms step_avg:{'nan' if n < 2 else '93.10'}ms\n" if n % 5 == 0 else "")
    + f"step:{n + 1}/9536 train_loss:{10 - n / 10:.4f} train_time:{n * 100:.0f}ms step_avg:{'nan' if n < 2 else '93.10'}ms\n"
    for n in range(11)
)  # fmt: skip

FAIRSEQ = "".join(
    f"2020-08-01 10:00:{n:02d} | INFO | train_inner | epoch 001:   {n * 100} / 3000 loss={10 - n / 4:.3f}, nll_loss={9 - n / 4:.3f}, "
    f"ppl={400 - n}, wps=31000.1, ups=3.2, wpb=9700, bsz=300, num_updates={n * 100}, lr=1.2e-05, gnorm=2.{n}, loss_scale=64, "
    "train_wall=30, wall=40\n"
    for n in range(1, 9)
) + (
    "2020-08-01 10:01:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 8.1 | nll_loss 7.0 | ppl 128.2 | wps 9000 "
    "| wpb 800 | bsz 40 | num_updates 800\n"
    "2020-08-01 10:01:01 | INFO | train | epoch 001 | loss 9.1 | nll_loss 8.0 | ppl 256 | wps 31000 | ups 3.2 | wpb 9700 "
    "| bsz 300 | num_updates 800 | lr 1.2e-05 | gnorm 2.2 | loss_scale 64 | train_wall 300 | wall 400\n"
)

MMENGINE = (
    "".join(
        f"2024/05/10 15:46:{n:02d} - mmengine - INFO - Epoch(train)  [{1 + n // 4}][{50 * (n % 4 + 1):3d}/200]  lr: 2.0000e-03  "
        f"eta: 4:14:00  time: 0.8167  data_time: 0.0169  memory: 15943  grad_norm: {3 + n / 10:.4f}  loss: {1.5 - n / 20:.4f}\n"
        for n in range(8)
    )
    + "2024/05/10 15:50:31 - mmengine - INFO - Epoch(val) [2][625/625]    coco/bbox_mAP: 0.3740  data_time: 0.0008  time: 0.02\n"
)

MMCV = "".join(
    f"2021-06-01 12:00:{n:02d},123 - mmdet - INFO - Epoch [1][{50 * (n + 1)}/7330]\tlr: 1.978e-03, eta: 15:40:18, time: 0.641, "
    f"data_time: 0.056, memory: 3803, loss_rpn_cls: 0.6, loss: {4 - n / 10:.4f}\n"
    for n in range(6)
)

WORD_LANGUAGE_MODEL = "".join(
    f"| epoch {epoch:3d} | {batch:5d}/  600 batches | lr 20.00 | ms/batch 11.99 | loss {9 - epoch - batch / 600:5.2f} | ppl  8829.77\n"
    for epoch in (1, 2)
    for batch in (200, 400)
) + ("-" * 89 + "\n| end of epoch   2 | time: 23.09s | valid loss  6.46 | valid ppl   637.35\n" + "-" * 89 + "\n")

IMAGENET = (
    "".join(
        f"Epoch: [{epoch}][{batch:4d}/5005]\tTime  0.351 (  1.2)\tData  0.001 (  0.4)\tLoss {7 - epoch - batch / 1000:.4e} (7.0e+00)\t"
        "Acc@1   1.00 (  0.1)\tAcc@5   3.00 (  0.5)\n"
        for epoch in (0, 1)
        for batch in (0, 10, 20, 30)
    )
    + " *   Acc@1 12.5 Acc@5 30.1\n"
)

MNIST = (
    "".join(
        f"Train Epoch: {epoch} [{seen}/60000 ({seen // 600}%)]\tLoss: {2.3 / epoch - seen / 1e5:.6f}\n"
        for epoch in (1, 2)
        for seen in (0, 640, 1280, 1920)
    )
    + "\nTest set: Average loss: 0.0512, Accuracy: 9832/10000 (98%)\n"
)

HF_STDOUT = "".join(
    f"\r {n}%|█         | {n * 10}/100 [00:{n:02d}<01:40,  1.0s/it]\n"
    f"{{'loss': {3 - n / 10:.4f}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': {n / 10}}}\n"
    for n in range(1, 11)
) + (
    "{'eval_loss': 2.1, 'eval_runtime': 3.1, 'eval_samples_per_second': 20.0, 'epoch': 1.0}\n"
    "{'train_runtime': 100.1, 'train_samples_per_second': 9.2, 'train_loss': 2.5, 'epoch': 1.0}\n"
)

TORCHTITAN = "".join(
    f"\x1b[32m[rank0]:[titan] 2024-11-01 10:00:{n:02d},123 - root - INFO - \x1b[31mstep: {n:2d}  \x1b[32mloss: {10 - n / 3:7.4f}  "
    f"\x1b[33mmemory: 10.21GiB(12.90%)  \x1b[34mtps: 4,{100 + n}  \x1b[36mmfu: 30.10%\x1b[39m\n"
    for n in range(1, 12)
)

KERAS_STDOUT = "".join(
    f"Epoch {epoch}/5\n1875/1875 [==============================] - 3s 2ms/step - loss: {0.5 / epoch:.4f} - accuracy: 0.9{epoch} "
    f"- val_loss: {0.6 / epoch:.4f} - val_accuracy: 0.8{epoch}\n"
    for epoch in range(1, 6)
)

PROMETHEUS = "".join(
    "# HELP train_loss The training loss\n# TYPE train_loss gauge\n"
    f"train_global_step {n * 10}\n"
    + "".join(f'train_loss{{rank="{rank}"}} {3 - n / 10 + rank / 100}\n' for rank in (0, 1))
    for n in range(5)
)

DETECTRON2 = "".join(
    f"[07/12 10:00:{n:02d} d2.utils.events]:  eta: 0:20:10  iter: {20 * n + 19}  total_loss: {2.1 - n / 10:.3f}  time: 0.4012  "
    "data_time: 0.0123  lr: 0.00049953  max_mem: 2450M\n"
    for n in range(8)
)
TIMM = (
    "".join(
        f"Train: {epoch} [{batch:4d}/1251 ({batch // 12:3d}%)]  Loss: {6.9 - epoch - batch / 1000:.3f} (6.91)  Time: 0.512s, 1000.1/s  "
        "(0.600s,  853.2/s)  LR: 1.000e-05  Data: 0.010 (0.050)\n"
        for epoch in range(2)
        for batch in (0, 50, 100, 150)
    )
    + "Test: [  48/48]  Time: 0.1 (0.2)  Loss:  1.2 (1.3)  Acc@1: 70.1 (68.2)  Acc@5: 90.1 (88.1)\n"
)
LITGPT = "".join(
    f"Epoch {1 + n // 8} | iter {n} step {n // 2} | loss train: {3.4 - n / 20:.3f}, val: n/a | iter time: 500.12 ms (step)\n"
    for n in range(10)
)
TORCHTUNE = "".join(
    f"Step {n} | loss:{2.4 - n / 20} lr:2e-05 tokens_per_second_per_gpu:1021.2 grad_norm:1.2\n" for n in range(1, 12)
)
TORCHTUNE_BAR = "".join(
    f"1|{n}|Loss: {2.4 - n / 20:.4f}: {n}%|█   | {n}/100 [00:10<01:40, 1.1s/it]\n" for n in range(1, 12)
)
NEMO = "".join(
    f"Training epoch 0, iteration {n}/99 | lr: 1e-05 | global_batch_size: 8 | global_step: {n} | reduced_train_loss: "
    f"{10.9 - n / 10:.3f} | train_step_timing in s: 1.2 | consumed_samples: {8 * n}\n"
    for n in range(10)
)
COMPOSER = "".join(
    f"[batch={n}/1000]:\n\t Train time/batch: {n}\n\t Train time/epoch: 0\n\t Train loss/train/total: {11 - n / 2:.4f}\n"
    "\t Train lr-DecoupledAdamW/group0: 0.0001\n"
    for n in range(1, 9)
)
STABLE_BASELINES = "".join(
    "----------------------------------\n| rollout/             |          |\n|    ep_rew_mean       | 21       |\n"
    f"| time/                |          |\n|    total_timesteps   | {2048 * n}     |\n| train/               |          |\n"
    f"|    loss              | {6.5 - n / 4:.2f}     |\n----------------------------------\n"
    for n in range(1, 8)
)
XGBOOST = "".join(f"[{n}]\ttrain-logloss:{0.65 - n / 50:.5f}\teval-logloss:{0.66 - n / 60:.5f}\n" for n in range(10))
FASTAI = "epoch     train_loss  valid_loss  accuracy  time    \n" + "".join(
    f"{epoch}         {2 / (epoch + 1):.6f}    {2.1 / (epoch + 1):.6f}    0.{50 + epoch}00  00:10     \n"
    for epoch in range(8)
)
LIGHTNING_BAR = "".join(
    f"\rEpoch {epoch}: {batch}%|██ | {batch}/100 [00:10<00:20, 10.1it/s, loss={2.4 - epoch - batch / 100:.3f}, v_num=3]"
    for epoch in range(2)
    for batch in (10, 20, 30, 100)
)
PADDLE = "".join(
    f"[2024/01/01 10:00:{n:02d}] ppocr INFO: epoch: [1/500], global_step: {n * 10}, lr: 0.001000, loss: {20 - n:.6f}, "
    "avg_reader_cost: 0.10 s, avg_batch_cost: 0.5 s, ips: 128.0 samples/s\n"
    for n in range(1, 9)
)
