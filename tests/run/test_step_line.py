"""The line of a step is the JSON that any encoder would write of it, and costs a format string."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from holdfast.run.buckets import TIME_FIELDS
from holdfast.run.chain import encode
from holdfast.run.step_line import MAX_FORMATS, StepLines, bits_of, number_from_bits

LINES = StepLines()
names = st.one_of(st.sampled_from(("loss", "grad_norm", "lr", "100%r", 'a"b', "%d")), st.text(min_size=1, max_size=8))
numbers = st.dictionaries(names, st.floats(), max_size=6)
times = st.dictionaries(st.sampled_from(sorted(TIME_FIELDS.values())), st.floats(0, 1e6), max_size=4)


@given(st.integers(0, 10**12), numbers, times, st.floats(0, 1e8), st.booleans())
def test_any_step_is_encoded_as_the_ordinary_encoder_does(
    step: int, values: dict[str, float], spent: dict[str, float], at: float, redone: bool
) -> None:
    values = {name: value for name, value in values.items() if name not in TIME_FIELDS.values()}
    body = LINES.encode(step, (step, step + 1), values, spent, at, redone)
    record = json.loads(body + b"}")
    expected = {"step": step, "batches": [step, step + 1], **values}
    expected |= {f"{name}_bits": bits_of(values[name]) for name in ("loss", "grad_norm") if name in values}
    expected |= {name: round(seconds, 7) for name, seconds in spent.items()}
    expected |= {"redone": True} if redone else {}
    expected["at"] = round(at, 6)
    assert encode(record) == encode({name: expected[name] for name in record})  # NaN is not equal to itself
    assert record.keys() == expected.keys()


@given(st.floats())
def test_bits_are_those_of_the_number(value: float) -> None:
    again = number_from_bits(bits_of(value))
    assert again == value or (math.isnan(again) and math.isnan(value))


def test_names_that_change_at_every_step_do_not_fill_the_memory() -> None:
    lines = StepLines()
    for step in range(3 * MAX_FORMATS):
        body = lines.encode(step, (0, 1), {f"n{step}": 1.0}, {}, 0.0, False)
        assert json.loads(body + b"}")[f"n{step}"] == 1.0
    assert len(lines._formats) <= MAX_FORMATS
