"""Live resizing in the simulator: its cost, in seconds computed by hand, and that it loses nothing."""

from __future__ import annotations

import pytest

from events import kinds as k
from events.log.memory import MemoryLog
from replay.audit.audit import verify
from replay.simulator.scenario import DecisionTime, Outage, Scenario
from replay.simulator.timings import LIVE, Timings
from tests.simulator.scenarios import Written, app, nodes, play
from tests.simulator.test_simulation import of

TIMINGS = Timings(checkpoint_s=5.0, stop_s=2.0, start_s=3.0, boot_s=4.0, resume_s=6.0)


def run(*outages: Outage, **fields: object) -> Written:
    """A live app on four cores, and another one that needs one of them after 100 s, for 107 s."""
    long = {"elastic": "live", "n_max": 4, **fields}
    return play(
        Scenario(
            apps=(app("long", 0, 1000, **long), app("short", 100, 100, n_max=1)),
            nodes=nodes(2, cpu=2),
            timings=TIMINGS,
            decision_time=DecisionTime(0.0, 0.0),
            progress_s=0.0,
            outages=outages,
        )
    )


def test_a_live_app_gives_up_room_and_takes_it_back_while_it_works() -> None:
    written = run()
    changes = [(at, event.change, event.members) for at, event in of(written, k.MembershipChanged)]
    (shrunk, _, _), (grown, _, _) = changes
    assert changes == [(shrunk, "shrink", [0, 1, 2]), (grown, "grow", [0, 1, 2, 4])]
    (ended,) = [one for one in written.state.apps.values() if one.name == "long"]
    assert (ended.ended, ended.generation, ended.lost_steps, ended.failures) == ("completed", 1, 0, 0)
    assert [record.pause_s for record in ended.history] == [LIVE.pause_s] * 2
    # It works from 7.2 s on (decided at 0.2, started after 3, booted after 4), and stands still before each change.
    still = LIVE.pause_s
    assert shrunk == pytest.approx(100.2 + still)
    first, second = 4 * (shrunk - still - 7.2), 3 * (grown - still - shrunk)
    assert ended.ended_at - written.simulation.begin == pytest.approx(
        (grown + (1000 - first - second) / 4) * 1e9, abs=2
    )


def test_a_restart_of_the_same_app_takes_longer() -> None:
    live, restarted = run(), run(elastic="")
    ends = [next(a for a in one.state.apps.values() if a.name == "long").ended_at for one in (live, restarted)]
    assert ends[0] < ends[1]


def test_it_continues_without_a_node() -> None:
    written = run(Outage("n1", at_s=50.0, for_s=None))
    (ended,) = [one for one in written.state.apps.values() if one.name == "long"]
    assert (ended.ended, ended.generation) == ("completed", 1)
    ((_, lost),) = of(written, k.MembersLost)
    assert (lost.lost, [one.slot for one in lost.members], lost.counted) == ([2, 3], [0, 1], False)


async def test_an_audit_decides_it_again() -> None:
    report = await verify(MemoryLog(lambda: 0, run(Outage("n0", at_s=150.0, for_s=60.0)).records))
    assert report.divergence is None, str(report.divergence)
