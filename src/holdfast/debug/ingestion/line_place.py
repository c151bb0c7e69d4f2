"""The position of a line of text in its run: the step, the epoch and the batch that it prints.

In this order: a counter with a name (``step 12``, ``iter: 12/100``), an epoch and the batch within it (``Epoch 3
[40/196]``), a progress bar, an epoch alone. A total printed once (``Total steps: 13002``) is not a position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.debug.ingestion.line_pairs import GAP
from holdfast.debug.ingestion.numbers import NUMBER, to_scaled

__all__ = ["Place", "find_place"]

_SIGNS = r"[\s:=#\[(\x22\x27\x1f]*"
# A word before a counter that belongs to it …
_BEFORE = re.compile(r"\b(?:at|after|in|on|for|of)[ \x1f]+$")
MAX_BEFORE = 32
"""Maximum number of characters before a counter in which such a word is looked for."""
# … and those that make it a total.
_OF_ALL = (
    *("total ", "max ", "num ", "warmup ", "per ", "every ", "save ", "eval ", "logging ", "all "),
    *("number of ", "total of ", "count of ", "out of ", "num of "),
)
# "Eval epoch 3" is where it was measured; "best epoch: 3", after the last, is not.
_OF_ALL_EPOCHS = (*(word for word in _OF_ALL if word != "eval "), "best ")
# Both are searched for in lower case, and begin with a letter and not with a condition, so that the search skips all
# other letters at once. What must come before the word is checked afterwards.
_EPOCH = re.compile(
    rf"ep(?:och(?:s\b(?={_SIGNS}\d+(?:\.\d+)?[\s]*/)|\b(?:[ ](?:num|number|no|nr)\b\.?)?|(?=\d)))?"
    rf"{_SIGNS}(\d+(?:\.\d+)?)(?![\d.]*\s?%)(?:\s*/\s*(\d+)|\s+of\s+(\d+))?\]?"
)
_STEP = re.compile(
    rf"(?:(?:global[ _]?steps?|train(?:ing)?[ _]step|step|steps(?={_SIGNS}[\d,]+\s*/)|"
    r"steps(?=\s?[:=]\s?\d+\s?[,|])|episodes(?=\s?[:=]\s?\d+\s?[,|])|iteration|"
    r"iterations(?=[\s:=]*\d+\s*/)|iters?|itr|it|update|updates|mini-?batch|"
    r"batch(?:[ _]?(?:idx|id|index|num|no))?|idx|episode|timesteps?|total_timesteps)\b|up\.)"
    rf"{_SIGNS}(\d[\d,]{{0,64}}(?:(?:\.\d{{1,64}})?[km]\b)?)(?:\.0+(?!\d))?(?![\d.]{{0,64}}\s?%|\.\d)\s*(?:/\s*(\d[\d,]*)|\s+of\s+(\d+))?"
)
_RANGE = re.compile(r"(\bbatch \[)\d{1,12}-(?=\d{1,12}\])", re.IGNORECASE)  # MXNet: "Batch [0-20]"
_TRAIN = re.compile(r"^\s*Train(?:ing)?:?\s+(\d+)\s*(?=\[)")  # timm: "Train: 3 [  50/1251 (  4%)]  Loss: 2.5"
_PAIRED = re.compile(r"\[\s*(\d+)\s*/\s*\d+\s*\]\s*\[\s*(\d+)\s*/\s*(\d+)\s*\]")  # "[epoch/epochs][batch/batches]"
_INSIDE = re.compile(r"(?:[\[(|\x1f]|\[[Tt]rain(?:ing)?:? )\s*(\d+)\s*/\s*(\d+)\s*[\]()\[ ]")
_LATER = re.compile(r"(?<![\d./])(\d+)\s*/\s*(\d+)(?![\d./])")
_AHEAD = re.compile(r"^\s*\[\s*(\d+)\s*/\s*(\d+)\s*\]")  # "[3/251] loss of epoch 2 is 0.5"
# "[1,  2000] loss: 2.2" of PyTorch's tutorial: epoch and batch; "[10 | 12.34] loss=2.3" of GPT-2: step and seconds.
_LISTED = re.compile(r"^\s*\[\s*(\d+)\s*,[\s\x1f]*(\d+)\s*\]")
# Other counters, if there is nothing better: "Game 10 Score 3", "Generation 7: fitness 0.5" …
_OTHER = re.compile(
    rf"\b(?:games?|generation|gen|rounds?|rollout|trial|match){_SIGNS}(\d{{1,12}})(?![\d.]*\s?%|\.\d)", re.I
)
# … and a number before its unit: "loss after 100 iterations: 0.5".
_BEFORE_UNIT = re.compile(
    r"[ \x1f]*\b(?:after|at)[ \x1f](\d[\d,]{0,15})[ \x1f]"
    r"(?:iteration|iter|step|epoch|batch|update|episode|game)(?:e?s)?\b",
    re.IGNORECASE,
)
# … which may be all that precedes a row: "12 epoch, loss: 0.5".
_HEAD_UNIT = re.compile(
    r"^[ \x1f]*(\d[\d,]{0,15})(?:st|nd|rd|th)?[ \x1f]"
    r"(?:iteration|iter|step|epoch|batch|update|episode|game)s?\b(?=\s*[,:;|])",
    re.IGNORECASE,
)
# A count of steps before what was measured then: "Num steps: 10000    Return: 204.3". On its own it is a total.
_STEPS_SO_FAR = re.compile(
    r"^[ \x1f]*(?:num|number of|total)[ _](?:env[ _])?(?:time)?steps[ ]?[:=][ ]?(\d[\d,]{0,15})(?=[ \x1f,;|]+"
    r"(?:[a-z]+[ _]){0,2}(?:return|reward|score|loss)s?[ ]?[:=])",
    re.IGNORECASE,
)
_CLOCKED = re.compile(r"^\s*\[(\d+) \| [\d.]+\]")
# The step between a loss and its value: "Train loss 12 0.523", "Validation loss 1000: 0.345".
_AMID = re.compile(
    rf"\b((?:loss|error|accuracy))[ ](\d{{1,12}})(?::[ ]?|[ \x1f])(?={NUMBER})(?!\d+[ ]?[/:])", re.IGNORECASE
)
_UNBOUNDED = re.compile(r"(?<![\w.])(\d+)it[ \x1f]\[")  # A progress bar without a total: "15it [04:02, …]"
# XGBoost and LightGBM: "[12]  train-logloss:0.5"; first-order motion models: "00000012) perceptual - 54.6"
_ROUND = re.compile(r"^\s*(?:\[(?=\d+\]\s))?(\d+)[\])]\s")
_KERAS = re.compile(r"^\s*(\d+)/(\d+)\s*[\[━=\s\x1f]")


@dataclass(frozen=True, slots=True)
class Place:
    """The position given by a line, and the text without it, so that a counter is not taken for a metric."""

    step: float | None
    epoch: float | None
    total: float | None
    text: str


def _lower(text: str) -> str:
    """Return the text in lower case, with every character at the same index."""
    lower = text.lower()
    return lower if len(lower) == len(text) else "".join(c.lower() if c.isascii() else c for c in text)


def _counter(pattern: re.Pattern[str], lower: str) -> tuple[int, re.Match[str] | None]:
    """Return the first counter that is a whole word and not a total, and where it begins."""
    totals = _OF_ALL_EPOCHS if pattern is _EPOCH else _OF_ALL
    found = pattern.search(lower)
    while found is not None:
        begin = found.start()
        inside = begin and (lower[begin - 1].isalnum() or lower[begin - 1] == "_")
        if (not inside or found.group().startswith("up.")) and not lower.endswith(totals, 0, begin):
            before = _BEFORE.search(lower, max(0, begin - MAX_BEFORE), begin) if begin else None
            return (begin if before is None else before.start()), found
        found = pattern.search(lower, begin + 1)
    return 0, None


def find_place(text: str) -> Place:
    """Find the counters of a line processed by ``holdfast.debug.ingestion.line_pairs.with_gaps``."""
    text = _RANGE.sub(r"\1", text)
    paired = _PAIRED.search(text)
    if paired:
        rest = text[: paired.start()] + GAP + text[paired.end() :]
        return Place(float(paired.group(2)), float(paired.group(1)), float(paired.group(3)), rest)
    if listed := _LISTED.match(text):
        return Place(float(listed.group(2)), float(listed.group(1)), None, GAP + text[listed.end() :])
    epoch: float | None = None
    lower = _lower(text)
    begin, found = _counter(_EPOCH, lower) if "ep" in lower else (0, None)
    found = found or _TRAIN.match(text)
    after = text
    if found:
        epoch = float(found.group(1))
        after = text[found.end() :]
        text = text[:begin] + GAP + after
        lower = _lower(text)
    begin, counter = _counter(_STEP, lower)
    if counter:
        # Case-sensitive: "1M" is a million, "1m" is not.
        step = to_scaled(text[counter.start(1) : counter.end(1)])
        total = to_scaled(counter.group(2) or counter.group(3) or "")
        return Place(step, epoch, total, text[:begin] + GAP + text[counter.end() :])
    inside = _KERAS.match(text) or _INSIDE.search(after)
    if found and not inside:
        inside = _LATER.search(after) or _AHEAD.match(text)
    if inside:
        rest = text.replace(inside.group(), GAP, 1)
        return Place(float(inside.group(1)), epoch, float(inside.group(2)), rest)
    if endless := _UNBOUNDED.search(text):
        return Place(float(endless.group(1)), epoch, None, text.replace(endless.group(), GAP, 1))
    rounds = _ROUND.match(text) or _CLOCKED.match(text)
    if rounds:
        return Place(float(rounds.group(1)), epoch, None, text[rounds.end() :])
    if not found and (amid := _AMID.search(text)):
        return Place(float(amid.group(2)), None, None, f"{text[: amid.end(1)]} {text[amid.end() :]}")
    if not found and (
        other := _HEAD_UNIT.match(text) or _STEPS_SO_FAR.match(text) or _BEFORE_UNIT.search(text) or _OTHER.search(text)
    ):
        return Place(to_scaled(other.group(1)), None, None, text[: other.start()] + GAP + text[other.end() :])
    return Place(None, epoch, None, text)
