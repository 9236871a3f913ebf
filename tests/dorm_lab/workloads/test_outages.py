"""What happens to apps when nodes fail: for a moment, for less than a lease, for longer, all at once, permanently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.core.invariants import violations
from dorm.core.state import Settings
from dorm.core.timing import LEASE_MARGIN_S
from dorm_lab.workloads.outages import DAY_S, LLAMA3_MTBF_S, poisson
from events import kinds as k
from events.log.memory import MemoryLog
from events.quantities import SECOND
from replay.audit.audit import verify
from replay.simulator import SimulationError
from replay.simulator.scenario import DecisionTime, Outage, Scenario
from replay.simulator.timings import Timings
from replay.simulator.workload import Failure
from tests.errors import raises
from tests.simulator.scenarios import app, nodes, play
from tests.tries import tries

if TYPE_CHECKING:
    from tests.simulator.scenarios import Written

GRACE_S, LEASE_S = Settings().node_grace_s, Settings().node_lease_s + LEASE_MARGIN_S
AT_S = 100.0
TIMINGS = Timings(checkpoint_s=5.0, stop_s=2.0, start_s=3.0, boot_s=4.0, resume_s=6.0, checkpoint_every_s=30.0)


def facts_of(written: Written, *kinds: type[Any]) -> list[tuple[float, Any]]:
    """Facts of these kinds, each with the second of the run at which it was written."""
    begin = written.simulation.begin
    return [
        ((record.time - begin) / SECOND, fact)
        for record, event in zip(written.records, written.events, strict=True)
        for fact in (event.events if isinstance(event, k.Round) else [event])
        if isinstance(fact, kinds)
    ]


def with_outages(*outages: Outage, **changes: Any) -> Written:
    """One app on two nodes, 8 containers at most, which works for some minutes and saves every 30 s."""
    fields: dict[str, Any] = {
        "apps": (app("a", 0.0, 2000.0, n_max=8),),
        "nodes": nodes(2),
        "timings": TIMINGS,
        "decision_time": DecisionTime(0.0, 0.0),
        "progress_s": 7.0,
        "outages": outages,
    }
    return play(Scenario(**fields | changes))


def test_a_silence_shorter_than_the_grace_time_loses_only_the_containers() -> None:
    written = with_outages(Outage("n1", AT_S, GRACE_S - 1))
    assert facts_of(written, k.NodeLost, k.NodeLeaseEnded) == []
    back_at = AT_S + GRACE_S - 1
    exits = facts_of(written, k.ContainerExited)
    assert [(at, fact.reason) for at, fact in exits if fact.node == "n1"][:4] == [(back_at, "lost")] * 4
    ((at, failed),) = facts_of(written, k.GenerationFailed)
    assert (at, failed.counted) == (back_at, False)
    assert [fact.generation for _, fact in facts_of(written, k.AppCompleted)] == [2]


def test_an_outage_within_the_lease_is_reported_and_waited_for() -> None:
    """The app stands still: what runs on the lost node may still run, so nothing else is started for it until it is back."""
    written = with_outages(Outage("n1", AT_S, 200.0))
    ((lost_at, lost),) = facts_of(written, k.NodeLost)
    assert lost_at == pytest.approx(AT_S + GRACE_S, abs=1e-6)
    assert lost.node == "n1"
    assert facts_of(written, k.NodeLeaseEnded) == []
    released = [at for at, _ in facts_of(written, k.GenerationReleased)]
    assert released[1] >= AT_S + 200.0
    assert len(facts_of(written, k.AppCompleted)) == 1


def test_after_the_lease_the_app_continues_without_the_node() -> None:
    written = with_outages(Outage("n1", AT_S, 2000.0))
    ((ended_at, _),) = facts_of(written, k.NodeLeaseEnded)
    assert ended_at == pytest.approx(AT_S + LEASE_S, abs=1e-6)
    _, (released_at, released), *_ = facts_of(written, k.GenerationReleased)
    assert ended_at <= released_at < AT_S + 2000.0
    assert released.resume
    placed = next(
        change.placement
        for _, fact in facts_of(written, k.Resized)
        for change in fact.changes
        if change.to_generation == released.generation
    )
    assert {place.node for place in placed} == {"n0"}


def test_lost_work_is_counted_as_the_log_counts_it() -> None:
    """Saved every 30 s from when it worked, reported every 7 s: the work in between is repeated, and the log says how
    much."""
    written = with_outages(Outage("n1", AT_S, 5.0))
    worked_at = facts_of(written, k.ContainerStarted)[0][0] + TIMINGS.boot_s
    told = [fact.step for at, fact in facts_of(written, k.AppProgressed) if at <= AT_S]
    saved = [fact.step for at, fact in facts_of(written, k.AppCheckpointed) if at <= AT_S]
    assert saved[-1] == int(8 * 30 * ((AT_S - worked_at) // 30))
    assert told[-1] == int(8 * 7 * ((AT_S - worked_at) // 7))
    _, (_, released) = facts_of(written, k.GenerationReleased)
    assert (released.checkpoint, released.lost_steps) == (saved[-1], told[-1] - saved[-1])
    assert written.state.apps[released.app].lost_steps == told[-1] - saved[-1]
    # It works again with all that was saved, and nothing that was only done.
    released_at = facts_of(written, k.GenerationReleased)[1][0]
    left_s = (2000 - saved[-1]) / 8
    ((done_at, _),) = facts_of(written, k.AppCompleted)
    assert done_at == pytest.approx(released_at + TIMINGS.start_s + TIMINGS.resume_s + left_s, abs=0.01)


@pytest.mark.parametrize("for_s", [5.0, 200.0, 1000.0])
def test_all_nodes_fail_at_once_and_all_apps_continue_afterwards(for_s: float) -> None:
    written = with_outages(
        *(Outage(f"n{index}", AT_S, for_s) for index in range(3)),
        nodes=nodes(3),
        apps=tuple(app(name, 3.0 * index, 900.0, n_max=4) for index, name in enumerate("abc")),
    )
    assert len(facts_of(written, k.AppCompleted)) == 3
    assert min(at for at, _ in facts_of(written, k.AppCompleted)) > AT_S + for_s
    assert violations(written.state) == []


def test_a_node_that_never_returns_costs_its_room_and_no_app() -> None:
    written = with_outages(Outage("n1", AT_S, None))
    ((done_at, _),) = facts_of(written, k.AppCompleted)
    assert done_at > AT_S + LEASE_S + (2000 - 8 * AT_S) / 4
    assert written.simulation.unfinished == []


def test_if_all_nodes_are_lost_permanently_the_run_ends_and_lists_waiting_apps() -> None:
    written = with_outages(Outage("n0", AT_S, None), Outage("n1", AT_S + 1, None))
    assert facts_of(written, k.AppCompleted) == []
    assert written.simulation.unfinished == ["a"]
    assert written.records[-1].time < written.simulation.begin + int((AT_S + 2 * LEASE_S) * SECOND)


def test_an_app_that_always_fails_ends_failed_after_its_retries() -> None:
    broken = app("a", 0.0, 2000.0, n_max=2, retries={"limit": 2, "backoff": "10s"}, fails_at=(Failure(50.0, 7),) * 9)
    written = with_outages(apps=(broken,), timings=Timings())
    assert [fact.counted for _, fact in facts_of(written, k.GenerationFailed)] == [True, True]
    ((_, failed),) = facts_of(written, k.AppFailed)
    assert "exit code 7 (2 of 2 retries used up)" in failed.reason
    assert 7 in failed.exit_codes.values()
    assert written.simulation.unfinished == []


async def test_decisions_around_outages_pass_an_audit() -> None:
    written = with_outages(
        Outage("n1", 40.0, 10.0),
        Outage("n0", 90.0, 200.0),
        Outage("n1", 350.0, 900.0),
        apps=tuple(app(name, 20.0 * index, 900.0, n_max=6) for index, name in enumerate("ab")),
        progress_s=60.0,
    )
    log = MemoryLog(lambda: 0)
    log.records.extend(written.records)
    report = await verify(log)
    assert report.good, report.divergence
    assert report.not_checked == 0
    assert report.conclusions_checked >= 4


# --- outages by chance --------------------------------------------------------------------------------------------------


@given(
    st.floats(10, 1e5), st.floats(0, 1e4), st.floats(0, 1e6).map(lambda value: round(value, 3)), st.integers(0, 2**32)
)
@settings(max_examples=tries(6, 50), deadline=None)
def test_outages_of_one_node_do_not_overlap_and_start_in_time(
    mtbf_s: float, repair_s: float, until_s: float, seed: int
) -> None:
    machines = nodes(3)
    found = poisson(machines, mtbf_s=mtbf_s, repair_s=repair_s, until_s=min(until_s, 100 * mtbf_s), seed=seed)
    assert list(found) == sorted(found, key=lambda outage: outage.at_s)
    assert found == poisson(machines, mtbf_s=mtbf_s, repair_s=repair_s, until_s=min(until_s, 100 * mtbf_s), seed=seed)
    for machine in machines:
        free_from = 0.0
        for outage in (one for one in found if one.node == machine.name):
            assert free_from <= outage.at_s < until_s
            assert outage.for_s is not None
            free_from = outage.at_s + outage.for_s
    # Another node changes nothing for those that were there.
    more = poisson(nodes(4), mtbf_s=mtbf_s, repair_s=repair_s, until_s=min(until_s, 100 * mtbf_s), seed=seed)
    assert [one for one in more if one.node != "n3"] == list(found)


def test_outages_have_the_requested_means() -> None:
    found = poisson(nodes(50), mtbf_s=1000.0, repair_s=100.0, until_s=110_000.0, seed=3)
    assert len(found) == pytest.approx(5000, rel=0.05)
    assert sum(one.for_s or 0.0 for one in found) / len(found) == pytest.approx(100.0, rel=0.05)
    assert round(LLAMA3_MTBF_S / DAY_S) == 264


def test_a_workload_under_failures_completes() -> None:
    machines = nodes(4)
    calm: dict[str, Any] = {
        "nodes": machines,
        "apps": tuple(app(f"app-{index}", 60.0 * index, 1200.0, n_max=6) for index in range(5)),
        "policy": "static",
        "params": {"count": 3},
    }
    troubled = with_outages(*poisson(machines, mtbf_s=600.0, repair_s=60.0, until_s=3000.0, seed=1), **calm)
    assert len(facts_of(troubled, k.AppCompleted)) == 5
    assert violations(troubled.state) == []
    assert troubled.records[-1].time > with_outages(**calm).records[-1].time


@pytest.mark.parametrize(("mtbf_s", "repair_s"), [(0.0, 1.0), (-5.0, 1.0), (10.0, -1.0)])
def test_means_that_make_no_sense_are_refused(mtbf_s: float, repair_s: float) -> None:
    with raises(SimulationError, "simulation.outage.out_of_range"):
        poisson(nodes(1), mtbf_s=mtbf_s, repair_s=repair_s, until_s=100.0)
