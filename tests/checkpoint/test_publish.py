"""What stands where a checkpoint is saved: nothing of the user's is ever lost, and savers do not disturb each other."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import checkpoint
from holdfast.checkpoint import latest_verified, publish, verify_checkpoint
from holdfast.errors import CheckpointWriteError, ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")


def state(value: float, size: int = 4) -> dict[str, Any]:
    return {"w": torch.full((size,), float(value))}


def loaded(path: Path, size: int = 4) -> float:
    into = state(-1, size)
    checkpoint.load(into, path)
    return float(into["w"][0])


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("path", ["", ".", "/", "memory://bucket/c", "results", "notes.txt", "results/plot.png"])
def test_what_is_not_a_checkpoint_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "plot.png").write_text("a plot")
    (tmp_path / "notes.txt").write_text("years of work")
    with pytest.raises((ConfigError, CheckpointWriteError)):
        checkpoint.save(state(1), path, step=1)
    assert names(tmp_path) == ["notes.txt", "results"]
    assert (tmp_path / "notes.txt").read_text() == "years of work"
    assert (tmp_path / "results" / "plot.png").read_text() == "a plot"


@pytest.mark.parametrize(("name", "content"), [(".metadata", "my own"), ("holdfast.json", "{}"), (".metadata", None)])
def test_a_folder_is_not_a_checkpoint_because_of_a_name_in_it(tmp_path: Path, name: str, content: str | None) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    if content is None:
        os.mkfifo(folder / name)
    else:
        (folder / name).write_text(content)
    (folder / "data.csv").write_text("1,2")
    with pytest.raises(CheckpointWriteError, match="not a checkpoint"):
        checkpoint.save(state(1), folder, step=1)
    assert names(folder) == sorted([name, "data.csv"])


@pytest.mark.parametrize("damaged", [".metadata", "holdfast.json", "__0_0.distcp"])
def test_a_damaged_checkpoint_may_be_replaced(tmp_path: Path, damaged: str) -> None:
    folder = tmp_path / "c"
    checkpoint.save(state(1), folder, step=1)
    for name in names(folder):
        if name != damaged:
            (folder / name).unlink()
    (folder / damaged).write_bytes((folder / damaged).read_bytes()[:20])
    checkpoint.save(state(2), folder, step=2)
    assert loaded(folder) == 2


@pytest.mark.parametrize("again", [False, True])
def test_everything_is_on_the_disk_before_it_takes_its_name_and_the_name_before_save_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    if again:
        checkpoint.save(state(1), tmp_path / "c", step=1)
    log: list[str] = []
    fsync, rename, exchange = os.fsync, os.rename, publish._exchange

    def logged_fsync(descriptor: int) -> None:
        fsync(descriptor)
        log.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))

    def logged_rename(one: Any, other: Any) -> None:
        rename(one, other)
        log.append(f"rename to {os.path.relpath(other, tmp_path)}")

    def logged_exchange(one: Path, other: Path) -> bool:
        log.append("exchange")
        return exchange(one, other)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "rename", logged_rename)
    monkeypatch.setattr(publish, "_exchange", logged_exchange)
    checkpoint.save({"v": torch.ones(3), **state(2)}, tmp_path / "c", step=2, thread_count=2)
    place = log.index("exchange" if again else "rename to c")
    staging = {os.path.dirname(name) for name in log[:place] if name.endswith("holdfast.json")}.pop()
    written = names(tmp_path / "c")
    assert written == [".metadata", "__0_0.distcp", "__0_10.distcp", "holdfast.json"]
    assert {os.path.normpath(f"{staging}/{name}") for name in written} | {staging} <= set(log[:place])
    synced = [entry for entry in log[:place] if not entry.startswith("rename")]
    assert synced[-1] == staging, "the folder last, when all names are in it"
    assert "." in log[place:]


def test_an_empty_folder_is_a_place_to_save_to(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    checkpoint.save(state(1), tmp_path / "c", step=1)
    assert loaded(tmp_path / "c") == 1


def with_files_of_the_user(path: Path) -> None:
    (path / "tokenizer.json").write_text("{}")
    (path / "sub").mkdir()
    (path / "sub" / "a").write_text("x")


@pytest.mark.parametrize("can_exchange", [True, False])
def test_files_of_the_user_move_into_the_checkpoint_that_replaces_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(publish, "_exchange", lambda *_: False)
    checkpoint.save(state(1), tmp_path / "c", step=1)
    with_files_of_the_user(tmp_path / "c")
    checkpoint.save(state(2), tmp_path / "c", step=2)
    assert loaded(tmp_path / "c") == 2
    assert (tmp_path / "c" / "sub" / "a").read_text() == "x"
    assert names(tmp_path / "c") == [".metadata", "__0_0.distcp", "holdfast.json", "sub", "tokenizer.json"]
    assert names(tmp_path) == ["c"]


def save_and_die(path: Path, step: int, calls: int, can_exchange: bool) -> None:
    """Save, and die after so many calls that change a folder; exits with 0 when there were fewer."""
    left = calls

    def dying(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            result = function(*arguments, **options)
            left -= 1
            if left == 0:
                os._exit(9)
            return result

        return call

    publish._exchange = dying(publish._exchange if can_exchange else lambda *_: False)
    for name in ("mkdir", "rename", "unlink", "rmdir"):
        setattr(os, name, dying(getattr(os, name)))
    checkpoint.save(state(step), path, step=step)
    os._exit(0)


@pytest.mark.parametrize("can_exchange", [True, False])
def test_files_of_the_user_outlive_a_saver_that_is_killed_at_any_moment(tmp_path: Path, can_exchange: bool) -> None:
    context = multiprocessing.get_context("fork")
    path = tmp_path / "c"
    checkpoint.save(state(0), path, step=0)
    with_files_of_the_user(path)
    for calls in range(1, 100):
        saver = context.Process(target=save_and_die, args=(path, 2 * calls, calls, can_exchange))
        saver.start()
        saver.join()
        checkpoint.save(state(2 * calls + 1), path, step=2 * calls + 1)
        assert loaded(path) == 2 * calls + 1
        assert names(path) == [".metadata", "__0_0.distcp", "holdfast.json", "sub", "tokenizer.json"], calls
        assert (path / "sub" / "a").read_text() == "x"
        assert names(tmp_path) == ["c"]
        if saver.exitcode == 0:
            break
    assert saver.exitcode == 0
    assert calls > 5


def test_files_of_the_user_stay_when_their_checkpoint_is_removed(tmp_path: Path) -> None:
    checkpoint.save(state(1), tmp_path / "step-1", step=1)
    with_files_of_the_user(tmp_path / "step-1")
    report = checkpoint.save(state(2), tmp_path / "step-2", step=2, keep=1)
    assert [path.name for path in report.removed] == ["step-1"]
    assert names(tmp_path) == ["step-1", "step-2"]
    assert names(tmp_path / "step-1") == ["sub", "tokenizer.json"]
    found = latest_verified(tmp_path)
    assert found is not None
    assert (found.step, found.passed_over) == (2, ())


def test_only_whole_checkpoints_of_the_same_run_and_naming_are_removed(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint.save(state(step), tmp_path / f"step-{step}", step=step, run_id="a")
    checkpoint.save(state(1), tmp_path / "step-01", step=1, run_id="b")
    shutil.copytree(tmp_path / "step-1", tmp_path / "backup-of-step-1")
    data = next((tmp_path / "step-2").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-10])
    report = checkpoint.save(state(3), tmp_path / "step-3", step=3, run_id="a", keep=2)
    assert report.removed == ()
    report = checkpoint.save(state(4), tmp_path / "step-4", step=4, run_id="a", keep=2)
    assert [path.name for path in report.removed] == ["step-1"]


def test_a_link_stands_for_what_it_points_to(tmp_path: Path) -> None:
    checkpoint.save(state(1), tmp_path / "real", step=1)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "other disk").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "other disk" / "c")
    checkpoint.save(state(2), tmp_path / "link", step=2)
    checkpoint.save(state(3), tmp_path / "dangling", step=3)
    assert names(tmp_path) == ["dangling", "link", "other disk", "real"]
    assert loaded(tmp_path / "real") == 2
    assert loaded(tmp_path / "other disk" / "c") == 3


def _save_some(path: str, first: int) -> None:
    torch.set_num_threads(1)
    for step in range(first, first + 10):
        checkpoint.save(state(step, 20_000), path, step=step)


def test_savers_of_one_name_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Each of them says that it saved, and what is there is whole and one of theirs."""
    path = tmp_path / "c"
    checkpoint.save(state(0, 20_000), path, step=0)
    context = multiprocessing.get_context("fork")
    savers = [context.Process(target=_save_some, args=(str(path), first)) for first in (100, 200)]
    for saver in savers:
        saver.start()
    while any(saver.is_alive() for saver in savers):
        assert path.is_dir()  # at every moment a checkpoint of that name is there
    for saver in savers:
        saver.join()
    assert [saver.exitcode for saver in savers] == [0, 0]
    assert verify_checkpoint(path, require_manifest=True).sound
    assert loaded(path, 20_000) in (109, 209)
    assert names(tmp_path) == ["c"]


def test_two_background_saves_of_one_name_both_succeed(tmp_path: Path) -> None:
    pending = [checkpoint.async_save(state(step, 200_000), tmp_path / "c", step=step) for step in (3, 4)]
    assert sorted(one.result(60).step for one in pending) == [3, 4]
    assert loaded(tmp_path / "c", 200_000) in (3, 4)
    assert names(tmp_path) == ["c"]


def test_what_a_killed_saver_left_is_removed_by_the_next_and_a_running_one_is_left_alone(tmp_path: Path) -> None:
    running = publish.Staging(tmp_path / "running")
    running.make()
    dead = publish.Staging(tmp_path / "dead")
    dead.make()
    assert dead._lock is not None
    dead._lock.let_go()  # as when its process ends
    (dead.folder / "__0_0.distcp").write_text("half")
    checkpoint.save(state(1), tmp_path / "removed", step=1)
    os.rename(tmp_path / "removed", publish._hidden(tmp_path / "removed", "removing"))
    (tmp_path / ".mine").mkdir()
    checkpoint.save(state(3), tmp_path / "c", step=3)
    assert names(tmp_path) == [".mine", running.folder.name, "c"]
    running.close()


def _end_once_replaced(path: Path, can_exchange: bool) -> None:
    """Save over a checkpoint, and end when the new one has its name."""
    publish.sync_names = lambda folder: os._exit(9) if folder == path.parent else None  # type: ignore[attr-defined]
    if not can_exchange:
        publish._exchange = lambda *_: False
    checkpoint.save(state(2), path, step=2)


def _end_between_two_renames(path: Path) -> None:
    """Save over a checkpoint, and end when the old one has lost its name."""
    rename = os.rename

    def rename_and_end(one: Any, other: Any) -> None:
        rename(one, other)
        if one == path:
            os._exit(9)

    publish._exchange = lambda *_: False
    os.rename = rename_and_end  # type: ignore[assignment]
    checkpoint.save(state(2), path, step=2)


def _killed(target: Callable[..., None], *arguments: Any) -> None:
    saver = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    saver.start()
    saver.join(60)
    assert saver.exitcode == 9


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_checkpoint_that_was_replaced_and_then_removed_does_not_come_back(tmp_path: Path, can_exchange: bool) -> None:
    checkpoint.save(state(1), tmp_path / "c", step=1)
    _killed(_end_once_replaced, tmp_path / "c", can_exchange)
    assert loaded(tmp_path / "c") == 2
    shutil.rmtree(tmp_path / "c")
    checkpoint.save(state(3), tmp_path / "d", step=3)
    assert names(tmp_path) == ["d"]


def test_a_checkpoint_whose_saver_was_killed_between_two_renames_comes_back(tmp_path: Path) -> None:
    checkpoint.save(state(1), tmp_path / "c", step=1)
    _killed(_end_between_two_renames, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    checkpoint.save(state(3), tmp_path / "d", step=3)
    assert names(tmp_path) == ["c", "d"]
    assert loaded(tmp_path / "c") == 1


def test_what_two_killed_savers_left_is_removed_but_for_the_checkpoint_without_a_name(tmp_path: Path) -> None:
    checkpoint.save(state(1), tmp_path / "c", step=1)
    _killed(_end_once_replaced, tmp_path / "c", False)
    _killed(_end_between_two_renames, tmp_path / "c")
    checkpoint.save(state(3), tmp_path / "d", step=3)
    assert names(tmp_path) == ["c", "d"]
    assert loaded(tmp_path / "c") == 2


def test_a_full_disk_leaves_the_older_checkpoint_and_nothing_of_the_new_one(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        checkpoint.save(state(1, 60_000), disk / "step-1", step=1)
        for size in (600_000, 205_000):
            with pytest.raises(CheckpointWriteError, match="No space left"):
                checkpoint.save(state(2, size), disk / "step-2", step=2, keep=1)
            assert names(disk) == ["step-1"]
        assert loaded(disk / "step-1", 60_000) == 1
        checkpoint.save(state(2, 60_000), disk / "step-2", step=2, keep=1)
        assert names(disk) == ["step-2"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_behind_a_url_is_not_taken_for_an_empty_one() -> None:
    with pytest.raises(ConfigError, match="only works on local folders"):
        latest_verified("memory://bucket")
    with pytest.raises(ConfigError, match="local folders"):
        latest_verified(Path("memory://bucket"))  # which pathlib turns into memory:/bucket


@pytest.mark.parametrize(
    "options",
    [{"thread_count": 0}, {"run_id": 5}, {"keep": True}, {"state_dict": [1]}],
    ids=lambda one: next(iter(one)),
)
def test_options_of_the_wrong_kind_are_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    arguments: dict[str, Any] = {"state_dict": state(1), "step": 1, **options}
    with pytest.raises(ConfigError):
        checkpoint.save(path=tmp_path / "c", **arguments)
    assert names(tmp_path) == []


def test_what_cannot_be_pickled_is_not_blamed_on_the_disk(tmp_path: Path) -> None:
    with pytest.raises(CheckpointWriteError) as caught:
        checkpoint.save({"f": lambda: 1}, tmp_path / "c", step=1)
    assert "make room" not in str(caught.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False), (errno.EIO, False)]
)
def test_making_room_is_advised_where_the_disk_or_the_quota_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, full: bool
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("holdfast.checkpoint.writer.sync_files", fail)
    with pytest.raises(CheckpointWriteError, match=os.strerror(number)) as caught:
        checkpoint.save(state(1), tmp_path / "c", step=1)
    assert ("make room" in str(caught.value)) == full


def test_a_link_that_leads_out_of_the_folder_is_passed_over(tmp_path: Path) -> None:
    checkpoint.save(state(9), tmp_path / "outside" / "c", step=9)
    checkpoint.save(state(1), tmp_path / "run" / "step-1", step=1)
    (tmp_path / "run" / "step-9").symlink_to(tmp_path / "outside" / "c")
    (tmp_path / "run" / "latest").symlink_to("step-1")
    found = latest_verified(tmp_path / "run")
    assert found is not None
    assert (found.step, [path.name for path, _ in found.passed_over]) == (1, ["step-9"])


def test_a_checkpoint_of_unknown_step_may_be_the_newest_and_equal_steps_go_by_time(tmp_path: Path) -> None:
    for name, step in (("x", 1), ("a", 1), ("b", 2)):
        checkpoint.save(state(step), tmp_path / name, step=step)
        os.utime(tmp_path / name, ns=(0, {"x": 10, "a": 20, "b": 30}[name]))
    (tmp_path / "b" / "holdfast.json").write_text("{")
    found = latest_verified(tmp_path)
    assert found is not None
    assert (found.path.name, [path.name for path, _ in found.passed_over]) == ("a", ["b"])


def test_a_cut_off_checkpoint_neither_counts_nor_goes_when_the_last_k_are_kept(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint.save(state(step), tmp_path / f"step-{step}", step=step)
    os.truncate(tmp_path / "step-2" / "__0_0.distcp", 100)
    report = checkpoint.save(state(3), tmp_path / "step-3", step=3, keep=2)
    assert report.removed == ()
    assert names(tmp_path) == ["step-1", "step-2", "step-3"]
    checkpoint.save(state(4), tmp_path / "step-4", step=4, keep=2)
    assert names(tmp_path) == ["step-2", "step-3", "step-4"]


@pytest.mark.parametrize("error", [PermissionError(13, "not permitted"), FileNotFoundError(2, "gone")], ids=repr)
def test_an_older_checkpoint_that_cannot_be_removed_does_not_make_the_save_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    checkpoint.save({"w": torch.ones(3)}, tmp_path / "step-1", step=1)
    rename = os.rename

    def refusing(source: Path, target: Path) -> None:
        if Path(source).name == "step-1":
            raise error
        rename(source, target)

    monkeypatch.setattr(os, "rename", refusing)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = checkpoint.save({"w": torch.ones(3)}, tmp_path / "step-2", step=2, keep=1)
    assert report.removed == ()
    assert ["not permitted" in str(one.message) for one in caught] == [True] * isinstance(error, PermissionError)
    assert verify_checkpoint(tmp_path / "step-2", require_manifest=True).sound


@pytest.mark.parametrize("name", ["step-1", "step-2"])
def test_a_warning_that_is_an_error_does_not_deny_that_the_checkpoint_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    checkpoint.save({"w": torch.zeros(3)}, tmp_path / "step-1", step=1)
    unlink = os.unlink

    def refusing(path: Path) -> None:
        if "removing" in str(path):
            raise PermissionError(13, "not permitted")
        unlink(path)

    monkeypatch.setattr(os, "unlink", refusing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CheckpointWriteError, match="is saved, but") as raised:
            checkpoint.save({"w": torch.ones(3)}, tmp_path / name, step=2, keep=1)
    assert "not permitted" in str(raised.value)
    assert "nothing of it is left" not in str(raised.value)
    into = {"w": torch.zeros(3)}
    checkpoint.load(into, tmp_path / name)
    assert into["w"].sum() == 3


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may write to; that of ``tmp_path`` is its owner's."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


def saved_by_another_user(path: Path, step: int) -> tuple[checkpoint.SaveReport, list[str]]:
    mine = os.geteuid()
    if mine == 0:  # who may remove everything
        os.seteuid(65534)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            return checkpoint.save(state(step), path, step=step, keep=1), [str(one.message) for one in caught]
    finally:
        os.seteuid(mine)


def test_an_older_checkpoint_that_may_only_be_renamed_keeps_its_name_and_is_warned_about_every_time(
    shared: Path,
) -> None:
    checkpoint.save(state(1), shared / "step-1", step=1)
    os.chmod(shared / "step-1", 0o555)
    for step in (2, 3):
        report, told = saved_by_another_user(shared / f"step-{step}", step)
        assert report.removed == tuple(shared / f"step-{older}" for older in range(2, step))
        assert ["could not be removed" in text and "step-1" in text for text in told] == [True]
        assert names(shared) == ["step-1", f"step-{step}"]
    assert verify_checkpoint(shared / "step-1", require_manifest=True).sound
    os.chmod(shared / "step-1", 0o755)


def test_an_older_checkpoint_that_can_be_removed_in_part_only_is_warned_about_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(state(1), tmp_path / "step-1", step=1)
    unlink = os.unlink

    def refusing(path: Any, **options: Any) -> None:
        if ".step-1." in str(path) and str(path).endswith("holdfast.json"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", refusing)
    for step in (2, 3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = checkpoint.save(state(step), tmp_path / f"step-{step}", step=step, keep=1)
        assert report.removed == tuple(tmp_path / f"step-{older}" for older in range(2, step))
        assert ["could not be removed" in str(one.message) for one in caught] == [True]
        hidden, *visible = names(tmp_path)
        assert hidden.startswith(".step-1.")
        assert hidden.endswith(".removing")
        assert visible == [f"step-{step}"]
    monkeypatch.undo()
    checkpoint.save(state(4), tmp_path / "step-4", step=4)
    assert names(tmp_path) == ["step-3", "step-4"]


def test_a_file_system_that_does_not_sync_folders_is_saved_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    checkpoint.save(state(1), tmp_path / "c", step=1)
    checkpoint.save(state(2), tmp_path / "c", step=2)
    assert loaded(tmp_path / "c") == 2


@pytest.mark.parametrize("name", ["step-1", "step-2"])
def test_a_disk_that_fails_after_the_checkpoint_has_its_name_does_not_hide_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    checkpoint.save(state(1), tmp_path / "step-1", step=1)
    rename = os.rename

    def fail(folder: Path) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "rename", refuse)
        monkeypatch.setattr(publish, "_exchange", refuse)
        refuse()

    monkeypatch.setattr(publish, "sync_names", fail)
    with pytest.raises(CheckpointWriteError, match="is complete in") as raised:
        checkpoint.save(state(2), tmp_path / name, step=2)
    monkeypatch.setattr(os, "rename", rename)
    assert loaded(tmp_path / name) == 2.0
    assert str(tmp_path / name) in str(raised.value)
    hidden = [each for each in names(tmp_path) if each.startswith(".")]
    assert len(hidden) == (name == "step-1")
    assert all(each in str(raised.value) for each in hidden)
    assert "unchanged" not in str(raised.value)


@pytest.mark.parametrize("path", [5, b"step-1", None])
def test_a_path_that_is_not_text_is_refused(path: Any) -> None:
    uses: list[Callable[[], object]] = [
        lambda: checkpoint.save(state(1), path, step=1),
        lambda: checkpoint.async_save(state(1), path, step=1),
        lambda: checkpoint.load(state(1), path),
        lambda: checkpoint.ParallelFileSystemReader(path),
        lambda: checkpoint.verify_checkpoint(path),
        lambda: checkpoint.latest_verified(path),
        lambda: checkpoint.summarise_checkpoint(path),
    ]
    for use in uses:
        with pytest.raises(ConfigError, match="the path must be a str or a Path"):
            use()


def test_a_step_of_more_digits_than_python_prints_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        checkpoint.save(state(1), tmp_path / "c", step=10**4400)
    assert "too large to print" in str(raised.value)
