"""Intact objects that a load refuses: named with the reason, never called damaged, and warned of while saving."""

from __future__ import annotations

import argparse
import collections
import datetime
import importlib
import io
import types
import warnings
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoint.support import load, save

from holdfast import checkpoint
from holdfast.checkpoint import ParallelFileSystemReader, verify_checkpoint
from holdfast.checkpoint.sequential import read_whole
from holdfast.errors import CheckpointWriteError, UnsafeCheckpointError


class Outer:
    """Holds a class of its own, as protocol 2 has to spell out."""

    class Inner:
        """A class within a class."""

    class Middle:
        """One with another in it."""

        class Inner:
            """A class within a class within a class."""


class Curious:
    """Cannot be made again."""

    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("of another version")


class Built:
    """Its state is set by a function that pickle calls for its effect."""

    def __reduce__(self) -> Any:
        return Built, (), {"a": 1}, None, None, setattr


class Marked(torch.Tensor):
    """A subclass without anything of its own."""


class MarkedParameter(torch.nn.Parameter):
    """A parameter of a class of the user's."""


def marked(*shape: int) -> torch.Tensor:
    return torch.ones(shape).as_subclass(Marked)


def noted(tensor: torch.Tensor, **attributes: Any) -> torch.Tensor:
    """The tensor with attributes of the user's."""
    tensor.__dict__.update(attributes)
    return tensor


def nested_list(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED_FORMS: dict[str, tuple[Any, str]] = {
    "a type with an object field": (np.dtype([("a", "<i4"), ("b", "O")]), "object"),
    "an array with an object field": (np.zeros(2, dtype=[("a", "<i4"), ("b", "O")]), "object"),
    "250 nested lists": (nested_list(250), "more than 200 deep"),
    "a list that holds itself": (endless(), "refers to itself"),
    "an integer of 40,000 bits": (1 << 40_000, "integer"),
    "a key of 300 parts": ({tuple(range(300)): 1}, "parts"),
    "a special attribute": (argparse.Namespace(__x=1), "starts with two underscores"),
    "an object whose state a function sets": (Built(), "set by a function"),
    "a slice of lists": (slice([1], [2]), "other than numbers, text and tuples of these: a list"),
    "a slice of nested tuples": (slice(((1,),)), "other than numbers, text and tuples of these: a tuple"),
}
"""What pickles, is not in the list of what is rebuilt, and uses no class that could be allowed."""

REFUSED_CLASSES: dict[str, tuple[Any, list[str]]] = {
    "a class within a class": (Outer.Inner(), [f"{__name__}.Outer.Inner"]),
    "a class within two classes": (Outer.Middle.Inner(), [f"{__name__}.Outer.Middle.Inner"]),
    "the class within a class itself": ([Outer.Inner], [f"{__name__}.Outer.Inner"]),
    "a time zone by name": (
        datetime.datetime(2024, 5, 6, tzinfo=zoneinfo.ZoneInfo("UTC")),
        ["zoneinfo.ZoneInfo._unpickle"],
    ),
    "a default factory": (collections.defaultdict(collections.OrderedDict), ["collections.OrderedDict"]),
}


def held(value: Any) -> types.SimpleNamespace:
    """The value in something that DCP does not take apart."""
    return types.SimpleNamespace(value=value)


@pytest.mark.parametrize("options", [{}, {"parallel": False}, {"verify": "off"}], ids=repr)
@pytest.mark.parametrize("form", REFUSED_FORMS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_intact_object_of_a_form_that_is_not_rebuilt_is_refused_not_damaged(
    tmp_path: Path, form: str, options: dict[str, Any]
) -> None:
    value, reason = REFUSED_FORMS[form]
    folder = save({"odd": held(value), "x": torch.ones(2)}, tmp_path / "c")
    with pytest.raises(UnsafeCheckpointError, match=reason) as caught:
        load({"odd": None, "x": torch.zeros(2)}, ParallelFileSystemReader(folder, **options))
    assert (caught.value.tensor, caught.value.names) == ("odd", [])
    assert "trusted=True" in str(caught.value.hint)
    assert "add_safe_globals" not in str(caught.value)
    assert caught.value.message.startswith("objects in the checkpoint have a form that is not supported: odd: ")
    report = verify_checkpoint(folder)
    assert (report.verdict, report.damaged, report.verified) == ("incomplete", (), 1)
    (refused,) = report.unsafe
    assert (refused.tensor, refused.names) == ("odd", ())
    assert reason in refused.reason
    assert reason in report.reason


@pytest.mark.parametrize("kind", REFUSED_CLASSES)
def test_an_object_of_a_class_that_is_not_allowed_is_refused_by_the_name_of_the_class(
    tmp_path: Path, kind: str
) -> None:
    value, names = REFUSED_CLASSES[kind]
    folder = save({"odd": held(value)}, tmp_path / "c")
    with pytest.raises(UnsafeCheckpointError) as caught:
        load({"odd": None}, ParallelFileSystemReader(folder))
    assert caught.value.names == names
    assert caught.value.message.endswith(
        f"checkpoint use classes or functions that are not allowed: {', '.join(names)}"
    )
    if names[0].startswith(__name__):
        assert f"import {__name__}; torch.serialization.add_safe_globals([{names[0]}])" in str(caught.value)
    assert [refused.names for refused in verify_checkpoint(folder).unsafe] == [tuple(names)]


def test_a_class_within_a_class_loads_once_it_is_allowed(tmp_path: Path) -> None:
    folder = save({"odd": [Outer.Middle.Inner()]}, tmp_path / "c")
    with torch.serialization.safe_globals([Outer.Middle.Inner]):
        state = load({"odd": [None]}, ParallelFileSystemReader(folder))
    assert type(state["odd"][0]) is Outer.Middle.Inner


def test_an_allowed_class_that_cannot_be_made_is_refused_with_what_it_said(tmp_path: Path) -> None:
    made = Curious()
    made.number = 1  # type: ignore[attr-defined]
    folder = save({"odd": made}, tmp_path / "c")
    with torch.serialization.safe_globals([Curious]):
        (refused,) = verify_checkpoint(folder).unsafe
        with pytest.raises(UnsafeCheckpointError, match="of another version"):
            load({"odd": None}, ParallelFileSystemReader(folder))
    assert "of another version" in refused.reason


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_classes_and_forms_of_all_keys_are_refused_in_one_error(tmp_path: Path) -> None:
    folder = save({"deep": held(nested_list(250)), "inner": Outer.Inner(), "more": held(1 << 40_000)}, tmp_path / "c")
    with pytest.raises(UnsafeCheckpointError) as caught:
        load({"deep": None, "inner": None, "more": None}, ParallelFileSystemReader(folder))
    assert caught.value.tensor == "deep, inner, more"
    for part in (f"{__name__}.Outer.Inner", "deep: ", "200 deep", "more: an integer"):
        assert part in str(caught.value)


def test_a_save_warns_once_of_every_object_that_a_load_will_refuse(tmp_path: Path) -> None:
    state = {
        "deep": held(nested_list(250)),
        "mine": {"a": Outer.Inner(), "b": Outer.Inner()},
        "fields": np.zeros(2, dtype=[("a", "O")]),
        "fine": held([1, "a", np.arange(3)]),
        "x": torch.ones(2),
    }
    with pytest.warns(UserWarning, match="will refuse") as caught:
        report = checkpoint.save(state, tmp_path / "c", step=1)
    (warning,) = caught
    assert warning.filename == __file__
    for part in (f"mine.a, mine.b ({__name__}.Outer.Inner)", "deep (", "200 deep", "fields (", "trusted=True"):
        assert part in str(warning.message)
    assert "fine" not in str(warning.message)
    assert report.refused == ("deep", "fields", "mine.a", "mine.b")


def test_a_warning_names_a_few_keys_of_each_class(tmp_path: Path) -> None:
    state = {f"key{number:02}": Outer.Inner() for number in range(25)}
    with pytest.warns(UserWarning, match=r"key18, key19 and 5 more \("):
        checkpoint.save(state, tmp_path / "c", step=1)


def test_only_objects_are_read_again_to_name_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noted(file: Any, chunk: Any, *rest: Any) -> bytearray:
        read.append(chunk.fqn)
        return read_whole(file, chunk, *rest)

    monkeypatch.setattr("holdfast.checkpoint.refusals.read_whole", noted)
    saved = {"one": Outer.Inner(), "two": Outer.Inner(), "x": torch.ones(2)}
    folder = save(saved, tmp_path / "c")
    with pytest.raises(UnsafeCheckpointError) as caught:
        load({**saved, "x": torch.zeros(2)}, ParallelFileSystemReader(folder, parallel=False))
    assert caught.value.tensor == "one, two"
    assert read == ["two"]


def test_a_save_says_nothing_of_what_a_load_takes(tmp_path: Path) -> None:
    state = {"options": held([1, np.arange(3)]), "same": [1, 1], "pair": (torch.ones(2), io.BytesIO(b"a"))}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = checkpoint.save(state, tmp_path / "c", step=1)
        checkpoint.async_save(state, tmp_path / "d", step=2).result()
    assert report.refused == ()
    assert verify_checkpoint(tmp_path / "c").sound


def test_what_a_background_save_will_not_load_is_warned_of_as_well(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"will refuse.*Outer\.Inner"):
        assert checkpoint.async_save({"mine": Outer.Inner()}, tmp_path / "c", step=1).result().refused == ("mine",)


def test_an_object_too_large_to_be_made_while_saving_is_judged_by_its_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.checkpoint.writer.MAX_TRIED_BYTES", 100)
    with pytest.warns(UserWarning, match=r"will refuse.*Outer\.Inner"):
        report = checkpoint.save({"mine": held((Outer.Inner(), torch.ones(99)))}, tmp_path / "c", step=1)
    assert report.refused == ("mine",)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("imported", ["torch", "torch._dynamo.decorators"])
def test_generator_objects_and_nested_tensors_are_refused_and_sparse_ones_of_every_layout_load(
    tmp_path: Path, imported: str
) -> None:
    importlib.import_module(imported)  # torch then pickles nested tensors in another way
    parts = [torch.ones(2), torch.ones(3)]
    refused = {
        "state": np.random.RandomState(1),
        "generator": np.random.default_rng(1),
        "strided": torch.nested.nested_tensor(parts),
        "jagged": torch.nested.nested_tensor(parts, layout=torch.jagged),
    }
    eye = torch.eye(4)
    fine = {
        "coo": eye.to_sparse(),
        "csr": eye.to_sparse_csr(),
        "csc": eye.to_sparse_csc(),
        "bsr": eye.to_sparse_bsr((2, 2)),
        "bsc": eye.to_sparse_bsc((2, 2)),
    }
    state = {key: (value,) for key, value in {**refused, **fine}.items()}
    report = checkpoint.save(state, tmp_path / "c", step=1)
    assert report.refused == tuple(sorted(refused))
    unsafe = {entry.tensor: entry.why for entry in verify_checkpoint(tmp_path / "c").unsafe}
    assert list(unsafe) == sorted(refused)
    assert "a nested (jagged) tensor" in unsafe["jagged"]
    loaded: dict[str, Any] = dict.fromkeys(fine)
    checkpoint.load(loaded, tmp_path / "c", warn_not_loaded=False)
    for key, value in fine.items():
        assert loaded[key][0].layout == value.layout
        assert torch.equal(loaded[key][0].to_dense(), eye)


@pytest.mark.parametrize("parallel", [True, False])
def test_what_is_refused_beside_a_large_item_is_named_too(tmp_path: Path, parallel: bool) -> None:
    folder = save({"o": Outer(), "w": torch.zeros(1000, 1000), "b": bytes(3_000_000)}, tmp_path / "c")
    with pytest.raises(UnsafeCheckpointError, match="Outer") as raised:
        load({"o": None, "w": torch.zeros(1000, 1000), "b": None}, ParallelFileSystemReader(folder, parallel=parallel))
    assert raised.value.names == [f"{__name__}.Outer"]


RARE = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2, torch.complex32)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", RARE, ids=str)
def test_a_tensor_that_torch_saves_but_cannot_load_is_refused_with_what_to_save_instead(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    plain = torch.zeros(4, dtype=torch.int32).view(dtype)
    leaf = plain.clone().requires_grad_()
    with pytest.raises(RuntimeError):
        torch_again(leaf)
    with pytest.warns(UserWarning, match=f"dtype {dtype} that requires gradients, which torch.load cannot load"):
        checkpoint.save({"o": (leaf,), "odd": held(endless())}, tmp_path / "c", step=1)
    with pytest.raises(UnsafeCheckpointError, match="requires gradients") as caught:
        checkpoint.load({"o": None}, tmp_path / "c", warn_not_loaded=False)
    assert caught.value.hint == (
        "save tensor.detach() or torch.nn.Parameter(tensor) instead; trusted=True does not help"
    )
    with pytest.raises(UnsafeCheckpointError) as both:
        checkpoint.load({"o": None, "odd": None}, tmp_path / "c")
    assert str(both.value.hint).startswith("pass trusted=True if you made this checkpoint yourself; save tensor.")
    checkpoint.save({"o": (leaf.detach(), torch.nn.Parameter(plain))}, tmp_path / "d", step=1)
    state: dict[str, Any] = {"o": None}
    checkpoint.load(state, tmp_path / "d")
    assert [value.dtype for value in state["o"]] == [dtype, dtype]


def torch_again(value: Any) -> Any:
    """The value as torch alone saves and loads it."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


TENSORS: dict[str, Callable[[], Any]] = {
    "top": lambda: marked(4),
    "large": lambda: marked(300, 1000),
    "below": lambda: {"list": [torch.ones(2), marked(2)], "dict": {"x": marked(3)}},
    "in a tuple": lambda: (1, marked(2)),
    "parameter": lambda: torch.nn.Parameter(marked(2)),
    "own parameter": lambda: MarkedParameter(torch.ones(2)),
    "attribute": lambda: noted(torch.ones(2), owner=Outer.Inner()),
    "attribute of a parameter": lambda: noted(torch.nn.Parameter(torch.ones(2)), owner=Outer.Inner()),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "strided": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "nothing": lambda: marked(0, 3),
    "mark": lambda: noted(torch.ones(2), tag="a"),
    "plain": lambda: torch.ones(2, 3).t(),
    "wide": lambda: torch.ones(300, 1000),
    "turned": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(3, 5), 0.1, 3, torch.quint8),
    "sparse": lambda: torch.eye(4).to_sparse(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", TENSORS)
@pytest.mark.parametrize("most", [1 << 26, 100])
def test_a_save_names_exactly_the_tensors_that_a_load_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, most: int
) -> None:
    monkeypatch.setattr("holdfast.checkpoint.writer.MAX_TRIED_BYTES", most)
    try:
        report = checkpoint.save({"x": TENSORS[kind](), "y": torch.ones(2)}, tmp_path / "c", step=1)
    except CheckpointWriteError:  # what torch cannot store in its format at all
        return
    found = verify_checkpoint(tmp_path / "c")
    assert report.refused == tuple(entry.tensor for entry in found.unsafe)
    assert found.sound == (not report.refused)
    assert not found.damaged


def test_a_save_warns_of_a_tensor_of_a_class_that_a_load_will_refuse(tmp_path: Path) -> None:
    state = {"model": [torch.ones(2), marked(2)], "step": 1}
    with pytest.warns(UserWarning, match=rf"will refuse.*model\.1 \({__name__}\.Marked\)") as caught:
        report = checkpoint.save(state, tmp_path / "c", step=1)
    assert len(caught) == 1
    assert report.refused == ("model.1",)
    with torch.serialization.safe_globals([Marked]), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoint.save(state, tmp_path / "c", step=2).refused == ()
        assert verify_checkpoint(tmp_path / "c").sound
