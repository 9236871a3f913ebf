"""The record that made an outcome inevitable, on logs where the answer is known by construction, and on recorded ones."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from events import kinds as k
from events.archive.segments import open_archive
from events.codec import decode
from events.quantities import SECOND
from events.spec import check_spec
from replay.bisect import Bisected, BisectError, bisect
from replay.simulator import SimulationError
from replay.simulator.scenario import BEGIN, DecisionTime, Scenario
from replay.simulator.simulation import Simulation
from replay.simulator.speed import Linear
from replay.simulator.timings import Timings
from replay.simulator.workload import SimulatedApp
from tests.e2e.commands import done, refused
from tests.errors import raises
from tests.replay.made_log import log_of
from tests.simulator.histories import written
from tests.simulator.scenarios import nodes

if TYPE_CHECKING:
    from events.log.records import Record

FREE = Timings(checkpoint_s=0, stop_s=0, start_s=0, boot_s=0, resume_s=0)
GOLDEN = Path(__file__).parents[2] / "golden"


def app(name: str, at_s: float, work: int) -> SimulatedApp:
    """One step a second and container, as its owner declares."""
    document = {"name": name, "command": ["train"], "demand": {"cpu": 1}, "n_max": 4, "steps": work}
    document |= {"speed": [[1, 1.0], [2, 2.0], [3, 3.0], [4, 4.0]]}
    return SimulatedApp(at_s=at_s, spec=check_spec(document), work=work, speed=Linear())


def scenario(*apps: SimulatedApp, **fields: Any) -> Scenario:
    usual: dict[str, Any] = {"timings": FREE, "decision_time": DecisionTime(0.0, 0.0), "progress_s": 5.0}
    return Scenario(apps=apps, nodes=nodes(1), **usual, **fields)


@cache
def slow() -> list[Record]:
    """One container for an app that would use four: it completes after 1,000 s."""
    return written(Simulation(scenario(app("digits", 0, 1000), policy="static", params={"count": 1})))


@cache
def shrunk() -> list[Record]:
    """An app that has four containers, two while another one runs, then four again."""
    return written(Simulation(scenario(app("digits", 0, 2000), app("other", 100, 200), params={"theta2": 1.0})))


def clock(seconds: float) -> str:
    """22:13:20 is the start."""
    minutes, second = divmod(22 * 3600 + 13 * 60 + 20 + int(seconds), 60)
    return f"2023-11-14T{minutes // 60}:{minutes % 60:02}:{second:02}"


def time_of(records: list[Record], seq: int) -> float:
    return (records[seq - 1].time - BEGIN) / SECOND


ONE, FOUR = "static,count=1", "dorm"


async def asked(records: list[Record], outcome: str, *policies: str, **more: Any) -> Bisected:
    return await bisect(log_of(records), outcome, policies, **more)


def test_the_clock_of_these_tests() -> None:
    assert BEGIN == 1_700_000_000 * SECOND
    assert clock(0) == "2023-11-14T22:13:20"


async def test_the_last_moment_at_which_another_policy_could_still_have_made_it() -> None:
    """At t seconds, t steps are done.  Four containers from there complete at t + (1000 - t) / 4, which is before 400 s as
    long as t < 200."""
    found = await asked(slow(), f"not (digits completed before {clock(400)})", ONE, FOUR, tries=80)
    assert found.really is True
    assert found.inevitable is not None
    assert (found.exact, found.monotone) == (True, True)
    assert found.inevitable - (found.after or 0) == 1
    # Its reports are 5 s apart, and an adjustment of this log takes a second at most.
    assert 190 <= time_of(slow(), found.inevitable) <= 206
    assert [one.holds for one in found.moments] == sorted(one.holds for one in found.moments)
    assert {policy for one in found.moments if not one.holds for policy, held in one.verdicts.items() if not held} == {
        "dorm"
    }
    assert found.guesses == []


async def test_outcomes_under_every_policy_were_inevitable_from_the_start() -> None:
    found = await asked(slow(), f"digits completed before {clock(1100)}", ONE, FOUR)
    assert (found.inevitable, found.after, found.really, found.exact) == (0, None, True, True)


async def test_an_unreached_phase_is_absent() -> None:
    found = await asked(slow(), f"digits completed before {clock(400)}", ONE, FOUR)
    assert (found.inevitable, found.really, found.exact) == (None, False, False)
    assert found.moments[-1].verdicts == {ONE: False, FOUR: False}
    assert found.moments[-1].recorded, "the log itself says so"


async def test_an_outcome_that_held_was_lost_and_held_again_is_reported_as_such() -> None:
    """`static` never resizes what runs: from any moment on the app keeps what it has there."""
    records = shrunk()
    found = await asked(records, f"digits has at least 4 containers at {clock(450)}", "static,count=1", tries=100)
    grown = [
        record.seq
        for record in records
        for fact in getattr(decode(record), "events", [])
        if isinstance(fact, k.Resized)
        for change in fact.changes
        if change.app.startswith("digits") and len(change.placement) == 4
    ]
    assert len(grown) == 2, "when it starts, and when the other app has ended"
    assert (found.inevitable, found.after, found.exact) == (grown[1], grown[1] - 1, True)
    assert not found.monotone
    lasting = [one.seq for one in found.moments if one.holds and one.seq < grown[1]]
    assert lasting, "it held before, as the scan has found"


async def test_few_tries_give_bounds_instead_of_a_record() -> None:
    outcome = f"not (digits completed before {clock(400)})"
    exact = await asked(slow(), outcome, ONE, FOUR, tries=80)
    found = await asked(slow(), outcome, ONE, FOUR, tries=8)
    assert found.tries <= 8
    assert not found.exact
    assert found.after is not None
    assert exact.inevitable is not None
    assert found.inevitable is not None
    assert found.after < exact.inevitable <= found.inevitable


async def test_clauses_about_the_cluster_and_combinations() -> None:
    records = shrunk()
    both = f"running apps at least 2 at {clock(150)} and utilization above 40% at {clock(150)}"
    found = await asked(records, both, "dorm,theta2=1.0")
    assert (found.really, found.inevitable) == (True, 0)
    waits = await asked(
        records, f"other waiting at {clock(150)} or digits started after {clock(150)}", "dorm,theta2=1.0"
    )
    assert (waits.really, waits.inevitable) == (False, None)


async def test_questions_without_an_answer() -> None:
    with raises(BisectError, "bisect.app.unknown", "it has digits"):
        await asked(slow(), "digit completed before 10:00", ONE)
    with raises(BisectError, "bisect.policies", "twice"):
        await asked(slow(), "digits completed before 10:00", ONE, ONE)
    with raises(SimulationError, "policy.unknown", "nothing"):
        await asked(slow(), "digits completed before 10:00", "nothing")
    with raises(BisectError, "log.empty", "empty"):
        await asked([], "digits completed before 10:00", ONE)


@pytest.mark.parametrize("name", ["incident.dorm", "0.5.0.dorm", "0.4.0.dorm"])
async def test_recorded_logs_agree_with_the_real_course(name: str) -> None:
    """At the log's end every verdict is the log's own, under each policy."""
    archive = await open_archive(GOLDEN / name)
    try:
        apps = {
            fact.app: fact.spec.name
            async for batch in archive.read(after=await archive.start())
            for record in batch
            for fact in getattr(decode(record), "events", [])
            if isinstance(fact, k.AppAccepted)
        }
        assert apps
        for app_id in sorted(apps)[:2]:
            found = await bisect(archive, f"{app_id} ended before -1s", ["dorm", "static"], tries=12)
            assert found.moments[-1].recorded or found.really is None
            if found.really is not None:
                assert set(found.moments[-1].verdicts.values()) == {found.really}
                assert (found.inevitable is not None) == found.really
    finally:
        await archive.close()


@pytest.mark.slow
async def test_the_command_answers_in_words_and_as_json(tmp_path: Path) -> None:
    file = str(GOLDEN / "0.5.0.dorm")
    common = ["--policies", "dorm,static", "--file", file]
    outcome = "not (wide completed before 22:13:40)"
    out = await done(tmp_path, "replay", "bisect", outcome, *common)
    assert "made it inevitable" in out
    assert "DORM" in out
    assert "continuations simulated" in out
    document = json.loads(await done(tmp_path, "replay", "bisect", outcome, *common, "-o", "json"))
    assert document["really"] is True
    assert document["policies"] == ["dorm", "static"]
    assert document["inevitable"] == document["after"] + 1
    assert document["record"][0]["position"].startswith(str(document["inevitable"]))
    assert document["story"]["wide"][0]["text"]
    assert document["moments"][0].keys() == {"seq", "at", "verdicts", "recorded"}
    bad = await refused(tmp_path, "replay", "bisect", "wide completed by 10:00", *common, code=1)
    assert bad == "outcome: at character 16: expected before or after, not 'by' [outcome.malformed]"
    unknown = await refused(
        tmp_path, "replay", "bisect", "wide completed before 10:00", "--policies", "x", "--file", file, code=1
    )
    assert unknown.endswith("[policy.unknown]")
