"""Histories of a whole virtual cluster, each from one seed, and broken cores that they must catch.

A failure names its seed: `World(seed).run()` plays it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import agents.reconcile as reconciling
import dorm.core.allocation as allocating
import dorm.core.asking as asking
import dorm.core.deadlines as deadlines
import dorm.core.effects as effects
import dorm.core.evolve as evolving
import dorm.core.failures as failures
import dorm.core.leader as leading
import dorm.core.next_round as deciding
import dorm.core.placement as placing
import dorm.core.policy_in_force as policies
import dorm.core.rounds as rounds
import dorm.core.timing as living
import dorm.core.timing as timing
from agents.desired import Desired
from dorm.core.generation import Generation
from dorm.core.parts import deriving
from dorm.core.state import State, digest
from events import kinds as k
from events.codec import decode
from events.quantities import SECOND
from tests.core.mutants import mutate, mutate_method
from tests.core.records import document
from tests.core.virtual.world import World
from tests.policies import any_policy
from tests.tries import tries

if TYPE_CHECKING:
    from types import ModuleType

NOT_DECIDED = k.MasterElected | k.NodeLost | k.NodeRecovered | k.NodeLeaseEnded


@pytest.mark.parametrize("first", range(0, tries(10, 60), 10))
def test_any_history_keeps_every_promise(first: int) -> None:
    for seed in range(first, first + 10):
        World(seed, outages=0.3 * (seed % 2)).run()


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1000 + tries(40, 800), 20))
def test_longer_histories_keep_them_too(first: int) -> None:
    for seed in range(first, first + 20):
        World(seed, steps=300, outages=0.3 * (seed % 2)).run()


def test_containers_end_with_the_lease_regardless_of_the_agent() -> None:
    """An agent that was restarted while it was cut off once believed that it had just been heard; then two generations
    ran at once."""
    world = World(0)
    world.faults, world.slipping = 0.0, True
    world.publish(k.PolicyChanged(policy=any_policy.NAME, heartbeat_s=1, node_grace_s=5, node_lease_s=30), "operator")
    for one in world.nodes:
        one.start()
    world.publish(k.AppSubmitted(id="s", spec=document("ant", cpu=1, n_min=1, n_max=1)), "ann")
    for _ in range(3):
        world.cycle()
    (node,) = [one for one in world.nodes if one.engine_busy]
    for toy in node.engine.values():
        toy.life = 10**6
    node.connected = False
    lease_ends = world.now + 30 * SECOND
    for second in range(40):
        if second == 25:
            node.start()
        world.pass_time(1000)
        assert node.engine_busy == (world.now <= lease_ends)
    for seed in (2985, 3186, 3246):
        World(seed, steps=300, outages=0.3 * (seed % 2)).run()


@pytest.mark.soak
@pytest.mark.slow
def test_histories_under_the_optimizer() -> None:
    for seed in range(tries(12, 200)):
        World(seed, policies=("dorm",)).run()


def test_histories_under_plans() -> None:
    """Plans meet lost nodes, failures, drains and changes of the policy; an audit makes every one again."""
    planned = 0
    for seed in range(tries(6, 200)):
        world = World(seed, policies=("oasis", "oasis", "static"))
        audit(world.run())
        rounds = [event for record in world.log if isinstance(event := decode(record), k.Round)]
        planned += sum(isinstance(fact, k.AppPlanned) for event in rounds for fact in event.events)
    assert planned > 10


def test_an_audit_of_a_history_finds_every_decision_again() -> None:
    for seed in range(tries(2, 40)):
        audit(World(seed).run())


def audit(world: World) -> None:
    """Each round that a master decided follows from the state at its basis, byte for byte."""
    decided: dict[int, list[k.Round]] = {}
    for event in map(decode, world.log):
        if isinstance(event, k.Round) and event.by == "m" and not isinstance(event.events[0], NOT_DECIDED):
            decided.setdefault(event.basis, []).append(event)
    assert decided
    state = State()
    for record in world.log:
        evolving.evolve(state, record)
        for event in decided.get(record.seq, []):
            assert deciding.decide(state, event.at, allocate=event.allocated).facts == event.events, world.seed
            for fact in event.events:
                assert not isinstance(fact, k.Resized) or fact.digest == digest(state), world.seed


# --- mutants ------------------------------------------------------------------------------------------------------------


def caught_within(
    most: int, *, first: int = 0, agents_rejoin: bool = True, live: float = 0.0, steps: int = 200
) -> int | None:
    """The number of histories after which a broken core was caught, from the seed `first` on; None for never."""
    for seed in range(first, first + most):
        try:
            World(seed, steps=steps, outages=0.8 * (seed % 2), agents_rejoin=agents_rejoin, live=live).run()
        except AssertionError:
            return seed - first + 1
    return None


MUTANTS: dict[str, tuple[ModuleType, str, str]] = {
    "the barrier is ignored": (
        deciding,
        "if not all(g.ended for number, g in app.generations.items() if number < current.number):",
        "if False:",
    ),
    "room is not checked": (deciding, "if _take_room(state, free, candidate)", "if True"),
    "an asked exit counts as done": (failures, "exit_code == 0 and not container.asked", "exit_code == 0"),
    "what runs takes no room": (deciding, 'container.state != "exited" and', 'container.state == "desired" and'),
    "overtaken decisions stand": (rounds, "app.changed_seq > basis or _nodes_changed(", "False and _nodes_changed("),
    "exits are not idempotent": (evolving, 'if container.state == "exited":', "if False:"),
    "a void plan that was released stays void": (rounds, "generation.void = False", "pass"),
    "plans on a drained node stay": (effects, "generation.void = True", "pass"),
    "the fence stands before unreadable rounds": (
        evolving,
        "state.counters.unreadable += 1\n    _move_fence(state, record)",
        "state.counters.unreadable += 1",
    ),
    "the lease is as short as the grace": (living, "silence > max(lease, grace)", "silence > grace"),
    "ports are given twice": (placing, "self._taken.update(dict.fromkeys(all_ports(generation)))", "pass"),
    "ports of ended generations stay taken": (
        placing,
        "if stays and app.id not in changing:",
        "if (stays and app.id not in changing) or not may_run(generation):",
    ),
    "apps that wait are pinned, and those that run are not": (
        asking,
        "pinned = current is not None and not _may_change(",
        "pinned = current is None and not _may_change(",
    ),
    "ticks never end": (policies, "state.rebalance_from = 0", "pass"),
    "ticks come when it is not quiet": (
        timing,
        "max(state.rebalance_from, state.dirty_at, state.ticked_at)",
        "state.rebalance_from",
    ),
    "deadlines run while a node is silent": (deadlines, 'node is None or node.condition != "up"', "node is None"),
    "a wait that is over goes on": (rounds, "app.waiting_since = app.interrupted_at = 0", "app.interrupted_at = 0"),
}
RARE: dict[str, tuple[ModuleType, str, str]] = {
    "what never started is never told": (
        reconciling,
        "return ReportExited(key, None) if key in desired.due else None",
        "return None",
    ),
    "what ended is forgotten before it is told": (
        reconciling,
        "if key in desired.due:\n        return False",
        "if False:\n        return False",
    ),
}
"""Broken in ways that take a hundred histories to show."""
SEEN_AT = {
    "the barrier is ignored": 1,
    "overtaken decisions stand": 1,
    "exits are not idempotent": 1,
    "a void plan that was released stays void": 6,
    "plans on a drained node stay": 1,
    "the fence stands before unreadable rounds": 9,
    "the lease is as short as the grace": 51,
    "ports are given twice": 39,
    "ports of ended generations stay taken": 59,
    "ticks never end": 3,
    "deadlines run while a node is silent": 1,
    "what never started is never told": 1,
    "what ended is forgotten before it is told": 11,
    "newcomers start before their room is free": 12,
}
"""Where the search begins: seeds that once caught them. After a change of the core other seeds may, so the search continues
from there."""


@pytest.mark.soak
@pytest.mark.parametrize("name", [*MUTANTS, *(pytest.param(name, marks=pytest.mark.slow) for name in RARE)])
def test_a_broken_core_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new = {**MUTANTS, **RARE}[name]
    mutate(monkeypatch, module, old, new)
    _repoint(monkeypatch)
    assert caught_within(400, first=SEEN_AT.get(name, 0)) is not None


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, tries(40, 800), 10))
def test_histories_of_live_apps_keep_every_promise(first: int) -> None:
    for seed in range(first, first + 10):
        World(seed, steps=400, outages=0.3 * (seed % 2), live=1.0).run()


def test_these_histories_resize_live_and_lose_members() -> None:
    """What the histories above are for does happen in them."""
    committed, lost = 0, False
    for seed in range(20, 60):
        facts = _facts(World(seed, steps=400, live=1.0, outages=0.3).run())
        committed += sum(isinstance(fact, k.MembershipCommitted) for fact in facts)
        lost = lost or any(isinstance(fact, k.MembersLost) for fact in facts)
        if committed > 2 and lost:
            return
    raise AssertionError(f"{committed} memberships were committed, and members {'were' if lost else 'never were'} lost")


def _facts(world: World) -> list[Any]:
    rounds_said = [event for event in map(decode, world.log) if isinstance(event, k.Round)]
    return [fact for event in rounds_said for fact in event.events]


LIVE_MUTANTS: dict[str, tuple[ModuleType, str, str]] = {
    "newcomers start before their room is free": (
        deciding,
        "if _take_room(state, free, candidate)",
        "if candidate.change is not None or _take_room(state, free, candidate)",
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", LIVE_MUTANTS)
def test_broken_live_adjustments_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new = LIVE_MUTANTS[name]
    mutate(monkeypatch, module, old, new)
    _repoint(monkeypatch)
    assert caught_within(300, first=SEEN_AT.get(name, 0), live=1.0, steps=400) is not None


def test_room_of_members_that_have_not_left_yet_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate_method(monkeypatch, Generation, "all_containers", "yield from self.leaving.values()", "pass")
    assert caught_within(300, first=1, live=1.0, steps=400) is not None


def test_an_agent_that_starts_newcomers_before_their_release_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its part takes a decision for a release."""
    mutate(monkeypatch, deriving, "and change.released_at", "")
    assert caught_within(300, first=7, live=1.0, steps=400) is not None


def test_an_agent_that_starts_before_the_release_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate_method(monkeypatch, Desired, "wanted", "if app.released and not", "if not")
    assert caught_within(50) is not None


@pytest.mark.slow
def test_an_agent_that_acts_before_it_has_caught_up_after_its_lease_is_caught() -> None:
    """What it reads first was released to it long ago, and is released elsewhere by now."""
    assert caught_within(400, first=195, agents_rejoin=False) is not None


def _repoint(patch: pytest.MonkeyPatch) -> None:
    """Modules that imported a function by name get the changed one too."""
    for module in (evolving, rounds, deciding, allocating, leading):
        for origin in (effects, rounds, placing, asking, allocating, timing, deciding, living):
            for name in vars(origin):
                if getattr(vars(module).get(name), "__module__", "") == origin.__name__ and module is not origin:
                    patch.setattr(module, name, vars(origin)[name])
