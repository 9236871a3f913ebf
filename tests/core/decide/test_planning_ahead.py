"""Plans on the log: the promises of a policy that plans ahead, kept by the fold, returned to it, and carried out by the
clock."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dorm.core import promises
from dorm.core.asking import problem_of
from dorm.core.promises import MOST_SLOTS
from dorm.core.round_size import size
from dorm.core.timing import next_deadline
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import Bench

SLOT_S = 100.0
URGENT = {"worth": 10.0, "decay": 36.0, "target": "150s"}


def bench(**nodes: float) -> Bench:
    """A cluster under `oasis`, at the beginning of a slot."""
    one = Bench(**nodes)
    one.now -= one.now % int(SLOT_S * SECOND)
    one.now += int(SLOT_S * SECOND)
    one.add(k.PolicyChanged(policy="oasis", params={"slot_s": SLOT_S, "slots": 20}))
    return one


def submit(one: Bench, name: str, work_s: float, n_max: int = 4, **fields: Any) -> list[Any]:
    one.submit(name, n_max=n_max, work={"mini_batch": f"{work_s / 100}s", "chunks": 100}, **fields)
    return one.settle()


def plans(facts: list[Any]) -> list[k.AppPlanned]:
    return [fact for fact in facts if isinstance(fact, k.AppPlanned)]


def seconds(one: Bench, plan: list[k.PlannedSlot]) -> list[tuple[float, int]]:
    return [((slot.at - one.now) / SECOND, sum(slot.containers.values())) for slot in plan]


def test_an_admission_is_on_the_log_with_its_plan_and_given_back_to_the_policy() -> None:
    one = bench(a=4)
    said = submit(one, "first", 800, utility=URGENT)
    (planned,) = plans(said)
    assert seconds(one, planned.slots) == [(0, 4), (200, 0)]
    assert planned.worth > planned.cost > 0
    promised = one.app("first").plan
    assert promised is not None
    assert promised.slots == planned.slots
    (demand,) = problem_of(one.state, one.now).apps
    assert demand.plan is not None
    assert [slot.counts for slot in demand.plan.slots] == [{"a": 4}, {}]
    assert demand.work_s == 800
    assert not plans(one.settle()), "the same plan is said once"


def test_a_refusal_is_a_reason_with_the_prices_and_no_plan() -> None:
    one = bench(a=4)
    submit(one, "rich", 6000, n_max=3, n_min=3, utility={"worth": 1e6})
    submit(one, "poor", 100, n_max=1, utility={"worth": 1e-6})
    poor = one.app("poor")
    assert poor.plan is None
    assert poor.waiting is not None
    assert poor.waiting.code == "price"
    assert "refused: its best schedule" in poor.waiting.text
    assert "at present prices" in poor.waiting.text


def test_planned_changes_need_no_record() -> None:
    one = bench(a=4)
    submit(one, "first", 800, utility=URGENT)
    one.started("first")
    submit(one, "second", 400, utility=URGENT)
    second = one.app("second").plan
    assert second is not None
    assert seconds(one, second.slots) == [(0, 0), (200, 4), (300, 0)]
    assert one.app("second").waiting is not None
    assert one.app("second").current is None
    one.wait(31)
    one.settle()
    assert next_deadline(one.state, one.now) == second.slots[1].at
    one.all_exited("first")
    one.settle()
    assert one.app("second").plan == second, "a plan is kept though there is room earlier"
    one.now = second.slots[1].at
    one.settle()
    assert len(one.app("second").generations[1].containers) == 4


def test_the_work_that_is_left_follows_from_steps_or_from_service() -> None:
    one = bench(a=4)
    submit(one, "served", 800, utility=URGENT)
    submit(one, "stepping", 800, utility=URGENT, steps=100)
    one.started("served")
    one.wait(10)
    served, stepping = problem_of(one.state, one.now).apps
    assert served.work_s == 800 - 4 * 10
    assert stepping.work_s == 800
    assert served.chunks == 100


def test_parameter_servers_of_the_engine_are_shown() -> None:
    one = bench(a=8)
    submit(one, "ps", 800, n_min=3, utility=URGENT, engine="ps", engine_options={"workers_per_server": 2})
    submit(one, "one", 800, n_min=2, utility=URGENT, engine="ps")
    ratio, fixed = problem_of(one.state, one.now).apps
    assert (ratio.servers, ratio.workers_per_server) == (0, 2)
    assert (fixed.servers, fixed.workers_per_server) == (1, 0)


def test_another_policy_knows_nothing_of_plans() -> None:
    one = bench(a=4)
    submit(one, "first", 800, utility=URGENT)
    one.add(k.PolicyChanged(policy="oasis", set_params={"slots": 30}))
    assert one.app("first").plan is not None
    one.add(k.PolicyChanged(policy="dorm", params={}))
    assert one.app("first").plan is None
    one.settle()
    (demand,) = problem_of(one.state, one.now).apps
    assert demand.plan is None


def test_an_app_that_ends_leaves_no_plan() -> None:
    one = bench(a=4)
    submit(one, "first", 800, utility=URGENT)
    one.started("first")
    one.all_exited("first")
    one.settle()
    assert one.app("first").ended
    assert one.app("first").plan is None


@pytest.mark.parametrize(
    "slots",
    [
        [k.PlannedSlot(at=number, containers={}) for number in range(MOST_SLOTS + 1)],
        [k.PlannedSlot(at=2, containers={"a": 1}), k.PlannedSlot(at=1, containers={})],
        [k.PlannedSlot(at=1, containers={f"n{number}": 1 for number in range(20_001)})],
    ],
    ids=["too many slots", "not ascending", "too many nodes"],
)
def test_plans_that_no_policy_makes_are_ignored(slots: list[k.PlannedSlot]) -> None:
    one = bench(a=4)
    submit(one, "first", 800, utility=URGENT)
    before, ignored = one.app("first").plan, one.state.counters.ignored
    one.say(k.AppPlanned(app=one.app("first").id, slots=slots), k.AppPlanned(app="nobody", slots=[]))
    assert one.app("first").plan == before
    assert one.state.counters.ignored == ignored + 2


def test_plans_that_do_not_fit_into_one_message_follow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench(a=8)
    for name in ("x", "y", "z"):
        one.submit(name, n_max=1, utility=URGENT, work={"mini_batch": "100s", "chunks": 1})
    one.decide()
    largest = max(size(fact) for fact in one.decided(allocate=True) if isinstance(fact, k.AppPlanned))
    monkeypatch.setattr(promises, "LARGEST_PLANS", largest + 10)
    (first,) = plans(one.decide(allocate=True))
    assert first.more == 2
    assert one.state.dirty_seq == one.state.seq
    one.settle()
    assert all(one.app(name).plan is not None for name in ("x", "y", "z"))


def test_a_decision_with_plans_is_decided_again_byte_for_byte() -> None:
    one = bench(a=4)
    one.submit("first", n_max=4, utility=URGENT, work={"mini_batch": "8s", "chunks": 100})
    one.decide()
    again = [msgspec.msgpack.encode(one.decided(allocate=True)) for _ in range(2)]
    assert again[0] == again[1]
    assert b"AppPlanned" in again[0]
