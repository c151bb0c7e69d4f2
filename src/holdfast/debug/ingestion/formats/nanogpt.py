"""The small GPT trainers: nanoGPT, build-nanogpt, llm.c and modded-nanogpt.

Their lines contain numbers that are NaN by design (llm.c's z-scores ``(+nanz)`` before its window fills,
modded-nanogpt's ``step_avg:nanms`` in the first steps): those are not values of the run.
"""

from __future__ import annotations

import re

from holdfast.debug.ingestion.numbers import NUMBER, to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["NanoGptFormat"]

_ITERATION = re.compile(rf"^\s*iter (\d+): loss ({NUMBER})(?:, time ({NUMBER})ms)?(?:, mfu ({NUMBER})%)?")
_EVALUATION = re.compile(rf"^\s*step (\d+): train loss ({NUMBER}), val loss ({NUMBER})")
_TRIPLE = re.compile(rf"^(\d+) (train|val|hella|eval) ({NUMBER})\s*$")
_COLON = re.compile(r"^\s*s(?:tep)?:(\d+)(?:/\d+)?((?:\s+[A-Za-z_]\w*:\S+)+)\s*$")
_COLON_PAIR = re.compile(r"([A-Za-z_]\w*):(\S+)")
_LLMC = re.compile(r"^\s*step\s+(\d+)(?:/\d+)?\s*\|(.*)$")
_LLMC_OLD = re.compile(rf"^\s*step (\d+)(?:/\d+)?: (train loss|val loss) ({NUMBER})(.*)$")
_VALIDATION = re.compile(rf"^\s*val(?:idation)? loss:? ({NUMBER})\s*$")
_BAR_PAIR = re.compile(
    rf"^\s*([A-Za-z][\w /()]*?)\s*:?\s+({NUMBER})\s*(ms|%|z\b)?|^\s*({NUMBER})\s*(ms|tok/s|%[^|]*MFU)"
)
_HELLA = re.compile(rf"^\s*HellaSwag:? (?:accuracy: )?\d+/\d+\s*=?\s*({NUMBER})")
_NEVER_NAN = frozenset(("step_avg", "train_time", "step_time", "dt", "time", "mfu"))


class _Reader(LineReader):
    def __init__(self, rows: RowCollector) -> None:
        super().__init__(rows)
        # In these logs, and only here, the bare name of a split is its loss.
        self.kinds.update(train="loss", val="eval_loss", eval="metric")

    def feed(self, line: str) -> bool:
        head = line[:12].lstrip()
        if not head:
            return False
        if head[0].isdigit():
            return self._triple(line)
        if head.startswith("iter "):
            match = _ITERATION.match(line)
            if match:
                names = ("loss", "time_ms", "mfu")
                self._add(float(match.group(1)), dict(zip(names, map(_maybe, match.groups()[1:]), strict=True)))
            return bool(match)
        if head.startswith(("s:", "step:")):
            match = _COLON.match(line)
            if match:
                self._add(float(match.group(1)), {n: to_number(v) for n, v in _COLON_PAIR.findall(match.group(2))})
            return bool(match)
        return self._step_line(line) or self._other(line)

    def _triple(self, line: str) -> bool:
        match = _TRIPLE.match(line)
        if not match:
            return False
        self._add(float(match.group(1)), {match.group(2): to_number(match.group(3))})
        return True

    def _step_line(self, line: str) -> bool:
        match = _EVALUATION.match(line)
        if match:
            fields = {"train loss (eval)": to_number(match.group(2)), "val loss": to_number(match.group(3))}
            self._add(float(match.group(1)), fields)
            return True
        match = _LLMC_OLD.match(line)
        if match:
            self._add(float(match.group(1)), {match.group(2): to_number(match.group(3))})
            return True
        match = _LLMC.match(line)
        if not match:
            return False
        fields = {}
        for part in match.group(2).split("|"):
            pair = _BAR_PAIR.match(part.split("(")[0])
            if pair is None:
                continue
            if pair.group(1):
                fields[pair.group(1).strip()] = to_number(pair.group(2))
            else:
                name = {"ms": "step_time_ms", "tok/s": "tok/s"}.get(pair.group(5), "mfu")
                fields[name] = to_number(pair.group(4))
        if "loss" not in " ".join(fields):
            return False
        self._add(float(match.group(1)), fields)
        return True

    def _other(self, line: str) -> bool:
        match = _VALIDATION.match(line)
        name = "val loss"
        if not match:
            match = _HELLA.match(line)
            name = "hella"
        if match and self.step is not None:
            self.rows.add(self.step, {name: to_number(match.group(1))})
        return bool(match) and self.step is not None

    def _add(self, step: float, fields: dict[str, float | None]) -> None:
        self.step = step
        kept = {
            name: value
            for name, value in fields.items()
            if value is not None and not (value != value and name in _NEVER_NAN) and not (name == "mfu" and value < 0)
        }
        self.rows.add(step, kept)


def _maybe(text: str | None) -> float | None:
    return None if text is None else to_number(text)


class NanoGptFormat(TextFormat):
    """Output of nanoGPT, build-nanogpt, llm.c and modded-nanogpt."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "nanogpt"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)

    def score(self, hits: int, lines: int) -> float:
        """Score one such line as a hint, several as proof."""
        return 0.0 if hits == 0 else min(0.96, 0.75 + 0.05 * hits)
