r"""Text of no known format: every line with a counter and a named number that is recognised.

A line without a counter has that of the line before it, if it consists of named numbers and not of prose. The report
says how certain that is, and how much of the text was understood. If no name in the text is known, rows of one
recurring shape are read nevertheless.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, replace

from holdfast.debug.ingestion.json_blocks import json_object
from holdfast.debug.ingestion.line_pairs import GAP, TELLING, Pairs, find_pairs, with_gaps
from holdfast.debug.ingestion.line_place import Place, find_place
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.names import EVALUATION_WORDS, meaning_of, plain
from holdfast.debug.ingestion.numbers import NUMBER, to_number
from holdfast.debug.ingestion.printed_table import PrintedTable, SplitTable
from holdfast.debug.ingestion.progress_bar import Bar, find_bar
from holdfast.debug.ingestion.rows import RowCollector, number_of
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.ingestion.text_format import MAX_SAMPLE_ROWS, LineReader, TextFormat
from holdfast.debug.ingestion.trial_lines import TrialLines, of_trial
from holdfast.debug.types import LOSS_LIKE

__all__ = ["FreeTextFormat"]

MAX_LINE = 8192
"""Maximum number of characters of a line; longer ones are data."""
MIN_SURE = 0.2
"""Confidence in rows whose names are unknown."""
MAX_BARS = 4096
"""Maximum number of progress bars whose meaning is remembered."""

_PREFIX = re.compile(
    r"^\s*(?:[IWEF]\d{4} [\d:.]{8,20}\s+\d{1,10} [\w./\-]{1,80}:\d{1,6}\]"
    r"|\[?\d{4}[-/]\d{2}[-/]\d{2}[T _]?[\d:.,+Z]*\]?|\[?\d{1,3}:\d{2}:\d{2}[.,\d]*\]?"
    r"|\d{2}/\d{2}/(?:\d{4}|\d{2})(?=[ \x1f]\d{2}:\d{2})"
    r"|[\w.]{1,60} - (?=(?:INFO|DEBUG|WARNING) - )"  # The name of a logger, as most configurations print it.
    r"|\[?(?:INFO|DEBUG|WARNING|I|W)\]?\b|[-|:\s\x1f]|\[[A-Za-z][\w.:\-]*(?::\d+)?\]|root|__main__"
    r"|\([A-Za-z]\w{0,60} pid=\d{1,10}(?:, ip=[\d.]{7,15})?\))+"  # Ray: "(TaskRunner pid=12) step:1 - loss:2.5"
)
# A warning written into the line because the row before it had no line break.
_WARNING = re.compile(r"\s?(?:[\w.~:-]{0,40}[/\\])?[\w./\\ -]{0,300}\.py:\d{1,6}: \w{0,40}Warning\b.*$")
# torchrun and torch's own logger: "[rank3]: …", "[default3]:…", "[trainer3|3]:…"
_RANK = re.compile(
    r"^\s*\[(?:(?:default|rank|local_rank|gpu)[ _:=]?|[a-z]{1,20}\d{1,5}\|)(\d{1,5})\]:?\s*", re.IGNORECASE
)
# Members of a federation train in turn, on their own data: "[client_3] trained | loss: 0.5".
_MEMBER = re.compile(r"\[(client|party|participant|silo)[ _#:=-]?(\d{1,5})\]", re.IGNORECASE)
_LABEL = re.compile(r"^\s*(\d{1,4}):[\s\x1f]+(?=\S)")  # srun --label: "3: step 12 loss 2.5"
_HELD_OUT = re.compile(r"[\[(](?:val|valid|validation|eval|evaluation|test|dev)[\])]", re.IGNORECASE)
# "fit.py - 224 - [dev] loss: 0.5, accuracy: 0.9": before the first pair, with at most a counter between.
_HELD_OUT_PAIRS = re.compile(
    r"[\[(](?:val|valid|validation|eval|evaluation|test|dev)[\])][\s\x1f:,;|>-]{0,8}[A-Za-z]", re.IGNORECASE
)
_EVALUATION = re.compile(
    r"^\s*(?:(?:test|val|valid|validation|eval|evaluation):?\s*(?:\[|\(|epoch|\d+\s*\[)"
    r"|(?:ttt|test|val|valid|validation|eval|evaluation|infer|inference)[_ ](?:progress|chunk|batch)\b)",
    re.IGNORECASE,
)
# "epoch: 3 validation, acc: 0.9, loss: 0.4", the counter taken out.
_HELD_OUT_ROW = re.compile(
    r"[\x1f ,:;|-]*(?:val|valid|validation|eval|evaluation|test|dev)(?: set| results?| metrics)?[\x1f ]*"
    r"(?:[,:;|\x1f-]|\.(?= ))",
    re.IGNORECASE,
)
# "Validation:" on a separate line, above what was measured there.
_SECTION = re.compile(
    r"^[\s\[(*=#-]*(train|training|val|valid|validation|eval|evaluation|test|testing|dev)"
    r"(?: set| results?| metrics| phase)?[\s\])*=#-]*:?[\s=*#-]*$",
    re.IGNORECASE,
)
_TRAINING_ROW = re.compile(
    r"[\x1f ,:;|-]*train(?:ing)?(?: set| results?| metrics| epoch)?[\x1f ]*(?:[,:;|-]|\.(?= ))", re.IGNORECASE
)
_REDUCING = re.compile(rf"reducing learning rate of group \d+ to ({NUMBER})", re.IGNORECASE)
_TUPLE_SIGNS = re.compile(r"['\"], ?|, ?['\"]")
_COMMA_PAIR = re.compile(rf"^\s*([A-Za-z][\w ]{{0,40}}?)\s*,(\s*{NUMBER}\s*)$")  # "Loss, 0.52", line by line
# "fold,0,epoch,3, total loss, 0.52, acc, 0.9": alternating names and numbers, all between commas.
_COMMA_PAIRS = re.compile(rf"(?:^|(?<=[,:]))\s*([A-Za-z][\w ]{{0,40}}?)\s*,\s*({NUMBER})(?=\s*(?:,|$))")
_SPLITS = EVALUATION_WORDS | {"train", "training"}
_CLIENTS = ("wandb:", "mlflow:", "comet:", "COMET")  # They summarise the run when it has ended.
_DIGIT_OR_WORD = re.compile(r"\d|\bnan\b|\binf", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _BarMeaning:
    """The epoch of a progress bar, and the names of its numbers."""

    epoch: float | None
    names: tuple[str, ...]


class _Reader(LineReader):
    def __init__(self, rows: RowCollector) -> None:
        super().__init__(rows)
        self._spellings: dict[str, str] = {}
        self._epoch: float | None = None
        self._finer = False
        self._batched: set[str] = set()
        self._counted: set[str] = set()
        self._table = PrintedTable()
        self._splits = SplitTable()
        self._trials = TrialLines()
        self._section = ""
        self._untold: list[tuple[Place, dict[str, float | None]]] = []
        self._bars: dict[tuple[str, ...], _BarMeaning | None] = {}
        self._added: tuple[Place, dict[str, float | None]] | None = None

    def feed(self, line: str) -> bool:
        bar = find_bar(line)
        return self._feed(line) if bar is None else not bar.is_bare and self._feed_bar(line, bar)

    def _feed_bar(self, line: str, bar: Bar) -> bool:
        """Read a progress bar. The meaning of its first drawing also applies to later ones with the same names."""
        numbers = bar.numbers()
        if numbers is None:
            return self._feed(line)
        key = (bar.before, *numbers)
        if key not in self._bars:
            self._added = None
            taken = self._feed(line)
            if len(self._bars) >= MAX_BARS:
                self._bars.clear()
            self._bars[key] = None if self._added is None else _meaning(bar, numbers, *self._added)
            return taken
        meaning = self._bars[key]
        if meaning is None:
            return self._feed(line)
        place = Place(bar.done, meaning.epoch, bar.total, "")
        self._section = ""
        self._add(place, dict(zip(meaning.names, numbers.values(), strict=True)))
        return True

    def _feed(self, line: str) -> bool:
        if len(line) <= self.rows.limits.text.section_characters and (section := _SECTION.match(line)):
            self._section = "" if plain(section[1]).startswith("train") else "val "
            return False
        row = self._table.feed(line) if len(line) <= MAX_LINE else None
        if row is not None:
            self._add(Place(row.step, row.epoch, None, ""), row.fields)
            return True
        if len(line) > MAX_LINE or not _DIGIT_OR_WORD.search(line) or line.lstrip().startswith(_CLIENTS):
            return False
        if line.startswith("{") and line.endswith("}") and self._record(line):
            return True
        if line.startswith(("('", '("')) and line.endswith(")"):
            line = _without_tuple(line)
        if "Warning" in line:
            line = _WARNING.sub("", line)
        if "," in line:
            line = _COMMA_PAIR.sub(r"\1:\2", line)
            if len(_COMMA_PAIRS.findall(line)) >= self.rows.limits.text.comma_pairs:
                line = _COMMA_PAIRS.sub(r" \1: \2", line)
        line = with_gaps(line)
        rank, line = _rank_of(line)
        prefix = _PREFIX.match(line)
        text = line[prefix.end() :] if prefix else line
        if "[" in line and (member := _MEMBER.search(line)) is not None:
            rank = f"{member[1].lower()} {member[2]}/"
            text = text.replace(member.group(), GAP)
        if reducing := _REDUCING.search(text):
            place = find_place(text[: reducing.start()])
            self._add(place, {f"{rank}lr": to_number(reducing.group(1))})
            return True
        if fields := self._splits.feed(text):
            self._add(Place(None, None, None, ""), {rank + name: value for name, value in fields.items()})
            return True
        place = find_place(text)
        pairs = find_pairs(place.text, self._spellings)
        if pairs.telling and self._outcome(text, pairs):
            return True
        if not pairs.telling:
            self._hold(place, pairs)
            self._remember(place)
            return False
        if _EVALUATION.match(text) or (prefix and _HELD_OUT.search(prefix.group())) or self._opens_held_out(place.text):
            # Its counter runs over the held-out data; the values belong to the current training step.
            if place.epoch is not None:
                self._epoch = place.epoch
            here = self.step
            if not self._finer and place.epoch is not None:
                here = place.epoch
            elif not self._finer and here is None:
                here = place.step
            if here is not None:
                fields = {f"{rank}val {name}": value for name, value in pairs.fields.items()}
                self.rows.add(here, fields, epoch=self._epoch)
            return here is not None
        if not self._counts(place, pairs):
            return False
        if place.step is not None or place.epoch is not None:
            self._section = ""
        held_out = "val " if _HELD_OUT_ROW.match(place.text) and "rain" not in text else self._section
        fields = {rank + _of_split(held_out, name): value for name, value in pairs.fields.items()}
        if place.step is not None:
            self._batched.update(fields)
        elif place.epoch is not None or _TRAINING_ROW.match(text):
            # The names of a batch line, again without a counter: the mean over the epoch, which is another series. Some
            # programs call their batches epochs, but not on the line with the mean.
            others = self._batched if place.epoch is not None else self._batched | self._counted
            self._counted.update(fields if place.epoch is not None else ())
            fields = {f"epoch {name}" if name in others else name: value for name, value in fields.items()}
        self._add(place, fields)
        return True

    def _opens_held_out(self, text: str) -> bool:
        """Return whether a held-out split in brackets precedes all pairs of a line."""
        found = _HELD_OUT_PAIRS.search(text)
        return found is not None and not find_pairs(text[: found.start()], self._spellings).fields

    def _record(self, line: str) -> bool:
        """Read a JSON object with nested results: StyleGAN's ``{"results": {"fid50k": 9.6}, "metric": …}``."""
        record = json_object(line)
        nested = (
            {}
            if record is None
            else {k: v for part in record.values() if isinstance(part, dict) for k, v in part.items()}
        )
        fields = {name: number_of(value) for name, value in nested.items() if meaning_of(name).kind in TELLING}
        if not fields or any(value is None for value in fields.values()):
            return False
        self._add(Place(None, None, None, ""), fields)
        return True

    def _outcome(self, text: str, pairs: Pairs) -> bool:
        """Read the result of one trial of a search, which is not a point of a series unless it is an episode."""
        kinds = {meaning_of(name).kind for name in pairs.fields}
        if "reward" in kinds or not kinds & {*LOSS_LIKE, "metric"}:
            return False
        trial = self._trials.feed(text, with_rate="lr" in kinds)
        rest = None if trial is None else find_place(trial[1])
        if trial is None or rest is None or rest.step is not None or rest.epoch is not None:
            return False
        own = find_pairs(rest.text, self._spellings)
        place = Place(trial[0], None, None, rest.text)
        if not own.telling or not self._counts(place, own):
            return False
        self._add(place, {of_trial(name): value for name, value in own.fields.items()})
        return True

    def _hold(self, place: Place, pairs: Pairs) -> None:
        """Keep a row of unknown names until it is clear whether known ones follow."""
        here = place.step is not None or place.epoch is not None
        wanted = pairs.fields and here and not len(self.rows) and "%|" not in place.text
        if wanted and len(self._untold) < self.rows.limits.rows and self._counts(place, pairs):
            self._untold.append((place, pairs.fields))

    def close(self) -> None:
        """Use the rows of the most frequent shape if the text contains no others."""
        shapes = Counter(frozenset(fields) for _, fields in self._untold)
        if len(self.rows) or not shapes:
            return
        shape, count = shapes.most_common(1)[0]
        if count >= self.rows.limits.text.shape_rows:
            for place, fields in self._untold:
                if fields.keys() == shape:
                    self._add(place, fields)
        self._untold = []

    def _remember(self, place: Place) -> None:
        """Remember the position announced by a separate line: "Epoch 3/10", "Step 40:"."""
        if place.epoch is not None or place.step is not None:
            self._section = ""
        if len(place.text.strip("\x1f :-=*#.")) > self.rows.limits.text.announcement_characters:
            return
        if place.epoch is not None:
            self._epoch = place.epoch
        if place.step is not None:
            self.step, self._finer = place.step, True
        elif place.epoch is not None and not self._finer:
            self.step = place.epoch

    def _counts(self, place: Place, pairs: Pairs) -> bool:
        """Return whether the line is a row: it consists of named numbers and has a position."""
        size, rule = len(place.text.strip("\x1f ")), self.rows.limits.text
        lost = any(value is not None and not math.isfinite(value) for value in pairs.fields.values())
        if place.step is not None or place.epoch is not None:
            sure = lost or place.total is not None
            return pairs.covered >= (rule.sure_share if sure else 1.0) * rule.covered_beside_counter * size
        return pairs.covered >= (rule.covered_lost if lost else rule.covered) * size

    def _add(self, place: Place, fields: dict[str, float | None]) -> None:
        if place.epoch is not None:
            self._epoch = place.epoch
        if place.step is not None:
            self._finer = True
            self.step = place.step
            if place.total:
                self.rows.note_pass_length(place.total)
        elif place.epoch is not None and not self._finer:
            self.step = place.epoch
        self._added = (place, fields)
        self.rows.add(self.step, fields, epoch=self._epoch)


def _meaning(bar: Bar, numbers: dict[str, float], place: Place, fields: dict[str, float | None]) -> _BarMeaning | None:
    """Return the meaning of a bar from the row that was read from it, or None if the row is not what the bar shows."""
    if (place.step, place.total) != (bar.done, bar.total) or list(fields.values()) != list(numbers.values()):
        return None
    return _BarMeaning(place.epoch, tuple(fields))


def _of_split(prefix: str, name: str) -> str:
    """Return a name with the split to which its line belongs, unless it names one itself."""
    return name if not prefix or _SPLITS & set(plain(name).split("_")) else prefix + name


def _rank_of(line: str) -> tuple[str, str]:
    """Return the prefix with the rank that a launcher put before the line, and the line without it."""
    rank = _RANK.match(line) or _LABEL.match(line)
    if rank is None or (rank.re is _LABEL and find_place(line[rank.end() :]).step is None):
        return "", line
    return f"rank{int(rank.group(1))}/", line[rank.end() :]


def _without_tuple(line: str) -> str:
    r"""Return the intended output of ``print("loss", loss)``: Python 2 prints the tuple.

    >>> _without_tuple("('Loss: ', 0.5, '\\\\t acc', 0.9)")
    'Loss:  0.5 \x1f acc 0.9'
    """
    return _TUPLE_SIGNS.sub(" ", line[2:-1].replace("\\t", GAP)).strip("'\"")


class FreeTextFormat(TextFormat):
    """Any text with named numbers in it."""

    confidence = 0.6
    hits_enough = 13

    @property
    def name(self) -> str:
        """The format's name."""
        return "text"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)

    def sniff(self, file: LogFile) -> float:
        """Return the confidence by known names; a low one if rows of one shape have unknown names."""
        sure = super().sniff(file)
        if sure or not file.is_text:
            return sure
        reader = _Reader(RowCollector(replace(self.limits, rows=MAX_SAMPLE_ROWS)))
        for line in file.sample_lines:
            reader.feed(line)
        reader.close()
        return MIN_SURE if len(reader.rows) else 0.0

    def score(self, hits: int, lines: int) -> float:
        """Return a score below that of any format with a grammar."""
        return 0.0 if hits == 0 else min(0.5, 0.25 + 0.02 * hits)

    def amend(self, log: RunLog, file: LogFile) -> RunLog:
        """Drop words that occurred once, and report how certain the reading is."""
        if len({signal.replica for signal in log.signals if signal.kind}) == 1:
            log = replace(log, signals=tuple(replace(signal, replica=None) for signal in log.signals))
        least = file.limits.text.points
        most = max((len(signal.steps) for signal in log.signals), default=0)
        signals = tuple(
            s for s in log.signals if len(s.steps) >= least or most < 2 * least or s.kind in ("loss", "eval_loss")
        )
        if not signals and not log.events and log.part is None:
            raise file.unreadable("contains no named numbers with a step")
        sure = min(0.8, 0.4 + 0.1 * min(4, sum(1 for s in signals if s.kind and len(s.steps) >= 5)))
        note = f"no known format: {len(signals)} series were read from name–number pairs (about {sure:.0%} sure)"
        return replace(log, signals=signals, confidence=sure, notes=(*log.notes, note))
