"""fairseq: bars and spaces (``| loss 6.3 | ppl 31 |``), the later ``loss=6.3, ppl=31``, and JSON after a prefix."""

from __future__ import annotations

import json
import re

from holdfast.debug.ingestion.numbers import NUMBER, to_number
from holdfast.debug.ingestion.rows import RowCollector, number_of
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["FairseqFormat"]

_BARS = re.compile(r"\|\s*epoch (\d+)\s*\|(.*)$")
_INNER = re.compile(r"epoch (\d+):\s*(\d+)\s*/\s*(\d+)\s*(.*)$")
_BAR_PAIR = re.compile(rf"^\s*([A-Za-z_][\w\-]*)\s+({NUMBER})%?\s*$")
_EQUAL_PAIR = re.compile(rf"([A-Za-z_][\w\-]*)=({NUMBER})")
_JSON = re.compile(r"\|\s*(train|train_inner|valid|valid\w*|test)?\s*\|?\s*(\{\"epoch\".*\})\s*$")
_SUBSET = re.compile(r"valid on '([^']+)' subset|\|\s*(valid\w*)\s*\|\s*epoch")
_SIGNS = frozenset(("num_updates", "wps", "ups", "wpb", "gnorm", "nll_loss", "train_wall", "loss_scale"))


class _Reader(LineReader):
    def __init__(self, rows: RowCollector) -> None:
        super().__init__(rows)
        self._has_inner = False

    def feed(self, line: str) -> bool:
        if "epoch" not in line:
            return False
        if "{" in line:
            return self._json(line)
        match = _BARS.search(line)
        if match:
            fields: dict[str, float | None] = {}
            for part in match.group(2).split("|"):
                pair = _BAR_PAIR.match(part)
                if pair:
                    fields[pair.group(1)] = to_number(pair.group(2))
            return self._add(fields, line, float(match.group(1)), inner=False)
        match = _INNER.search(line)
        if match:
            pairs = {name: to_number(value) for name, value in _EQUAL_PAIR.findall(match.group(4))}
            return self._add(pairs, line, float(match.group(1)), inner=True)
        return False

    def _json(self, line: str) -> bool:
        match = _JSON.search(line)
        if not match:
            return False
        try:
            record = json.loads(match.group(2))
        except (ValueError, RecursionError):
            return False
        fields = {str(name): number for name, value in record.items() if (number := number_of(value)) is not None}
        epoch = fields.pop("epoch", None)
        return self._add(dict(fields), line, epoch, inner=match.group(1) == "train_inner" or "update" in fields)

    def _add(self, fields: dict[str, float | None], line: str, epoch: float | None, *, inner: bool) -> bool:
        if not _SIGNS & {name.removeprefix("train_").removeprefix("valid_") for name in fields}:
            return False
        updates = next((fields.pop(name) for name in list(fields) if name.endswith("num_updates")), None)
        if updates is not None:
            self.step = updates
        if _SUBSET.search(line):
            # Old logs prefix the names of a validation line themselves; new ones do not.
            fields = {name if "valid" in name else f"valid_{name}": value for name, value in fields.items()}
        elif inner:
            self._has_inner = True
        elif self._has_inner:
            # Averages over the epoch, printed at its end in addition to the inner lines: another series.
            fields = {f"epoch_{name}": value for name, value in fields.items()}
        self.rows.add(self.step, fields, epoch=epoch)
        return True


class FairseqFormat(TextFormat):
    """Output of fairseq-train in its simple, old and JSON forms."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "fairseq"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)
