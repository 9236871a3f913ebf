"""A run that is cut anywhere and continued from its state equals the uncut run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dorm.core.invariants import violations
from dorm.core.query.plans import copy_of
from dorm.core.state import digest
from events import kinds as k
from events.quantities import SECOND
from replay.simulator import SimulationError
from replay.simulator.scenario import Outage, Running, Scenario
from replay.simulator.simulation import Simulation
from replay.simulator.workload import SimulatedNode
from tests.errors import raises
from tests.simulator.scenarios import app, nodes, play, played, scenarios
from tests.tries import tries

if TYPE_CHECKING:
    from dorm.core.state import State


class Cut:
    """A run, what it was after its record `seq`, and when its apps ended in the end."""

    def __init__(self, scenario: Scenario, seq: int) -> None:
        self.scenario = scenario
        self.simulation = Simulation(scenario)
        self.state: State | None = None
        self.ended: dict[str, tuple[int, str]] = {}
        self._seq = seq
        self.simulation.observe(self._watch)
        self.simulation.run()

    def _watch(self, _state, record, _folded) -> None:  # type: ignore[no-untyped-def]
        event = _folded.event
        if record.seq == self._seq:
            self.state = copy_of(self.simulation.state)
            self.to_come = [one for _, one in sorted(self.simulation._to_come.items())]
            self.running = self.simulation.running()
        self.ended |= ends(record.time, event)

    def fork(self) -> Simulation:
        """All that was still to happen, in times from the cut."""
        assert self.state is not None
        passed_s = (self.state.time - self.simulation.begin) / SECOND
        later = tuple(
            msgspec.structs.replace(
                one,
                at_s=one.at_s - passed_s,
                cancel_at_s=None if one.cancel_at_s is None else one.cancel_at_s - passed_s,
                submission=f"simulator-{self.scenario.apps.index(one)}",
            )
            for one in self.to_come
        )
        outages = tuple(
            msgspec.structs.replace(outage, at_s=outage.at_s - passed_s)
            for outage in self.scenario.outages
            if outage.for_s is None or outage.at_s + outage.for_s > passed_s
        )
        scenario = msgspec.structs.replace(self.scenario, apps=later, outages=outages)
        fork = Simulation(scenario, state=self.state, running=self.with_accepted())
        for one in self.scenario.apps:
            if one.cancel_at_s is not None and one not in self.to_come and one.cancel_at_s > passed_s:
                fork.publish_at(
                    one.cancel_at_s - passed_s, k.AppCancelRequested(app=self.id_of(one.spec.name)), "client"
                )
        return fork

    def with_accepted(self) -> dict[str, Running]:
        """The cut may fall between a round and what its agents make of it."""
        assert self.state is not None
        models = {one.spec.name: one for one in self.scenario.apps}
        lacking = {name: Running(models[app.name]) for name, app in self.state.apps.items() if not app.ended}
        return lacking | self.running

    def id_of(self, name: str) -> str:
        assert self.state is not None
        return self.state.names.get(name, name)


def ends(time: int, event: k.Event) -> dict[str, tuple[int, str]]:
    facts = event.events if isinstance(event, k.Round) else ()
    return {
        fact.app: (time, type(fact).__name__)
        for fact in facts
        if isinstance(fact, k.AppCompleted | k.AppFailed | k.AppCancelled)
    }


@settings(max_examples=tries(6, 12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios(), st.floats(0, 1))
@pytest.mark.soak
def test_a_fork_of_any_moment_breaks_no_invariant_and_ends(scenario: Scenario, part: float) -> None:
    last = play(scenario).state.seq
    cut = Cut(scenario, max(1, int(part * last)))
    fork = cut.fork()
    assert cut.state is not None
    before = digest(cut.state)

    def check(*_seen) -> None:  # type: ignore[no-untyped-def]
        assert violations(fork.state) == []

    fork.observe(check)
    fork.run()
    assert digest(cut.state) == before
    if all(outage.for_s is not None for outage in scenario.outages):
        assert fork.unfinished == []


def settled(state: State) -> bool:
    """No fact is due: everything that will happen is a future event, or work that ends."""
    live = [app for app in state.apps.values() if not app.ended]
    return (
        bool(live)
        and not state.submissions
        and not state.rebalance_from
        and all(app.settled or app.current is None for app in live)
        and all(not app.retry_at for app in live)
        and all(node.condition == "up" for node in state.nodes.values())
        and all(g.ended for app in state.apps.values() if app.ended for g in app.generations.values())
    )


def settled_moments(scenario: Scenario) -> list[int]:
    simulation = Simulation(scenario)
    found: list[int] = []
    simulation.observe(lambda state, record, folded: found.append(record.seq) if settled(simulation.state) else None)
    simulation.run()
    return found


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["static", "dorm"])
def test_a_fork_of_a_settled_moment_continues_like_the_run(policy: str) -> None:
    scenario = Scenario(
        apps=tuple(app(f"a-{i}", 97.0 * i, 900.0 + 113 * i, n_max=3 + i, n_min=2 - i % 2) for i in range(6)),
        nodes=nodes(3),
        policy=policy,
        params={"count": 3} if policy == "static" else {},
        outages=(Outage("n1", 700, 50),),
        progress_s=30.0,
    )
    moments = settled_moments(scenario)
    assert len(moments) > 20
    for seq in moments[:: len(moments) // tries(3, 20)]:
        cut = Cut(scenario, seq)
        assert cut.state is not None
        fork = cut.fork()
        later: dict[str, tuple[int, str]] = {}
        fork.observe(lambda state, record, folded, later=later: later.update(ends(record.time, folded.event)))  # type: ignore[misc]
        fork.run()
        assert later.keys() == {name for name, (at, _) in cut.ended.items() if at > cut.state.time}
        for name, (at, how) in later.items():
            assert how == cut.ended[name][1]
            assert abs(at - cut.ended[name][0]) < SECOND, (seq, name)


def test_a_fork_needs_a_model_of_every_live_app() -> None:
    cut = Cut(Scenario(apps=(app("a", 0.0, 1000.0),), nodes=nodes(1)), 8)
    with raises(SimulationError, "simulation.model.missing"):
        Simulation(cut.scenario, state=cut.state)


def test_nodes_that_a_fork_adds_join_it() -> None:
    scenario = Scenario(apps=(app("a", 0.0, 1000.0, n_max=8),), nodes=nodes(1), idle_s=5.0)
    cut = Cut(scenario, 12)
    more = SimulatedNode("extra", {"cpu": 4000, "memory": 2**36})
    bigger = msgspec.structs.replace(scenario, apps=(), nodes=(*scenario.nodes, more))
    written = played(Simulation(bigger, state=cut.state, running=cut.with_accepted()))
    (end,) = [
        at
        for record, event in zip(written.records, written.events, strict=True)
        for at, _ in ends(record.time, event).values()
    ]
    assert "extra" in written.state.nodes
    assert end < next(iter(cut.ended.values()))[0]


def test_a_lost_node_s_lease_ends_in_a_fork_too() -> None:
    scenario = Scenario(
        apps=(app("a", 0.0, 1000.0, n_min=5, n_max=5),), nodes=nodes(3), outages=(Outage("n0", 30.0, None),)
    )
    lost = next(
        record.seq
        for record, event in zip(*play(scenario)[2:], strict=True)
        if isinstance(event, k.Round) and any(isinstance(fact, k.NodeLost) for fact in event.events)
    )
    cut = Cut(scenario, lost)
    fork = Simulation(
        msgspec.structs.replace(scenario, apps=(), outages=()), state=cut.state, running=cut.with_accepted()
    )
    fork.run()
    assert fork.unfinished == []
