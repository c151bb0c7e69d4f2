r"""Text of no known format: every ``name: number`` pair on a line that says, or follows one that says, where it is.

What it takes for a step is, in this order: a counter named on the line (``step 12``, ``iter: 12/100``, ``[12/100]``),
an epoch and the batch within it, an epoch alone, a progress bar, and last the step of the line before. The report says
how sure that is.
"""

from __future__ import annotations

import re
from dataclasses import replace

from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.names import EPOCH_NAMES, STEP_NAMES, is_ambient, meaning_of, plain
from holdfast.debug.ingestion.numbers import NUMBER, SUFFIX, to_number, to_scaled
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["FreeTextFormat"]

_PREFIX = re.compile(
    r"^\s*(?:[IWEF]\d{4} [\d:.]{8,20}\s+\d{1,10} [\w./\-]{1,80}:\d{1,6}\]"
    r"|\[?\d{4}[-/]\d{2}[-/]\d{2}[T ]?[\d:.,+Z]*\]?|\[?\d{2}:\d{2}:\d{2}[.,\d]*\]?"
    r"|\[?(?:INFO|DEBUG|WARNING|I|W)\]?\b|[-|:\s]|\[[A-Za-z][\w.:\-]*(?::\d+)?\]|root|__main__)+"
)
_EPOCH = re.compile(r"\bepochs?\b[\s:=#\[(\x22\x27]*(\d+(?:\.\d+)?)\s*(?:/\s*(\d+)|\s+of\s+(\d+))?", re.IGNORECASE)
_STEP = re.compile(
    r"\b(?:(?:global[ _]?step|step|steps|iteration|iter|it|update|updates|batch|minibatch|episode)\b|Up\.)"
    r"[\s:=#\[(\x22\x27]*(\d[\d,]{0,64}(?:(?:\.\d{1,64})?[kKM]\b)?)(?![\d.]{0,64}\s?%)\s*(?:/\s*(\d[\d,]*)|\s+of\s+(\d+))?",
    re.IGNORECASE,
)
# torchrun and torch's own logger: "[rank3]: …", "[default3]:…", "[trainer3|3]:…"
_RANK = re.compile(
    r"^\s*\[(?:(?:default|rank|local_rank|gpu)[ _:=]?|[a-z]{1,20}\d{1,5}\|)(\d{1,5})\]:?\s*", re.IGNORECASE
)
_LABEL = re.compile(r"^\s*(\d{1,4}):\s+(?=\S)")  # srun --label: "3: step 12 loss 2.5"
_HELD_OUT = re.compile(r"[\[(](?:val|valid|validation|eval|evaluation|test|dev)[\])]", re.IGNORECASE)
_TRAIN = re.compile(r"^\s*Train(?:ing)?:?\s+(\d+)\s*(?=\[)")  # timm: "Train: 3 [  50/1251 (  4%)]  Loss: 2.5"
_EVALUATION = re.compile(
    r"^\s*(?:test|val|valid|validation|eval|evaluation):?\s*(?:\[|\(|epoch|\d+\s*\[)", re.IGNORECASE
)
_PAIRED = re.compile(r"\[\s*(\d+)\s*/\s*\d+\s*\]\s*\[\s*(\d+)\s*/\s*(\d+)\s*\]")  # "[epoch/epochs][batch/batches]"
_INSIDE = re.compile(r"[\[(|]\s*(\d+)\s*/\s*(\d+)\s*[\]()\[ ]")
_ROUND = re.compile(r"^\s*\[(\d+)\]\s")  # XGBoost and LightGBM: "[12]  train-logloss:0.5"
_KERAS = re.compile(r"^\s*(\d+)/(\d+)\s*[\[━=\s]")
_PAIR = re.compile(
    rf"(?<![\w.])([A-Za-z][\w@/.\-']*(?: [A-Za-z@][\w@/.\-()']*){{0,4}}?)[\"']?\s*"
    rf"(?:\((?:[\w/ %]{{1,12}})\))?\s*(?:[:=]+|\s+is\s|\s)\s*"
    rf"({NUMBER}{SUFFIX})(?![\w.]*[:/]\d)(?:\s*\(\s*{NUMBER}\s*\))?"
)
_REDUCING = re.compile(rf"reducing learning rate of group \d+ to ({NUMBER})", re.IGNORECASE)
_NOISE = frozenset(
    ("version", "port", "pid", "seed", "python", "cuda", "line", "gpu", "rank", "node", "of", "in", "at", "to",
     "from", "took", "eta", "v_num", "total", "size", "top", "the", "is", "for", "and", "by")
)  # fmt: skip


class _Reader(LineReader):
    def __init__(self, rows: RowCollector) -> None:
        super().__init__(rows)
        self._rank = ""
        self._spellings: dict[str, str] = {}
        self._epoch: float | None = None
        self._per_epoch = 0.0
        self._first_epoch: float | None = None
        self.guessed = 0
        self.placed = 0

    def feed(self, line: str) -> bool:
        if len(line) > 8192 or not any(character.isdigit() or character in "nNi" for character in line):
            return False
        line = " ".join(line.split())  # A long run of spaces would have the patterns below backtrack.
        rank = _RANK.match(line) or _LABEL.match(line)
        if rank and rank.re is _LABEL and not _STEP.search(line, rank.end()):
            rank = None
        self._rank = ""
        if rank:
            self._rank, line = f"rank{int(rank.group(1))}/", line[rank.end() :]
        text = line[match.end() :] if (match := _PREFIX.match(line)) else line
        if _EVALUATION.match(text) or (match and _HELD_OUT.search(match.group())):
            # Its counter runs over the held-out data; the values stand where the training was.
            held_out = {f"{self._rank}val {name}": value for name, value in self._fields(text, rank="").items()}
            if held_out and self.step is not None:
                self.rows.add(self.step, held_out, epoch=self._epoch)
            return bool(held_out)
        epoch = _EPOCH.search(text) or _TRAIN.match(text) or _PAIRED.search(text)
        if epoch:
            self._epoch = float(epoch.group(1))
            if self._first_epoch is None:
                self._first_epoch = self._epoch
        step = self._place(text, epoch)
        fields = self._fields(text, rank=self._rank)
        if not fields:
            if step is not None:
                self.step = step
            return False
        if step is None:
            step = self.step
            self.guessed += 1
        else:
            self.step = step
            self.placed += 1
        self.rows.add(step, fields, epoch=self._epoch)
        return True

    def _place(self, text: str, epoch: re.Match[str] | None) -> float | None:
        counter = _STEP.search(text)
        batch, total = None, 0.0
        if epoch is not None and epoch.re is _PAIRED:
            batch, total = float(epoch.group(2)), float(epoch.group(3))
        elif counter:
            batch = to_scaled(counter.group(1))
            total = to_number(counter.group(2) or counter.group(3) or "") or 0.0
        else:
            inside = _KERAS.match(text) or _INSIDE.search(text if epoch is None else text[epoch.end() :])
            rounds = _ROUND.match(text)
            if inside:
                batch, total = float(inside.group(1)), float(inside.group(2))
            elif rounds:
                batch = float(rounds.group(1))
        if batch is None:
            if epoch is None or self._epoch is None:
                return None
            return self._epoch * self._per_epoch if self._per_epoch else self._epoch
        if self._epoch is not None and total and self._first_epoch is not None and batch <= total:
            whole = int(self._epoch - self._first_epoch)
            # A counter beyond one epoch's share already counts on by itself.
            if self.step is None or self._per_epoch == total or whole == 0 or batch + whole * total > self.step:
                self._per_epoch = total
                if whole and (self.step is None or batch < self.step):
                    return whole * total + batch
        return batch

    def _fields(self, text: str, *, rank: str) -> dict[str, float | None]:
        fields: dict[str, float | None] = {}
        if reducing := _REDUCING.search(text):
            return {"lr": to_number(reducing.group(1))}
        for name, value in _PAIR.findall(text):
            name = _trim(name)
            word = plain(name)
            if (
                not word
                or len(word) > 60
                or word in _NOISE
                or word.endswith("_py")
                or word in STEP_NAMES
                or word in EPOCH_NAMES
                or is_ambient(name)
            ):
                continue
            name = self._spellings.setdefault(word, name)
            if name not in fields:
                fields[name] = to_scaled(value)
        # Words with numbers are everywhere; a line counts only when one of them means something.
        if not any(meaning_of(name).kind for name in fields):
            return {}
        return {rank + name: value for name, value in fields.items()} if rank else fields


def _trim(name: str) -> str:
    """Keep of a run of words the end that names the metric: ``finished with train loss`` → ``train loss``."""
    words = name.split(". ")[-1].split(" ")
    for start in range(len(words)):
        tail = " ".join(words[start:])
        if plain(words[start]) in _NOISE or plain(words[start]) in (
            "epoch",
            "step",
            "iter",
            "average",
            "avg",
            "with",
            "mean",
        ):
            continue
        return tail.strip("-._/' ")
    return words[-1].strip("'")


class FreeTextFormat(TextFormat):
    """Any text with named numbers in it."""

    confidence = 0.6

    @property
    def name(self) -> str:
        """The format's name."""
        return "text"

    def reader(self, rows: RowCollector) -> LineReader:
        """A reader for one file."""
        return _Reader(rows)

    def score(self, hits: int, lines: int) -> float:
        """Never surer than a format with a grammar of its own."""
        return 0.0 if hits == 0 else min(0.5, 0.25 + 0.02 * hits)

    def amend(self, log: RunLog, file: LogFile) -> RunLog:
        """Drop words that came up once, and say how sure the reading is."""
        if len({signal.replica for signal in log.signals if signal.kind}) == 1:
            log = replace(log, signals=tuple(replace(signal, replica=None) for signal in log.signals))
        most = max((len(signal.steps) for signal in log.signals), default=0)
        # A name seen once in a long log is prose, not a metric.
        signals = tuple(s for s in log.signals if len(s.steps) >= 2 or most < 4 or s.kind in ("loss", "eval_loss"))
        if not signals:
            raise file.unreadable("holds no named numbers with a step")
        sure = min(0.8, 0.4 + 0.1 * min(4, sum(1 for s in signals if s.kind and len(s.steps) >= 5)))
        note = f"no known format: {len(signals)} series were read from name–number pairs (about {sure:.0%} sure)"
        return replace(log, signals=signals, confidence=sure, notes=(*log.notes, note))
