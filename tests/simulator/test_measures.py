"""What a run comes to, against figures worked out by hand, by the views of the core, and from a real log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dorm.core.asking import problem_of
from dorm.core.evolve import evolve
from dorm.core.folded import Folded
from dorm.core.query.standing import standings
from dorm.core.query.views import summary
from dorm.core.state import State
from events import kinds as k
from events.archive.segments import open_archive
from events.quantities import SECOND
from events.spec import check_spec
from replay.simulator.measures import Measures, contention, fair_containers, fair_rate
from replay.simulator.outcome import speed_ups
from replay.simulator.scenario import DecisionTime, Outage, Scenario, Tasks
from replay.simulator.simulation import Simulation
from replay.simulator.speed import Linear
from replay.simulator.timings import Timings
from replay.simulator.workload import SimulatedApp, SimulatedNode
from tests.golden.made import FOLDER

if TYPE_CHECKING:
    from events.log.records import Record
    from replay.simulator.outcome import Run

GIB = 2**30
SLOW = Timings(checkpoint_s=1, stop_s=2, start_s=3, boot_s=5, resume_s=4)


def app(name: str, at_s: float, work: float, n_max: int, n_min: int = 1, **spec: Any) -> SimulatedApp:
    checked = check_spec(
        {"name": name, "command": ["x"], "demand": {"cpu": 1, "memory": "1GiB"}, "n_min": n_min, "n_max": n_max} | spec
    )
    return SimulatedApp(at_s=at_s, spec=checked, work=work, speed=Linear())


def nodes(count: int, cpu: int = 4) -> tuple[SimulatedNode, ...]:
    return tuple(SimulatedNode(f"n{index}", {"cpu": 1000 * cpu, "memory": 4 * cpu * GIB}) for index in range(count))


def scenario(*apps: SimulatedApp, **given: Any) -> Scenario:
    settings: dict[str, Any] = {
        "nodes": nodes(1),
        "timings": SLOW,
        "quiet_s": 0.0,
        "decision_time": DecisionTime(0.0, 0.0),
    }
    return Scenario(apps=apps, **settings | given)


def measured(wanted: Scenario, every_s: float = 10.0) -> Run:
    simulation = Simulation(wanted)
    measures = Measures.of(simulation, every_s)
    simulation.run()
    return measures.result()


def test_the_worst_ratio_of_long_apps_is_reported_separately() -> None:
    run = measured(scenario(app("a", 10, 400, 4), policy="static", params={"count": 4}))
    (one,) = run.apps
    assert run.worst_long_finish_ratio is None, "it is short"
    apps = tuple(
        msgspec.structs.replace(one, ended=one.submitted + seconds * SECOND, finish_ratio=ratio)
        for seconds, ratio in ((130, 2.3), (1190, 2.0), (900, 1.4))
    )
    run = msgspec.structs.replace(run, apps=apps)
    assert (run.worst_finish_ratio, run.worst_long_finish_ratio) == (2.3, 1.4)


def test_one_app_alone() -> None:
    run = measured(scenario(app("a", 10, 400, 4), policy="static", params={"count": 4}))
    (one,) = run.apps
    assert (one.how, one.adjustments, one.lost_s) == ("completed", 0, 0.0)
    assert one.wait_s == pytest.approx(3)
    assert one.completion_s == pytest.approx(3 + 5 + 100, abs=0.1)
    assert one.held_s == pytest.approx(4 * 108, abs=0.5)
    assert one.finish_ratio == pytest.approx(1.0, abs=0.01), "it had the cluster to itself"
    assert run.makespan_s == one.completion_s
    assert run.unfair_share(1.1) == 0
    # 4 of 4 cores and 4 of 16 GiB, from the submission on.
    assert {(sample.utilization, sample.running) for sample in run.samples} == {(0.0, 0), (1.25, 1)}
    assert run.mean_utilization == pytest.approx(1.25 * 108 / 118, rel=0.02), "however far apart samples were asked for"
    assert run.every_s < 1
    assert run.samples[5].fairness_loss == pytest.approx(0.0)
    assert [(one.started, one.changed, one.budget) for one in run.decisions] == [(1, 0, None)]


def test_the_loss_of_an_adjustment() -> None:
    """The first app has all; when another comes it is stopped, and stands still until it works again."""
    run = measured(
        scenario(
            app("a", 0, 4000, 4),
            app("b", 100, 50, 1),
            params={"theta1": 1.0, "theta2": 1.0, "adjust_s": 1.0},
        )
    )
    first, second = run.apps
    shrink, *later = [one for one in run.decisions if one.changed]
    assert (shrink.running, shrink.changed, shrink.budget, shrink.started) == (1, 1, 1, 1)
    # Decision to release 3 s with all four, then with three until it works: 3 s to start, 4 s to resume.
    grow_s = 3 * 4 + 7 * 4  # and back to four, all of which nobody else can have from the decision on
    assert first.adjustments == 1 + len(later) == 2
    assert first.lost_s == pytest.approx(3 * 4 + 7 * 3 + grow_s, abs=0.1)
    assert second.lost_s == 0
    assert run.adjustment_time_share == pytest.approx(first.lost_s / (first.held_s + second.held_s))
    assert run.decisions_over_budget == 0


def test_tasks_lose_nothing_to_adjustments() -> None:
    run = measured(
        scenario(app("a", 0, 4000, 4), app("b", 100, 50, 1), params={"theta1": 1, "theta2": 1}, tasks=Tasks())
    )
    assert run.adjustments == 2
    assert run.adjustment_time_share == 0


def test_a_lost_node_is_not_an_adjustment() -> None:
    """What a failure takes is not charged to the policy, and a change that had to be is not counted against it."""
    run = measured(scenario(app("a", 0, 2000, 4), nodes=nodes(2, 4), outages=(Outage("n0", 50, 1000),), progress_s=0))
    (one,) = run.apps
    assert one.how == "completed"
    assert sum(decision.changed for decision in run.decisions if decision.at < run.begin + 1000 * SECOND) == 0
    assert one.lost_s <= 4 * 2 * 10.1, "at most that it was moved back when the node returned"


def test_more_changes_than_theta2_allows_are_seen() -> None:
    """From the changes and the parameters of the decision, whatever else it says of itself."""
    wanted = scenario(
        *[app(f"a{index}", 0, 4000, 8) for index in range(2)],
        *[app(f"b{index}", 200, 4000, 8) for index in range(2)],
        params={"theta1": 0.0, "theta2": 1.0, "adjust_s": 0.0},
        nodes=nodes(2, 4),
    )
    simulation = Simulation(wanted)
    measures = Measures(simulation.state)

    def falsified(state: State, record: Record, folded: Folded) -> None:
        event = folded.event
        if isinstance(event, k.Round):
            facts = [
                msgspec.structs.replace(fact, params=fact.params | {"theta2": 0.1})
                if isinstance(fact, k.Resized)
                else fact
                for fact in event.events
            ]
            event = msgspec.structs.replace(event, events=facts)
        measures.see(state, record, Folded(event, folded.effect))

    simulation.observe(falsified)
    simulation.run()
    over = [one for one in measures.result().decisions if one.budget is not None and one.changed > one.budget]
    assert over
    assert all(one.budget == 1 and one.changed == 2 for one in over)


def test_figures_agree_with_the_views() -> None:
    """Kept along as numbers, they are what `standings` and `summary` say of the whole state, moment by moment."""
    kinds = [
        {"weight": 1 + index % 3, "n_min": 1 + index % 2, "n_max": 3 + index % 5, "gang": 1 + (index % 7 == 0)}
        for index in range(24)
    ]
    apps = [
        app(
            f"a{index}",
            40 * index,
            300 + 90 * (index % 4),
            kind.pop("n_max") // 2 * 2 + 2,
            kind.pop("n_min") * 2,
            **kind,
        )
        for index, kind in enumerate(kinds)
    ]
    apps[5] = msgspec.structs.replace(apps[5], spec=msgspec.structs.replace(apps[5].spec, require="zone==nowhere"))
    simulation = Simulation(scenario(*apps, nodes=nodes(3, 5)))
    measures = Measures.of(simulation, 1e6)
    looked = []

    def compare(state: State, record: Record, _folded: Folded) -> None:
        event = _folded.event
        if isinstance(event, k.Round) and state.seq % 3 == 0:
            utilization, loss = measures._holdings.figures()
            looked.append(loss)
            assert utilization == pytest.approx(summary(state).utilization)
            if not any(one.retry_at > record.time for one in state.apps.values()):
                assert loss == pytest.approx(standings(problem_of(state, record.time)).fairness_loss, abs=1e-6)

    simulation.observe(compare)
    simulation.run()
    assert len(looked) > 30
    assert max(looked) > 0.1


async def test_a_real_log_is_measured_as_well() -> None:
    archive = await open_archive(FOLDER / "0.2.0.dorm")
    state = State()
    measures = Measures(state, 0.25)
    ended: dict[str, str] = {}
    try:
        async for batch in archive.read():
            for record in batch:
                measures.see(state, record, evolve(state, record))
                ended.update({name: known.ended for name, known in state.apps.items()})
    finally:
        await archive.close()
    run = measures.result()
    assert {one.app: one.how for one in run.apps} == ended
    assert len(run.samples) == (run.end - run.begin) // (SECOND // 4) + 1
    assert run.adjustments >= sum(known.adjustments for known in state.apps.values()) > 0
    lost = [one for one in run.apps if one.lost_s]
    assert lost, "the log has adjustments"
    assert all(one.lost_s < one.held_s for one in lost)
    assert all(one.finish_ratio is not None and one.finish_ratio > 0 for one in run.apps if one.how == "completed")


def test_speed_ups_are_of_apps_that_both_completed() -> None:
    fast = measured(
        scenario(app("a", 0, 400, 4), app("b", 0, 400, 4), nodes=nodes(2), policy="static", params={"count": 4})
    )
    slow = measured(scenario(app("a", 0, 400, 4), nodes=nodes(2), policy="static", params={"count": 1}))
    assert speed_ups(fast, slow) == {"a": pytest.approx(408 / 108, rel=0.01)}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12))
def test_contention_is_the_mean_number_of_living_apps(spans: list[tuple[int, int]]) -> None:
    lives = [(begin, begin + length) for begin, length in spans]
    found = contention([begin for begin, _ in lives], [end for _, end in lives])
    for (begin, end), value in zip(lives, found.tolist(), strict=True):
        alive = [sum(1 for b, e in lives if b <= moment < e) for moment in range(begin, end)]
        assert value == pytest.approx(sum(alive) / len(alive) if alive else 1.0)


def test_a_fair_part_of_the_cluster() -> None:
    assert fair_containers(0.25, 8, 1.0) == 4
    assert fair_containers(0.25, 2, 1.0) == 2
    assert fair_containers(0.25, 8, 3.0) == pytest.approx(4 / 3)
    assert fair_containers(float("inf"), 8, 1.0) == 0
    assert fair_rate(lambda n: n**0.5, 4) == 2
    assert fair_rate(lambda n: n**0.5, 0.5) == 0.5
    assert fair_rate(lambda n: n**0.5, 2.5) == pytest.approx((2**0.5 + 3**0.5) / 2)
