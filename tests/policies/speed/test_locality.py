"""Apps that are slower across nodes: what is expected there, what was measured there, and how they come to one node."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from dorm.policies import integer
from dorm.policies.problem import Allocation, AppDemand, Measured, NodeRoom, Problem
from dorm.policies.registry import policy
from dorm.policies.speed import curves
from dorm.policies.speed.locality import Locality
from dorm.policies.speed.speed_policy import SLOWER_APART
from dorm.policies.speed.worth import LATELY_S, Worth
from tests.dorm_lab.policies.baselines.test_speed_policies import telling, totals
from tests.policies.problems import app, node
from tests.policies.speed.test_speed_policy import ANY, LINEAR

YOLO = [(1, 1.0), (2, 1.95), (3, 2.53), (4, 2.94), (5, 1.55), (6, 1.4), (8, 1.58), (12, 2.28), (16, 2.21)]
"""yolov3 with its batch fixed, on nodes of 4 GPUs (Pollux, OSDI 2021), relative to one GPU; 2 + 2 are 1.67."""
FOURS = tuple(node(f"n{i}", 4, 16) for i in range(3))


def solve(nodes: tuple[NodeRoom, ...], *apps: AppDemand, **params: Any) -> Allocation:
    return policy("dorm-speed").allocate(Problem(nodes, apps), params)


def yolo(current: dict[str, int] | None = None, **more: Any) -> AppDemand:
    made = telling(app("yolo", 1, 1, (1, 8), current), 40_000.0, *YOLO)
    return msgspec.structs.replace(made, **{"adjust_s": 30.0 if current else None, **more})


def others(name: str, current: dict[str, int], most: int = 8, **more: Any) -> AppDemand:
    """An app that may be anywhere, whose containers stay if not more than one app can change."""
    return msgspec.structs.replace(telling(app(name, 1, 1, (1, most), current), 1e6, *LINEAR), adjust_s=30.0, **more)


def across(one: AppDemand) -> list[float] | None:
    found = Locality(Problem(FOURS, (one,)))
    asked = found.problem.apps[0]
    kept = found.across(asked)
    if kept is None:
        return None
    near = curves.curve(asked)
    return [0.0, *(round(near.one(n) * kept[n], 3) for n in range(1, len(kept)))]


class TestExpected:
    def test_the_curve_beyond_a_node_shows_the_cost_of_crossing(self) -> None:
        speed = across(yolo())
        assert speed is not None
        assert speed[:2] == [0.0, 1.0]
        assert speed[4] == pytest.approx(1.67, abs=0.1)
        assert speed[2] == pytest.approx(1.53, abs=0.4)

    @pytest.mark.parametrize("rates", [LINEAR, [(1, 1.0), (2, 1.9), (4, 3.6)], []])
    def test_an_app_that_crosses_nodes_at_no_cost_may_be_anywhere(self, rates: list[tuple[int, float]]) -> None:
        assert across(telling(app("a", 1, 1, (1, 8)), 1e4, *rates)) is None

    def test_a_faster_measurement_raises_what_is_expected(self) -> None:
        apart = Measured(4, 2.4, 3600.0, nodes=4)
        found, expected = across(yolo(measured=(apart,))), across(yolo())
        assert found is not None
        assert expected is not None
        assert expected[4] < found[4] <= 2.4
        assert found[4] > 2.3

    def test_one_wrong_measurement_changes_it_by_no_more_than_a_factor_of_two(self) -> None:
        found, expected = across(yolo(measured=(Measured(4, 1e-6, 3600.0, nodes=2),))), across(yolo())
        assert found is not None
        assert expected is not None
        assert found[4] >= expected[4] / 2 - 1e-3


class TestMeasured:
    def test_what_was_measured_across_nodes_says_nothing_about_one(self) -> None:
        """With 4 on two nodes it is slower than with 2 on one, and it grows to 4 all the same once a node is free."""
        seen = (Measured(2, 1.95, 3600.0), Measured(4, 1.6, 3600.0, nodes=2))
        got = solve(FOURS, yolo({"n0": 2}, measured=seen), **ANY)
        assert totals(got) == {"yolo": 4}
        assert len(got.counts["yolo"]) == 1

    def test_what_was_measured_apart_is_better_than_nothing(self) -> None:
        apart = Measured(2, 1.5, 600.0, nodes=2)
        undeclared = msgspec.structs.replace(app("a", 1, 1, (1, 8)), measured=(apart,))
        assert Locality(Problem(FOURS, (undeclared,))).problem.apps[0].measured == (apart,)

    def test_an_undeclared_speed_is_corrected_once_one_node_was_measured_as_well(self) -> None:
        near, apart, more = Measured(2, 1.95, 600.0), Measured(2, 1.5, 600.0, nodes=2), Measured(4, 1.6, 600.0, nodes=2)
        undeclared = msgspec.structs.replace(app("a", 1, 1, (1, 8)), measured=(near, apart, more))
        found = Locality(Problem(FOURS, (undeclared,)))
        assert found.problem.apps[0].measured == (near, more)
        assert found.spread == {"a": (apart,)}
        kept = found.across(found.problem.apps[0])
        assert kept is not None
        assert kept[2] == pytest.approx(1.5 / 1.95, rel=0.05)

    def test_beyond_one_node_every_measurement_counts(self) -> None:
        seen = (Measured(8, 1.2, 600.0, nodes=2), Measured(8, 1.3, 600.0, nodes=4))
        assert Locality(Problem(FOURS, (yolo(measured=seen),))).problem.apps[0].measured == seen

    def test_a_requirement_decides_which_nodes_count(self) -> None:
        big = msgspec.structs.replace(node("big", 16, 64), labels={"size": "big"})
        apps = (yolo(), msgspec.structs.replace(yolo(), id="large", require='size == "big"'))
        found = Locality(Problem((*FOURS, big), apps))
        assert found.here == {"yolo": {"": 16}, "large": {"": 16}}
        small = msgspec.structs.replace(yolo(), require='size != "big"')
        assert Locality(Problem((*FOURS, big), (small,))).here == {"yolo": {"": 4}}
        drained = msgspec.structs.replace(big, drained=True)
        assert Locality(Problem((*FOURS, drained), (yolo(),))).here == {"yolo": {"": 4}}


class TestGathered:
    def test_it_keeps_two_on_one_node_rather_than_four_on_two(self) -> None:
        nodes, held = FOURS[:2], {"n0": 2, "n1": 2}
        got = solve(nodes, yolo({"n0": 2}), others("b", held, 4, pinned=True), **ANY)
        assert got.counts["yolo"] == {"n0": 2}
        assert got.reasons["yolo"] == SLOWER_APART

    def test_an_app_that_may_be_anywhere_takes_all_of_that_room(self) -> None:
        got = solve(FOURS[:2], others("a", {"n0": 2}), others("b", {"n0": 2, "n1": 2}, 4, pinned=True), **ANY)
        assert totals(got)["a"] == 4

    def test_it_leaves_two_nodes_for_one_that_is_free(self) -> None:
        got = solve(FOURS, yolo({"n0": 2, "n1": 2}), **ANY)
        assert got.counts["yolo"] in ({"n0": 4}, {"n1": 4}, {"n2": 4})
        assert got.overhead == 1

    def test_it_stays_if_it_is_nearly_done(self) -> None:
        here = {"n0": 2, "n1": 2}
        got = solve(FOURS, yolo(here, remaining_steps=30.0), **ANY)
        assert got.counts["yolo"] == here

    def test_without_theta2_it_stays(self) -> None:
        here = {"n0": 2, "n1": 2}
        assert solve(FOURS, yolo(here), theta1=1.0, theta2=0.0).counts["yolo"] == here

    def test_a_live_app_makes_room_for_it(self) -> None:
        """Each of two nodes is half full with a live app; the live one leaves one of them."""
        live = others("live", {"n0": 2, "n1": 2}, 4)
        live = msgspec.structs.replace(live, n_min=4, adjust_s=0.01)
        got = solve(FOURS[:2], yolo({"n0": 2, "n1": 2}), live, **ANY)
        assert len(got.counts["yolo"]) == 1
        assert len(got.counts["live"]) == 1
        assert totals(got) == {"yolo": 4, "live": 4}

    def test_an_app_that_would_restart_makes_none(self) -> None:
        here = {"n0": 2, "n1": 2}
        slow = msgspec.structs.replace(others("slow", here, 4), n_min=4)
        got = solve(FOURS[:2], yolo(here), slow, **ANY)
        assert got.counts == {"slow": here, "yolo": here}

    def test_a_fixed_count_is_gathered_too(self) -> None:
        fixed = msgspec.structs.replace(yolo({"n0": 2, "n1": 2}), n_min=4, n_max=4)
        assert len(solve(FOURS, fixed, **ANY).counts["yolo"]) == 1

    def test_gangs_count_as_whole_ones(self) -> None:
        pairs = msgspec.structs.replace(yolo({"n0": 2, "n1": 2}), n_min=2, gang=2)
        got = solve(FOURS, pairs, **ANY)
        assert list(got.counts["yolo"].values()) == [4]

    def test_types_that_matter_to_no_app_change_nothing(self) -> None:
        typed = tuple(msgspec.structs.replace(each, labels={"type": each.id}) for each in FOURS)
        assert len(solve(typed, yolo({"n0": 2, "n1": 2}), **ANY).counts["yolo"]) == 1


class TestLately:
    """θ2 counts what was restarted within a minute, so that more decisions do not mean more restarts."""

    @staticmethod
    def pair(held_s: float, adjustments: int, *, pinned: bool = False) -> tuple[AppDemand, ...]:
        changed = others("changed", {"n0": 2}, 2, held_s=held_s, adjustments=adjustments, pinned=pinned)
        return changed, others("next", {"n1": 1}, 4, held_s=1e5)

    @pytest.mark.parametrize("pinned", [False, True])
    @pytest.mark.parametrize(
        ("held_s", "adjustments", "grows"),
        [(LATELY_S - 1, 1, False), (LATELY_S, 1, True), (LATELY_S - 1, 0, True)],
    )
    def test_one_restart_in_a_minute(self, *, held_s: float, adjustments: int, grows: bool, pinned: bool) -> None:
        got = solve(FOURS[:2], *self.pair(held_s, adjustments, pinned=pinned), theta1=1.0, theta2=0.1, floor=0.0)
        assert (totals(got)["next"] > 1) == grows
        if not grows:
            assert got.reasons["next"].code == "overhead"

    def test_a_live_change_hardly_counts(self) -> None:
        changed, waits = self.pair(1.0, 5)
        live = msgspec.structs.replace(changed, adjust_s=0.01)
        waits = msgspec.structs.replace(waits, adjust_s=15.0)
        assert totals(solve(FOURS[:2], live, waits, theta1=1.0, theta2=0.1, floor=0.0))["next"] > 1


def of_type(name: str, cpu: float, kind: str) -> NodeRoom:
    return msgspec.structs.replace(node(name, cpu, 4 * cpu), labels={"type": kind})


TYPED = (*(of_type(f"f{i}", 4, "fast") for i in range(3)), *(of_type(f"s{i}", 4, "slow") for i in range(3)))


def typed_yolo(current: dict[str, int] | None = None, times: float = 3.0, **more: Any) -> AppDemand:
    """The same on nodes of two types: three times as fast on fast ones."""
    told = yolo(current, **more)
    return msgspec.structs.replace(told, speed_on={"fast": tuple((n, times * rate) for n, rate in told.speed)})


class TestWithTypes:
    def test_each_type_has_its_own_cost_of_crossing(self) -> None:
        """On larger nodes of another type the same counts cross nodes later."""
        nodes = (*TYPED[:2], of_type("s0", 8, "slow"), of_type("s1", 8, "slow"))
        found = Locality(Problem(nodes, (typed_yolo(),)))
        assert found.here == {"yolo": {"fast": 4, "slow": 8}}
        kept = found.across_on(found.problem.apps[0], ("fast", "slow"))
        assert kept["fast"][1] == 1.0
        assert kept["fast"][4] == pytest.approx(1.67 / 2.94, abs=0.05)
        assert len(kept["fast"]) == 5
        # Nothing is declared that would cross nodes of eight GPUs but for 12 and 16, which are faster than 8.
        assert "slow" not in kept or len(kept["slow"]) == 9

    def test_types_that_do_not_matter_have_none(self) -> None:
        found = Locality(Problem(TYPED, (yolo(),)))
        assert found.across_on(found.problem.apps[0], ("fast", "slow")) == {}

    def test_what_was_measured_on_one_type_corrects_the_other(self) -> None:
        wrong = Measured(4, 3 * 2.6, 3600.0, nodes=2, type="fast")
        found = Locality(Problem(TYPED, (typed_yolo(measured=(wrong,)),)))
        expected = Locality(Problem(TYPED, (typed_yolo(),)))
        assert found.spread == {"yolo": (wrong,)}
        assert found.problem.apps[0].measured == ()
        now, before = (each.across_on(each.problem.apps[0], ("fast", "slow"))["slow"] for each in (found, expected))
        assert now[4] > before[4] * 1.1

    def test_it_is_gathered_on_the_type_on_which_it_is(self) -> None:
        """Both types have a free node, and on the fast one it is faster."""
        got = solve(TYPED, typed_yolo({"f0": 2, "f1": 2}, n_max=4), **ANY)
        assert got.counts["yolo"] in ({"f0": 4}, {"f1": 4}, {"f2": 4})

    def test_it_moves_to_the_fast_type_as_a_whole(self) -> None:
        """Two fast nodes have two GPUs free each, and one all four."""
        held = others("b", {"f0": 2, "f1": 2}, 4, pinned=True)
        got = solve(TYPED, typed_yolo({"s0": 4}, n_max=4), held, **ANY)
        assert got.counts["yolo"] == {"f2": 4}

    def test_it_stays_on_one_slow_node_if_the_fast_ones_are_not_much_better_apart(self) -> None:
        held = others("b", {"f0": 2, "f1": 2, "f2": 4}, 8, pinned=True)
        got = solve(TYPED, typed_yolo({"s0": 4}, times=1.3, n_max=4), held, **ANY)
        assert got.counts["yolo"] == {"s0": 4}

    def test_an_app_to_which_types_do_not_matter_is_gathered_beside_others(self) -> None:
        keen = msgspec.structs.replace(typed_yolo({"f0": 4}, n_max=4), id="keen")
        got = solve(TYPED, yolo({"s0": 2, "s1": 2}, n_max=4), keen, **ANY)
        assert len(got.counts["yolo"]) == 1
        assert got.counts["keen"] == {"f0": 4}

    def test_an_app_that_gives_way_goes_to_nodes_of_its_own_type(self) -> None:
        """A live app leaves the node that another one needs as a whole, for one on which it is as fast."""
        live = msgspec.structs.replace(typed_yolo({"f0": 1}, n_max=1), id="live", adjust_s=0.01)
        held = others("b", {"f1": 3, "f2": 2}, 5, pinned=True)
        got = solve(TYPED, typed_yolo({"f0": 2, "f2": 2}, n_max=4), live, held, **ANY)
        assert got.counts["yolo"] == {"f0": 4}
        assert got.counts["live"] in ({"f1": 1}, {"f2": 1})

    def test_the_reason_for_few_is_the_same(self) -> None:
        nodes = (TYPED[0], TYPED[1], of_type("s0", 1, "slow"))
        held = others("b", {"f0": 2, "f1": 2}, 4, pinned=True)
        got = solve(nodes, typed_yolo({"f0": 2}, n_max=4), held, **ANY)
        assert got.counts["yolo"] == {"f0": 2}
        assert got.reasons["yolo"] == SLOWER_APART


def test_the_worth_of_a_place_knows_the_nodes() -> None:
    asked = yolo({"n0": 2, "n1": 2})
    found = Locality(Problem(FOURS, (asked,)))
    instance = integer.read(found.problem)
    settings = policy("dorm-speed").check_params({})
    worth = Worth(instance, settings, np.zeros(1, np.bool_), None, found)
    stays, one = worth.placed(0, {0: 2, 1: 2}), worth.placed(0, {0: 4})
    assert stays < one
    assert stays == worth.of(0, np.array([4]))[0]
    assert worth.placed(0, {0: 4, 1: 1}) == worth.one(0, 5)  # No node holds five.
