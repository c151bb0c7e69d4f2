"""Words of other languages used in training logs, translated into English before a line is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["in_english", "known_words"]

WORDS: Mapping[str, str] = MappingProxyType(
    {
        # Chinese, simplified and traditional
        "训练": "train ", "訓練": "train ", "验证": "val ", "驗證": "val ", "测试": "test ", "測試": "test ",
        "损失值": "loss", "损失": "loss", "損失": "loss", "准确率": "acc", "準確率": "acc", "正确率": "acc",
        "精确率": "precision", "召回率": "recall", "精度": "acc", "误差": "error", "困惑度": "ppl",
        "学习率": "lr", "學習率": "lr", "奖励": "reward", "獎勵": "reward", "平均": "avg ", "总": "total ",
        "轮次": "epoch ", "轮数": "epoch ", "步数": "step ", "迭代": "iter ", "回合": "episode ",
        "梯度范数": "grad_norm",
        # Japanese
        "エポック": "epoch ", "ステップ": "step ", "学習": "train ", "検証": "val ", "学習係数": "lr", "報酬": "reward",
        # Korean
        "에포크": "epoch ", "에폭": "epoch ", "단계": "step ", "학습률": "lr", "학습": "train ", "훈련": "train ",
        "검증": "val ", "손실": "loss", "정확도": "acc", "보상": "reward",
        # Russian
        "эпоха": "epoch ", "шаг": "step ", "итерация": "iter ", "потери": "loss", "потеря": "loss", "ошибка": "error",
        "точность": "acc", "награда": "reward", "обучение": "train ", "валидация": "val ",
        # Spanish, Portuguese, French, Vietnamese
        "época": "epoch", "pérdida": "loss", "precisión": "acc", "acurácia": "acc", "précision": "acc",
        "iteración": "iter", "iteração": "iter", "validación": "val", "validação": "val", "étape": "step",
        "époque": "epoch", "độ chính xác": "acc",
    }
)  # fmt: skip
"""Printed words, in lower case, with their English equivalents."""

_PUNCTUATION = str.maketrans(
    {"：": ":", "，": ",", "（": "(", "）": ")", "＝": "=", "％": "%", "\u3000": " ", "、": ","}
)
_ORDINAL = re.compile(r"第\s?(\d{1,9})\s?(轮|輪|个epoch|個epoch|回合|代|次迭代|步)")
_SHORT_EPOCH = re.compile(r"\b[éÉ]p\.?[ ]?(?=\d)")  # French: "Ép10 | train 0.37"
_COUNTERS: Mapping[str, str] = MappingProxyType({"步": "step", "次迭代": "iter", "回合": "episode"})
_WORD = re.compile("|".join(sorted(map(re.escape, WORDS), key=len, reverse=True)), re.IGNORECASE)
_LETTERS = {letter for word in WORDS for letter in word + word.upper() if not letter.isascii()}
# Every word and every sign contains one of these: a line without them is quickly left as it is.
_FOREIGN = re.compile(f"[第{''.join(map(chr, _PUNCTUATION))}{''.join(sorted(_LETTERS))}]")


def known_words(text: str) -> int:
    """Return how many foreign words for series or counters a text contains."""
    return sum(not word.isascii() for word in _WORD.findall(text)) + len(_ORDINAL.findall(text))


def in_english(line: str) -> str:
    """Return the line with its words for series and counters in English."""
    if _FOREIGN.search(line) is None:
        return line
    line = _ORDINAL.sub(lambda match: f"{_COUNTERS.get(match[2], 'epoch')} {match[1]} ", line.translate(_PUNCTUATION))
    return _WORD.sub(lambda match: WORDS[match[0].lower()], _SHORT_EPOCH.sub("epoch ", line))
