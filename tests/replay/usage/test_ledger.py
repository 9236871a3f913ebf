"""Sums of usage against the definition: the integral of what the state reserves, added up record by record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings

from dorm.core.evolve import evolve
from dorm.core.query.views import room_held
from dorm.core.state import State
from events.quantities import SECOND
from replay.moments import AtSequence, AtTime, BeforeEnd
from replay.usage import HOUR, usage
from replay.usage_ledger import Ledger, Wanted
from tests.replay.busy import busy_log
from tests.replay.made_log import log_of, two_apps
from tests.simulator.scenarios import play, scenarios
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from events.log.records import Record
    from replay.simulator.scenario import Scenario

Sums = dict[tuple[str, str, str, str], int]
"""Amount times nanoseconds by user, app, node and resource."""


def integral(records: Sequence[Record], begin: int, end: int) -> Sums:
    """The definition, without regard for cost: before each record, all that the state reserves times the time that passed."""
    state, sums = State(), Sums()
    for record in records:
        if state.seq:
            time = min(max(record.time, state.time), end) - max(state.time, begin)
            _add(sums, state, time)
        evolve(state, record)
    _add(sums, state, end - max(state.time, begin))
    return {key: amount for key, amount in sums.items() if amount}


def _add(sums: Sums, state: State, time: int) -> None:
    for app in state.apps.values() if time > 0 else ():
        for node, count in room_held(app).items():
            for resource, amount in app.demand.items():
                key = (app.tenant, app.id, node, resource)
                sums[key] = sums.get(key, 0) + amount * count * time


def summed(ledger: Ledger) -> Sums:
    sums = Sums()
    for period in ledger.periods:
        for (key, resource), one in period.sums.items():
            if one.given:
                sums[*key, resource] = sums.get((*key, resource), 0) + one.given
    return sums


def ledger_of(records: Sequence[Record], first: int, end: int, start: int = 0, **how: Any) -> Ledger:
    state = State()
    for record in records[:first]:
        evolve(state, record)
    ledger = Ledger(state, start, **how)
    for record in records[first:]:
        if record.time > end:
            break
        folded = evolve(state, record)
        ledger.see(state, record, folded)
    ledger.close(end)
    return ledger


LOGS: dict[str, Callable[[], Sequence[Record]]] = {
    "by hand": lambda: two_apps().records,
    "lost and drained nodes": lambda: busy_log(2500, apps=12, nodes=4, seed=3),
}


@pytest.fixture(params=LOGS, scope="module")
def records(request: pytest.FixtureRequest) -> Sequence[Record]:
    return LOGS[request.param]()


def test_sums_are_the_integral_of_reservations(records: Sequence[Record]) -> None:
    end = records[-1].time + 7 * SECOND
    expected = integral(records, 0, end)
    assert expected
    assert summed(ledger_of(records, 0, end, by=("user", "app", "node"))) == expected


@given(scenarios())
@settings(max_examples=tries(4, 500), deadline=None)
def test_sums_match_with_live_apps_lost_nodes_and_all_policies(scenario: Scenario) -> None:
    records = play(scenario).records
    end = records[-1].time
    expected = integral(records, 0, end)
    ledger = ledger_of(records, 0, end, by=("user", "app", "node"), every=97 * SECOND)
    assert summed(ledger) == expected
    for period in ledger.periods:
        assert all(min(one.paused, one.redone) >= 0 for one in period.sums.values())


def test_sums_match_over_any_span_and_in_periods(records: Sequence[Record]) -> None:
    begin = (records[0].time + records[len(records) // 3].time) // 2
    first = max((record.seq for record in records if record.time <= begin), default=0)
    end = records[2 * len(records) // 3].time + 1
    expected = integral(records, begin, end)
    assert expected
    for every in (0, (end - begin) // 7 + 1):
        ledger = ledger_of(records, first, end, begin, by=("user", "app", "node"), every=every)
        assert summed(ledger) == expected
        assert (ledger.periods[0].begin, ledger.periods[-1].end) == (begin, end)
        assert len(ledger.periods) == (7 if every else 1)


@pytest.mark.parametrize("by", [("user",), ("app",), ("node",), (), ("user", "node")])
def test_users_nodes_and_resources_add_up_to_the_same(records: Sequence[Record], by: tuple[str, ...]) -> None:
    end = records[-1].time
    all_of_it = totals(integral(records, 0, end))
    assert totals(summed(ledger_of(records, 0, end, by=by))) == all_of_it


def totals(sums: Sums) -> dict[str, int]:
    found: dict[str, int] = {}
    for (*_, resource), amount in sums.items():
        found[resource] = found.get(resource, 0) + amount
    return found


def test_a_filter_returns_exactly_the_named_part(records: Sequence[Record]) -> None:
    end = records[-1].time
    expected = integral(records, 0, end)
    user, app, node, _ = next(iter(expected))
    for wanted, place in (
        (Wanted(users=frozenset([user])), 0),
        (Wanted(apps=frozenset([app])), 1),
        (Wanted(nodes=frozenset([node])), 2),
    ):
        part = {key: amount for key, amount in expected.items() if key[place] == (user, app, node)[place]}
        assert summed(ledger_of(records, 0, end, by=("user", "app", "node"), wanted=wanted)) == part


def test_usage_is_within_capacity_and_includes_pauses(records: Sequence[Record]) -> None:
    end = records[-1].time
    for period in ledger_of(records, 0, end, by=("node",)).periods:
        assert period.sums
        for one in period.sums.values():
            assert 0 <= one.paused + one.redone <= one.given <= one.capacity


async def test_the_answer_is_the_same_from_any_kind_of_moment(records: Sequence[Record]) -> None:
    log = log_of(records)
    seq = len(records) // 2
    time = records[seq - 1].time
    if records[seq].time == time:
        pytest.skip("another record has the same time")
    found = [
        await usage(log, moment, by=("user", "node"))
        for moment in (AtSequence(seq), AtTime(time), BeforeEnd(records[-1].time - time))
    ]
    assert found[0].rows
    assert found[0] == found[1] == found[2]
    given = sum(row.given for row in found[0].rows if row.resource == "cpu")
    expected = totals(integral(records, time, records[-1].time))["cpu"] / (1000 * HOUR)
    assert given == pytest.approx(expected)
    assert [row.given for row in found[0].totals if row.resource == "cpu"] == pytest.approx([expected])
