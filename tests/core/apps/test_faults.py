"""Whose fault a failure is, in small worlds: good and bad nodes, honest and broken apps."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest

from dorm.core import faults
from dorm.core.timing import next_deadline
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import START, Bench, joined
from tests.core.suspect_node import BAD, failing, fails
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.core.state import App, Container, Generation

Way = Literal["start", "exit", "slow", "flapping"]
"""How a node is bad: nothing starts there, all fails after 5 s, nothing starts within its deadline, or all fails that is
started in every other three minutes."""
HOUR_S = 3600.0
PATIENCE_S = 7200
PAUSES: list[list[float]] = [[0, 2, 10, 60], [0, 2, 10, 60], [0, 2, 10, 60], [0], [0, 60, 300, 900]]
"""Seconds between submissions, by the seed's remainder: within an hour, all at once, or over several hours."""
DORM_EVERY = 16
"""One black hole in so many is decided by the policy `dorm`, the others by `static`."""
START_S = 120.0


class World:
    """A cluster on which time passes: agents start what is released, honest apps end well unless their node is bad."""

    def __init__(self, nodes: int, bad: Mapping[str, Way], cores: float = 2, policy: str = "dorm") -> None:
        self.bench = Bench(**{f"n{number}": cores for number in range(nodes)})
        if policy != "dorm":
            self.bench.add(k.PolicyChanged(policy=policy, params={"count": 1, "backfill": True}))
        self.bad = dict(bad)
        self.broken: set[str] = set()
        self.immune: set[str] = set()
        """Apps that run well on bad nodes."""
        self.lasts_s: dict[str, float] = {}
        self.wasted: dict[str, list[int]] = {}
        """By node, when (log time) a try failed there."""
        self.suspected: list[k.NodeSuspected] = []
        self.trusted: list[k.NodeTrusted] = []
        self.failures: list[k.GenerationFailed | k.AppFailed] = []
        self.failures_at: list[int] = []
        """Log time of each."""
        self._seen = self._allocated_at = 0

    def submit(self, name: str, *, broken: bool = False, lasts_s: float = 20.0, **fields: Any) -> None:
        if broken:
            self.broken.add(name)
        self.lasts_s[name] = lasts_s
        self.bench.submit(name, **{"n_max": 1, "deadlines": {"start": f"{START_S:g}s"}, **fields})

    def run(self, seconds: float, step_s: float = 2.0) -> None:
        """Let time pass in steps; steps in which nothing can happen are left out."""
        end = self.bench.now + int(seconds * SECOND)
        while self.bench.now < end:
            before = self.bench.state.seq
            self._step()
            quiet = self.bench.state.seq == before
            self.bench.wait(step_s)
            if quiet:
                self.bench.now = max(self.bench.now, min(end, self._next_at(end)))

    def _next_at(self, end: int) -> int:
        """Return when (log time) something happens next: a deadline of the master, or the end of a container."""
        due = next_deadline(self.bench.state, self._allocated_at)
        times = [end if due is None else due]
        for app in self.bench.state.apps.values():
            for generation in app.generations.values():
                for container in generation.containers.values():
                    if container.state == "running":
                        lasts_s = min(self._fails_after_s(app, container), self.lasts_s[app.name])
                        times.append(container.started_at + int(min(lasts_s, 1e9) * SECOND))
        return min(times)

    def settled(self) -> None:
        """Let the master say what follows."""
        for fact in self._said():
            if isinstance(fact, k.NodeSuspected):
                self.suspected.append(fact)
            elif isinstance(fact, k.NodeTrusted):
                self.trusted.append(fact)
            elif isinstance(fact, (k.GenerationFailed, k.AppFailed)):
                self.failures.append(fact)
                self.failures_at.append(self.bench.now)
                if fact.fault and self.bench.app(fact.app).name not in self.broken:
                    self.wasted.setdefault(fact.node, []).append(self.bench.now)

    def _said(self) -> list[Any]:
        said: list[Any] = []
        while True:
            state = self.bench.state
            due = next_deadline(state, self._allocated_at)
            if not (facts := self.bench.decide()):
                if state.dirty_seq <= self._seen and (due is None or due > self.bench.now):
                    return said
                self._seen, self._allocated_at = state.dirty_seq, self.bench.now
                facts = self.bench.decide(allocate=True)
            said += facts

    def _step(self) -> None:
        self.settled()
        for app in list(self.bench.state.apps.values()):
            for number, generation in list(app.generations.items()):
                if generation.released and not generation.ended:
                    self._live(app, number, generation)

    def _live(self, app: App, number: int, generation: Generation) -> None:
        for container in list(generation.containers.values()):
            if container.state == "exited":
                continue
            if number < app.generation or generation.failed or app.ended:
                self._exits(app, number, container, 143, asked=True)
            elif container.state == "desired":
                self._starts(app, number, container)
            elif self.bench.now - container.started_at >= self._fails_after_s(app, container) * SECOND:
                self._exits(app, number, container, 1)
            elif self.bench.now - container.started_at >= self.lasts_s[app.name] * SECOND:
                self._exits(app, number, container, 0)

    def _is_bad(self, node: str, way: Way, started_at: int = 0) -> bool:
        found = self.bad.get(node)
        if found == "flapping" and way == "exit":
            return (started_at // SECOND // 180) % 2 == 0
        return found == way

    def _fails_after_s(self, app: App, container: Container) -> float:
        if app.name in self.broken:
            return 2.0
        if app.name in self.immune:
            return float("inf")
        return 5.0 if self._is_bad(container.node, "exit", container.started_at) else float("inf")

    def _starts(self, app: App, number: int, container: Container) -> None:
        if self._is_bad(container.node, "slow"):
            return
        if self._is_bad(container.node, "start"):
            self._exits(app, number, container, None, reason="command", message="no such file or directory")
            return
        self.bench.add(
            k.ContainerStarted(app=app.id, generation=number, slot=container.slot, node=container.node), container.node
        )

    def _exits(self, app: App, number: int, container: Container, code: int | None, **how: Any) -> None:
        self.bench.add(
            k.ContainerExited(
                app=app.id, generation=number, slot=container.slot, node=container.node, exit_code=code, **how
            )
        )

    def app(self, name: str) -> App:
        return self.bench.app(name)


def bench_with_a_failure(**nodes: float) -> tuple[Bench, str]:
    """An app that has failed on the node where it was placed first."""
    bench = Bench(**nodes)
    bench.running("app", n_max=1, retries={"limit": 0})
    where = bench.placed("app")
    bench.exited(code=1)
    return bench, where


class TestPairs:
    def test_a_failure_is_open_and_the_next_try_goes_elsewhere(self) -> None:
        bench, where = bench_with_a_failure(a=8, b=1)
        (fact,) = bench.decide()
        assert isinstance(fact, k.GenerationFailed)
        assert (fact.fault, fact.node, fact.counted, fact.retries) == ("open", where, False, 0)
        bench.wait(2)
        bench.settle()
        assert bench.placed("app") != where, "although the other node is smaller"

    def test_it_fails_for_good_where_no_other_node_could_take_it(self) -> None:
        bench, _ = bench_with_a_failure(a=8)
        (fact,) = bench.decide()
        assert isinstance(fact, k.AppFailed)
        assert fact.fault == ""

    def test_it_is_broken_if_it_failed_on_all_nodes(self) -> None:
        bench, _ = bench_with_a_failure(a=2, b=2)
        bench.decide()
        bench.wait(2)
        bench.settle()
        bench.started()
        bench.exited(code=1)
        (fact,) = bench.decide()
        assert isinstance(fact, k.AppFailed)
        assert fact.fault == "app"
        assert "no other node could take it" in fact.reason
        assert not any(node.failed for node in bench.state.nodes.values()), "it says nothing about nodes"

    def test_open_failures_count_once_the_app_is_broken(self) -> None:
        world = World(10, {})
        world.submit("app", broken=True, retries={"limit": 2, "backoff": "1s"})
        world.run(60)
        last = world.failures[-1]
        assert isinstance(last, k.AppFailed)
        assert [fact.fault for fact in world.failures] == ["open", "open", "open", "app"]
        assert len({fact.node for fact in world.failures}) == 4

    def test_a_command_that_is_missing_on_one_node_does_not_end_the_app(self) -> None:
        world = World(3, {"n0": "start"})
        for number in range(6):
            world.submit(f"j{number}")
        world.run(120)
        assert {app.ended for app in world.bench.state.apps.values()} == {"completed"}
        assert all("would end in the same way" not in fact.reason for fact in world.failures)

    def test_fatal_exit_codes_are_final_at_once(self) -> None:
        bench = Bench(a=2, b=2)
        bench.running("app", n_max=1, retries={"fatal_exit_codes": [3]})
        bench.exited(code=3)
        assert [type(fact) for fact in bench.decide()] == [k.AppFailed]

    def test_what_ran_for_long_is_no_failure_of_a_pair(self) -> None:
        bench = Bench(a=2, b=2)
        bench.running("app", n_max=1)
        bench.wait(faults.SHORT_S)
        bench.exited(code=1)
        (fact,) = bench.decide()
        assert isinstance(fact, k.GenerationFailed)
        assert (fact.fault, fact.counted) == ("", True)

    @pytest.mark.parametrize(("ran_s", "fault"), [(5, "open"), (faults.SHORT_S, ""), (-3600, "")])
    def test_an_end_that_is_reported_late_counts_by_the_nodes_clock(self, ran_s: int, fault: str) -> None:
        """The node was cut off, or the log was away."""
        bench = Bench(a=2, b=2)
        bench.running("app", n_max=1, retries={"limit": 3})
        bench.wait(2 * faults.SHORT_S)
        bench.exited(code=1, started_at=10_000 * SECOND, exited_at=(10_000 + ran_s) * SECOND)
        (fact,) = bench.decide()
        assert isinstance(fact, k.GenerationFailed)
        assert fact.fault == fault

    def test_a_node_on_which_others_ran_well_counts_twice(self) -> None:
        world = World(10, {})
        world.submit("app", broken=True, retries={"limit": 0, "backoff": "120s"})
        world.run(8)
        (first,) = world.failures
        node = world.bench.state.nodes[first.node]
        world.bench.add(joined(node.id, 2, labels={"first": ""}))
        world.submit("other", require="has first")
        world.run(1200)
        assert world.app("other").ended == "completed"
        assert [fact.fault for fact in world.failures] == ["open", "open", "app"]
        assert "where others ran well" in world.failures[-1].reason

    def test_a_pair_is_avoided_for_a_while_only(self) -> None:
        bench, where = bench_with_a_failure(a=2, b=2)
        bench.decide()
        app = bench.app()
        assert faults.avoided(bench.state, app, bench.now) == [where]
        assert faults.avoided(bench.state, app, bench.now + int(HOUR_S * SECOND)) == []

    def test_two_containers_that_need_both_nodes_avoid_none(self) -> None:
        bench = Bench(a=1, b=1)
        bench.running("app", n_min=2, n_max=2)
        bench.exited(slot=1, code=1)
        bench.decide()
        assert faults.avoided(bench.state, bench.app(), bench.now) == []
        bench.exited(slot=0, code=143, asked=True)
        bench.wait(5)
        bench.settle()
        assert len(bench.app().generations[bench.app().generation].containers) == 2

    def test_a_broken_app_with_long_pauses_is_not_tried_for_ever(self) -> None:
        bench = Bench(a=2, b=2)
        bench.submit(n_max=1, retries={"limit": 0, "backoff": "2h", "longest": "2h"})
        for _ in range(faults.MOST_OPEN + 1):
            bench.settle()
            bench.started()
            bench.exited(code=1)
            fact = bench.decide()[0]
            bench.wait(3 * HOUR_S)
        assert isinstance(fact, k.AppFailed)
        assert fact.fault == "app"
        assert f"failed {faults.MOST_OPEN + 1} times" in fact.reason

    def test_an_app_that_no_node_can_start_is_no_nodes_fault(self) -> None:
        bench = Bench(**{f"n{number}": 2.0 for number in range(6)})
        bench.submit(n_max=1)
        faults_of = []
        for _ in range(4):
            bench.settle()
            bench.exited(code=None, reason="start", message="the engine refuses its options")
            (fact,) = bench.decide()
            assert isinstance(fact, k.GenerationFailed)
            assert not fact.counted, "it may still be that all nodes have the same trouble"
            faults_of.append(fact.fault)
            bench.wait(60)
        assert faults_of == ["node", "node", "node", "app"]
        assert not any(node.failed for node in bench.state.nodes.values())

    def test_an_edit_of_its_owner_forgets_what_failed(self) -> None:
        bench, _ = bench_with_a_failure(a=2, b=2)
        bench.decide()
        bench.add(k.AppUpdated(app="app", weight=2.0))
        assert bench.app().failed_on == {}


def suspect_world(**fields: Any) -> World:
    """Three nodes, on one of which all fails, and jobs until it is suspect."""
    world = World(3, {"n1": "exit"})
    for number in range(8):
        world.submit(f"j{number}", **fields)
    world.run(30)
    assert [fact.node for fact in world.suspected] == ["n1"]
    return world


def probed_world() -> World:
    """A suspect node that is well again, and whose first probe is due."""
    world = suspect_world()
    world.bad.clear()
    world.run(60)
    suspect = world.bench.state.nodes["n1"].suspect
    assert suspect is not None
    world.bench.now = max(world.bench.now, suspect.probe_at)
    return world


def returned_world(relapses: int) -> World:
    """A node has returned by a probe for so many times, and is well."""
    world = probed_world()
    world.submit("probe", lasts_s=10.0)
    world.run(30)
    assert [fact.how for fact in world.trusted] == ["probe"]
    world.bench.state.nodes["n1"].relapses = relapses
    return world


def watched() -> Bench:
    """Two apps have failed on `BAD`, the only node with free room."""
    bench = failing()
    for name in ("one", "two"):
        fails(bench, name)
    for name in ("one", "two"):
        bench.add(k.AppCancelRequested(app=name))
    bench.add(k.NodeDrainRequested(node="other"))
    return bench


class TestWatched:
    def test_it_takes_one_app_at_a_time(self) -> None:
        bench = watched()
        bench.submit("next", n_max=1)
        bench.settle()
        assert bench.app("next").current is None, "another has not run well there yet"
        assert min(pair.at for pair in bench.state.nodes[BAD].failed.values()) + int(HOUR_S * SECOND) in list(
            faults.ends_of_waits(bench.state)
        ), "it is not awaited"

    @pytest.mark.parametrize(
        "fields", [{"hold": True}, {"cpu": 16}, {"n_min": 6, "n_max": 6}], ids=["held", "large", "many"]
    )
    def test_an_app_that_cannot_start_there_keeps_no_other_waiting(self, fields: dict[str, Any]) -> None:
        bench = watched()
        bench.add(joined("big", 16))
        bench.add(k.NodeDrainRequested(node="big"))
        bench.add(k.AppCancelRequested(app="three"))
        bench.decide()
        bench.exited("three", code=None, asked=True)
        bench.submit("never", **fields)
        bench.submit("next", n_max=1)
        bench.settle()
        assert bench.app("never").current is None
        assert bench.placed("next") == BAD


def probe_is_due_after_repair(world: World) -> None:
    """Nothing is wrong with the suspect node any more, and it is time to try it."""
    world.bad.clear()
    world.run(60)
    suspect = world.bench.state.nodes["n1"].suspect
    assert suspect is not None
    world.bench.now = max(world.bench.now, suspect.probe_at)


class TestSuspects:
    def test_a_node_on_which_different_apps_fail_takes_nothing_new(self) -> None:
        world = suspect_world()
        (fact,) = world.suspected
        assert len(fact.apps) >= 3
        assert world.bench.state.nodes["n1"].shown == "suspect"
        before = len(world.wasted["n1"])
        for number in range(8, 20):
            world.submit(f"j{number}")
        world.run(300)
        assert len(world.wasted["n1"]) == before
        assert {app.ended for app in world.bench.state.apps.values()} == {"completed"}

    def test_what_runs_there_stays_and_is_not_resized(self) -> None:
        world = World(3, {})
        world.submit("long", lasts_s=1e6, n_max=1, require="has first")
        world.bench.add(joined("n0", 2, labels={"first": ""}))
        world.run(70)
        assert world.bench.placed("long") == "n0"
        world.bad["n0"] = "exit"
        world.lasts_s["long"] = 1e6
        world.bad.clear()
        node = world.bench.state.nodes["n0"]
        world.bench.say(k.NodeSuspected(node="n0", reason="by hand", least=0, probe_at=world.bench.now + SECOND * 9999))
        assert node.suspect is not None
        world.run(20)
        assert world.app("long").generation == 1
        assert world.app("long").phase == "running"

    @pytest.mark.parametrize("wait_s", [faults.SHORT_S, faults.SHORT_S / 2], ids=["at once", "awaited"])
    def test_failures_count_although_others_ran_well_there_if_their_apps_run_well_elsewhere(
        self, wait_s: float
    ) -> None:
        """A node that fails now and then is not excused by what it starts in between."""
        bench = failing()
        bench.started("three")
        for name in ("one", "two"):
            fails(bench, name)
        bench.exited("three", code=0)
        bench.settle()
        bench.submit("between", n_max=1, require="has bad")
        bench.add(joined(BAD, 4, labels={"bad": ""}))
        bench.add(joined("good", 1, labels={"bad": ""}))  # It has no room now.
        bench.settle()
        bench.started("between")
        bench.wait(faults.SHORT_S)
        bench.exited("between", code=0)
        bench.settle()
        assert all(pair.disproved for pair in bench.state.nodes[BAD].failed.values())
        for name in ("one", "two"):
            bench.started(name)
        bench.wait(wait_s)
        bench.submit("late", n_max=1, require="has bad", retries={"limit": 3})
        bench.settle()
        after = [*fails(bench, "late"), *bench.decide()]
        if wait_s < faults.SHORT_S:
            assert not any(isinstance(fact, k.NodeSuspected) for fact in after)
            known_at = bench.now + int((faults.SHORT_S - wait_s) * SECOND)
            assert known_at in list(faults.ends_of_waits(bench.state)), "it is not awaited"
            bench.now = known_at
            after = bench.decide()
        assert [fact.apps for fact in after if isinstance(fact, k.NodeSuspected)] == [
            [bench.app(name).id for name in ("one", "two", "late")]
        ]

    def test_it_is_probed_and_returns(self) -> None:
        world = suspect_world()
        probe_is_due_after_repair(world)
        world.submit("probe", lasts_s=10.0)
        world.submit("next", lasts_s=10.0)
        world.settled()
        assert world.bench.placed("probe") == "n1"
        assert world.bench.placed("next") != "n1", "one at a time"
        world.run(30)
        assert [(fact.node, fact.how) for fact in world.trusted] == [("n1", "probe")]
        assert world.bench.state.nodes["n1"].shown == "up"

    def test_a_probe_that_runs_for_long_returns_it_too_and_its_time_is_awaited(self) -> None:
        world = suspect_world()
        probe_is_due_after_repair(world)
        world.submit("probe", lasts_s=1e6)
        world.run(4)
        assert world.bench.placed("probe") == "n1"
        assert world.app("probe").phase == "running"
        placed_at = world.bench.now
        while not world.trusted:
            due = next_deadline(world.bench.state, world.bench.now)
            assert due is not None
            assert world.bench.now < due <= placed_at + faults.SHORT_S * SECOND, "it is not awaited"
            world.bench.now = due
            world.settled()
        assert [fact.how for fact in world.trusted] == ["probe"]

    def test_a_failed_probe_costs_no_retry_and_doubles_the_pause(self) -> None:
        world = suspect_world()
        suspect = world.bench.state.nodes["n1"].suspect
        assert suspect is not None
        world.run(100)
        world.bench.now = max(world.bench.now, suspect.probe_at)
        world.submit("probe", lasts_s=10.0)
        world.run(60)
        after = world.bench.state.nodes["n1"].suspect
        assert after is not None
        assert (after.failed_probes, after.probe) == (1, "")
        assert after.probe_at - world.bench.now > 1.9 * (faults.FIRST_PROBE_S - 60) * SECOND
        assert world.app("probe").ended == "completed"
        assert world.app("probe").retries_used == {}

    def test_a_probe_that_fails_by_memory_doubles_the_pause_too(self) -> None:
        world = probed_world()
        world.submit("probe", retries={"limit": 1}, lasts_s=1e6)
        world.run(2)
        assert world.bench.placed("probe") == "n1"
        world.bench.exited("probe", code=137, reason="out_of_memory")
        world.settled()
        assert world.failures[-1].failure == "out_of_memory"
        after = world.bench.state.nodes["n1"].suspect
        assert after is not None
        assert (after.failed_probes, after.probe) == (1, "")
        assert after.probe_at == world.failures_at[-1] + 2 * faults.FIRST_PROBE_S * SECOND

    def test_a_probe_that_loses_its_node_is_repeated_without_a_longer_pause(self) -> None:
        world = probed_world()
        before = world.bench.state.nodes["n1"].suspect
        world.submit("probe", lasts_s=1e6)
        world.run(2)
        assert world.bench.placed("probe") == "n1"
        world.bench.exited("probe", code=143, reason="stopped")
        world.settled()
        after = world.bench.state.nodes["n1"].suspect
        assert before is not None
        assert after is not None
        assert (after.failed_probes, after.probe_at) == (0, before.probe_at)

    def test_the_pause_of_a_node_that_came_back_in_vain_never_falls(self) -> None:
        world = probed_world()
        node = world.bench.state.nodes["n1"]
        node.relapses = 3
        world.bad["n1"] = "exit"
        world.submit("probe", lasts_s=10.0)
        world.run(20)
        assert node.suspect is not None
        assert node.suspect.failed_probes == 1
        assert node.suspect.probe_at > world.bench.now + (faults.FIRST_PROBE_S * 16 - 60) * SECOND

    @pytest.mark.parametrize(
        ("days", "runs_well", "left"), [(0.5, True, 8), (1.5, True, 4), (2.5, True, 2), (30, True, 0), (30, False, 8)]
    )
    def test_returns_are_forgotten_while_a_node_runs_well(self, days: float, runs_well: bool, left: int) -> None:
        world = returned_world(8)
        node = world.bench.state.nodes["n1"]
        world.bench.now = node.trial_until + int(days * 24 * HOUR_S * SECOND)
        if runs_well:
            world.bench.add(joined("n1", 2, labels={"here": ""}))
            world.submit("well", lasts_s=10.0, require="has here")
            world.run(20)
            assert world.app("well").ended == "completed"
        node = world.bench.state.nodes["n1"]
        assert faults.relapses(world.bench.state, node, world.bench.now) == left
        world.bad["n1"] = "exit"
        for number in range(20, 32):
            world.submit(f"j{number}")
        world.run(20)
        pause_s = min(faults.FIRST_PROBE_S << left, faults.LONGEST_PROBE_S)
        assert len(world.suspected) == 2
        since = world.suspected[-1].probe_at - pause_s * SECOND
        assert world.bench.now - 20 * SECOND <= since <= world.bench.now
        assert node.relapses == left

    def test_what_runs_on_for_days_shows_that_a_node_works(self) -> None:
        world = returned_world(8)
        node = world.bench.state.nodes["n1"]
        world.bench.now = node.trial_until
        world.bench.add(joined("n1", 2, labels={"here": ""}))
        world.submit("service", lasts_s=1e9, require="has here")
        world.run(4)
        assert world.app("service").phase == "running"
        node = world.bench.state.nodes["n1"]
        assert faults.relapses(world.bench.state, node, world.bench.now + int(25 * HOUR_S * SECOND)) == 4

    def test_a_broken_probe_keeps_no_good_node_waiting(self) -> None:
        world = probed_world()
        world.submit("probe", broken=True, retries={"limit": 1, "backoff": "1s"})
        world.run(6)
        world.settled()
        node = world.bench.state.nodes["n1"]
        assert node.suspect is not None
        assert node.suspect.failed_probes == 1
        world.run(60)
        assert world.app("probe").ended == "failed"
        assert node.suspect.failed_probes == 0
        world.submit("next", lasts_s=10.0)
        world.run(20)
        assert [fact.how for fact in world.trusted] == ["probe"]

    def test_an_app_that_failed_elsewhere_is_no_probe_while_another_waits(self) -> None:
        world = probed_world()
        world.submit("doubtful", broken=True, retries={"limit": 1, "backoff": "60s"}, require="not has there")
        world.bench.add(joined("n1", 2, labels={"there": ""}))
        world.run(4)
        world.bench.add(joined("n1", 2))
        world.bench.add(k.SchedulingPaused())
        world.run(60)
        world.submit("fresh", lasts_s=10.0)
        world.bench.add(k.SchedulingResumed())
        world.settled()
        assert world.bench.placed("fresh") == "n1"

    def test_an_app_without_retries_is_no_probe(self) -> None:
        world = suspect_world()
        world.run(100)
        suspect = world.bench.state.nodes["n1"].suspect
        assert suspect is not None
        world.bench.now = max(world.bench.now, suspect.probe_at)
        world.submit("once", retries={"limit": 0})
        world.settled()
        assert world.bench.placed("once") != "n1"

    @pytest.mark.parametrize("fields", [{"hold": True}, {"n_min": 3, "n_max": 3}], ids=["held", "large"])
    def test_an_app_that_cannot_start_there_keeps_no_probe_waiting(self, fields: dict[str, Any]) -> None:
        world = probed_world()
        world.submit("never", **fields)
        world.submit("probe", lasts_s=10.0)
        world.settled()
        assert world.bench.placed("probe") == "n1"

    def test_an_app_for_which_no_port_is_free_there_goes_elsewhere(self) -> None:
        world = probed_world()
        world.bench.add(joined("n1", 2, ports=(20000, 20000)))
        world.submit("app", lasts_s=10.0)
        world.settled()
        assert world.app("app").current is not None
        assert world.bench.placed("app") != "n1"

    def test_after_a_long_time_an_app_that_needs_less_is_a_probe(self) -> None:
        world = probed_world()
        node = world.bench.state.nodes["n1"]
        assert node.suspect is not None
        node.suspect = msgspec.structs.replace(node.suspect, needs=["cpu", "secrets"])
        world.submit("soon", lasts_s=10.0)
        world.run(30)
        assert world.trusted == []
        late = node.suspect.probe_at + faults.LONGEST_PROBE_S * SECOND
        assert late in list(faults.ends_of_waits(world.bench.state))
        world.bench.now = late
        world.submit("later", lasts_s=10.0)
        world.run(30)
        assert [fact.how for fact in world.trusted] == ["probe"]

    def test_an_operator_trusts_it(self) -> None:
        world = suspect_world()
        world.bench.add(k.NodeTrustRequested(node="n1"))
        node = world.bench.state.nodes["n1"]
        assert (node.suspect, node.failed, node.usable) == (None, {}, True)
        before = world.bench.state.counters.ignored
        world.bench.add(k.NodeTrustRequested(node="n1"))
        assert world.bench.state.counters.ignored == before + 1

    def test_a_restarted_agent_is_probed_at_once(self) -> None:
        world = suspect_world()
        world.bench.add(joined("n1", 2, process="other"))
        suspect = world.bench.state.nodes["n1"].suspect
        assert suspect is not None
        assert suspect.probe_at == world.bench.now

    def test_the_rule_can_be_turned_off(self) -> None:
        world = suspect_world()
        world.bench.add(k.PolicyChanged(suspect_after=0))
        world.run(4)
        assert [(fact.node, fact.how) for fact in world.trusted] == [("n1", "operator")]

    def test_after_its_return_one_failure_is_enough(self) -> None:
        world = suspect_world()
        probe_is_due_after_repair(world)
        world.submit("probe", lasts_s=10.0)
        world.run(30)
        world.bad["n1"] = "exit"
        for number in range(20, 26):
            world.submit(f"j{number}")
        world.run(30)
        assert len(world.suspected) == 2
        assert world.suspected[1].least == 1

    @pytest.mark.parametrize(("user", "counts"), [("alice", True), ("mallory", False)])
    def test_failures_of_one_owner_do_not_count_where_anothers_app_ran_well(self, user: str, counts: bool) -> None:
        """Nobody can make a node suspect with apps that are written to fail there and run well elsewhere."""
        world = World(3, {"n1": "exit"})
        world.immune.add("honest")
        for number in range(5):
            world.submit(f"m{number}", user=user)
        world.run(40)
        assert 0 < len(world.wasted["n1"]) < 3
        world.bench.add(joined("n1", 2, labels={"first": ""}))
        world.submit("honest", user="alice", require="has first")
        world.run(40)
        assert world.app("honest").ended == "completed"
        assert ("n1" in faults.evidence(world.bench.state, world.bench.now)) == counts

    def test_broken_apps_stop_no_cluster(self) -> None:
        broken_apps()


def broken_apps() -> None:
    """Whether a broken image or a hostile user: at most a third of the nodes are suspect, and not for long."""
    world = World(3, {}, cores=16)
    world.submit("honest", lasts_s=1e6)
    names = [f"b{number}" for number in range(12)]
    for name in names:
        world.submit(name, broken=True)
    most = 0
    for _ in range(40):
        world.run(2)
        most = max(most, sum(node.suspect is not None for node in world.bench.state.nodes.values()))
    assert most <= 1
    assert {world.app(name).ended for name in names} == {"failed"}
    assert not any(node.suspect for node in world.bench.state.nodes.values())
    assert {fact.how for fact in world.trusted} <= {"evidence"}


@pytest.mark.parametrize("way", ["start", "exit", "slow", "flapping"])
@pytest.mark.parametrize("policy", ["dorm", "static"])
def test_of_a_batch_that_starts_at_once_each_app_loses_one_try_at_most(policy: str, way: Way) -> None:
    """Nothing is known of the node until the first of them has failed, and no start waits for that."""
    world = World(3, {"n0": way}, cores=16, policy=policy)
    for number in range(12):
        world.submit(f"j{number}", retries={"limit": 0})
    world.run(1200)
    failed = [fact.app for fact in world.failures]
    assert len(failed) == len(set(failed)) == len(world.wasted["n0"]) == 12
    assert {app.ended for app in world.bench.state.apps.values()} == {"completed"}
    assert [fact.node for fact in world.suspected] == ["n0"]
    first, last = min(world.wasted["n0"]), max(world.wasted["n0"])
    assert last == first, "nothing is placed there once these have failed"


@pytest.mark.parametrize("seed", [*range(tries(2, 5000)), 750])
def test_a_black_hole_swallows_nobody(seed: int) -> None:
    black_hole(seed)


VARIANTS: dict[str, tuple[str, Any, Any]] = {
    "it is tried again on the same node": ("_is_recent", lambda state, pair, now: False, lambda: black_hole(7)),
    "each failure counts against the app": ("verdict", lambda *_: faults.Verdict(""), lambda: black_hole(7)),
    "no node is suspect": ("_becomes", lambda *_: None, lambda: black_hole(7)),
    "all nodes may be suspect": ("_most_suspects", lambda state: 99, broken_apps),
    "failures of broken apps stay with nodes": ("_clear_nodes", lambda *_: None, broken_apps),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_variant_is_caught(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, instead, scenario = VARIANTS[variant]
    monkeypatch.setattr(faults, name, instead)
    with pytest.raises(AssertionError):
        scenario()


def black_hole(seed: int) -> None:
    """No honest app fails, a bad node wastes at most k + 1 tries an hour, and a broken app makes no good node suspect for
    longer than the first probe."""
    chance = Random(seed)
    ways: list[Way] = ["start", "exit", "slow", "flapping"]
    number = chance.randint(1, 3)
    bad: dict[str, Way] = {f"n{node}": chance.choice(ways) for node in chance.sample(range(10), number)}
    # Most of the time goes into the search of the policy `dorm`, which says nothing about whose fault a failure is.
    world = World(10, bad, policy="dorm" if seed % DORM_EVERY == 7 else "static")
    limit = chance.choice([0, 0, 3])
    broken = chance.choice([0, 0, 1, 2])
    for app in range(chance.randint(10, 40)):
        fields: dict[str, Any] = {"retries": {"limit": limit}}
        if chance.random() < 0.3:
            fields["n_min"] = fields["n_max"] = chance.choice([2, 4])
        is_broken = broken > 0 and chance.random() < 0.1
        broken -= is_broken
        world.submit(f"j{app}", broken=is_broken, lasts_s=chance.choice([10, 20, 90, 400]), **fields)
        world.run(chance.choice(PAUSES[seed % len(PAUSES)]))
    state = world.bench.state
    world.run(1200, step_s=5)
    while state.names and world.bench.now < START + PATIENCE_S * SECOND:  # Large apps wait for each other.
        world.run(600, step_s=5)
    ended = {app.name: app.ended for app in state.apps.values()}
    assert [name for name, how in ended.items() if how == "failed" and name not in world.broken] == [], f"seed {seed}"
    assert all(ended[name] == "failed" for name in world.broken), f"seed {seed}"
    assert {how for name, how in ended.items() if name not in world.broken} == {"completed"}, f"seed {seed}: {ended}"
    most = state.settings.suspect_after + 1
    for node in bad:
        tried = world.wasted.get(node, [])
        for at in tried:
            within = [one for one in tried if at <= one < at + HOUR_S * SECOND]
            assert len(within) <= most, f"seed {seed}: {node} ({bad[node]}) wasted {len(within)} tries within an hour"
    good = [name for name, node in state.nodes.items() if node.suspect is not None and name not in bad]
    for name in good:
        suspect = state.nodes[name].suspect
        assert suspect is not None
        assert suspect.probe_at <= suspect.since + faults.FIRST_PROBE_S * SECOND, f"seed {seed}: {name}"
        world.bench.now = max(world.bench.now, suspect.probe_at)
    for name in good:
        world.submit(f"probe-{name}", lasts_s=10)
    world.run(300)
    still = [name for name in good if state.nodes[name].suspect is not None]
    assert still == [], f"seed {seed}: a probe ran, and {still} have not returned"
