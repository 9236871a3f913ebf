"""Sequences of valid and hostile records: no record stops a master or an agent, and every promise holds.

Hypothesis chooses the order and, if something breaks, finds the shortest sequence that still does."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agents.desired import Desired
from agents.reconcile import reconcile
from dorm.core.evolve import evolve
from dorm.core.invariants import violations
from dorm.core.next_round import decide
from dorm.core.parts.deriving import part_of
from dorm.core.query.views import app_rows, describe, node_rows, summary
from dorm.core.snapshot import copy, restore
from dorm.core.state import State, digest
from dorm.core.timing import next_deadline
from events import kinds as k
from events import subjects
from events.codec import decode, encode
from events.limits import LEAST_MAX_PAYLOAD
from events.log.records import Record
from events.quantities import SECOND
from tests.core.fold.pills import FACTS, KINDS, NO_EVENTS, bodies_of, document_of, poisoned, subject_of, wrapped
from tests.core.records import CLUSTER, Bench, document, joined
from tests.tries import tries

NODES = ("n1", "n2", "n3")
PILLS = st.integers(0, 10_000)


class History(RuleBasedStateMachine):
    """One cluster's log, with a master and an agent that fold all of it."""

    @initialize()
    def begin(self) -> None:
        self.bench = Bench(**dict.fromkeys(NODES, 4))
        self.bench.add(k.PolicyChanged(policy="static", params={"count": 2}))
        self.bench.running("run")
        self.agent = Desired("n1")
        self.folded = 0
        self.forged = False
        """Whether a stranger published as the master: then only that nothing stops is promised."""
        self.names = 0

    # --- what is valid --------------------------------------------------------------------------------------------------

    @rule(n_max=st.integers(1, 6), grace=st.sampled_from(["0s", "1h"]), retries=st.integers(0, 3))
    def submits(self, n_max: int, grace: str, retries: int) -> None:
        self.names += 1
        spec = document(f"app-{self.names}", n_max=n_max, grace=grace, retries={"limit": retries, "backoff": 0})
        self._add(k.AppSubmitted(spec=spec), "ann")

    @rule()
    def decides(self) -> None:
        self._decide(self.bench.state, self.bench.now, self._say)

    @rule(seconds=st.sampled_from([0.1, 5, 400]))
    def waits(self, seconds: float) -> None:
        self.bench.wait(seconds)

    @rule(number=st.integers(0, 20), code=st.sampled_from([0, 1, 137]), asked=st.booleans())
    def ends_a_container(self, number: int, code: int, asked: bool) -> None:
        for app, generation, container in self._containers(number):
            key: dict[str, Any] = {"app": app, "generation": generation, "slot": container.slot, "node": container.node}
            kind = k.ContainerStarted(**key) if container.state == "desired" else None
            self._add(kind or k.ContainerExited(**key, exit_code=code, asked=asked), container.node)

    @rule(number=st.integers(0, 5), kill=st.booleans())
    def cancels(self, number: int, kill: bool) -> None:
        apps = list(self.bench.state.apps)
        if apps:
            self._add(k.AppCancelRequested(app=apps[number % len(apps)], kill=kill), "ann")

    @rule(node=st.sampled_from(NODES), drain=st.booleans())
    def drains(self, node: str, drain: bool) -> None:
        self._add(k.NodeDrainRequested(node=node, drain=drain), "operator")

    @rule(node=st.sampled_from(NODES))
    def rejoins(self, node: str) -> None:
        self._add(joined(node), node)

    # --- what is hostile ------------------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(KINDS), number=PILLS, json=st.booleans(), who=st.sampled_from([*NODES, "eve"]))
    def takes_a_pill(self, kind: type[k.Event], number: int, json: bool, who: str) -> None:
        state = self.bench.state
        running = [id for id, app in state.apps.items() if app.generation in app.generations and _has_slot(app)]
        if not running:  # None has started yet, or a hold has stopped it.
            return
        name = running[0]
        plain = document_of(state, kind, name)
        pills = [plain, *poisoned(kind, plain)]
        pill = wrapped(kind, pills[number % len(pills)], epoch=state.epoch, basis=state.seq)
        bodies = list(bodies_of(pill))
        self.forged |= kind in FACTS or kind is k.Round
        if bodies:
            self._raw(subject_of(CLUSTER, kind, who), bodies[-1 if json else 0])

    @rule(kind=st.sampled_from(KINDS), body=st.sampled_from(NO_EVENTS))
    def takes_what_is_no_event(self, kind: type[k.Event], body: bytes) -> None:
        self._raw(subject_of(CLUSTER, kind, "eve"), body)

    @rule(number=PILLS)
    def repeats(self, number: int) -> None:
        old = self.bench.records[number % len(self.bench.records)]
        self.forged |= subjects.kind_of(old.subject) == k.Round.__name__
        self._raw(old.subject, old.body)

    # --- what has to hold -----------------------------------------------------------------------------------------------

    @invariant()
    def the_agent_folds_it(self) -> None:
        for record in self.bench.records[self.folded :]:
            self.agent.fold(record)
        self.folded = len(self.bench.records)
        self.agent.install(part_of(self.bench.state, CLUSTER, self.agent.node))
        reconcile(self.agent, [], self.bench.now)

    @invariant()
    def no_promise_is_broken(self) -> None:
        assert self.forged or violations(self.bench.state) == []

    def teardown(self) -> None:
        """A new master folds all of it, shows it to people, and leads."""
        twin, bench = State(), self.bench
        for record in bench.records:
            evolve(twin, record)
        assert digest(twin) == digest(bench.state) == digest(restore(copy(bench.state)))
        msgspec.json.encode([app_rows(twin, bench.now), node_rows(twin), summary(twin)])
        msgspec.json.encode([describe(app, bench.now) for app in twin.apps.values()])
        said: list[Record] = []

        def say(facts: list[Any]) -> None:
            round_ = k.Round(
                id=f"new.{twin.seq}", at=bench.now, by="new", epoch=max(1, twin.epoch + (not said)), basis=twin.seq,
                allocated=False, events=facts, core=1,
            )  # fmt: skip
            said.append(Record(twin.seq + 1, max(bench.now, twin.time), subjects.rounds(CLUSTER), encode(round_)))
            assert decode(said[-1]) == round_
            assert len(said[-1].body) < LEAST_MAX_PAYLOAD - 32 * 1024
            void = twin.counters.void_rounds
            evolve(twin, said[-1])
            assert twin.counters.void_rounds == void

        say([k.MasterElected(epoch=twin.epoch + 1)])
        self._decide(twin, max(bench.now, twin.time) + 60 * SECOND, say)
        self.agent.install(part_of(twin, CLUSTER, self.agent.node))

    # --- helpers --------------------------------------------------------------------------------------------------------

    def _raw(self, subject: str, body: bytes) -> None:
        bench = self.bench
        bench.records.append(Record(len(bench.records) + 1, bench.now, subject, body))
        evolve(bench.state, bench.records[-1])

    def _add(self, event: k.Event, who: str) -> None:
        self._raw(subjects.fact(CLUSTER, type(event).__name__, who), encode(event))

    def _say(self, facts: list[Any]) -> None:
        state = self.bench.state
        event = k.Round(at=1, by="m", epoch=state.epoch, basis=state.seq, allocated=False, events=facts)
        self._raw(subjects.rounds(CLUSTER), encode(event))

    def _decide(self, state: State, now: int, say: Any) -> None:
        next_deadline(state, 0)
        for number in range(6):
            facts = decide(state, now, allocate=number > 2).facts
            if facts:
                say(facts)

    def _containers(self, number: int) -> list[Any]:
        found = [
            (app.id, generation.number, container)
            for app in self.bench.state.apps.values()
            for generation in app.generations.values()
            if generation.released
            for container in generation.all_containers()
            if container.state != "exited"
        ]
        return found[number % len(found) :][:1] if found else []


def _has_slot(app: Any) -> bool:
    return 0 in app.generations[app.generation].containers


History.TestCase.settings = settings(
    max_examples=tries(4, 1500), stateful_step_count=tries(25, 60), deadline=None, print_blob=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestHistory = History.TestCase
