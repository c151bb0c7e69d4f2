"""State files: written whole, the last few kept, damage refused and the file before it named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.stream.jobs import dataset_of

from holdfast.errors import ConfigError, StateFileError
from holdfast.stream import StreamingConfig, StreamingShardLoader, load_state, save_state
from holdfast.stream.state_files import state_files


def saving_loader(folder: Path, **options: object) -> StreamingShardLoader:
    settings: dict[str, object] = {"batch_size": 4, "checkpoint_interval": 8, "checkpoint_path": folder, **options}
    return StreamingShardLoader(dataset_of({"a": 400}), StreamingConfig(**settings))  # type: ignore[arg-type]


def run(loader: StreamingShardLoader, batches: int) -> None:
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)


def test_states_are_saved_by_themselves_every_so_many_samples_and_the_last_few_kept(tmp_path: Path) -> None:
    loader = saving_loader(tmp_path, keep_checkpoints=2)
    run(loader, 12)
    # Batch 12 is in the training loop's hands, not done with: the newest state says 10.
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["state-000000000008.json", "state-000000000010.json"]
    assert loader.get_stats().num_checkpoints == 5


def test_the_interval_counts_samples_of_all_ranks_and_only_rank_zero_writes(tmp_path: Path) -> None:
    for rank in (1, 0):
        run(saving_loader(tmp_path, world_size=2, rank=rank, checkpoint_interval=16), 5)
        assert len(list(tmp_path.iterdir())) == (0 if rank else 2)


def test_after_a_roll_back_what_is_saved_is_the_newest_and_the_abandoned_states_go(tmp_path: Path) -> None:
    loader = saving_loader(tmp_path)
    run(loader, 5)
    good = loader.state_dict()
    run(loader, 30)
    abandoned = load_state(tmp_path)
    for bad in (1, 2):
        loader = saving_loader(tmp_path)
        loader.load_state_dict(good)
        loader.skip(samples={"a": [bad]})
        run(loader, 3)  # one save
        assert load_state(tmp_path).step == 7 < abandoned.step
        assert load_state(tmp_path).skips == loader.get_checkpoint().skips
        assert len(list(tmp_path.iterdir())) == 3
    run(loader, 7)
    assert [path.name for path in state_files(tmp_path)] == [f"state-{step:012d}.1.json" for step in (9, 11, 13)]


def test_a_run_begun_anew_in_an_old_folder_resumes_from_its_own_states(tmp_path: Path) -> None:
    run(saving_loader(tmp_path), 30)
    run(saving_loader(tmp_path), 4)
    assert load_state(tmp_path).step == 2


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(1, 4))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_newest_file_is_always_the_one_saved_last(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], keep: int
) -> None:
    folder = tmp_path_factory.mktemp("states")
    state = StreamingShardLoader(dataset_of({"a": 40})).get_checkpoint()
    for number, step in enumerate(steps):
        path = save_state(folder, replace(state, step=step, timestamp=number), keep=keep)
        assert state_files(folder)[-1] == path
        assert load_state(folder).timestamp == number
        assert len(list(folder.iterdir())) <= keep
    kept = [load_state(path).timestamp for path in state_files(folder)]
    assert kept == sorted(kept)


def test_what_a_killed_save_left_behind_is_removed_by_a_later_one(tmp_path: Path) -> None:
    state = StreamingShardLoader(dataset_of({"a": 40})).get_checkpoint()
    left, other = (tmp_path / f".state-00000000000{step}.json.123.tmp" for step in (2, 3))
    for path in (left, other):
        path.touch()
    save_state(tmp_path, replace(state, step=3))
    assert not left.exists()
    assert other.exists()  # another process may be saving the same step at this moment


def test_resume_goes_on_from_the_newest_file_and_starts_afresh_where_there_is_none(tmp_path: Path) -> None:
    loader = saving_loader(tmp_path / "states")
    assert loader.resume() is None
    run(loader, 7)
    again = saving_loader(tmp_path / "states")
    state = again.resume()
    assert state is not None
    assert again.step == state.step == 6


def test_save_writes_at_once_and_needs_a_place(tmp_path: Path) -> None:
    loader = StreamingShardLoader(dataset_of({"a": 40}), StreamingConfig(batch_size=4))
    run(loader, 3)
    path = loader.save(tmp_path)
    assert load_state(path).step == load_state(tmp_path).step == 3
    with pytest.raises(ConfigError, match="checkpoint_path"):
        loader.save()


@given(st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_torn_or_changed_file_is_refused_and_the_one_before_it_named(tmp_path: Path, data: st.DataObject) -> None:
    loader = StreamingShardLoader(dataset_of({"a": 40}), StreamingConfig(batch_size=4))
    earlier = loader.save(tmp_path)
    run(loader, 2)
    path = loader.save(tmp_path)
    whole = path.read_bytes()
    cut = int(data.draw(st.floats(0, 1, exclude_max=True)) * len(whole))
    if data.draw(st.booleans()):
        damaged = whole[:cut]
    else:
        flipped = data.draw(st.integers(1, 255))
        damaged = whole[:cut] + bytes([whole[cut] ^ flipped]) + whole[cut + 1 :]
        if _same_content(damaged, whole):
            return
    path.write_bytes(damaged)
    with pytest.raises(StateFileError) as caught:
        load_state(tmp_path)
    assert str(earlier) in str(caught.value)
    assert load_state(earlier).step == 0
    path.unlink()
    earlier.unlink()


def _same_content(one: bytes, other: bytes) -> bool:
    # A flipped bit in white space or in the name of a field that is not read leaves the state what it was.
    try:
        first, second = json.loads(one), json.loads(other)
    except ValueError:
        return False
    return all(first.get(name) == second[name] for name in ("format", "digest", "state"))


def test_foreign_files_missing_files_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StateFileError, match="no stream state"):
        load_state(tmp_path)
    with pytest.raises(StateFileError, match="No such file"):
        load_state(tmp_path / "state-000000000001.json")
    foreign = tmp_path / "trainer_state.json"
    for content in ('{"epoch": 1}', "[]", "3", '"text"', "\x00\x01", "[" * 100_000):
        foreign.write_text(content)
        with pytest.raises(StateFileError):
            load_state(foreign)


def test_a_file_left_half_written_by_a_crash_is_never_taken_for_a_state(tmp_path: Path) -> None:
    loader = StreamingShardLoader(dataset_of({"a": 40}), StreamingConfig(batch_size=4))
    saved = save_state(tmp_path, loader.get_checkpoint())
    (tmp_path / ".state-000000000009.json.123.tmp").write_text(saved.read_text()[:100])
    assert load_state(tmp_path).step == 0


def _steps_saved(folder: Path) -> list[int]:
    return [load_state(path).step for path in state_files(folder)]


def test_the_interval_counts_from_the_state_that_was_loaded(tmp_path: Path) -> None:
    first = saving_loader(tmp_path / "first")
    run(first, 5)
    loader = saving_loader(tmp_path / "second")
    loader.load_state_dict(first.state_dict())  # of step 5
    run(loader, 6)
    assert _steps_saved(tmp_path / "second") == [7, 9]


def test_the_interval_counts_from_a_state_saved_by_hand(tmp_path: Path) -> None:
    loader = saving_loader(tmp_path)
    run(loader, 3)
    loader.save(tmp_path / "by hand")
    run(loader, 4)
    assert _steps_saved(tmp_path) == [2, 5]


def test_the_interval_counts_from_the_start_again_after_a_reset(tmp_path: Path) -> None:
    loader = saving_loader(tmp_path / "states", keep_checkpoints=9)
    run(loader, 5)
    loader.reset()
    run(loader, 3)
    assert _steps_saved(tmp_path / "states") == [2, 4, 2]  # the last one saved stands last
