"""Which detection names a story, and what tells causes that look alike apart."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.debug.attribution.test_engine import explain
from tests.debug.detectors.series import falling_loss, signal

from holdfast.debug.attribution import tell_stories
from holdfast.debug.detectors.dead_layer import DeadLayerFacts, Deadness
from holdfast.debug.detectors.explosion import ExplosionFacts, GrowthShape
from holdfast.debug.detectors.spike import SpikeFacts
from holdfast.debug.types import Detection, Facts, Failure, Severity, Signal

CRITICAL, WARNING = Severity.CRITICAL, Severity.WARNING


def seen(
    failure: Failure, severity: Severity, *, first: float = 10.0, last: float = 90.0, facts: Facts | None = None
) -> Detection:
    return Detection(failure, severity, 0.9, first, last, (), facts=facts)


def leader(*detections: Detection) -> Detection:
    return tell_stories(detections, [signal("loss", falling_loss(100))])[0][0]


def test_a_loss_scale_that_gave_way_is_told_before_the_nan_it_let_in() -> None:
    stories = tell_stories(
        [seen(Failure.NAN, CRITICAL), seen(Failure.LOSS_SCALE_COLLAPSE, CRITICAL)], [signal("loss", falling_loss(100))]
    )
    assert [story[0].failure for story in stories] == [Failure.LOSS_SCALE_COLLAPSE, Failure.NAN]


def test_gradients_that_burst_with_a_loss_that_came_back_are_called_a_spike() -> None:
    burst, jump = (
        seen(Failure.EXPLOSION, CRITICAL, facts=ExplosionFacts(GrowthShape.NORM)),
        seen(Failure.SPIKE, WARNING, facts=SpikeFacts(1, 4.0, 1.0, at_end=False)),
    )
    assert leader(burst, jump).failure == Failure.SPIKE
    assert leader(burst, jump, seen(Failure.NAN, CRITICAL)).failure == Failure.NAN


def test_a_layer_that_died_in_an_explosion_does_not_name_the_story() -> None:
    explosion = seen(Failure.EXPLOSION, WARNING, facts=ExplosionFacts(GrowthShape.EARLY), first=0.0)
    died = seen(Failure.DEAD_LAYER, CRITICAL, facts=DeadLayerFacts(Deadness.ZERO), first=5.0)
    named = leader(explosion, died)
    assert (named.failure, named.severity) == (Failure.EXPLOSION, CRITICAL)


def test_a_layer_that_was_dead_before_an_explosion_does() -> None:
    explosion = seen(Failure.EXPLOSION, CRITICAL, facts=ExplosionFacts(GrowthShape.GREW), first=60.0)
    dead = seen(Failure.DEAD_LAYER, CRITICAL, facts=DeadLayerFacts(Deadness.ZERO), first=0.0)
    assert leader(explosion, dead).failure == Failure.DEAD_LAYER


@given(st.permutations([Failure.NAN, Failure.EXPLOSION, Failure.DIVERGENCE, Failure.PLATEAU, Failure.DEAD_LAYER]))
def test_a_story_is_never_told_as_less_severe_than_its_worst_part(order: list[Failure]) -> None:
    parts = [seen(failure, CRITICAL if number == 0 else WARNING) for number, failure in enumerate(order)]
    assert leader(*parts).severity is CRITICAL


def jumping_run(held_out: np.ndarray) -> list[Signal]:
    """A training loss that jumps at two thirds of the run and comes down again slowly."""
    loss = falling_loss(240, start=4.5, end=2.4)
    loss[160:] += 2.0 * np.exp(-np.arange(80) / 25)
    evaluation = signal("eval_loss", held_out, steps=np.arange(12) * 20 + 19)
    return [signal("loss", loss), evaluation, signal("lr", np.full(240, 1e-3))]


def test_a_jump_that_the_held_out_loss_does_not_feel_may_come_from_the_order_of_the_data() -> None:
    causes = {
        name: [cause.cause for cause in explain(*jumping_run(held_out))[0].causes[:2]]
        for name, held_out in {
            "unharmed": np.linspace(3.5, 2.4, 12),
            "harmed": np.concatenate((np.linspace(3.5, 2.7, 8), [4.6, 3.9, 3.5, 3.2])),
        }.items()
    }
    assert "unshuffled_batches" in causes["unharmed"]
    assert "unshuffled_batches" not in causes["harmed"]


def test_weights_off_scale_point_at_the_initialisation_unless_a_wild_rate_explains_them() -> None:
    gains = [signal("weight_gain", np.full(200, 9.0), layer=layer) for layer in ("fc1.weight", "fc2.weight")]
    loss = signal("loss", falling_loss(200, start=30.0, end=2.0))
    first = {rate: explain(loss, *gains, signal("lr", np.full(200, rate)))[0].causes[0].cause for rate in (1e-3, 1.5)}
    assert first == {1e-3: "bad_initialisation", 1.5: "learning_rate_too_high"}
