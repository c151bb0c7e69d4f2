"""Logs whose words are not English, and bytes that are not plain UTF-8."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.debug import MLSystemsDebugger, RunReport
from holdfast.errors import UnreadableLogError

DEBUGGER = MLSystemsDebugger(plugins=False)
LOSSES = [round(2.0 / (n + 1) + 0.2, 4) for n in range(24)]


def run_of(folder: Path, content: bytes) -> RunReport:
    path = folder / "train.log"
    path.write_bytes(content)
    (run,) = DEBUGGER.debug(path).runs
    return run


def by_kind(run: RunReport) -> dict[str | None, list[float]]:
    return {signal.kind: signal.values.tolist() for signal in run.signals}


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-28 18:28:20,294 - INFO - 训练损失: {loss}, 训练准确率: 36.46%",
        "第{n}轮，训练损失：{loss}，学习率：0.001",
        "エポック {n} 損失: {loss} 精度: 0.5",
        "에포크 {n} 손실: {loss} 정확도: 0.5",
        "Эпоха {n}: потери: {loss}, точность: 0.5",
        "Época {n} pérdida: {loss} precisión: 0.5",
        "2025-05-12 12:45:02,321 INFO Ép{n} | train loss {loss} | Acc 0.8992 | Durée 268.1s",
    ],
)
def test_words_of_other_languages_name_series(tmp_path: Path, line: str) -> None:
    text = "".join(f"Epoch {n}/24\n" + line.format(n=n, loss=loss) + "\n" for n, loss in enumerate(LOSSES))
    run = run_of(tmp_path, text.encode())
    assert by_kind(run)["loss"] == LOSSES
    assert len(run.signals) > 1


def test_a_held_out_loss_in_chinese_is_held_out(tmp_path: Path) -> None:
    text = "".join(f"Epoch [{n}/24] 训练损失: {loss} 验证损失: {loss + 1:.4f}\n" for n, loss in enumerate(LOSSES))
    run = run_of(tmp_path, text.encode())
    assert by_kind(run)["loss"] == LOSSES
    assert by_kind(run)["eval_loss"][0] == round(LOSSES[0] + 1, 4)


def test_a_hole_of_nul_bytes_in_the_middle_hides_nothing(tmp_path: Path) -> None:
    lines = "".join(f"step: {n} loss: {loss}\n" for n, loss in enumerate(LOSSES)).encode()
    half = lines.index(b"\n", len(lines) // 2) + 1
    run = run_of(tmp_path, lines[:half] + b"\0" * 3000 + lines[half:])
    assert by_kind(run)["loss"] == LOSSES


def test_holes_of_any_size_that_several_writers_left_hide_nothing(tmp_path: Path) -> None:
    lines = [f"step: {n} loss: {loss}\n".encode() for n, loss in enumerate(LOSSES)]
    run = run_of(tmp_path, b"".join(line + b"\0" * size for line, size in zip(lines, [40, 1, 5, 2] * 50, strict=False)))
    assert by_kind(run)["loss"] == LOSSES


def test_a_binary_with_holes_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes((b"\x03\0\0\0step: 1 loss: 2.0\n" + b"\0" * 16) * 40)
    with pytest.raises(UnreadableLogError):
        MLSystemsDebugger(plugins=False).debug(path)


@pytest.mark.parametrize("delimiter", [";", ","])
def test_the_name_of_a_sheet_above_the_header_of_a_table_hides_nothing(tmp_path: Path, delimiter: str) -> None:
    rows = [("epoch", "loss", "accuracy"), *((n, loss, 0.5) for n, loss in enumerate(LOSSES))]
    path = tmp_path / "history.csv"
    path.write_text("history_log\n" + "".join(delimiter.join(map(str, row)) + "\n" for row in rows))
    (run,) = MLSystemsDebugger(plugins=False).debug(path).runs
    assert by_kind(run)["loss"] == LOSSES


def test_utf_16_appended_to_utf_8_is_read(tmp_path: Path) -> None:
    first = "".join(f"step: {n} loss: {loss}\r\n" for n, loss in enumerate(LOSSES[:4]))
    rest = "".join(f"step: {n + 4} loss: {loss}\r\n" for n, loss in enumerate(LOSSES[4:]))
    run = run_of(tmp_path, first.encode() + rest.encode("utf-16-le"))
    assert by_kind(run)["loss"] == LOSSES


def test_a_crash_after_a_hole_is_found(tmp_path: Path) -> None:
    text = (
        b"\0" * 900
        + b'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nRuntimeError: no space\n'
    )
    run = run_of(tmp_path, b"starting\n" + text)
    assert [finding.detection.failure.name for finding in run.findings] == ["crash"]


@pytest.mark.parametrize(
    ("line", "encoding"),
    [
        ("第{n}轮，训练损失：{loss}，学习率：0.001", "gbk"),
        ("第{n}轮，训练损失：{loss}", "gb18030"),
        ("第{n}輪 訓練損失：{loss} 準確率：0.5", "big5"),
        ("エポック {n} 損失: {loss} 学習 lr: 0.1", "shift_jis"),
        ("에포크 {n} 손실: {loss} 정확도: 0.5", "euc_kr"),
        ("эпоха {n} потери: {loss} точность: 0.5", "cp1251"),
        ("época {n} pérdida: {loss}", "cp1252"),
        ("época {n} perda: {loss} acurácia: 0.5", "latin-1"),
        ("第{n}轮，训练损失：{loss}", "utf-16"),
        ("第{n}轮，训练损失：{loss}", "utf-8-sig"),
    ],
)
def test_text_in_the_encoding_of_the_system_is_read(tmp_path: Path, line: str, encoding: str) -> None:
    lines = [line.format(n=n, loss=loss) for n, loss in enumerate(LOSSES)]
    run = run_of(tmp_path, ("\r\n".join(lines) + "\r\n").encode(encoding))
    assert by_kind(run)["loss"] == LOSSES


@pytest.mark.parametrize("encoding", ["gbk", "utf-8"])
def test_records_without_a_line_break_between_them_are_read_one_by_one(tmp_path: Path, encoding: str) -> None:
    records = [f"第{n}轮，训练损失：{loss}, 验证准确率:0.6, 用时6.7秒。" for n, loss in enumerate(LOSSES)]
    run = run_of(tmp_path, "".join(records).encode(encoding))
    assert by_kind(run)["loss"] == LOSSES


def test_bytes_that_are_no_text_in_any_encoding_change_nothing(tmp_path: Path) -> None:
    lines = [f"epoch {n} loss: {loss} ".encode() + b"\xff\xc3\x28" for n, loss in enumerate(LOSSES)]
    assert by_kind(run_of(tmp_path, b"\n".join(lines)))["loss"] == LOSSES
