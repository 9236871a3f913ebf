"""Apps of the past: the rows agree with the state at each app's end, however long ago that was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dorm.core.evolve import evolve
from dorm.core.query.views import describe
from dorm.core.state import State
from events import kinds as k
from replay.moments import AtSequence, AtTime
from replay.past import PastApp, SelectError, ended_since, gather, in_order, parse_condition, row_of, select
from replay.travel import state_at
from tests.errors import raises
from tests.replay.made_log import Story, log_of

if TYPE_CHECKING:
    from events.log.memory import MemoryLog


def long_story(retention_s: float | None = 3.0) -> Story:
    """Apps that end one after the other, on a log that keeps none of them for long, or, with None, for as long as usual."""
    story = Story()
    if retention_s is not None:
        story.say(k.PolicyChanged(retention_s=retention_s))
    for number in range(12):
        name = f"app-{number:02}"
        group = {
            "name": "lr",
            "index": number,
            "count": 12,
            "parameters": {"lr": number / 10, "opt": "adam" if number % 2 else "sgd"},
        }
        story.submit(
            name, n_max=1, user="ann" if number % 3 else "bob", group=group, retries={"limit": 0},
            labels={"team": "vision"} if number == 7 else {},
        )  # fmt: skip
        story.settle()
        app = story.state.apps[story.state.names[name]]
        assert app.current is not None
        node = app.current.containers[0].node
        story.say(k.AppProgressed(app=app.id, generation=app.generation, step=10 * number, loss=1 / (number + 1)), node)
        story.exit(name, int(number % 4 == 3))
        story.settle()
    story.submit("live")
    story.settle()
    return story


@pytest.fixture(scope="module")
def story() -> Story:
    return long_story()


@pytest.fixture(scope="module")
def log(story: Story) -> MemoryLog:
    return log_of(story.records)


async def test_every_app_is_listed_even_if_the_cluster_keeps_few(story: Story, log: MemoryLog) -> None:
    found = await gather(log)
    assert [row.name for row in found.apps] == [*(f"app-{number:02}" for number in range(12)), "live"]
    assert [row.state for row in found.apps] == [*(["completed"] * 3 + ["failed"]) * 3, "live"]
    assert len(story.state.apps) < 13, "the state has dropped some"
    assert [row.loss for row in found.apps[:12]] == [1 / (number + 1) for number in range(12)]
    for row in found.apps[:12]:
        assert row.ended_at is not None
        state = await state_at(log, AtTime(row.ended_at))
        app = next(app for app in state.apps.values() if app.id == row.id)
        shown = describe(app, state.time)
        assert row == row_of(app, state.time)
        assert row.container_hours == pytest.approx(shown["served_s"] / 3600, abs=1e-6)
        assert row.core_hours == pytest.approx(row.container_hours * app.demand["cpu"] / 1000, abs=1e-6)
        assert (row.step, row.adjustments) == (shown["step"], shown["adjustments"])


async def test_a_span_contains_apps_that_had_not_ended_before_it(story: Story, log: MemoryLog) -> None:
    whole = (await gather(log)).apps
    for seq in (0, 40, 90, len(story.records)):
        begin = (await state_at(log, AtSequence(seq))).time if seq else 0
        part = await gather(log, AtSequence(seq))
        assert [row.id for row in part.apps] == [
            row.id for row in whole if row.ended_at is None or row.ended_at > begin
        ]
        assert all(row in whole for row in part.apps)
    early = await gather(log, until=AtSequence(60))
    assert [row.id for row in early.apps] == [row.id for row in whole][: len(early.apps)]
    assert 0 < len(early.apps) < len(whole)
    assert all((row.ended_at or 0) <= early.state.time for row in early.apps)
    only = await gather(log, wanted=lambda app: app.name == "app-05")
    assert [row.name for row in only.apps] == ["app-05"]


async def test_the_present_state_has_the_past_as_long_as_it_keeps_it() -> None:
    records = long_story(3600.0).records
    log, state = log_of(records), State()
    for record in records:
        evolve(state, record)
    assert sum(1 for app in state.apps.values() if app.ended) > 3
    for record in records[:: len(records) // 7]:
        assert ended_since(state, record.time) == (await gather(log, AtTime(record.time))).apps
    # As far back as its retention reaches, to the nanosecond.
    assert ended_since(state, state.time - 3600 * 10**9) is not None
    assert ended_since(state, state.time - 3600 * 10**9 - 1) is None
    state.settings.retention_s = 1.0
    assert ended_since(state, records[0].time) is None
    assert ended_since(state, state.time) is not None


async def test_rows_are_selected_and_ordered(log: MemoryLog) -> None:
    rows = (await gather(log)).apps

    def names(*conditions: str, order: str = "submitted", **more: Any) -> list[str]:
        found = select(rows, conditions=[parse_condition(one) for one in conditions], **more)
        return [row.name[-2:] for row in in_order(found, order)]

    assert names("loss<0.11") == ["09", "10", "11"]
    assert names("lr >= 0.9", "opt=adam") == ["09", "11"]
    assert names("opt!=adam", states=["completed"]) == ["00", "02", "04", "06", "08", "10"]
    assert names("step=20") == ["02"]
    assert names(states=["failed"], order="-loss") == ["03", "07", "11"]
    assert names(states=["live"]) == ["ve"]
    assert names(names=["app-0?"], users=["bob"]) == ["00", "03", "06", "09"]
    assert names(names=["lr"], order="-lr")[:2] == ["11", "10"]
    assert names(order="-ended")[0] == "11"
    assert names(text="PP-05") == ["05"]
    assert names(text="bob", states=["failed"]) == ["03"]
    assert names(text="team=Vision") == ["07"]
    assert names(text="no such text") == []
    assert names("nothing=1") == []
    assert names(order="nothing") == [f"{number:02}" for number in range(12)]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("loss", "history.metric.malformed"), ("loss<", "history.metric.malformed"), ("<1", "history.metric.malformed"),
        ("loss<low", "history.metric.no_number"), ("opt<adam", "history.metric.no_number"),
        ("x" * 5000, "history.metric.malformed"),
    ],
)  # fmt: skip
def test_conditions_that_cannot_be_read(text: str, code: str) -> None:
    with raises(SelectError, code):
        parse_condition(text)
    with raises(SelectError, "history.order.malformed"):
        in_order([], "a b")


def test_values_that_are_not_numbers_match_nothing() -> None:
    row = PastApp(
        name="a", id="a-1", user="u", sweep="", parameters={"fast": True, "n": 3}, labels={}, state="completed", why="",
        submitted_at=1, ended_at=2, life_s=1.0, n_max=1, step=0, loss=float("nan"), loss_is="nan", samples_per_s=None,
        adjustments=0, failures=0, lost_steps=0, paused_s=0.0, container_hours=0.0, core_hours=0.0,
    )  # fmt: skip
    assert not parse_condition("loss<1").holds(row)
    assert not parse_condition("samples_per_s>=0").holds(row)
    assert parse_condition("fast=true").holds(row)
    assert parse_condition("n>2").holds(row)


def test_texts_of_parameters_are_numbers_when_they_are_compared_and_sorted() -> None:
    def row(value: bool | float | str) -> PastApp:
        return PastApp(
            name="a", id="a-1", user="u", sweep="", parameters={"p": value}, labels={}, state="completed", why="",
            submitted_at=1, ended_at=2, life_s=1, n_max=1, step=0, loss=None, loss_is="", samples_per_s=None, adjustments=0,
            failures=0, lost_steps=0, paused_s=0, container_hours=0, core_hours=0,
        )  # fmt: skip

    values: list[float | str] = ["1e-2", 0.1, "0.10", "010", 9, "[1,2]", "True", "1:10"]
    ordered = [one.parameters["p"] for one in in_order([row(value) for value in reversed(values)], "p")]
    assert ordered == ["1e-2", "0.10", 0.1, 9, "010", "1:10", "True", "[1,2]"]
    for condition, found in (
        ("p>1", ["010", 9]), ("p=0.1", [0.1, "0.10"]), ("p=010", ["010"]), ("p=1e-2", ["1e-2"]), ("p=[1,2]", ["[1,2]"]),
        ("p=1:10", ["1:10"]), ("p=True", ["True"]), ("p!=9", [one for one in values if one != 9]),
    ):  # fmt: skip
        assert [one for one in values if parse_condition(condition).holds(row(one))] == found, condition
