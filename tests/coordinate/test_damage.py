"""A job's folder that was damaged is refused, never passed over; what a crash or a full disk leaves is no damage."""

from __future__ import annotations

import errno
import gc
import resource
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from holdfast.coordinate import Dead, Done, StreamCoordinator
from holdfast.coordinate.journal import Journal
from holdfast.coordinate.ledger import Ledger
from holdfast.errors import CoordinationError
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset


def record(folder: Path, owner: str, ends: list[Done | Dead], loose: list[Done | Dead]) -> None:
    """Begin a generation and record ends in it: in a journal, and in files of their own."""
    ledger = Ledger(folder, owner=owner, interval=1e9)
    ledger.enter(*ledger.begin()[:2])
    for part in (ends[:2], ends[2:]):
        for entry in part:
            ledger.record(entry)
        ledger.flush()
    ledger.close()
    for entry in loose:
        ledger.record(entry)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sealed generations and an open one; in the first a chunk was given up, which was tried again."""
    folder = tmp_path_factory.mktemp("damage") / "intact"
    record(folder, "a", [Done(0, "a", 1, "zero"), Done(1, "a", 1, "one"), Done(2, "a", 1)], [Dead(3, "a", 1, 5, "bad")])
    Ledger(folder, owner="cli").retry()
    record(folder, "b", [Done(3, "b", 9, "three"), Dead(4, "b", 9, 5, "bad")], [Done(5, "b", 9, "five")])
    record(folder, "c", [Done(6, "c", 17, "six"), Done(7, "c", 17), Done(8, "c", 17)], [Done(9, "c", 17, "nine")])
    assert sorted(Ledger(folder, owner="x").read()) == list(range(10))
    return folder


def journal_of(folder: Path, owner: str) -> Path:
    return next(folder.glob(f"generation-*/journal-{owner}.jsonl"))


def without_a_line(content: bytes) -> bytes:
    return b"".join(content.splitlines(keepends=True)[1:])


def with_a_hole(content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    return b"".join(lines[:1] + lines[2:])


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "removed": lambda content: None,
    "emptied": lambda content: b"",
    "cut inside a line": lambda content: content[:-9],
    "cut at a line": lambda content: content[: content.rstrip(b"\n").rindex(b"\n") + 1],
    "zeroed at the end": lambda content: content[:-9] + bytes(9),
    "without its first line": without_a_line,
    "without a line inside": with_a_hole,
    "another payload": lambda content: content.replace(b"zero", b"hero").replace(b"six", b"fix"),
    "no text": lambda content: content[:20] + b"\xff" + content[21:],
    "lines in another order": lambda content: b"".join(sorted(content.splitlines(keepends=True), reverse=True)),
}


@pytest.mark.parametrize("owner", ["a", "c"], ids=["of a sealed generation", "of the last generation"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_journal_that_lacks_what_was_committed_is_refused(
    intact: Path, tmp_path: Path, damage: str, owner: str
) -> None:
    folder = shutil.copytree(intact, tmp_path / "job")
    journal = journal_of(folder, owner)
    content = DAMAGES[damage](journal.read_bytes())
    assert content != journal.read_bytes()
    if content is None:
        journal.unlink()
    else:
        journal.write_bytes(content)
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(CoordinationError, match="damaged"):
        Ledger(folder, owner="again").read()
    with pytest.raises(CoordinationError, match="damaged"):
        Ledger(folder, owner="again").begin()
    assert len(list(folder.glob("generation-*"))) == 3
    assert {name.removesuffix(".sealed") for name in before} == {
        path.name.removesuffix(".sealed") for path in folder.iterdir()
    }


def test_a_job_is_not_begun_again_on_a_damaged_folder(tmp_path: Path) -> None:
    data = StreamDataset(ArraySource({"value": np.arange(12)}), name="data", seed=3)
    for _ in range(2):
        with StreamCoordinator(dist.HashStore(), 1) as coordinator:  # type: ignore[attr-defined]
            coordinator.register_worker(0)
            if list(tmp_path.glob("generation-*")):
                next(tmp_path.glob("generation-*/journal-*")).unlink()
                with pytest.raises(CoordinationError, match=r"damaged.*missing"):
                    coordinator.lease(data, chunk_size=4, folder=tmp_path)
            else:
                coordinator.lease(data, chunk_size=4, folder=tmp_path).process(lambda chunk: "")


@given(data=st.data())
def test_any_damage_to_one_file_is_refused_or_changes_nothing(
    intact: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = Ledger(intact, owner="x").read()
    names = sorted(str(path.relative_to(intact)) for path in intact.rglob("*") if path.is_file())
    name = data.draw(st.sampled_from([name for name in names if name != "job.json"]))
    folder = tmp_path_factory.mktemp("damaged") / "job"
    shutil.copytree(intact, folder)
    content = bytearray((folder / name).read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "zero", "remove", "junk", "twice"]))
    last = name.startswith("generation-000003/chunk-")  # the only trace of its commit as yet
    if kind == "flip":
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del content[place:]
    elif kind == "zero":
        content[place:] = bytes(len(content) - place)
    elif kind == "junk":
        content[:] = data.draw(st.binary(min_size=1, max_size=50))
    elif kind == "twice":
        content += content[place:]
    if kind == "remove" and not last:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    try:
        found = Ledger(folder, owner="again").read()
    except CoordinationError:
        return
    finally:
        shutil.rmtree(folder)
    if name != "retry-000001.json" or kind == "remove":
        assert found == whole


def test_a_generation_that_is_gone_is_missed_by_the_next(intact: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(intact, tmp_path / "job")
    shutil.rmtree(folder / "generation-000001.sealed")
    with pytest.raises(CoordinationError, match="earlier generation"):
        Ledger(folder, owner="again").read()


def test_a_folder_with_records_and_no_job_is_refused(intact: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(intact, tmp_path / "job")
    (folder / "job.json").unlink(missing_ok=True)
    with pytest.raises(CoordinationError, match=r"damaged.*missing"):
        Ledger(folder, owner="again").definition()


def test_a_disk_that_takes_nothing_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path, owner="a", interval=1e9)
    ledger.enter(*ledger.begin()[:2])

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for writing in (lambda: ledger.record(Done(1, "a", 1)), ledger.begin):
        with pytest.raises(CoordinationError, match="No space left on device"):
            writing()


# --- what a crash leaves -------------------------------------------------------------------------------------------


def test_a_journal_cut_short_loses_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, owner="a", interval=1e9)
    ledger.enter(*ledger.begin()[:2])
    ledger.record(Done(1, "a", 1, "one"))
    ledger.flush()
    journal = next(tmp_path.glob("generation-*/journal-*"))
    with journal.open("a") as file:
        file.write('[2,"done","a",1,"tw')  # and here the machine went down
    assert list(Ledger(tmp_path, owner="b").read()) == [1]
    ledger.close()


def test_a_journal_that_a_full_disk_cut_short_loses_nothing_that_is_kept_after_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, owner="a", interval=1e9)
    ledger.enter(*ledger.begin()[:2])
    ledger.record(Done(1, "a", 1, "one"))
    ledger.flush()
    journal = next(tmp_path.glob("generation-*/journal-*"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ledger.record(Done(2, "a", 1, "two"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.stat().st_size + 9, limits[1]))
    try:
        ledger.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    ledger.record(Done(3, "a", 1, "three"))
    ledger.close()
    assert not list(tmp_path.glob("generation-*/chunk-*"))
    assert {chunk: end.payload for chunk, end in Ledger(tmp_path, owner="b").read().items()} == {  # type: ignore[union-attr]
        1: "one",
        2: "two",
        3: "three",
    }


@pytest.mark.parametrize("kept", range(0, 130, 7))
def test_a_crash_at_any_byte_of_an_append_loses_nothing(tmp_path: Path, kept: int) -> None:
    ledger = Ledger(tmp_path, owner="a", interval=1e9)
    ledger.enter(*ledger.begin()[:2])
    for chunk in (1, 2):
        ledger.record(Done(chunk, "a", 1, "of the first append"))
    ledger.flush()
    journal = next(tmp_path.glob("generation-*/journal-*"))
    (check,) = tmp_path.glob("generation-*/check-*")
    vouched, first = check.read_bytes(), journal.stat().st_size
    for chunk in (3, 4):
        ledger.record(Done(chunk, "a", 1, "of the second append"))
    files = {path: path.read_bytes() for path in tmp_path.glob("generation-*/chunk-*")}
    assert len(files) == 2
    ledger.flush()
    ledger.close()
    journal.write_bytes(journal.read_bytes()[: first + kept])  # the crash: neither check nor removals were reached
    check.write_bytes(vouched)
    for path, content in files.items():
        path.write_bytes(content)
    assert sorted(Ledger(tmp_path, owner="b").read()) == [1, 2, 3, 4]


def test_a_zombie_that_appends_after_its_generation_was_sealed_damages_nothing(tmp_path: Path) -> None:
    zombie = Ledger(tmp_path, owner="a", interval=1e9)
    zombie.enter(*zombie.begin()[:2])
    zombie.record(Done(1, "a", 1))
    zombie.flush()
    zombie.record(Done(2, "a", 1))
    successor = Ledger(tmp_path, owner="b", interval=1e9)
    successor.enter(*successor.begin()[:2])
    zombie.flush()  # through a file that it has open, and that moved with the folder
    zombie.close()
    assert sorted(successor.read()) == [1, 2]
    assert not list((tmp_path / ".tmp").iterdir())


def test_a_journal_that_nobody_holds_any_more_closes_its_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "x", temporary=tmp_path / "part")
    journal.append(["{}"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del journal
        gc.collect()
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []
