"""A live debugger's state as the first release saved it: every later one goes on from it."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.debug.online import OnlineDebugger
from holdfast.debug.types import Failure

FROZEN = Path(__file__).parent / "v1" / "live-debugger.json"


def test_a_frozen_live_state_is_continued_without_telling_anything_twice() -> None:
    online = OnlineDebugger()
    online.load_state_dict(json.loads(FROZEN.read_text()))
    (loss,) = (signal for signal in online.report().signals if signal.name == "loss")
    assert loss.steps.tolist() == list(range(100))
    assert [finding.detection.failure for finding in online.findings()] == [Failure.NAN]
    assert online.update(100, {"loss": float("nan")}) == ()
