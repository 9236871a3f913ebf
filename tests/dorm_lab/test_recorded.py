"""A live run's log and its simulation under recorded timings take the same decisions."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from dorm.core.state import SCHEMA
from dorm_lab.recorded import decide_alike
from events import kinds as k
from events import subjects
from events.archive.segments import open_archive
from events.codec import decode, encode
from events.log.memory import MemoryBus, MemoryLog
from events.log.records import Record
from events.nats.connection import Connection
from events.quantities import SECOND
from replay.simulator import SimulationError
from replay.simulator.scenario import Scenario
from replay.simulator.simulation import Simulation
from tests.errors import raises
from tests.golden.made import FOLDER, archives
from tests.replay.made_log import two_apps
from tests.replay.recorded import play as play_live
from tests.simulator.scenarios import app, nodes, play, played, scenarios
from tests.tries import tries

if TYPE_CHECKING:
    from pathlib import Path

    from events.log.interface import ReadableLog
    from tests.lab.machines.nats_server import NatsServer


async def all_of(log: ReadableLog) -> list[Record]:
    return [record async for batch in log.read() for record in batch]


async def kept(path: Path) -> list[Record]:
    log = await open_archive(path)
    try:
        return await all_of(log)
    finally:
        await log.close()


@pytest.fixture(scope="module")
def incident() -> list[Record]:
    """What a real master and real agents wrote while a node was lost and came back."""
    return asyncio.run(kept(FOLDER / "incident.dorm"))


def agree(records: list[Record]) -> None:
    found = decide_alike(records)
    assert found.good, (found.seq, found.what, found.differences)
    assert found.decisions >= 4
    assert found.not_checked == 0
    assert found.same_records == len(records)


async def test_a_live_run_is_decided_alike(tmp_path: Path) -> None:
    log = MemoryLog(time.time_ns)
    await play_live(log, MemoryBus(time.time_ns), "recorded", tmp_path / "cluster")
    agree(log.records)


@pytest.mark.nats
async def test_a_live_run_on_a_server_is_decided_alike(nats_server: NatsServer, tmp_path: Path) -> None:
    name = f"single-source-{secrets.token_hex(4)}"
    connection = await Connection.open(nats_server.url, name, create=True)
    try:
        await play_live(connection.log, connection.bus, name, tmp_path / "cluster")
        agree(await all_of(connection.log))
    finally:
        await connection.close()


def test_an_incident_is_decided_alike(incident: list[Record]) -> None:
    found = decide_alike(incident)
    assert found.good, (found.seq, found.what, found.differences)
    assert found.same_records == len(incident)
    rounds = sum(isinstance(decode(record), k.Round) for record in incident)
    assert found.rounds + found.not_checked == rounds
    # What another core or another version of a policy decided is taken as it is.
    cores = {event.core for record in incident if isinstance(event := decode(record), k.Round)}
    assert found.rounds >= 10 if SCHEMA in cores else found.not_checked == rounds


@pytest.mark.parametrize("path", archives(), ids=lambda path: path.name)
async def test_logs_of_earlier_releases_are_decided_alike(path: Path) -> None:
    """What another core decided is taken as it is, and counted."""
    records = await kept(path)
    found = decide_alike(records)
    assert found.good, (found.seq, found.what, found.differences)
    assert found.same_records == len(records)
    assert found.rounds + found.not_checked > 0


@settings(max_examples=tries(6, 25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
@pytest.mark.soak
def test_a_simulated_run_is_decided_alike(scenario: Scenario) -> None:
    # A scheduler of rounds looks when it likes, which no setting on the log says.
    written = play(msgspec.structs.replace(scenario, rounds=None))
    found = decide_alike(written.records)
    assert found.good, (found.seq, found.what, found.differences)
    assert found.same_records == len(written.records)
    decisions = [
        fact for e in written.events if isinstance(e, k.Round) for fact in e.events if isinstance(fact, k.Resized)
    ]
    assert (found.decisions, found.not_checked) == (len(decisions), 0)


def test_another_decision_is_found_and_reported() -> None:
    """One container of one decision is given another port: there the simulation ends."""
    records = list(play(Scenario((app("a", 1.0, 100.0, n_max=4), app("b", 20.0, 100.0)), nodes(2))).records)
    at, event = next(
        (at, event)
        for at, record in enumerate(records)
        if isinstance(event := decode(record), k.Round) and any(isinstance(fact, k.Resized) for fact in event.events)
    )
    facts = list(event.events)
    where = next(index for index, fact in enumerate(facts) if isinstance(fact, k.Resized))
    resized = facts[where]
    assert isinstance(resized, k.Resized)
    change = resized.changes[0]
    moved = msgspec.structs.replace(change.placement[0], port=change.placement[0].port + 1)
    other = msgspec.structs.replace(change, placement=[moved, *change.placement[1:]])
    facts[where] = msgspec.structs.replace(resized, changes=[other, *resized.changes[1:]])
    records[at] = msgspec.structs.replace(records[at], body=encode(msgspec.structs.replace(event, events=facts)))
    found = decide_alike(records)
    assert found.seq == at + 1
    assert found.same_records == at
    assert [difference.path.endswith("placement[0].port") for difference in found.differences] == [True]
    assert found.differences[0].again == str(change.placement[0].port)


def test_a_master_that_did_not_wait_is_found() -> None:
    """That story's master computes its allocations at once, without the quiet time that its settings have."""
    found = decide_alike(two_apps().records)
    assert not found.good
    assert found.differences[0].path == "allocated"


def test_another_master_takes_over_in_the_middle() -> None:
    simulation = Simulation(
        Scenario(
            apps=tuple(app(name, 30.0 * index, 300.0, n_max=6) for index, name in enumerate("abc")), nodes=nodes(2)
        )
    )
    simulation.agenda.at(simulation.begin + 45 * SECOND, simulation.master.elect)
    written = played(simulation)
    elected = [fact for event in written.events if isinstance(event, k.Round) for fact in event.events]
    assert [fact.epoch for fact in elected if isinstance(fact, k.MasterElected)] == [1, 2]
    found = decide_alike(written.records)
    assert found.good, (found.seq, found.what, found.differences)
    assert found.same_records == len(written.records)


def test_an_election_after_other_records_is_decided_alike() -> None:
    """Its basis is the empty log, which has no time."""
    joined = k.NodeJoined(node="n0", address="n0", capacity={"cpu": 1000}, ports=(20_000, 20_999))
    elected = k.Round(epoch=1, basis=0, allocated=False, events=[k.MasterElected(epoch=1)], core=SCHEMA)
    found = decide_alike(
        [
            Record(1, 5_000, subjects.fact("c", "NodeJoined", "n0"), encode(joined)),
            Record(2, 9_000, subjects.rounds("c"), encode(elected)),
        ]
    )
    assert (found.good, found.rounds, found.same_records) == (True, 1, 2)


def test_a_log_that_starts_later_has_no_timings(incident: list[Record]) -> None:
    for records in ([], incident[1:]):
        with raises(SimulationError, "log.not_whole"):
            decide_alike(records)
