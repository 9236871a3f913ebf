"""Invariants during an audit: the same as those of the whole state, and found where they break."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core import evolve as fold
from dorm.core.evolve import evolve
from dorm.core.invariants import violations
from dorm.core.state import State
from events.kinds import AppCompleted, ContainerStarted, Event, GenerationReleased
from replay.audit import passes
from replay.audit.audit import verify
from replay.audit.passes import Watch
from tests.replay.made_log import Story, log_of, rounds_with

if TYPE_CHECKING:
    import pytest

    from events.log.records import Record


def test_violations_of_the_whole_state_are_found_at_once() -> None:
    story = Story()
    story.submit("one")
    story.settle()
    state, watching = State(), Watch()
    for record in story.records:
        assert watching.after(state, evolve(state, record).event) == []
    app = state.apps[state.names["one"]]
    app.generations[app.generation].containers[0].port = app.generations[app.generation].containers[1].port
    event = ContainerStarted(app=app.id, generation=1, slot=0, node="n0")
    assert watching.after(state, event) == violations(state) != []


async def test_a_fold_that_breaks_a_promise_is_a_divergence(
    written: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that starts twice the size it was decided with fills its node beyond what it has."""
    honest = fold._HANDLERS[ContainerStarted]

    def greedy(state: State, event: ContainerStarted, record: Record) -> None:
        honest(state, event, record)
        state.apps[event.app].demand["cpu"] = 5000

    monkeypatch.setitem(fold._HANDLERS, ContainerStarted, greedy)
    report = await verify(log_of(written))
    assert report.divergence is not None
    assert "breaks an invariant: node n0: " in str(report.divergence)
    assert report.divergence.seq > rounds_with(written, GenerationReleased)[0]


def test_ended_apps_cost_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def counting(state: State) -> list[str]:
        looked_at.append(len(state.apps))
        return violations(state)

    monkeypatch.setattr(passes, "violations", counting)
    story = Story()
    for number in range(6):
        story.submit(f"app{number}", n_max=1)
        story.settle()
        story.exit(f"app{number}", 0)
        story.settle()
    state, watching = State(), Watch()
    events: list[Event] = []
    for record in story.records:
        events.append(evolve(state, record).event)
        assert watching.after(state, events[-1]) == []
    assert len(state.apps) == 6
    assert len(rounds_with(story.records, AppCompleted)) == 6
    assert max(looked_at) == 1
