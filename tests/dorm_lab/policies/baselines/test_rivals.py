"""The policies of the literature, by the worked examples of their papers: `fifo`, `srtf`, `drf`, `gavel`, `themis`
and `market`; and what holds of `shockwave` too (`tests/dorm_lab/policies/shockwave`)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.policies import integer, scoring
from dorm.policies.problem import AppDemand, Problem
from dorm.policies.registry import policy
from dorm_lab.policies.baselines.srtf import remaining_s
from dorm_lab.policies.baselines.themis import Auction
from dorm_lab.policies.gavel.policy import received
from dorm_lab.policies.gavel.target import target
from tests.dorm_lab.policies.baselines.test_speed_policies import (
    HOUR,
    STOPPED,
    TWO,
    rows_of,
    served,
    solve,
    telling,
    told,
    totals,
)
from tests.errors import raises
from tests.policies.problems import after, app, node, slow_machine
from tests.tries import tries

FEW = settings(slow_machine, max_examples=tries(4, 30))
NAMES = ("drf", "fifo", "gavel", "market", "shockwave", "srtf", "themis")
STOP = ("srtf", "gavel", "themis", "shockwave")
"""Policies that stop apps which could continue."""


@st.composite
def typed(draw: st.DrawFn) -> Problem:
    """Some nodes have a type, and some apps report how fast they are there, how old they are, and what they have had."""
    problem = draw(told())
    nodes = tuple(
        msgspec.structs.replace(each, labels={**each.labels, "type": draw(st.sampled_from(["a", "b"]))})
        if draw(st.booleans())
        else each
        for each in problem.nodes
    )
    apps = []
    for each in problem.apps:
        rate = draw(st.sampled_from([0.0, 1.0, 4.0, 1e6, -1.0]))
        apps.append(
            msgspec.structs.replace(
                each,
                speed_on={"a": ((1, rate),)} if draw(st.booleans()) else {},
                served_on={"a": each.served_s / 2} if draw(st.booleans()) else {},
                age_s=draw(st.sampled_from([0.0, 60.0, 1e6])),
                held_s=draw(st.sampled_from([None, 10.0, 1e5])) if each.current else None,
            )
        )
    return Problem(nodes, tuple(apps))


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(problem=typed())
def test_invariants_of_every_answer(name: str, problem: Problem) -> None:
    got = policy(name).allocate(problem, {})
    instance = integer.read(problem)
    assert set(scoring.faults(instance, rows_of(instance, got), len(problem.apps))) <= (
        {STOPPED} if name in STOP else set()
    )
    for each in problem.apps:
        count = totals(got)[each.id]
        assert (each.id in got.reasons) == (count < each.n_max)
        assert each.pinned or (each.id in got.shortage) == (count < each.n_min)
    shuffled = Problem(problem.nodes[::-1], problem.apps)
    assert msgspec.json.encode(policy(name).allocate(shuffled, {})) == msgspec.json.encode(got)


@pytest.mark.parametrize("name", ["drf", "fifo", "gavel", "market", "srtf"])
@FEW
@given(problem=typed())
def test_answers_settle_once_they_are_applied(name: str, problem: Problem) -> None:
    """Not so `themis`: apps whose leases have ended take turns."""
    settled = Problem(problem.nodes, tuple(msgspec.structs.replace(each, pinned=False) for each in problem.apps))
    for _ in range(20):
        following = after(settled, policy(name).allocate(settled, {}))
        if following == settled:
            return
        settled = following
    raise AssertionError("still changing after 20 rounds")


def test_any_hash_seed_and_process_gives_the_same_answers() -> None:
    code = (
        "import msgspec, sys\n"
        "from dorm_lab.bench.optimizer.workload import World\n"
        "from dorm.policies.registry import policy\n"
        "problem = World(apps=30, nodes=20, shapes=3, seed=4, labels=True).next_problem()\n"
        f"for name in {NAMES!r}:\n"
        "    print(msgspec.json.encode(policy(name).allocate(problem, {})))\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "31337")
    }
    assert len(said) == 1


class TestFifo:
    APPS = (app("a", 1, 1, (1, 6)), app("b", 1, 1, (1, 4)), app("c", 1, 1, (1, 2)))

    def test_an_app_gets_all_that_it_asks_for_or_waits(self) -> None:
        got = solve("fifo", TWO, *self.APPS)
        assert totals(got) == {"a": 6, "b": 0, "c": 0}
        assert got.reasons["b"].code == "resources"
        assert got.reasons["c"].text == "b came first and waits for room"

    def test_with_backfilling_a_fitting_app_starts(self) -> None:
        assert totals(solve("fifo", TWO, *self.APPS, backfill=True)) == {"a": 6, "b": 0, "c": 2}

    def test_no_app_is_stopped_or_resized(self) -> None:
        late = app("late", 1, 1, (1, 8), {"n0": 3})
        got = solve("fifo", TWO, app("early", 1, 1, (6, 6)), late)
        assert totals(got) == {"early": 0, "late": 3}
        assert got.reasons["late"].code == "static_count"

    def test_counts_can_be_fixed(self) -> None:
        assert totals(solve("fifo", TWO, *self.APPS, count=2)) == {"a": 2, "b": 2, "c": 2}


class TestSrtf:
    def test_the_app_that_ends_sooner_preempts(self) -> None:
        """`long` needs 100 s more with 8 containers, `short` 40 s with 4."""
        speed = [(n, float(n)) for n in range(1, 9)]
        long = telling(app("long", 1, 1, (8, 8), {"n0": 4, "n1": 4}), 800, *speed)
        short = telling(app("short", 1, 1, (4, 4)), 160, *speed)
        got = solve("srtf", TWO, long, short)
        assert totals(got) == {"long": 0, "short": 4}
        assert got.reasons["long"].text == "stopped for apps that end sooner: it needs 100 s"
        near = telling(app("long", 1, 1, (8, 8), {"n0": 4, "n1": 4}), 300, *speed)
        assert totals(solve("srtf", TWO, near, short)) == {"long": 8, "short": 0}

    def test_without_a_declaration_the_remaining_work_equals_the_work_done(self) -> None:
        assert remaining_s(served(app("a", 1, 1, (4, 4)), 2), 4) == HOUR / 2
        old = served(app("old", 1, 1, (8, 8), {"n0": 4, "n1": 4}), 2)
        assert totals(solve("srtf", TWO, old, app("new", 1, 1, (1, 2)))) == {"old": 0, "new": 2}

    @pytest.mark.parametrize("speed", [(), ((1, 0.0),), ((1, float("nan")), (2, -3.0))])
    def test_invalid_speeds_count_as_unknown(self, speed: tuple[tuple[int, float], ...]) -> None:
        odd = telling(served(app("odd", 1, 1, (2, 2)), 1), 1e9, *speed)
        assert remaining_s(odd, 2) == HOUR / 2

    def test_apps_further_back_make_room_on_a_node(self) -> None:
        """Each node has one core free and one container needs two: only one of the small apps is stopped for it."""
        small = [served(app(f"s{j}", 3, 1, (1, 1), {f"n{j}": 1}), 20 + j) for j in range(2)]
        got = solve("srtf", TWO, *small, app("wide", 2, 1, (1, 1)))
        assert got.counts == {"s0": {"n0": 1}, "s1": {}, "wide": {"n1": 1}}


class TestDrf:
    def test_the_papers_example(self) -> None:
        """9 CPUs and 18 GB; tasks of ⟨1 CPU, 4 GB⟩ and ⟨3 CPUs, 1 GB⟩: 3 and 2 of them, each with 2/3 of its dominant resource
        (NSDI 2011, §4.1 and Table 1)."""
        got = solve("drf", (node("n", 9, 18),), app("a", 1, 4, (1, 9)), app("b", 3, 1, (1, 9)))
        assert totals(got) == {"a": 3, "b": 2}
        assert got.fairness_loss == pytest.approx(0)

    def test_weights(self) -> None:
        """§4.3: the shares of one resource are as 2 to 1."""
        got = solve("drf", (node("n", 9, 36),), app("a", 1, 1, (1, 9), weight=2.0), app("b", 1, 1, (1, 9)))
        assert totals(got) == {"a": 6, "b": 3}

    def test_others_continue_if_the_next_container_of_one_does_not_fit(self) -> None:
        """`wide` has 4 of 10 cores, its next 4 do not fit: Algorithm 1 as printed would end with 4 and 3 or 4 of them."""
        got = solve("drf", (node("n", 10, 40),), app("wide", 4, 1, (1, 9)), app("small", 1, 1, (1, 9)))
        assert totals(got) == {"wide": 1, "small": 6}

    def test_a_newcomer_gets_its_share_from_running_apps(self) -> None:
        got = solve("drf", TWO, app("a", 1, 1, (1, 8), {"n0": 4, "n1": 4}), app("b", 1, 1, (1, 8)))
        assert totals(got) == {"a": 4, "b": 4}
        assert set(got.counts["a"]) == {"n0"} or set(got.counts["a"]) == {"n1"}, "and one node is cleared for it"

    def test_no_app_is_stopped_for_an_earlier_one(self) -> None:
        got = solve("drf", TWO, app("a", 1, 1, (8, 8)), app("b", 1, 1, (1, 8), {"n0": 1}))
        assert totals(got) == {"a": 0, "b": 8}
        assert got.reasons["a"].code == "resources"


def x_of(speed: list[list[float]], count: list[int], nodes: list[int], weight: list[float] | None = None) -> Any:
    """X for this many accelerators of each type, of which an app takes one for each container."""
    apps, capacity = len(speed), np.array(nodes)
    found = target(
        np.array(speed),
        np.array(count),
        np.array(weight or [1.0] * apps),
        np.ones((apps, 1), np.int64),
        capacity[:, None],
        np.repeat(capacity[None], apps, axis=0),
    )
    assert found is not None
    return found


class TestGavel:
    def test_the_papers_example(self) -> None:
        """OSDI 2020, §4.1: three jobs, one V100 and one K80, of which the first is 4, 3 and 2 times as fast.  The paper prints
        0.45 0 / 0.45 0.09 / 0.09 0.91, so all are about a tenth faster than with a third of each."""
        speed = [[4.0, 1.0], [3.0, 1.0], [2.0, 1.0]]
        x = x_of(speed, [1, 1, 1], [1, 1])
        assert x == pytest.approx(np.array([[5, 0], [5, 1], [1, 10]]) / 11, abs=1e-6)
        gain = (np.array(speed) * x).sum(axis=1) / (np.array(speed).sum(axis=1) / 3)
        assert gain == pytest.approx([12 / 11] * 3)

    def test_without_differences_all_get_the_same_time(self) -> None:
        x = x_of([[1.0], [1.0], [1.0]], [1, 1, 1], [1])
        assert x[:, 0] == pytest.approx([1 / 3] * 3, abs=1e-3)

    def test_a_wide_app_gets_a_smaller_part_of_the_time(self) -> None:
        """§4.1, scale factors: as much accelerator time as the others, so half of the time with two."""
        x = x_of([[1.0], [1.0]], [2, 1], [2])
        assert x[:, 0] == pytest.approx([0.5, 1.0], abs=1e-3)

    def test_weights(self) -> None:
        x = x_of([[1.0], [1.0]], [1, 1], [1], [3.0, 1.0])
        assert x[:, 0] == pytest.approx([0.75, 0.25], abs=1e-3)

    def test_an_app_goes_where_its_target_is_furthest_ahead(self) -> None:
        """Each job has had all of its time so far on the other type than the target says."""
        fast, slow = node("f", 1, 4), node("s", 1, 4)
        nodes = tuple(msgspec.structs.replace(each, labels={"type": each.id}) for each in (fast, slow))
        gains = msgspec.structs.replace(app("gains", 1, 1, (1, 1)), speed_on={"f": ((1, 9.0),), "s": ((1, 1.0),)})
        same = msgspec.structs.replace(app("same", 1, 1, (1, 1)), speed_on={"f": ((1, 1.0),), "s": ((1, 1.0),)})
        got = solve("gavel", nodes, same, gains)
        assert got.counts == {"gains": {"f": 1}, "same": {"s": 1}}

    def test_rounds_approach_the_target(self) -> None:
        """Two jobs on one node: who had less of its time runs next, and over many rounds both have had half."""
        one = (node("n", 1, 4),)
        apps = [app("a", 1, 1, (1, 1)), app("b", 1, 1, (1, 1))]
        for number in range(1, 41):
            got = solve("gavel", one, *apps)
            apps = [
                msgspec.structs.replace(
                    each,
                    current=got.counts[each.id],
                    served_s=each.served_s + 360.0 * len(got.counts[each.id]),
                    age_s=360.0 * number,
                )
                for each in apps
            ]
            assert abs(apps[0].served_s - apps[1].served_s) <= 360
        assert [received(each, "", 1) for each in apps] == [0.5, 0.5]

    def test_received_time_counts_by_type(self) -> None:
        each = msgspec.structs.replace(app("a", 1, 1, (2, 2)), served_s=300.0, served_on={"f": 100.0}, age_s=500.0)
        assert (received(each, "f", 2), received(each, "", 2), received(each, "s", 2)) == (0.1, 0.2, 0.0)

    def test_it_never_spans_types(self) -> None:
        nodes = tuple(msgspec.structs.replace(each, labels={"type": each.id}) for each in TWO)
        got = solve("gavel", nodes, app("a", 1, 1, (1, 8)), app("wide", 1, 1, (6, 6)))
        assert totals(got) == {"a": 4, "wide": 0}
        assert got.reasons["wide"].text == "no type of node holds its 6 containers alone"


class TestThemis:
    @staticmethod
    def waiting(name: str, work_s: float, age_s: float, most: int = 8) -> AppDemand:
        linear = [(n, float(n)) for n in range(1, most + 1)]
        return msgspec.structs.replace(telling(app(name, 1, 1, (1, most)), work_s, *linear), age_s=age_s)

    def auction(self, *apps: AppDemand, **params: Any) -> Auction:
        return Auction(integer.read(Problem(TWO, apps)), policy("themis").check_params(params))

    def test_finish_time_fairness(self) -> None:
        """NSDI 2020, §3.2: 800 container-seconds are 100 s on all 8, so 200 s on half of them, which two apps share;
        after 100 s in the queue, with 4 of them the app takes 100 + 200 s."""
        found = self.auction(self.waiting("a", 800, 100), self.waiting("b", 800, 0))
        assert found.rho(0, 4) == pytest.approx(1.5)
        assert found.rho(1, 4) == pytest.approx(1.0)
        assert found.rho(1, 0) == float("inf")

    def test_done_work_counts_as_well(self) -> None:
        had = msgspec.structs.replace(self.waiting("a", 400, 50), served_s=400.0, current={"n0": 4})
        found = self.auction(had, self.waiting("b", 800, 0))
        assert found.rho(0, 4) == pytest.approx(150 / 200)

    def test_equal_bidders_get_equal_shares_and_pay_the_hidden_payment(self) -> None:
        """All take part (f = 0).  Each wins 4 of 8.  Without the other it would have 8 and be twice as well off, so c = 1/2:
        it keeps 2, and what is left over goes to bidders, as there is nobody else."""
        apps = (self.waiting("a", 800, 0), self.waiting("b", 800, 0))
        found = self.auction(*apps, fairness_knob=0.0)
        found._auction([0, 1])
        assert found.n.tolist() == [2, 2]
        assert found.room[0] == 4000
        assert totals(solve("themis", TWO, *apps, fairness_knob=0.0)) == {"a": 4, "b": 4}

    def test_only_the_worst_off_apps_bid(self) -> None:
        """f = 0.8: of five apps one bids, and can use everything that is offered."""
        apps = [self.waiting(f"a{i}", 800, 100.0 * i) for i in range(5)]
        got = solve("themis", TWO, *apps)
        assert totals(got) == {"a0": 0, "a1": 0, "a2": 0, "a3": 0, "a4": 8}
        assert got.reasons["a0"].code == "resources"

    def test_won_containers_are_held_for_a_lease(self) -> None:
        mine = msgspec.structs.replace(self.waiting("mine", 1e6, 0), current={"n0": 4, "n1": 4}, held_s=1199.0)
        other = self.waiting("other", 800, 5000)
        assert totals(solve("themis", TWO, mine, other)) == {"mine": 8, "other": 0}
        ended = msgspec.structs.replace(mine, held_s=1200.0)
        got = solve("themis", TWO, ended, other)
        assert totals(got) == {"mine": 0, "other": 8}
        assert got.reasons["mine"].code == "resources"

    def test_leftovers_go_to_their_previous_holders(self) -> None:
        """`other` uses two; `mine` keeps the rest of what it had, and is not stopped."""
        mine = msgspec.structs.replace(self.waiting("mine", 1e6, 0), current={"n0": 4, "n1": 4}, held_s=9999.0)
        got = solve("themis", TWO, mine, self.waiting("other", 800, 5000, 2))
        assert totals(got) == {"mine": 6, "other": 2}


def test_parameters_are_checked() -> None:
    for name, params, code in (
        ("fifo", {"backfill": 1}, "policy.parameter.wrong_type"),
        ("fifo", {"thresholds": []}, "policy.parameter.unknown"),
        ("srtf", {"count": 0}, "policy.parameter.out_of_range"),
        ("drf", {"count": 2}, "policy.parameter.unknown"),
        ("gavel", {"counts": 2}, "policy.parameter.wrong_type"),
        ("themis", {"fairness_knob": 1.5}, "policy.parameter.out_of_range"),
        ("market", {"budget": 1}, "policy.parameter.unknown"),
    ):
        with raises(ValueError, code):
            policy(name).check_params(params)


def test_defaults_are_filled_in() -> None:
    assert policy("fifo").check_params({}) == {"count": 1_000_000, "counts": {}, "backfill": False}
    assert policy("srtf").check_params({}) == policy("gavel").check_params({}) == {"count": 1_000_000, "counts": {}}
    assert policy("drf").check_params({}) == policy("market").check_params({}) == {}
    assert policy("themis").check_params({}) == {"fairness_knob": 0.8, "lease_s": 1200.0, "assumed_s": 3600.0}
