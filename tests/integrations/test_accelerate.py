"""The stream in an Accelerate loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import holdfast as hfast
from holdfast.errors import ConfigError
from holdfast.integrations.carried import Carried, carried_in

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own deprecations are not ours to fail on


def make_loader() -> hfast.StreamingShardLoader:
    dataset = hfast.StreamDataset(hfast.ArraySource({"index": np.arange(40)}), name="a", seed=2)
    return hfast.StreamingShardLoader(dataset, hfast.StreamingConfig(batch_size=4))


def test_the_loader_goes_through_prepare_unchanged() -> None:
    loader = make_loader()
    assert accelerate.Accelerator(cpu=True).prepare(loader) is loader


def test_save_state_and_load_state_carry_the_stream(tmp_path: Path) -> None:
    from holdfast.integrations.accelerate import prepare

    accelerator = accelerate.Accelerator(cpu=True)
    batches = prepare(accelerator, make_loader())
    iterator = iter(batches)
    for _ in range(5):
        next(iterator)
    accelerator.save_state(str(tmp_path / "saved"))
    assert carried_in(tmp_path) == [Carried("accelerate", str(tmp_path / "saved"), 5)]
    expected = next(iterator)["index"].tolist()
    again = accelerate.Accelerator(cpu=True)
    resumed = prepare(again, make_loader())
    again.load_state(str(tmp_path / "saved"))
    assert next(iter(resumed))["index"].tolist() == expected
    with pytest.raises(ConfigError, match="skipping batches now would lose them"):
        accelerate.skip_first_batches(resumed, 5)


def test_a_loop_that_skips_batches_by_hand_gets_what_it_asks_for() -> None:
    from holdfast.integrations.accelerate import prepare

    batches = prepare(accelerate.Accelerator(cpu=True), make_loader())
    expected = make_loader().batch_at(3)["index"].tolist()
    assert next(iter(accelerate.skip_first_batches(batches, 3)))["index"].tolist() == expected


def test_a_recorded_loop_that_is_not_closed_still_has_its_last_step(tmp_path: Path) -> None:
    import subprocess
    import sys

    from holdfast.run import RunLog

    program = f"""
import numpy as np, torch
import holdfast as hfast
from holdfast.integrations.loop import TrainingStream
source = hfast.ArraySource({{"x": np.ones((40, 1), dtype=np.float32)}})
loader = hfast.StreamingShardLoader(hfast.StreamDataset(source, name="a"), hfast.StreamingConfig(batch_size=4))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
stream = TrainingStream(loader, folder={str(tmp_path / "run")!r}, model=model, optimizer=optimizer)
for batch in stream:
    loss = model(batch["x"]).mean()
    loss.backward()
    optimizer.step()
    stream.step(loss)
    if stream.step_number == 3:
        break
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
    log = RunLog(tmp_path / "run")
    assert [record["step"] for record in log.steps()] == [0, 1, 2]
    assert len(log.events("end")) == 1
