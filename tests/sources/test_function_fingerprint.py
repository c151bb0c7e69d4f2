"""What a function's result depends on is in its fingerprint, wherever it stands."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from holdfast.errors import ConfigError
from holdfast.sources.function_fingerprint import fingerprint_of

PROGRAM = """
import functools, logging, re
from dataclasses import dataclass

import fingerprinted_table as table

logger = logging.getLogger("a")
TABLE = {{"a": {value}}}
WORDS = re.compile("[a-z]{{{value}}}")
b = object()  # shares its name with an attribute that is used below


class Tokenizer:
    STEP = {value}

    def encode(self, text):
        return [self.STEP for _ in text]


class Child(Tokenizer):
    pass


@dataclass(frozen=True)
class Settings:
    width: int = 3


@functools.lru_cache
def cached(text):
    return [{value}]


tokenizer, settings = Child(), Settings({value})

in_comprehension = lambda sample: [TABLE[letter] for letter in sample["text"]]
in_lambda = lambda sample: list(map(lambda letter: TABLE[letter], sample["text"]))
def in_inner(sample):
    def inner(letter):
        return TABLE[letter]
    return [inner(letter) for letter in sample["text"]]
through_a_module = lambda sample: [table.K for _ in sample["text"]]
through_a_modules_function = lambda sample: table.encode(sample["text"])
through_a_class = lambda sample: Child().encode(sample["text"])
through_an_object = lambda sample: tokenizer.encode(sample["text"])
through_a_dataclass = lambda sample: [settings.width]
through_a_cache = lambda sample: cached(sample["text"])
through_a_pattern = lambda sample: [len(WORDS.findall(sample["text"]))]
method = tokenizer.encode
partial = functools.partial(lambda table, sample: [table[letter] for letter in sample["text"]], TABLE)
"""
TABLE = """
K = {value}


def encode(text):
    return [len(text) + helper() for _ in text]


def helper():
    return {value}
"""
NAMES = sorted(set(re.findall(r"^(?:def )?(in_\w+|through_\w+|method|partial)", PROGRAM, re.MULTILINE)))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    """The same program three times, one of them with other values, under the same name."""
    found = {}
    for name, value in (("first", 1), ("same", 1), ("other", 2)):
        folder = tmp_path_factory.mktemp(name)
        (folder / "fingerprinted_table.py").write_text(TABLE.format(value=value))
        (folder / "fingerprinted.py").write_text(PROGRAM.format(value=value))
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)
            for module in ("fingerprinted", "fingerprinted_table"):
                sys.modules.pop(module, None)
            found[name] = importlib.import_module("fingerprinted")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_another_value_is_noticed_wherever_it_stands(name: str, programs: dict[str, ModuleType]) -> None:
    first, same, other = (fingerprint_of(getattr(program, name)) for program in programs.values())
    assert first == same
    assert first != other


def test_it_is_the_same_in_another_process(programs: dict[str, ModuleType]) -> None:
    """Whatever the seed of string hashes is."""
    program = programs["first"]
    code = (
        f"import sys, json; sys.path.insert(0, {str(Path(str(program.__file__)).parent)!r})\n"
        "import fingerprinted as p\n"
        "from holdfast.sources.function_fingerprint import fingerprint_of\n"
        f"print(json.dumps({{name: fingerprint_of(getattr(p, name)) for name in {NAMES!r}}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {name: fingerprint_of(getattr(program, name)) for name in NAMES}


def test_an_attribute_is_not_taken_for_a_global_of_its_name(programs: dict[str, ModuleType]) -> None:
    namespace: dict[str, Any] = {"b": object()}
    exec("asks = lambda sample: sample.b", namespace)  # its name is that of a global that cannot be told
    assert fingerprint_of(namespace["asks"])


class _Opaque:
    """As a tokenizer that holds its vocabulary outside of Python."""

    def __init__(self) -> None:
        self.inside: Iterator[int] = iter([])


_opaque = _Opaque()


@pytest.mark.parametrize(
    "function", [lambda sample: _opaque, functools.partial(iter, _opaque), lambda sample: [_opaque for _ in "a"]]
)
def test_what_cannot_be_told_is_refused_and_never_passed_over(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="version"):
        fingerprint_of(function)


def test_what_is_installed_goes_by_its_name() -> None:
    used: list[Callable[..., Any]] = [
        lambda sample: np.concatenate([np.add(sample["a"], 1)]),
        lambda sample: json.dumps(sample),
        lambda sample: json.loads(sample),
        lambda sample: logging.getLogger("a"),
    ]
    assert len({fingerprint_of(function) for function in used}) == len(used)
    assert fingerprint_of(functools.partial(json.dumps, indent=2)) != fingerprint_of(json.dumps)
