"""The possible outcomes of an append in an outage: each of them happens, and no other does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from events.log.records import LogUnavailable
from tests.events.log.readable_conformance import ALICE
from tests.simulation.world.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.world.process import Host, Process


def outcome(seed: int, hit: Callable[[World, Host], None]) -> tuple[str, str]:
    """Return the answer to an append that was in flight during `hit`, and whether it was stored by then, later, or never."""
    with World(seed, fold=False) as world:
        told = ["nothing"]

        async def main(process: Process) -> None:
            log = world.connect(process).log
            await log.end()
            await asyncio.sleep(1.0 - world.now)
            try:
                await log.append(ALICE, b"one", timeout=2.0)
            except LogUnavailable as error:
                told.append(type(error).__name__)
            else:
                told.append("stored")
            told.append("then" if world.server.durable else "not then")

        host = world.host("h")
        process = host.start("p", main)
        hits = world.chance("when")
        world.at(1.0 + hits.choice([-0.5, hits.uniform(0, 0.01)]), hit, world, host)
        world.at(1.0 + hits.choice([1.0, 8.0, 60.0]), host.heal)
        world.run_for(200.0)
        assert process.ended
        when = "then" if told[-1] == "then" else "later" if world.server.durable else "never"
        return told[1], when


def outcomes(hit: Callable[[World, Host], None]) -> set[tuple[str, str]]:
    return {outcome(seed, hit) for seed in range(150)}


def test_a_silent_cut_may_lose_or_delay_either_way() -> None:
    seen = outcomes(lambda _, host: host.cut(silent=True))
    assert seen == {
        ("stored", "then"),
        ("LogUnavailable", "then"),
        ("LogUnavailable", "later"),
        ("LogUnavailable", "never"),
    }


def test_nothing_is_sent_over_a_connection_known_to_be_lost() -> None:
    seen = outcomes(lambda _, host: host.cut(silent=False))
    assert seen == {
        ("stored", "then"),
        ("LogUnavailable", "then"),
        ("LogUnavailable", "later"),
        ("LogUnavailable", "never"),
        ("NotSent", "never"),
    }


def test_requests_that_get_there_may_have_no_answer() -> None:
    seen = outcomes(lambda _, host: host.cut(silent=True, way="down"))
    assert seen == {("stored", "then"), ("LogUnavailable", "then")}


def test_a_killed_server_may_have_stored_unacknowledged_records() -> None:
    seen = outcomes(lambda world, _: world.server.crash(3.0))
    assert {("stored", "then"), ("LogUnavailable", "later"), ("LogUnavailable", "never")} <= seen
    assert seen <= {
        ("stored", "then"),
        ("LogUnavailable", "then"),
        ("LogUnavailable", "later"),
        ("LogUnavailable", "never"),
        ("NotSent", "never"),
    }


def test_a_full_disk_stores_nothing() -> None:
    seen = outcomes(lambda world, _: setattr(world.server, "full", True))
    assert seen == {("stored", "then"), ("LogFull", "never")}


def test_messages_of_a_connection_never_overtake_each_other() -> None:
    for seed in range(60):
        with World(seed, fold=False) as world:
            host = world.host("h")

            async def main(process: Process) -> None:
                log = process.world.connect(process).log
                await log.end()
                async with asyncio.TaskGroup() as tasks:
                    for number in range(50):
                        tasks.create_task(log.append(ALICE, b"%d" % number, timeout=60.0))

            process = host.start("p", main)
            begin = world.chance("when").uniform(0.0, 0.02)
            world.at(begin, *((host.lag, 0.5) if seed % 2 else (host.cut,)))
            world.at(2.0, host.heal)
            assert world.run_until(lambda: process.ended, within=100.0)  # noqa: B023 - it is asked at once.
            stored = [int(record.body) for record in world.server.records]
            assert stored == sorted(set(stored))
