"""The named numbers on one line of text: ``loss: 2.5``, ``acc=0.9``, ``Loss nan``, ``Score at iteration 7 is 3``.

A name is one word or a few, and never crosses a tab or two spaces: ``2178 samples/sec   Loss nan`` is a speed with its
unit, then a loss. A number with a percent sign and a bar is a progress bar's, and names nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.debug.ingestion.names import EPOCH_NAMES, EVALUATION_WORDS, STEP_NAMES, is_ambient, meaning_of, plain
from holdfast.debug.ingestion.numbers import NUMBER, SUFFIX, to_scaled

__all__ = ["GAP", "TELLING", "TENSOR", "Pairs", "find_pairs", "with_gaps"]

GAP = "\x1f"
"""Stands for a tab or two spaces or more, and for a counter that was taken out: what a name does not reach across."""

TELLING = frozenset(
    (
        "loss",
        "eval_loss",
        "perplexity",
        "metric",
        "reward",
        "value_loss",
        "entropy",
        "kl",
        "grad_norm",
        "lr",
        "loss_scale",
    )
)
"""Kinds that say how training goes."""
MAX_NAME_CHARACTERS = 60

TENSOR = re.compile(
    r"(?:(?:tf\.)?[tT]ensor|(?:(?:jnp|np|jax)\.)?(?:Device)?[aA]rray|(?:np|numpy)\.float\d{1,3})\((?=[-+\d.nNi\[])"
    r"|, ?(?:grad_fn=<\w+>|device='[\w:]+'|shape=\(\)|dtype=[\w.]+)\)?"
)
"""What a tensor or an array prints around its number: ``loss: tensor(8.46, grad_fn=<NegBackward>)``."""
# The value before and the value now: ``test loss : 4.7 -> 4.4`` is a loss of 4.4.
_ARROW = re.compile(rf"([:=][ ]?){NUMBER}[ ]{{0,4}}-{{1,3}}>[ ]{{0,4}}(?={NUMBER})")
# Numbers by thresholds or classes, after the name of all of them: ``IoU: {0.9: 0.1, 0.8: 0.3}``.
_BY_NUMBER = re.compile(
    r"(?:[A-Za-z@][\w@]{0,30}[ ]){0,2}[A-Za-z@][\w@]{0,30}[ ]?[:=][ ]?\{[ ]?[-\d.]{1,20}[ ]?:[^{}]{0,4000}\}"
)
# What is between a name and its number once the counters are taken out: ``Loss at epoch 1 and step 2 is 0.5``.
_LEFT_OVER = re.compile(r"[\x1f ]+and[\x1f ]+(?=(?:is|was)\b)")
# Brackets that held a counter: ``Training Loss (epoch 1): 0.5``.
_EMPTY = re.compile(r"[ \x1f]?[(\[]\x1f[)\]]")
# Over how much a number was averaged: ``Train error last 800 batches: 0.5``, ``reward (last 100 episodes): 20``.
_WINDOW = re.compile(
    r"[ \x1f]?\(?(?:\b(?:over|for|of|in|across)[ ])?(?:the[ ])?\b(?:last|past|previous) \d{1,9} [A-Za-z]{1,12}\b\)?",
    re.IGNORECASE,
)
_QUOTED = re.compile(rf"([:=][ ]?)[\"']({NUMBER})[\"'](?=[,}}\s]|$)")  # Detectron prints its numbers as strings.
_RUN_ON = re.compile(r"([:=] ?\d[\d.]{0,64})(?=[A-Za-z_]{3,20} ?[:=])")  # ``idx: 0loss: 0.5``
# Names in a list before their numbers in another: ``[Avg. Loss, Loss]: [6.2, 6.3]``.
_LISTS = re.compile(r"\[([A-Za-z][^\[\]]{0,200})\][ ]?[:=][ ]?\[([-+.\d][^\[\]]{0,400})\]")
# What was measured on one part of the data, in brackets after its name: ``Train(L=0.69 | A=0.51)  Valid(L=0.7)``.
_OF_SPLIT = re.compile(
    r"\b(train|training|val|valid|validation|eval|test|dev)"
    r"\(((?:[A-Za-z][\w ]{0,20}[:=][ ]?[-+\d.naNifIF][^()]{0,20}){1,8})\)",
    re.IGNORECASE,
)
_OF_SPLIT_NAME = re.compile(r"([A-Za-z][\w ]{0,20}?)[ ]?(?=[:=])")
_SHORT = {"l": "loss", "a": "acc"}
# An object printed with the shapes of its fields, as PyTorch Geometric does: ``Data(x=[1024, 16], y=[1024])``.
_SHAPES = re.compile(r"\b[A-Z]\w{0,60}\((?=\w{1,60}=\[\d{1,12}(?:, \d{1,12}){0,8}\][,)])[^()]{0,8000}\)")
_WIDE = re.compile(r"\t[\t ]*| {2,}")
_UNIT = (
    r"(?:\s?(?:[A-Za-z]{1,10}/[A-Za-z]{1,10}|(?:[kKMGT]i?)?B|sec(?:s|onds?)?|s|ms|us|min(?:utes)?|hours?|hrs?|h|it|tokens|"
    r"samples|%)(?![\w:=]))?"
)
_PAIR = re.compile(
    r"(?<![\w.])(?P<name>[A-Za-z][\w@/.\-']*(?: [A-Za-z@(][\w@/.\-()']*){0,4}?)[\"']?[ \x1f]*"
    r"(?:[(\[][\w/ %]{1,12}[)\]])?[ \x1f]*"
    r"(?P<sign>[:=]+>?|\bis\b ?:?|\bwas\b ?:?|->|(?<=[ \x1f])-(?=[ \x1f])|(?<=[ \x1f]))[ \x1f]*(?:\[|(?<=[:=])\()?[ ]*"
    rf"(?P<number>{NUMBER}{SUFFIX})(?![\w.]*[:/]\d|[A-Za-z_])(?P<bar>\s?%\s?\|)?{_UNIT}(?:\s*\(\s*{NUMBER}\s*\))?"
)
_GLUED = re.compile(
    rf"(?<![\w.])(?P<name>[A-Za-z][\w@/.\-']*)(?P<sign>[:=]+)[ \x1f]*(?P<number>{NUMBER})"
    r"(?:s|ms|%(?!\s?\|)|[kKMG]i?B)(?![\w:=])"
)
# Words that end a run of prose before the name of a metric, or are none themselves.
_PROSE = frozenset(
    ("version", "port", "pid", "seed", "python", "cuda", "line", "gpu", "rank", "node", "of", "in", "at", "to", "from",
     "took", "eta", "v_num", "total", "size", "top", "the", "is", "for", "and", "by", "with", "after", "on", "a", "an",
     "its", "this", "that", "was", "new", "best", "current", "final", "got", "has", "have", "be", "as", "epoch", "step",
     "iter", "iteration", "average", "avg", "mean", "using", "set", "code", "than", "over", "under", "are", "exits",
     "file", "id", "index")
)  # fmt: skip
_BEST = "best "
_AVERAGED = frozenset(("average", "avg", "mean"))
_SPLITS = EVALUATION_WORDS | {"train", "training"}
_NAMELESS = frozenset(
    ("version", "port", "pid", "seed", "python", "cuda", "line", "gpu", "rank", "node", "of", "in", "at", "to", "from",
     "took", "eta", "v_num", "total", "size", "top", "the", "is", "for", "and", "by", "local_rank", "code", "id",
     "index", "than")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pairs:
    """What was found on a line.

    Args:
        fields: each name with its number, in the order of the line.
        covered: characters that belong to a pair: prose with a number in it has few of them.
        telling: whether one of the numbers says how training goes; a time or a memory alone does not.
    """

    fields: dict[str, float | None]
    covered: int
    telling: bool


def with_gaps(line: str) -> str:
    """Return the line with every wide space made one character, so that patterns need not backtrack over it.

    What a number was averaged over is taken out: ``Train error last 800 batches: 0.5`` is a train error.
    """
    printed = "ensor(" in line or "rray(" in line or ".float" in line
    line = TENSOR.sub(" ", line.strip()) if printed else line.strip()
    if line.endswith("is", 0, line.rfind(" ")) and "Score at iteration " in line:
        line = line.replace("Score at iteration ", "Loss at iteration ", 1)  # What DL4J calls the loss.
    if "last " in line or "past " in line or "previous " in line:
        line = _WINDOW.sub("", line)
    if "->" in line:
        line = _ARROW.sub(r"\1", line)
    if "]: [" in line or "]:[" in line or "]=[" in line:
        line = _LISTS.sub(_side_by_side, line)
    if "=[" in line:
        line = _SHAPES.sub("", line)
    if "=" in line and "(" in line:
        line = _OF_SPLIT.sub(_told_apart, line)
    if "{" in line:
        line = _QUOTED.sub(r"\1\2", _BY_NUMBER.sub(GAP, line))
    return _WIDE.sub(GAP, _RUN_ON.sub(rf"\1{GAP}", line))


def _told_apart(match: re.Match[str]) -> str:
    """Return the pairs in brackets after the name of a part of the data, each with that name."""
    split = match[1]
    return _OF_SPLIT_NAME.sub(lambda name: f"{GAP}{split} {_SHORT.get(name[1].lower(), name[1])}", match[2])


def _side_by_side(match: re.Match[str]) -> str:
    """Return a list of names and one of as many numbers as pairs; both as they are where their lengths differ."""
    names, numbers = (match[group].split(",") for group in (1, 2))
    if len(names) != len(numbers):
        return match.group()
    return GAP.join(f"{name.strip()}: {number.strip()}" for name, number in zip(names, numbers, strict=True))


def find_pairs(text: str, spellings: dict[str, str]) -> Pairs:
    """Find the pairs of a line that went through :func:`with_gaps`.

    ``spellings`` keeps the first spelling of each name, so that ``Loss`` and ``loss`` are one series.
    """
    fields: dict[str, float | None] = {}
    covered, telling = 0, False
    if "and" in text:
        text = _LEFT_OVER.sub(" ", text)
    if GAP in text:
        text = _EMPTY.sub(" ", text)
    for match in _PAIR.finditer(text):
        if match["bar"]:
            continue
        name = _trim(match["name"])
        word = plain(name)
        if not _is_name(name, word):
            continue
        if name.startswith(_BEST):
            covered += match.end() - match.start()
            continue  # The best so far only ever gets better: no series of the run.
        meaning = meaning_of(name)
        if match["sign"] in ("", "-") and (meaning.kind is None or "." in name):
            continue  # "took 5", "Table 3", "GPU - 0": without a sign only a known name counts.
        covered += match.end() - match.start()
        telling = telling or meaning.kind in TELLING
        name = spellings.setdefault(word, name)
        if name not in fields:
            fields[name] = to_scaled(match["number"])
    for match in _GLUED.finditer(text) if not fields or len(fields) < text.count(":") + text.count("=") else ():
        word = plain(match["name"])
        name = spellings.setdefault(word, match["name"])
        if _is_name(name, word) and name not in fields:
            covered += match.end() - match.start()
            telling = telling or meaning_of(name).kind in TELLING
            fields[name] = to_scaled(match["number"])
    return Pairs(fields, covered, telling)


def _is_name(name: str, word: str) -> bool:
    return not (
        not word
        or len(word) > MAX_NAME_CHARACTERS
        or word in _NAMELESS
        or word.endswith("_py")
        or name.count("(") != name.count(")")
        or word in STEP_NAMES
        or word in EPOCH_NAMES
        or is_ambient(name)
    )


def _trim(name: str) -> str:
    """Keep of a run of words the end that names the metric: ``finished with train loss`` → ``train loss``."""
    words = name.split(". ")[-1].split(" ")
    begin = 0
    for number, word in enumerate(words[:-1]):
        if plain(word) in _PROSE:
            begin = number + 1
    kept = words[begin:]
    if begin and plain(words[begin - 1]) == "best":
        return f"{_BEST}{' '.join(kept)}"
    if begin and plain(words[begin - 1]) in _AVERAGED:
        # ``eval mean loss`` is a held-out loss: how it was averaged says nothing, on what it was measured does.
        first = begin - 1
        while first and plain(words[first - 1]) in _AVERAGED:
            first -= 1
        if first and plain(words[first - 1]) in _SPLITS:
            kept = [words[first - 1], *kept]
    return " ".join(kept).strip("-._/' ") or words[-1].strip("'")
