"""The allocation that another policy would have given, on logs where the answer is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.policies.registry import policy
from events import kinds as k
from events.codec import decode
from replay.shadow import Comparison, Shadow, smaller
from replay.simulator.scenario import DecisionTime, Scenario
from replay.simulator.simulation import Simulation
from tests.replay.made_log import log_of
from tests.simulator.histories import written
from tests.simulator.scenarios import app, nodes

if TYPE_CHECKING:
    from dorm.policies.problem import Allocation, Problem
    from events.log.records import Record


def made(**fields: Any) -> list[Record]:
    """Two apps after each other on four cores: the first has all four, then two, then all four again."""
    apps = (app("first", 0, 900, n_max=4), app("second", 100, 200, n_max=4))
    usual: dict[str, Any] = {"decision_time": DecisionTime(0.0, 0.0), "params": {"theta2": 1.0}}
    return written(Simulation(Scenario(apps=apps, nodes=nodes(1), **usual, **fields)))


def decisions(records: list[Record]) -> list[int]:
    found = []
    for record in records:
        event = decode(record)
        facts = event.events if isinstance(event, k.Round) else []
        if any(isinstance(fact, k.Resized | k.IdleTicked) for fact in facts):
            found.append(record.seq)
    return found


async def shadowed(
    records: list[Record], name: str, params: dict[str, Any] | None = None, since: int = 0, chosen: Any = None
) -> list[Comparison]:
    shadow = Shadow(log_of(records), "lab", chosen or policy(name), params or {})
    return [one async for one in shadow.run(since=since, end=len(records), follow=False)]


async def test_the_policy_that_decides_differs_in_nothing() -> None:
    records = made()
    found = await shadowed(records, "dorm", {"theta2": 1.0})
    assert [one.seq for one in found] == decisions(records), "after each decision, and only then"
    assert [one.differing for one in found] == [0] * len(found)
    assert all(one.now == one.then for one in found)
    assert found[-1].changes == found[-1].changes_really >= 2


async def test_an_app_that_would_have_less_is_named_with_the_reason() -> None:
    found = await shadowed(made(), "static", {"count": 1})
    first = found[0]
    assert [(one.name, one.has, one.would_have, one.code) for one in first.apps] == [("first", 4, 1, "static_count")]
    assert (first.now.utilization > first.then.utilization, first.now.containers, first.then.containers) == (True, 4, 1)
    both = next(one for one in found if one.live == 2)
    assert {one.name: one.would_have for one in both.apps} | {"first": 1, "second": 1} == {"first": 1, "second": 1}
    assert found[-1].changes == 0, "a static policy never changes what runs"
    assert found[-1].changes_really >= 2


async def test_the_allocation_is_carried_on_and_not_taken_from_the_log() -> None:
    """From a moment at which the first app has two containers, `static` always keeps these two."""
    records = made()
    four = await shadowed(records, "static", {"count": 4})
    assert four[0].differing == 0
    later = next(one for one in four if one.live == 2)
    assert {one.name: (one.has, one.would_have) for one in later.apps} == {"first": (2, 4), "second": (2, 0)}
    assert (later.now.waiting, later.then.waiting) == (0, 1)
    since = later.seq
    rest = await shadowed(records, "static", {"count": 4}, since=since)
    assert rest
    assert rest[0].seq > since
    last = [one for one in rest if one.live == 1][-1]
    assert {one.name: (one.has, one.would_have) for one in last.apps} == {"first": (4, 2)}


async def test_a_policy_that_fails_keeps_its_allocation() -> None:
    class Fragile:
        name, version = "fragile", 1
        asked = 0

        def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
            return {}

        def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
            self.asked += 1
            if self.asked > 1:
                raise ZeroDivisionError("no more")
            return policy("static").allocate(problem, {"count": 3})

    found = await shadowed(made(), "", chosen=Fragile())
    assert found[0].failed == ""
    assert {one.name: one.would_have for one in found[0].apps} == {"first": 3}
    assert all("ZeroDivisionError: no more" in one.failed and "[policy.raised]" in one.failed for one in found[1:])
    assert all(one.would_have in (0, 3) for later in found[1:] for one in later.apps)
    assert [one.then.containers for one in found[1:] if one.live] == [3] * len([one for one in found[1:] if one.live])


async def test_now_compares_once_with_the_present_allocation() -> None:
    records = made()
    cut = next(seq for seq in decisions(records) if seq > 10)
    shadow = Shadow(log_of(records[:cut]), "lab", policy("static"), {"count": 1})
    one = await shadow.now()
    assert (one.differing, one.decisions) == (0, 1), "static resizes nothing that runs"


async def test_a_comparison_fits_into_a_message_and_reads_back() -> None:
    one = (await shadowed(made(), "static", {"count": 1}))[0]
    assert msgspec.json.decode(msgspec.json.encode(one), type=Comparison) == one
    assert smaller(one, 0).apps == []
    assert smaller(one, 0).differing == 1
