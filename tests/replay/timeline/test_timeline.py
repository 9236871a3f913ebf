"""The model of a timeline agrees with the state at every time."""

from __future__ import annotations

import asyncio
import json
import math
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.core.evolve import evolve
from dorm.core.query.views import sizes, summary
from dorm.core.state import State
from events import subjects
from events.instants import length_of_phase
from events.kinds import AppNoted, NodeDrainRequested, NodeTrustRequested, PolicyChanged, PolicyFailed, Resized
from replay.moments import AtSequence, AtTime, BeforeEnd, MomentError
from replay.page.timeline import timeline as page_of
from replay.timeline import fold as timeline_bounds
from replay.timeline.fold import timeline
from replay.timeline.labels import decision_lines, mark_line, partition_lines
from replay.timeline.lanes import Steps, Timeline, TimelineError, most_affected, only
from replay.timeline.png import png
from replay.timeline.trace import trace
from tests.core.records import Bench
from tests.core.suspect_node import BAD, suspect
from tests.core.virtual.world import World
from tests.errors import raises
from tests.replay.busy import busy_log
from tests.replay.made_log import Story, all_facts, changed_fact, log_of, rounds_with
from tests.tries import tries

if TYPE_CHECKING:
    from events.log.records import Record
    from replay.moments import Moment


def drawn(records: list[Record], since: Moment | None = None, until: Moment | None = None) -> Timeline:
    return asyncio.run(timeline(log_of(records), since, until))


def test_a_suspect_node_has_a_condition_and_marks_of_its_own() -> None:
    bench = suspect()
    bench.wait(60)
    bench.add(NodeTrustRequested(node=BAD, reason="a new disk"))
    bench.wait(60)
    bench.add(NodeDrainRequested(node=BAD))
    check_against_states(bench.records)
    picture = drawn(bench.records)
    assert "suspect" in picture.nodes[BAD].conditions.values
    marks = [(mark.what, mark.text) for mark in picture.marks if mark.node == BAD]
    assert [what for what, _ in marks if what in ("suspect", "trusted again")] == ["suspect", "trusted again"]
    assert ("trusted again", "a new disk") in marks


def test_a_note_is_a_mark_of_its_app() -> None:
    bench = Bench(n1=1)
    bench.running("a", n_max=1)
    bench.add(AppNoted(app="a", text="the data are in", by="ann"), "ann")
    (mark,) = [mark for mark in drawn(bench.records).marks if mark.kind == "note"]
    assert (mark.app, mark.what, mark.text) == (bench.app("a").id, "ann noted", "the data are in")


def held_on(state: State, node: str) -> dict[str, int]:
    """Containers that may run there, by app."""
    counts: dict[str, int] = {}
    for app in state.apps.values():
        for generation in app.generations.values():
            for container in generation.containers.values():
                if generation.released and container.node == node and container.state != "exited":
                    counts[app.id] = counts.get(app.id, 0) + 1
    return counts


def check_against_states(records: list[Record], since: int = 0) -> None:
    """Everything in the picture, at each moment of the log, against the state then."""
    picture = drawn(records, AtSequence(since) if since else None)
    state = State()
    for index, record in enumerate(records):
        evolve(state, record)
        following = records[index + 1] if index + 1 < len(records) else None
        if state.seq <= since or (following and following.time <= state.time):
            continue  # Of records at one time, a picture holds what was in the end.
        now = state.time
        for name, node in state.nodes.items():
            assert picture.nodes[name].held_at(now) == held_on(state, name)
            condition: str = "draining" if node.condition == "up" and node.draining else node.condition
            condition = "suspect" if condition == "up" and node.suspect is not None else condition
            assert picture.nodes[name].conditions.at(now) == condition
        for app in state.apps.values():
            lane = picture.apps.get(app.id)
            if lane is None:
                assert app.ended_at < picture.start
                continue
            phase, size = lane.phases.at(now), lane.sizes.at(now)
            assert phase is not None
            assert size is not None
            assert (phase.phase, phase.generation) == (app.phase, app.generation)
            assert size.decided == sum(sizes(app).values())
            assert size.held == sum(held_on(state, name).get(app.id, 0) for name in state.nodes)
        found = summary(state)
        assert sum(steps.at(now) or 0 for steps in picture.decided.values()) == pytest.approx(
            found.utilization, abs=1e-5
        )
        waits = [app for app in state.apps.values() if not app.ended and app.current is None]
        assert (picture.waiting.at(now) or 0) == len(waits)


def check_spans(picture: Timeline) -> None:
    """Phases follow each other without a gap, from the submission to the end."""
    for lane in picture.apps.values():
        spans = list(lane.phases.spans(picture.end))
        assert spans[0][0] in (lane.submitted_at, picture.start)
        assert all(before[1] == after[0] and before[0] < before[1] for before, after in pairwise(spans))
        if lane.ended:
            assert spans[-1][2].phase == lane.ended
            assert spans[-1][0] == lane.ended_at
        assert [span for span in spans if span[2].phase in ("completed", "failed", "cancelled")] == spans[-1:] * bool(
            lane.ended
        )
        for partition in lane.partitions.values():
            parts = partition.phases(picture.end)
            assert all(begin < finish for _, begin, finish in parts)
            assert all(one[2] == two[1] for one, two in pairwise(parts))


@pytest.mark.parametrize("since", [0, 40])
def test_a_timeline_of_a_real_log_agrees_with_its_states(records: list[Record], since: int) -> None:
    check_against_states(records, since)
    check_spans(drawn(records))


@settings(max_examples=tries(4, 12), deadline=None)
@given(seed=st.integers(0, 10_000), part=st.floats(0, 1))
def test_a_timeline_of_any_history_agrees_with_its_states(seed: int, part: float) -> None:
    records = World(seed, steps=80).run().log
    check_spans(drawn(records))
    check_against_states(records)
    check_against_states(records, int(part * (len(records) - 1)))


def test_a_timeline_of_a_part_of_a_busy_cluster_agrees_with_its_states() -> None:
    records = busy_log(1600, apps=8, nodes=4, tick_s=20)
    check_spans(drawn(records))
    check_against_states(records[:800])
    since, until = records[600].time, records[1200].time + 1
    part = drawn(records, AtTime(since), AtTime(until))
    assert (part.start, part.end, part.first, part.last) == (since, until, 601, 1201)
    assert all(since <= time <= until for steps in part.all_steps() for time in steps.times)
    assert [one.position for one in part.decisions] == [
        one.position for one in drawn(records).decisions if since < one.time <= until
    ]
    check_spans(part)


@pytest.mark.parametrize("how", ["drained", "lost"])
def test_utilization_with_a_leaving_node_is_at_most_1(how: str) -> None:
    bench = Bench(n1=4, n2=2)
    bench.running(n_min=6, n_max=6)
    bench.wait(60)
    if how == "drained":
        bench.add(NodeDrainRequested(node="n1"))
    else:
        bench.conclude(n1=60, n2=0)
    assert not bench.state.nodes["n1"].usable
    picture = drawn(bench.records)
    assert picture.decided["cpu"].last == picture.held["cpu"].last == summary(bench.state).utilization == 1


def test_no_part_is_larger_than_the_whole() -> None:
    picture = drawn(busy_log(1600, apps=8, nodes=4, tick_s=20))
    assert {how for node in picture.nodes.values() for how in node.conditions.values} >= {"up", "draining"}
    parts = [part for steps in (*picture.decided.values(), *picture.held.values()) for part in steps.values]
    assert 0 == min(parts) < max(parts) <= 1


def test_impossible_spans_are_refused_and_empty_ones_drawn(written: list[Record]) -> None:
    for since, until in ((AtSequence(9), AtSequence(3)), (AtSequence(10_000), None), (None, AtSequence(10_000))):
        with pytest.raises(MomentError):
            drawn(written, since, until)
    assert drawn(written, BeforeEnd(10**18)).first == 0
    assert drawn([]).apps == {}
    empty = drawn(written, until=AtSequence(0))
    assert (empty.start, empty.end, empty.apps, empty.nodes) == (0, 0, {}, {})


def test_every_decision_is_listed_with_its_changes(recorded: list[Record]) -> None:
    picture = drawn(recorded)
    facts = all_facts(recorded, Resized)
    assert len(picture.decisions) == len(facts)
    for one, fact in zip(picture.decisions, facts, strict=True):
        assert {(change.app, change.after, change.generation) for change in one.changes} == {
            (change.app, len(change.placement), change.to_generation) for change in fact.changes
        }
        assert {(reason.app, reason.code) for reason in one.reasons} == {
            (app, why.code) for app, why in fact.reasons.items()
        }
        text = "\n".join(decision_lines(one, len(picture.decided)))
        assert all(f"{change.name} {change.before} → {change.after}" in text for change in one.changes)


def test_adjustments_have_the_phases_that_the_state_measured(recorded: list[Record]) -> None:
    state = State()
    for record in recorded:
        evolve(state, record)
    picture = drawn(recorded)
    measured = 0
    for app in state.apps.values():
        lane = picture.apps[app.id]
        assert [one.number for one in lane.adjustments] == [one.to_generation for one in app.history]
        for one, adjustment in zip(lane.adjustments, app.history, strict=True):
            assert (one.previous, one.before) == (adjustment.from_generation, adjustment.containers_before)
            assert abs(one.stopped_at - max(adjustment.stopped_at, adjustment.decided_at)) < 1000  # Seconds as floats.
            assert (one.released_at, one.started_at) == (adjustment.released_at, adjustment.started_at)
            assert [name for name, _, _ in one.phases(picture.end)] == ["stop", "wait", "start"]
            assert "stop " in partition_lines(one, picture.end)[1]
            measured += 1
        assert lane.lost_steps == app.lost_steps
    assert measured


def test_failures_ends_and_events_of_nodes_are_marked(written: list[Record]) -> None:
    picture = drawn(written)
    said = [mark_line(mark, picture) for mark in picture.marks]
    assert any(line.startswith("one on n0: container 3/0 ended with exit code 1") for line in said)
    assert any(line.startswith("one: generation 3 failed") for line in said)
    assert "n1: lost: not heard for 60.0 s" in said
    assert "n1: heard again" in said
    assert "two: completed" in said
    assert "master elected, epoch 2" in said
    assert any("submission refused: bad" in line for line in said)


def test_a_repeated_exit_is_not_a_second_failure() -> None:
    story = Story()
    story.submit("one", n_min=2, n_max=2)
    story.settle()
    story.exit("one", 1)
    again = story.records[-1]
    story.store(again.subject, again.body)
    assert [mark.kind for mark in drawn(story.records).marks].count("failed") == 2


def test_a_join_that_another_node_claims_is_no_mark() -> None:
    """A node joins on its own subject: the fold ignores any other, and so does a picture."""
    story = Story()
    joined = next(record for record in story.records if "NodeJoined" in record.subject)
    before = [mark.what for mark in drawn(story.records).marks]
    story.store(subjects.fact(subjects.cluster_of(joined.subject), "NodeJoined", "stranger"), joined.body, "again")
    assert [mark.what for mark in drawn(story.records).marks] == before


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_figures_that_are_not_numbers_are_drawn_as_gaps(written: list[Record], number: float) -> None:
    strange = changed_fact(
        written,
        rounds_with(written, Resized)[1],
        Resized,
        lambda fact: msgspec.structs.replace(fact, fairness_budget=number, excess=number, bound=number),
    )
    picture = drawn(strange)
    assert len(picture.fairness_loss) == len(drawn(written).fairness_loss) - 1
    assert math.isclose(picture.decisions[1].bound, number) or math.isnan(number)
    assert ("(inf over)" in "\n".join(decision_lines(picture.decisions[1], 1))) == (number == math.inf)
    assert json.loads(trace(picture, "strange"))["traceEvents"]
    assert json.dumps(msgspec.to_builtins(page_of(picture)), allow_nan=False)
    assert png(picture, "strange")


@pytest.mark.parametrize("figure", ["utilization", "fairness_loss"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_decision_with_strange_figures_is_left_out(written: list[Record], number: float, figure: str) -> None:
    seq = rounds_with(written, Resized)[1]
    strange = changed_fact(written, seq, Resized, lambda fact: msgspec.structs.replace(fact, **{figure: number}))
    picture = drawn(strange)
    assert f"{seq}.0" in [decision.position for decision in drawn(written).decisions]
    assert f"{seq}.0" not in [decision.position for decision in picture.decisions]
    assert json.loads(trace(picture, "strange"))["traceEvents"]
    assert json.dumps(msgspec.to_builtins(page_of(picture)), allow_nan=False)


def test_only_some_apps_and_nodes() -> None:
    records = busy_log(1600, apps=8, nodes=4, tick_s=20)
    whole = drawn(records)
    name = next(lane.name for lane in whole.apps.values() if lane.adjustments)
    picture = only(whole, apps=[name])
    (lane,) = picture.apps.values()
    assert lane.name == name
    assert set(picture.nodes) == set(whole.nodes_of(lane.id))
    assert picture.decisions
    assert all(lane.id in [c.app for c in d.changes] + [r.app for r in d.reasons] for d in picture.decisions)
    assert picture.waiting is whole.waiting
    there = only(whole, nodes=["gpu-01"])
    assert list(there.nodes) == ["gpu-01"]
    assert set(there.apps) == set(whole.nodes["gpu-01"].held)
    assert len(there.notes) == len(whole.notes) + 1
    with raises(TimelineError, "app.not_found"):
        only(whole, apps=["nobody"])
    few = most_affected(whole, 3, 2)
    assert (len(few.apps), len(few.nodes)) == (3, 2)
    assert f"The 3 most affected of {len(whole.apps)} apps are shown" in few.notes[0]


def test_reasons_of_requested_apps_are_kept_first() -> None:
    story = Story(nodes=1)
    for number in range(20):
        story.submit(f"app-{number:02}", n_max=9)
    story.settle()
    found = asyncio.run(timeline(log_of(story.records), names=["app-19"]))
    of_all = [one for one in found.decisions if one.all_reasons > 12]
    assert of_all
    assert all(one.reasons[0].name == "app-19" for one in of_all)


def test_too_many_changes_become_coarser_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    records = busy_log(2500, apps=12, nodes=6, tick_s=20)
    story = Story(nodes=1)
    for _ in range(200):
        story.say(NodeDrainRequested(node="n0"))
        story.say(NodeDrainRequested(node="n0", drain=False))
    whole = drawn(records)
    for name, bound in (("POINTS", 500), ("DECISIONS", 10), ("MARKS", 9), ("PARTITIONS", 15)):
        monkeypatch.setattr(timeline_bounds, name, bound)
    for log in (records, story.records):
        picture = drawn(log)
        assert picture.grain > 0
        assert f"less than {length_of_phase(picture.grain)} apart" in picture.notes[-1]
        assert sum(map(len, picture.all_steps())) <= 500
        assert len(picture.decisions) <= 10
        assert len(picture.marks) <= 9
        assert sum(len(lane.partitions) for lane in picture.apps.values()) <= 15
    picture = drawn(records)
    assert sum(one.stands_for for one in picture.decisions) == len(whole.decisions)
    for name, lane in picture.apps.items():
        assert lane.sizes.last == whole.apps[name].sizes.last


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), max_size=40), st.integers(1, 60))
def test_steps(changes: list[tuple[int, int]], grain: int) -> None:
    steps: Steps[int] = Steps()
    expected: dict[int, int] = {}
    for time, value in sorted(changes, key=lambda change: change[0]):
        steps.put(time, value)
        expected[time] = value
    held = None
    for time in range(60):
        held = expected.get(time, held)
        assert steps.at(time) == held
    assert steps.times == sorted(set(steps.times))
    assert all(one != two for one, two in zip(steps.values, steps.values[1:], strict=False))
    first, last = steps.times[:1], steps.last
    steps.thin(grain)
    assert steps.times[:1] == first
    assert steps.last == last
    assert len(steps) <= 60 // grain + 2


def test_plans_and_failures_of_policies_are_marks() -> None:
    bench = Bench(a=4)
    bench.add(PolicyChanged(policy="oasis", params={"slot_s": 100.0, "slots": 20}))
    for name in ("first", "second"):
        bench.submit(name, n_max=2, work={"mini_batch": "2s", "chunks": 100}, utility={"worth": 10.0})
    bench.settle()
    failed = PolicyFailed(policy="acme", policy_version=1, code="policy.too_slow", reason="over 60 s", digest="")
    for _ in range(3):
        bench.wait(30)
        bench.say(failed)
    picture = drawn(bench.records)
    marks = {mark.what: mark for mark in picture.marks if mark.kind == "cluster"}
    assert marks["2 apps planned"].text.startswith("first planned until ")
    assert ". second planned " in marks["2 apps planned"].text
    (mark,) = [mark for mark in picture.marks if mark.what == "policy failed: policy.too_slow"]
    assert mark.text == (
        "policy acme gave no usable answer, so every app keeps what it has: over 60 s (policy.too_slow)"
    )
    assert mark_line(mark, picture) == f"policy failed: policy.too_slow: {mark.text}"
