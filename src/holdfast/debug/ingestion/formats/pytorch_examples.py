"""PyTorch's examples: the word language model, ImageNet, MNIST, and torchvision's reference scripts.

Their counters restart each epoch; steps combine both. The validation of an epoch is at its last step.
"""

from __future__ import annotations

import re

from holdfast.debug.ingestion.numbers import NUMBER, to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["PytorchExamplesFormat"]

_WORDS = re.compile(r"^\s*\| epoch\s+(\d+) \|\s*(\d+)/\s*(\d+) batches \|(.*)$")
_WORDS_END = re.compile(r"^\s*\| end of epoch\s+(\d+) \|(.*)$")
_WORDS_TEST = re.compile(rf"^\s*\| End of training \|\s*test loss\s+({NUMBER})")
_BAR_PAIR = re.compile(rf"^\s*([A-Za-z][\w /]*?):?\s+({NUMBER})s?\s*$")
_IMAGENET = re.compile(r"^\s*(Epoch|Test): ?\[(\d+)\]\s*\[\s*(\d+)/(\d+)\](.*)$")
_IMAGENET_TEST = re.compile(r"^\s*Test: \[\s*\d+/\d+\]")
_IMAGENET_END = re.compile(rf"^\s*\*\s+((?:Acc@\d\s+{NUMBER}\s*)+)")
_METER = re.compile(rf"([A-Za-z][\w@ ]*?):?\s+({NUMBER})\s*(?:\(\s*({NUMBER})\s*\))?")
_MNIST = re.compile(rf"^\s*Train Epoch: (\d+) \[(\d+)/(\d+) \((\d+)%\)\]\s*Loss: ({NUMBER})")
_MNIST_TEST = re.compile(rf"^\s*Test set: (?:Average )?[Ll]oss: ({NUMBER}), Accuracy: \d+/\d+ \(({NUMBER})%\)")


class _Reader(LineReader):
    def __init__(self, rows: RowCollector) -> None:
        super().__init__(rows)
        self._per_epoch: float = 0.0
        self._first_epoch = 1.0

    def _passed(self, epoch: float) -> float:
        """Return the number of epochs before this one; some scripts count from 0, most from 1."""
        self._first_epoch = min(self._first_epoch, epoch)
        return epoch - self._first_epoch

    def feed(self, line: str) -> bool:
        text = line.lstrip()
        if text.startswith("|"):
            return self._words(line)
        if text.startswith(("Epoch", "Test", "*")):
            return self._imagenet(line)
        if text.startswith(("Train Epoch",)):
            match = _MNIST.match(line)
            if match:
                epoch, seen, total = (float(match.group(group)) for group in (1, 2, 3))
                self._per_epoch = total
                self.step = self._passed(epoch) * total + seen
                self.rows.add(self.step, {"loss": to_number(match.group(5))}, epoch=epoch)
            return bool(match)
        return False

    def _words(self, line: str) -> bool:
        match = _WORDS.match(line)
        if match:
            epoch, batch, total = (float(match.group(group)) for group in (1, 2, 3))
            self._per_epoch = total
            self.step = self._passed(epoch) * total + batch
            self.rows.add(self.step, _bars(match.group(4)), epoch=epoch)
            return True
        match = _WORDS_END.match(line)
        if match:
            epoch = float(match.group(1))
            fields = {name: value for name, value in _bars(match.group(2)).items() if name != "time"}
            self.step = (self._passed(epoch) + 1) * self._per_epoch if self._per_epoch else epoch
            self.rows.add(self.step, fields, epoch=epoch)
            return bool(fields)
        # The final test is one number on other data, not a point of the validation series.
        return bool(_WORDS_TEST.match(line))

    def _imagenet(self, line: str) -> bool:
        match = _IMAGENET.match(line)
        if match:
            phase, first, batch, total, rest = match.groups()
            fields = _meters(rest)
            if phase == "Epoch" and fields:
                self._per_epoch = float(total)
                self.step = float(first) * float(total) + float(batch)
                self.rows.add(self.step, fields, epoch=float(first))
            return bool(fields)
        if _IMAGENET_TEST.match(line):
            return True
        match = _IMAGENET_END.match(line)
        if match:
            fields = {f"val {name}": value for name, value in _meters(match.group(1)).items()}
            self.rows.add(self.step, fields)
            return True
        match = _MNIST_TEST.match(line)
        if match:
            self.rows.add(
                self.step, {"test loss": to_number(match.group(1)), "test accuracy": to_number(match.group(2))}
            )
        return bool(match)


def _bars(text: str) -> dict[str, float | None]:
    pairs = (_BAR_PAIR.match(part) for part in text.split("|"))
    return {pair.group(1).strip(): to_number(pair.group(2)) for pair in pairs if pair}


def _meters(text: str) -> dict[str, float | None]:
    return {
        name.strip(): to_number(value)
        for name, value, _ in _METER.findall(text[:4096])
        if name.strip().lower() not in ("eta", "max mem")
    }


class PytorchExamplesFormat(TextFormat):
    """Output of the scripts in pytorch/examples and torchvision's references."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "pytorch-examples"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)
