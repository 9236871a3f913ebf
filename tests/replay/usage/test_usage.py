"""What apps do with their containers: used, wasted, lost; and the answers to nonsensical questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from events import kinds as k
from events.errors import DormError
from events.quantities import SECOND
from replay.moments import AtSequence, AtTime, BeforeEnd
from replay.usage import HOUR, usage
from tests.errors import raises
from tests.replay.made_log import START, Story, log_of

if TYPE_CHECKING:
    from replay.usage import Row, Usage

SPEC = {"n_min": 1, "n_max": 1, "demand": {"cpu": 1, "memory": "1GiB", "gpu": 1}, "user": "ann"}


def running(**spec: object) -> Story:
    story = Story(nodes=0)
    story.say(
        k.NodeJoined(node="n0", address="a", capacity={"cpu": 3000, "memory": 2**33, "gpu": 3}, ports=(20000, 20099)),
        "n0",
    )
    story.submit("one", **{**SPEC, **spec})
    story.settle()
    return story


def of(found: Usage, resource: str) -> Row:
    (row,) = [row for row in found.rows if row.resource == resource]
    return row


def container(story: Story, name: str = "one") -> tuple[k.ContainerExited, int]:
    """The end of its only container, and when it started."""
    app = story.state.apps[story.state.names[name]]
    (one,) = app.generations[app.generation].containers.values()
    return k.ContainerExited(app=app.id, generation=app.generation, slot=0, node=one.node, exit_code=0), one.started_at


async def test_used_and_wasted_cover_only_the_known_time() -> None:
    story = running()
    ended, started = container(story)
    at = story.now
    used = k.ContainerUsed(cpu_s=0.25 * (at - started) / SECOND, memory=2**30, over_s=(at - started) / SECOND)
    story.say(msgspec.structs.replace(ended, usage=used), "n0")
    story.settle()
    found = await usage(log_of(story.records), by=("user", "app", "node"))
    cpu, memory, gpu = (of(found, resource) for resource in ("cpu", "memory", "gpu"))
    assert (cpu.user, cpu.app, cpu.node, cpu.unit) == ("ann", "one", "n0", "core-hours")
    assert cpu.known == pytest.approx((at - started) / HOUR)
    assert cpu.known < cpu.given  # It was placed before it started.
    assert cpu.used == pytest.approx(0.25 * cpu.known)
    assert cpu.wasted == pytest.approx(0.75 * cpu.known)
    assert memory.used == pytest.approx(memory.known)
    assert memory.wasted == 0
    assert (gpu.used, gpu.wasted, gpu.known) == (None, None, 0)
    assert gpu.given == pytest.approx(cpu.given)


async def test_use_is_spread_over_a_containers_life_and_heartbeats_report_running_ones() -> None:
    story = running()
    ended, started = container(story)
    for _ in range(20):
        story.say(k.SealRequested())
    at = story.now
    half = (started + at) // 2
    used = k.ContainerUsed(cpu_s=3.0, memory=2**29, over_s=(at - started) / SECOND)
    story.say(msgspec.structs.replace(ended, usage=used), "n0")
    last_half = of(await usage(log_of(story.records), AtTime(half)), "cpu")
    assert last_half.used == pytest.approx(1.5 * SECOND / HOUR, rel=0.1)
    assert last_half.given == pytest.approx((at - half) / HOUR)

    async def uses(_state: object) -> dict[tuple[str, int, int], k.ContainerUse]:
        return {(ended.app, 1, 0): k.ContainerUse(app=ended.app, generation=1, slot=0, cpu_s=3.0, memory=2**29)}

    running_still = log_of(story.records[:-1])
    assert of(await usage(running_still), "cpu").used is None
    now = of(await usage(running_still, now=at, uses=uses), "cpu")
    assert now.used == pytest.approx(3.0 * SECOND / HOUR)
    assert now.known == pytest.approx((at - started) / HOUR)
    assert of(await usage(running_still, until=BeforeEnd(SECOND), now=at, uses=uses), "cpu").used is None


async def test_use_beyond_demand_wastes_nothing_and_a_forged_length_counts_no_more_than_the_span() -> None:
    story = running()
    ended, _ = container(story)
    story.say(msgspec.structs.replace(ended, usage=k.ContainerUsed(cpu_s=1e9, memory=0, over_s=1e9)), "n0")
    cpu = of(await usage(log_of(story.records)), "cpu")
    assert cpu.used is not None
    assert cpu.used > cpu.given
    assert cpu.wasted == 0
    assert cpu.known <= cpu.given


async def test_an_adjustment_loses_its_pause_and_the_steps_after_the_checkpoint() -> None:
    story = running(n_max=3)
    app = story.state.apps[story.state.names["one"]]
    n = len(app.generations[app.generation].containers)
    for step in (10, 20, 30):
        story.say(k.AppProgressed(app=app.id, generation=app.generation, step=step), "n0")
    story.say(k.AppCheckpointed(app=app.id, generation=app.generation, step=20), "n0")
    story.say(k.AppUpdated(app=app.id, n_max=n - 1, n_min=1))
    story.settle()
    story.say(k.AppProgressed(app=app.id, generation=app.generation, step=21), "n0")
    (last,) = app.history
    assert (last.lost_steps, last.containers_before, last.containers_after) == (10, n, n - 1)
    found = of(await usage(log_of(story.records)), "cpu")
    assert found.redone == pytest.approx(10 / last.steps_per_s * n * SECOND / HOUR)
    assert found.paused > 0
    assert found.lost == pytest.approx(found.paused + found.redone)
    least = (last.started_at - last.decided_at) / HOUR
    assert least * (n - 1) <= found.paused <= (story.now - last.decided_at) / HOUR * n


async def test_questions_without_an_answer() -> None:
    story = running()
    log, end = log_of(story.records), len(story.records)
    last = story.records[-1].time
    with raises(DormError, "moment.end_before_start"):
        await usage(log, AtSequence(end), AtSequence(end - 1))
    with raises(DormError, "accounting.empty_span"):
        await usage(log, AtSequence(end), AtSequence(end))
    with raises(DormError, "accounting.empty_span"):
        await usage(log, AtTime(last), AtTime(last))
    with raises(DormError, "moment.before_start"):
        await usage(log, AtTime(START - 9 * SECOND), AtTime(START - 5 * SECOND))
    with raises(DormError, "moment.after_end"):
        await usage(log, AtTime(last + 1))
    with raises(DormError, "moment.after_end"):
        await usage(log, until=AtSequence(end + 1))
    with raises(DormError, "accounting.empty_span"):
        await usage(log_of([]))
    with raises(DormError, "accounting.too_many_periods"):
        await usage(log, every_s=1e-7)
    for what in ("user", "app", "node"):
        with raises(DormError, "name.not_found", what):
            await usage(log, **{f"{what}s": ["onn"]})  # type: ignore[arg-type]


async def test_a_span_before_the_log_starts_with_the_log() -> None:
    story = running()
    log = log_of(story.records)
    early = await usage(log, AtTime(START - HOUR))
    assert early == await usage(log)
    assert early.begin == story.records[0].time
