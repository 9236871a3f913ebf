"""Two apps side by side: the figures are those of story, explain and usage, and the specs' differences are all there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.core.query.views import describe
from events.errors import DormError
from replay.comparison import MOST_POINTS, compare, differences
from replay.moments import AtSequence
from replay.story.story import tell
from replay.travel import state_at
from replay.usage import usage
from tests.errors import raises
from tests.replay.busy import busy_log
from tests.replay.made_log import log_of, two_apps

if TYPE_CHECKING:
    from events.log.memory import MemoryLog


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return log_of(busy_log(1500, apps=5, nodes=3, seed=2))


async def test_each_side_agrees_with_story_describe_and_usage(log: MemoryLog) -> None:
    state = await state_at(log)
    one, other = sorted(state.apps.values(), key=lambda app: -app.adjustments)[:2]
    found = await compare(log, one.id, other.name)
    assert (found.a.id, found.b.id) == (one.id, other.id)
    for side, app in ((found.a, one), (found.b, other)):
        assert side.totals == (await tell(log, app.id)).totals
        assert side.resizes == describe(app, state.time)["adjustments_done"]
        rows = (await usage(log, by=("app",), apps=[app.id])).rows
        assert side.given == {row.unit: row.given for row in rows}
        assert side.container_hours == rows[0].container_hours
        assert side.lost_container_hours == pytest.approx(rows[0].lost / (rows[0].given / rows[0].container_hours))
        assert side.curve[-1].step == app.step or app.ended
        assert [point.at_s for point in side.curve] == sorted(point.at_s for point in side.curve)
    fields = {one.field for one in found.spec}
    assert ("demand.cpu" in fields) is (one.spec.demand["cpu"] != other.spec.demand["cpu"])


async def test_a_curve_is_thinned_and_an_earlier_moment_sees_less(log: MemoryLog) -> None:
    state = await state_at(log)
    app = max(state.apps.values(), key=lambda app: app.step)
    whole, earlier = (
        await compare(log, app.id, app.id),
        await compare(log, app.id, app.id, AtSequence(len(log.records) - 300)),
    )
    assert len(whole.a.curve) <= MOST_POINTS
    assert earlier.a.curve[-1].step < whole.a.curve[-1].step
    assert whole.a == whole.b
    assert whole.spec == []


async def test_the_second_app_may_be_in_another_log(log: MemoryLog) -> None:
    other = log_of(two_apps().records)
    name = next(iter((await state_at(log)).names))
    found = await compare(log, name, "one", other=other)
    assert (found.a.name, found.b.name, found.b.phase) == (name, "one", "retrying")
    with raises(DormError, "app.not_found", "nobody"):
        await compare(log, name, "nobody", other=other)
    with raises(DormError, "app.not_found"):
        await compare(log, "nobody", name)


def test_differences_are_by_field() -> None:
    a = {"name": "a", "demand": {"cpu": 1}, "n_max": 2, "env": {}}
    b = {"name": "b", "demand": {"cpu": 2, "gpu": 1}, "n_max": 2, "env": {"X": "1"}}
    assert [(one.field, one.a, one.b) for one in differences(a, b)] == [
        ("demand.cpu", 1, 2), ("demand.gpu", None, 1), ("env.X", None, "1"),
    ]  # fmt: skip
