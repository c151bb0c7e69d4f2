"""``share_within`` decides which ranks wait for each other, so the ranks compare it first."""

from __future__ import annotations

import json

import pytest
from tests.checkpoint import sharing_options_worker
from tests.forking import torchrun

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

DISAGREE = ["first", "second", "different", "alone"]
AGREE = ["one by itself", "each by itself", "both", "neither"]
Found = list[dict[str, tuple[str, float]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("options")
    torchrun(2, sharing_options_worker.__name__, str(folder))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("kind", DISAGREE)
def test_ranks_with_different_groups_all_raise_at_once(found: Found, kind: str) -> None:
    for rank in found:
        message, seconds = rank[kind]
        assert message == "ConfigError: the ranks disagree on share_within"
        assert seconds < sharing_options_worker.TIMEOUT.total_seconds() / 2


@pytest.mark.parametrize("kind", DISAGREE)
def test_ranks_with_different_groups_all_raise_at_once_under_torchs_own_load(found: Found, kind: str) -> None:
    for rank in found:
        message, seconds = rank[f"{kind}, dcp"]
        assert message.startswith("ConfigError: the ranks disagree on share_within")
        assert seconds < sharing_options_worker.TIMEOUT.total_seconds() / 2


@pytest.mark.parametrize("kind", AGREE)
def test_ranks_that_agree_load_in_whatever_groups_they_share(found: Found, kind: str) -> None:
    for rank in found:
        assert rank[kind][0] == rank[f"{kind}, dcp"][0] == "loaded"


def test_something_other_than_a_group_on_one_rank_is_an_error_on_all(found: Found) -> None:
    messages = [rank["not a group"][0] for rank in found]
    assert messages == [
        "ConfigError: the ranks disagree on share_within",
        "ConfigError: share_within must be a process group that this rank belongs to",
    ]
