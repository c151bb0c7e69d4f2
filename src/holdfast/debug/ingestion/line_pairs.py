"""The named numbers on one line of text: ``loss: 2.5``, ``acc=0.9``, ``Loss nan``, ``Score at iteration 7 is 3``.

A name is one word or a few, and never crosses a tab or two spaces: ``2178 samples/sec   Loss nan`` is a speed with its
unit, then a loss. A number with a percent sign and a bar belongs to a progress bar.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass

from holdfast.debug.ingestion.names import EPOCH_NAMES, EVALUATION_WORDS, STEP_NAMES, is_ambient, meaning_of, plain
from holdfast.debug.ingestion.numbers import NUMBER, SUFFIX, to_scaled

__all__ = ["GAP", "TELLING", "TENSOR", "Pairs", "find_pairs", "with_gaps"]

GAP = "\x1f"
"""Replaces a tab, two or more spaces, or a removed counter: a name does not extend across it."""

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
"""Kinds that show how training goes."""
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
# What remains between a name and its number without the counters: ``Loss at epoch 1 and step 2 is 0.5``.
_LEFT_OVER = re.compile(r"[\x1f ]+and[\x1f ]+(?=(?:is|was)\b)")
# Brackets that contained a counter: ``Training Loss (epoch 1): 0.5``.
_EMPTY = re.compile(r"[ \x1f]?[(\[]\x1f[)\]]")
# The range of an average: ``Train error last 800 batches: 0.5``, ``reward (last 100 episodes): 20``.
_WINDOW = re.compile(
    r"[ \x1f]?\(?(?:\b(?:over|for|of|in|across)[ ])?(?:the[ ])?\b(?:last|past|previous) \d{1,9} [A-Za-z]{1,12}\b\)?",
    re.IGNORECASE,
)
_QUOTED = re.compile(rf"([:=][ ]?)[\"']({NUMBER})[\"'](?=[,}}\s]|$)")  # Detectron prints its numbers as strings.
_RUN_ON = re.compile(r"([:=] ?\d[\d.]{0,64})(?=[A-Za-z_]{3,20} ?[:=])")  # ``idx: 0loss: 0.5``
# Names in a list before their numbers in another: ``[Avg. Loss, Loss]: [6.2, 6.3]``.
_LISTS = re.compile(r"\[([A-Za-z][^\[\]]{0,200})\][ ]?[:=][ ]?\[([-+.\d][^\[\]]{0,400})\]")
# Results on one split, in brackets after its name: ``Train(L=0.69 | A=0.51)  Valid(L=0.7)``.
_OF_SPLIT = re.compile(
    r"\b(train|training|val|valid|validation|eval|test|dev)"
    r"\(((?:[A-Za-z][\w ]{0,20}[:=][ ]?[-+\d.naNifIF][^()]{0,20}){1,8})\)",
    re.IGNORECASE,
)
_OF_SPLIT_NAME = re.compile(r"([A-Za-z][\w ]{0,20}?)[ ]?(?=[:=])")
# The parts of a loss, in brackets after it: ``loss: [landmark: 0.03, pose: 0.2]``.
_OF_LOSS = re.compile(
    r"\b(loss)(?:es)?[ ]?[:=][ ]?[\[{(]"
    rf"((?:[ ,;|]{{0,3}}[\"']?[A-Za-z][\w -]{{0,30}}[\"']?[ ]?[:=][ ]?{NUMBER}){{1,16}})[ ]?[\]}})]",
    re.IGNORECASE,
)
_OF_LOSS_NAME = re.compile(r"[\"']?([A-Za-z][\w -]{0,30}?)[\"']?[ ]?(?=[:=])")
_SHORT = {"l": "loss", "a": "acc"}
# What was measured, before its value on each split: ``Loss | train 0.25 | test 0.31``, ``acc: train=0.9, val=0.8``.
_ON_SPLIT = rf"(?:train(?:ing)?|val(?:id(?:ation)?)?|eval(?:uation)?|test|dev)(?:[ ]?[:=][ ]?|[ \x1f]){NUMBER}%?"
_BY_SPLIT = re.compile(
    r"(?<![\w./-])(?P<name>[A-Za-z]\w{0,30}(?: [A-Za-z]\w{0,30}){0,2})[ \x1f:|(\[,-]{1,6}"
    rf"(?P<parts>{_ON_SPLIT}(?:[ \x1f,;|/]{{1,5}}{_ON_SPLIT}){{1,3}})(?![\w.])",
    re.IGNORECASE,
)
_PART = re.compile(rf"([a-z]+)[ \x1f:=]{{1,3}}({NUMBER}%?)", re.IGNORECASE)
# The number before its name, between commas: ``0.98 C.E. Loss, 94.28% Accuracy``.
_BEFORE_NAME = re.compile(
    rf"(?:^|(?<=[,;|\x1f])|(?<=[\d\]]: )|(?<= [:@-]))[ \x1f]*(?P<number>{NUMBER})(?P<percent>[ ]?%)?[ ]"
    r"(?P<name>[A-Za-z][\w.]{0,20}(?: [A-Za-z][\w.]{0,20}){0,2})(?=[ \x1f]*(?:[,;|]|$))"
)
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
# Words that end a run of prose before the name of a metric, or are not metrics themselves.
_PROSE = frozenset(
    ("version", "port", "pid", "seed", "python", "cuda", "line", "gpu", "rank", "node", "of", "in", "at", "to", "from",
     "took", "eta", "v_num", "total", "size", "top", "the", "is", "for", "and", "by", "with", "after", "on", "a", "an",
     "its", "this", "that", "was", "new", "best", "current", "final", "got", "has", "have", "be", "as", "epoch", "step",
     "iter", "iteration", "average", "avg", "mean", "using", "set", "code", "than", "over", "under", "are", "exits",
     "file", "id", "index")
)  # fmt: skip
# ``KeyError: 0`` is no measured error.
_EXCEPTIONS = frozenset(
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)
)
_BEST = "best "
_MEASURED = frozenset(("loss", "eval_loss", "metric", "perplexity", "reward"))
_MEASURED_ON = frozenset(("on", "of", "for"))
_ARTICLES = frozenset(("the", "a", "an"))
_AVERAGED = frozenset(("average", "avg", "mean"))
_SPLITS = EVALUATION_WORDS | {"train", "training"}
_NAMELESS = frozenset(
    ("version", "port", "pid", "seed", "python", "cuda", "line", "gpu", "rank", "node", "of", "in", "at", "to", "from",
     "took", "eta", "v_num", "total", "size", "top", "the", "is", "for", "and", "by", "local_rank", "code", "id",
     "index", "than")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pairs:
    """The named numbers of a line.

    Args:
        fields: each name with its number, in line order.
        covered: number of characters that belong to a pair; few in prose with a number.
        telling: whether one of the numbers shows how training goes; a time or memory size alone does not.
    """

    fields: dict[str, float | None]
    covered: int
    telling: bool


def with_gaps(line: str) -> str:
    """Return the line with every wide space reduced to one character, so that patterns need not backtrack over it.

    The range of an average is removed: ``Train error last 800 batches: 0.5`` is a train error.
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
    if "oss" in line and ("[" in line or "{" in line or "(" in line):
        line = _OF_LOSS.sub(_as_parts, line)
    if "{" in line:
        line = _QUOTED.sub(r"\1\2", _BY_NUMBER.sub(GAP, line))
    line = _WIDE.sub(GAP, _RUN_ON.sub(rf"\1{GAP}", line))
    last = line[line.rfind(" ") + 1 :]
    return _names_first(line) if last.isalpha() and meaning_of(last).kind in _MEASURED else line


def _names_first(line: str) -> str:
    """Return a line with every number moved behind the name that follows it, if each of these names is a metric."""
    found = list(_BEFORE_NAME.finditer(line))
    if len(found) == 1 and not found[0]["number"][-1].isdigit():
        return line  # "nan loss caught" is a message.
    if not found or any(meaning_of(_undotted(match["name"])).kind not in _MEASURED for match in found):
        return line
    return _BEFORE_NAME.sub(
        lambda match: f"{GAP}{_undotted(match['name'])}: {match['number']}{match['percent'] or ''}", line
    )


def _undotted(name: str) -> str:
    """Return a name without the dots of its abbreviations: ``C.E. Loss`` → ``CE Loss``."""
    return " ".join(word.replace(".", "") if word.endswith(".") else word for word in name.split(" "))


def _told_apart(match: re.Match[str]) -> str:
    """Return the pairs in brackets after the name of a split, each with that name."""
    split = match[1]
    return _OF_SPLIT_NAME.sub(lambda name: f"{GAP}{split} {_SHORT.get(name[1].lower(), name[1])}", match[2])


def _as_parts(match: re.Match[str]) -> str:
    """Return the parts of a loss in brackets after it, each named as a loss."""

    def named(part: re.Match[str]) -> str:
        told = meaning_of(part[1]).kind is not None or is_ambient(part[1])
        return f"{GAP}{part[1]}" if told else f"{GAP}{part[1]} loss"

    return _OF_LOSS_NAME.sub(named, match[2])


def _side_by_side(match: re.Match[str]) -> str:
    """Return a list of names and a list of as many numbers as pairs; unchanged if their lengths differ."""
    names, numbers = (match[group].split(",") for group in (1, 2))
    if len(names) != len(numbers):
        return match.group()
    return GAP.join(f"{name.strip()}: {number.strip()}" for name, number in zip(names, numbers, strict=True))


def _named_by_split(match: re.Match[str]) -> str:
    """Return the values of one metric on several splits as pairs; unchanged if the name is not one of a metric."""
    name = _trim(match["name"])
    if meaning_of(name).kind not in _MEASURED or _SPLITS & set(plain(name).split("_")):
        return match.group()
    parts = _PART.findall(match["parts"])
    return GAP + GAP.join(f"{split} {name}: {number}" for split, number in parts) + GAP


def find_pairs(text: str, spellings: dict[str, str]) -> Pairs:
    """Find the pairs of a line processed by ``with_gaps``.

    ``spellings`` keeps the first spelling of each name, so that ``Loss`` and ``loss`` are one series.
    """
    fields: dict[str, float | None] = {}
    covered, telling, heading = 0, False, ""
    if "and" in text:
        text = _LEFT_OVER.sub(" ", text)
    if GAP in text:
        text = _EMPTY.sub(" ", text)
    if "rain" in text or "RAIN" in text:
        text = _BY_SPLIT.sub(_named_by_split, text)
    for match in _PAIR.finditer(text):
        if match["bar"]:
            continue
        name = _trim(match["name"])
        if match["sign"] not in ("", "-") and " " in match["name"] and meaning_of(name).kind is None:
            name = _measured(match["name"]) or name
        word = plain(name)
        if not _is_name(name, word):
            continue
        if name.startswith(_BEST):
            covered += match.end() - match.start()
            continue  # The best so far only ever improves: not a series of the run.
        meaning = meaning_of(name)
        if match["sign"] in ("", "-") and (meaning.kind is None or "." in name):
            continue  # "took 5", "Table 3", "GPU - 0": without a separator only a known name counts.
        if " " in name:
            heading = _heading(word, heading, spellings)
        elif heading and meaning.kind in _MEASURED and not _SPLITS & set(word.split("_")):
            name = f"{heading} {name}"
            word, meaning = plain(name), meaning_of(name)
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


def _heading(word: str, heading: str, spellings: dict[str, str]) -> str:
    """Return the split that the names after this one are of: ``Valid acc: 0.8 | loss: 9.4`` has a held-out loss.

    That is only so where another line began with the same metric of the training data: ``Train acc: 0.9 | loss: 3.1``.
    """
    split, _, metric = word.partition("_")
    if split not in EVALUATION_WORDS:
        return "" if split in _SPLITS else heading
    return split if {f"train_{metric}", f"training_{metric}"} & spellings.keys() else heading


def _is_name(name: str, word: str) -> bool:
    return not (
        not word
        or len(word) > MAX_NAME_CHARACTERS
        or word in _NAMELESS
        or name in _EXCEPTIONS
        or word.endswith("_py")
        or name.count("(") != name.count(")")
        or word in STEP_NAMES
        or word in EPOCH_NAMES
        or is_ambient(name)
    )


def _trim(name: str) -> str:
    """Keep the end of a run of words that names the metric: ``finished with train loss`` → ``train loss``."""
    words = name.split(". ")[-1].split(" ")
    begin = 0
    for number, word in enumerate(words[:-1]):
        if plain(word) in _PROSE:
            begin = number + 1
    kept = words[begin:]
    if begin and plain(words[begin - 1]) == "best":
        return f"{_BEST}{' '.join(kept)}"
    if begin and plain(words[begin - 1]) in _AVERAGED:
        # ``eval mean loss`` is a held-out loss: the averaging does not matter, the split does.
        first = begin - 1
        while first and plain(words[first - 1]) in _AVERAGED:
            first -= 1
        if first and plain(words[first - 1]) in _SPLITS:
            kept = [words[first - 1], *kept]
    return " ".join(kept).strip("-._/' ") or words[-1].strip("'")


def _measured(name: str) -> str | None:
    """Return the name of a metric with what it was measured on, if it has that form: ``Acc on target``."""
    words = name.split(". ")[-1].split(" ")
    for number, word in enumerate(words[1:], start=1):
        if plain(word) in _MEASURED_ON:
            head = _trim(" ".join(words[:number]))
            whole = " ".join([head, *(other for other in words[number:] if plain(other) not in _ARTICLES)])
            known = {meaning_of(head).kind, meaning_of(whole).kind} <= _MEASURED and plain(head) != "error"
            return whole if known or head.startswith(_BEST) else None
    return None
