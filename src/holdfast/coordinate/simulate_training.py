"""What will synchronous training cost at 16,000 GPUs? The real order, schedule and shares under a simulated clock.

Nodes fail at random. The group then restarts with fewer ranks from the last checkpoint, and grows again when the node
is back. Stragglers slow everyone down, or get smaller shares. Nothing sleeps: time is a number.
"""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass, field

import numpy as np

from holdfast.coordinate.balance import balanced_shares
from holdfast.coordinate.scenario import Scenario
from holdfast.order import Adaptive, Order, Schedule, SourceSpec

__all__ = ["TrainingCost", "simulate_training"]


@dataclass(slots=True)
class TrainingCost:
    """The cost of a synchronous run."""

    failures: int = 0
    resizes: int = 0
    steps: int = 0
    steps_redone: int = 0
    samples: int = 0
    samples_reread: int = 0
    hours_lost_to_restarts: float = 0.0
    hours_lost_to_redone_steps: float = 0.0
    hours_lost_to_hangs: float = 0.0
    hours_lost_to_saving: float = 0.0
    hours_lost_to_stragglers: float = 0.0
    hours_lost_to_missing_nodes: float = 0.0
    ideal_steps: int = 0
    useful_fraction: float = 0.0
    best_checkpoint_steps: int = 0
    conclusion: str = ""
    step_slowdown_even_shares: float = 1.0
    step_slowdown_adaptive: float = 1.0
    state_bytes: int = 0
    positions_lost: int = 0
    timeline: list[tuple[float, int, int]] = field(default_factory=list)
    """(hours, ranks, samples delivered) at every change."""


def simulate_training(scenario: Scenario) -> TrainingCost:
    """Simulate synchronous training through its failures."""
    scenario.check_training()
    generator = np.random.default_rng(scenario.seed)
    cost = TrainingCost()
    total = scenario.ranks * scenario.batch_size
    order = Order([SourceSpec("data", 10**12, seed=scenario.seed)], partition=Adaptive())
    schedule = Schedule.start(order, world_size=scenario.ranks, global_batch_size=total)
    _compare_shares(scenario, total, cost)
    end = 3600 * scenario.hours
    failures, repairs = _draw_failures(scenario, generator, end)
    now, step, saved, delivered = 0.0, 0, 0, 0
    broken, world = 0, scenario.ranks
    hangs = generator.random(len(failures)) < scenario.hang_fraction
    cost.timeline.append((0.0, scenario.ranks, 0))
    for at, is_failure in heapq.merge(((t, True) for t in failures), ((t, False) for t in repairs)):
        if at >= end:
            break
        made = max(0, int((at - now) / _seconds(scenario, world, cost)))
        step += made
        _spend(scenario, world, cost, made)
        broken += 1 if is_failure else -1
        before = world
        world = max(1, scenario.ranks - max(0, broken - scenario.spare_nodes) * scenario.ranks_per_node)
        if not is_failure and world == before:
            now = max(now, at)
            continue  # it joins the spares; nobody has to wait
        noticed = at
        if is_failure:
            if hangs[cost.failures]:
                noticed = min(end, max(now, at) + scenario.hang_seconds)
                cost.hours_lost_to_hangs += (noticed - max(now, at)) / 3600
            committed = max(saved, step - step % scenario.checkpoint_steps)
            redone = step - committed
            cost.failures += 1
            cost.steps_redone += redone
            cost.hours_lost_to_redone_steps += redone * _seconds(scenario, before, cost) / 3600
            step = committed
        saved = step  # a planned change saves first; after a failure the run continues from here
        if world != before:
            schedule = schedule.resized(step, world_size=world)
            cost.resizes += 1
        # A failure during a restart begins the restart again: only the additional time is lost.
        ready = min(noticed + scenario.restart_seconds, end)
        cost.hours_lost_to_restarts += max(0.0, ready - max(now, noticed)) / 3600
        now = max(now, ready)
        delivered = schedule.delivered_before(step)
        cost.timeline.append((now / 3600, world, delivered))
    made = max(0, int((end - now) / _seconds(scenario, world, cost)))
    step += made
    _spend(scenario, world, cost, made)
    cost.steps = step
    cost.samples = schedule.delivered_before(step)
    cost.samples_reread = cost.steps_redone * total
    cost.positions_lost = step * total - cost.samples
    cost.ideal_steps = int(end / scenario.step_seconds)
    cost.useful_fraction = step * scenario.step_seconds / end
    cost.best_checkpoint_steps = max(1, round(scenario.best_interval_seconds / scenario.step_seconds))
    cost.timeline.append((scenario.hours, world, cost.samples))
    cost.state_bytes = len(json.dumps({"order": order.to_json(), **schedule.to_json()}, separators=(",", ":")))
    cost.conclusion = _conclusion(scenario, cost)
    return cost


def _seconds(scenario: Scenario, world: int, cost: TrainingCost) -> float:
    """Return the seconds per step, given missing ranks and stragglers; a checkpoint is spread over its steps."""
    work = scenario.step_seconds * scenario.ranks / world * cost.step_slowdown_adaptive
    return work + scenario.save_seconds / scenario.checkpoint_steps


def _spend(scenario: Scenario, world: int, cost: TrainingCost, made: int) -> None:
    """Record how much longer some steps took than they would with nothing wrong."""
    alone = scenario.step_seconds * cost.step_slowdown_adaptive
    cost.hours_lost_to_saving += made * scenario.save_seconds / scenario.checkpoint_steps / 3600
    cost.hours_lost_to_stragglers += made * (alone - scenario.step_seconds) / 3600
    cost.hours_lost_to_missing_nodes += made * alone * (scenario.ranks / world - 1) / 3600


def _conclusion(scenario: Scenario, cost: TrainingCost) -> str:
    """Return the run's result, its largest loss and what would reduce it, in one sentence."""
    losses = {
        "restarts": (cost.hours_lost_to_restarts, "restart faster (--restart-seconds)"),
        "repeated steps": (
            cost.hours_lost_to_redone_steps,
            f"save every {cost.best_checkpoint_steps} steps instead of {scenario.checkpoint_steps}",
        ),
        "hangs": (cost.hours_lost_to_hangs, "notice hangs sooner (--hang-seconds)"),
        "saving": (
            cost.hours_lost_to_saving,
            f"save every {cost.best_checkpoint_steps} steps instead of {scenario.checkpoint_steps}, or asynchronously",
        ),
        "stragglers": (cost.hours_lost_to_stragglers, "replace the slow ranks"),
        "missing nodes": (cost.hours_lost_to_missing_nodes, "keep spare nodes (--spare-nodes)"),
    }
    worst = max(losses, key=lambda name: losses[name][0])
    text = f"The run makes {cost.useful_fraction:.1%} of its {cost.ideal_steps:,} ideal steps"
    if losses[worst][0] <= 0:
        return text + "."
    return f"{text}; most is lost to {worst} ({losses[worst][0]:.1f} of {scenario.hours:g} hours): {losses[worst][1]}."


def _draw_failures(scenario: Scenario, generator: np.random.Generator, end: float) -> tuple[list[float], list[float]]:
    gap = 3600 * scenario.node_mtbf_hours / scenario.nodes
    failures: list[float] = []
    at = float(generator.exponential(gap))
    while at < end:
        failures.append(at)
        at += float(generator.exponential(gap))
    return failures, [moment + 3600 * scenario.repair_hours for moment in failures]


def _compare_shares(scenario: Scenario, total: int, cost: TrainingCost) -> None:
    """Compute how stragglers slow a step with equal shares and with shares in proportion to speed."""
    slow = round(scenario.ranks * scenario.stragglers)
    if not slow or scenario.slowdown == 1:
        return
    speed = np.ones(scenario.ranks)
    speed[:slow] /= scenario.slowdown
    shares = np.asarray(balanced_shares(speed.tolist(), total))
    cost.step_slowdown_even_shares = scenario.slowdown
    cost.step_slowdown_adaptive = float((shares * scenario.ranks / speed).max())
