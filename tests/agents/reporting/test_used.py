"""The use of containers, as measured for heartbeats, and requests for it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, cast

import pytest

from agents import node_status as heartbeat
from agents.machine_identity import Identity
from agents.node_status import Usage
from agents.runtime.interface import Key, Seen, Unavailable, Use
from dorm.client.live_reports import last_uses
from events import kinds as k
from events import subjects
from events.codec import decode, encode
from events.log.memory import MemoryBus
from events.quantities import SECOND
from tests.core.records import Bench

if TYPE_CHECKING:
    from pathlib import Path

    from agents.runtime.interface import Runtime


def seen(*keys: Key, started_at: int = 100 * SECOND) -> list[Seen]:
    return [Seen(key=key, state="running", spec_hash="", started_at=started_at) for key in keys]


def use(key: Key, cpu_s: float, memory: int) -> k.ContainerUse:
    return k.ContainerUse(app=key.app, generation=key.generation, slot=key.slot, cpu_s=cpu_s, memory=memory)


def test_cpu_is_the_last_look_and_memory_the_mean_over_time() -> None:
    usage, one = Usage(), Key("a", 1, 0)
    assert usage.of(one) is None
    usage.note(seen(one), [use(one, 1.0, 100)], 101 * SECOND, 101 * SECOND)
    assert usage.of(one) == k.ContainerUsed(cpu_s=1.0, memory=100, over_s=1.0)
    usage.note(seen(one), [use(one, 4.0, 300)], 104 * SECOND, 104 * SECOND)
    usage.note(seen(one), [use(one, 5.0, 100)], 105 * SECOND, 105 * SECOND)
    assert usage.of(one) == k.ContainerUsed(cpu_s=5.0, memory=(3 * 300 + 100) // 4, over_s=5.0)
    usage.note(seen(one), [], 110 * SECOND, 110 * SECOND)
    assert usage.of(one) == k.ContainerUsed(cpu_s=5.0, memory=250, over_s=5.0), "the engine was too slow to say"


def test_a_clock_that_goes_back_and_a_container_that_is_gone() -> None:
    usage, one, other = Usage(), Key("a", 1, 0), Key("a", 1, 1)
    usage.note(seen(one, other), [use(one, 1.0, 100), use(other, 2.0, 50)], 101 * SECOND, 101 * SECOND)
    usage.note(seen(one), [use(one, 0.5, 200)], 104 * SECOND, 90 * SECOND)
    assert usage.of(one) == k.ContainerUsed(cpu_s=1.0, memory=200, over_s=4.0)
    usage.note(seen(one), [use(one, 1.5, 200)], 106 * SECOND, 3 * 10**8 * SECOND)
    assert usage.of(one) == k.ContainerUsed(cpu_s=1.5, memory=200, over_s=6.0), "ten years by that clock"
    assert usage.of(other) is None


class SlowForOne:
    """An engine that never says what one of its containers uses."""

    async def use(self, key: Key) -> Use | None:
        if key.slot == 1:
            await asyncio.Event().wait()
        if key.slot == 2:
            raise Unavailable("the engine is busy")
        return Use(cpu_s=1.0, memory=10)


@pytest.mark.parametrize(("slots", "complete"), [((0, 3), True), ((0, 1, 3), False), ((0, 2, 3), False)])
async def test_a_container_without_figures_hides_no_other(
    slots: tuple[int, ...], complete: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(heartbeat, "FIGURES_S", 0.05)
    bus = MemoryBus(time.time_ns)
    sender = heartbeat.Heartbeat(
        bus, "lab", "n1", cast("Runtime", SlowForOne()), clock=time.time_ns, since_boot=time.monotonic,
        identity=Identity(tmp_path), usage=Usage(),
    )  # fmt: skip
    await sender.send(seen(*(Key("a", 1, slot) for slot in slots)), 5.0)
    record = await bus.last_report(subjects.report("lab", "n1"))
    assert record is not None
    report = decode(record)
    assert isinstance(report, k.NodeReported)
    assert [container.slot for container in report.containers] == [0, 3]
    assert report.used == ({"memory": 20} if complete else {}), "a partial list does not look complete"


async def test_last_uses_come_from_the_holders_of_the_names() -> None:
    bench, bus = Bench(n1=2, n2=2), MemoryBus(time.time_ns)
    for name, identity in (("n1", bench.state.nodes["n1"].identity), ("n2", "another machine")):
        report = k.NodeReported(node=name, containers=[use(Key(name, 1, 0), 1.0, 2)], identity=identity)
        await bus.publish_report(subjects.report("lab", name), encode(report))
    assert list(await last_uses(bus, "lab", bench.state)) == [("n1", 1, 0)]
