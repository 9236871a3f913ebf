"""`sia` by the formulation of its paper (SOSP 2023, §3), and its program against all choices."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csc_array

from dorm.policies import integer
from dorm.policies.problem import Allocation, AppDemand, Batch, NodeRoom, Problem
from dorm.policies.registry import policy
from dorm_lab.policies.goodput.configurations import configurations, types
from dorm_lab.policies.goodput.program import GAP, Rows, solve
from dorm_lab.policies.goodput.sia import normalized
from tests.errors import raises
from tests.policies.problems import slow_machine


def nodes(kind: str, count: int, gpus: int = 4) -> tuple[NodeRoom, ...]:
    return tuple(NodeRoom(f"{kind}{index}", {"gpu": gpus}, {"type": kind}) for index in range(count))


def curve(power: float, one: float = 1.0) -> tuple[tuple[int, float], ...]:
    return tuple((n, one * float(n**power)) for n in range(1, 65))


def app(name: str, power: float = 0.9, **fields: Any) -> AppDemand:
    return msgspec.structs.replace(AppDemand(name, {"gpu": 1}, 1.0, 1, 64, speed=curve(power)), **fields)


def allocate(cluster: tuple[NodeRoom, ...], *apps: AppDemand, **params: Any) -> Allocation:
    return policy("sia").allocate(Problem(cluster, apps), params)


def counts(found: Allocation) -> dict[str, int]:
    return {name: sum(row.values()) for name, row in found.counts.items()}


class TestConfigurations:
    def offered(self, cluster: tuple[NodeRoom, ...], one: AppDemand) -> list[tuple[str, int]]:
        instance = integer.read(Problem(cluster, (one,)))
        found = types(instance)
        table = configurations(instance, found)
        return [(found.names[kind], n) for kind, n in zip(table.type.tolist(), table.units.tolist(), strict=True)]

    def test_powers_of_two_on_one_node_and_whole_nodes_beyond(self) -> None:
        """The sets of §3.3 for four and for eight GPUs on a node."""
        assert self.offered(nodes("t4", 4), app("a")) == [("t4", n) for n in (1, 2, 4, 8, 12, 16)]
        assert self.offered(nodes("a100", 2, 8), app("a")) == [("a100", n) for n in (1, 2, 4, 8, 16)]

    def test_configurations_of_each_type_are_within_bounds_and_tried_sizes(self) -> None:
        cluster = nodes("t4", 2) + nodes("a100", 1, 8)
        assert self.offered(cluster, app("a", n_max=4)) == [(kind, n) for kind in ("a100", "t4") for n in (1, 2, 4)]
        assert self.offered(cluster, app("a", tried=2)) == [(kind, n) for kind in ("a100", "t4") for n in (1, 2, 4)]
        assert self.offered(cluster, app("a", n_min=3, n_max=3)) == [("a100", 3), ("t4", 3)]

    def test_the_present_configuration_is_among_them(self) -> None:
        assert ("t4", 3) in self.offered(nodes("t4", 2), app("a", current={"t40": 3}))


def test_rows_are_normalized_by_their_least_goodput_and_their_smallest_configuration() -> None:
    one = normalized(np.array([0, 0, 0]), np.array([1, 2, 4]), np.array([5.0, 9.0, 15.0]))
    assert one.tolist() == [1.0, 1.8, 3.0]
    two = normalized(np.array([0, 1, 1]), np.array([1, 2, 4]), np.array([7.0, 10.0, 15.0]))
    assert two.tolist() == [1.0, 2.0, 3.0]


@slow_machine
@given(data=st.data())
def test_the_program_is_as_good_as_the_best_of_all_choices(data: st.DataObject) -> None:
    apps, each, room = data.draw(st.integers(1, 4)), 3, data.draw(st.integers(1, 12))
    units = np.array([data.draw(st.sampled_from([1, 2, 4, 8])) for _ in range(apps * each)], np.float64)
    cost = -np.array([data.draw(st.floats(0.01, 1.0)) for _ in range(apps * each)])
    app = np.repeat(np.arange(apps), each)
    matrix = np.vstack([(app == one).astype(np.float64) for one in range(apps)] + [units / room])
    chosen, status = solve(Rows(csc_array(matrix), np.ones(apps + 1)), cost, app)
    assert chosen is not None
    assert status == "optimal"
    assert (matrix[:, chosen].sum(axis=1) <= 1 + 1e-9).all()
    best = 0.0
    for choice in product(range(-1, each), repeat=apps):
        picked = [place * each + one for place, one in enumerate(choice) if one >= 0]
        if units[picked].sum() <= room:
            best = min(best, float(cost[picked].sum()))
    assert float(cost[chosen].sum()) <= best * (1 - GAP) + 1e-9


def test_each_app_goes_where_it_gains_most() -> None:
    """As in the paper's example of matching (§2): `a` is four times as fast on the new type, `b` hardly at all."""
    cluster = nodes("new", 1) + nodes("old", 1)
    a = app("a", n_max=4, speed_on={"new": curve(0.9, 4.0)})
    b = app("b", n_max=4, speed_on={"new": curve(0.9, 1.1)})
    assert allocate(cluster, a, b).counts == {"a": {"new0": 4}, "b": {"old0": 4}}


def test_more_go_to_apps_that_scale_and_none_is_left_out() -> None:
    found = counts(allocate(nodes("t4", 4), app("a", 0.95), *(app(f"b{i}", 0.1) for i in range(3))))
    assert found["a"] > max(found[f"b{i}"] for i in range(3))
    assert min(found.values()) >= 1


def test_lambda_is_the_cost_of_leaving_an_app_out() -> None:
    """Of six apps on four GPUs: 2^(0.9 p) - λ twice is less than 1 - λ four times, up to λ = 1.27."""
    six = [app(f"a{i}") for i in range(6)]
    assert sorted(counts(allocate(nodes("t4", 1), *six)).values()) == [0, 0, 0, 0, 2, 2]
    assert sorted(counts(allocate(nodes("t4", 1), *six, **{"lambda": 1.3})).values()) == [0, 0, 1, 1, 1, 1]


def test_an_app_moves_only_if_that_pays_at_its_age() -> None:
    here = app("a", 0.5, current={"t40": 1})
    young = msgspec.structs.replace(here, age_s=40.0, adjustments=1)
    assert counts(allocate(nodes("t4", 1), young)) == {"a": 1}, "(40 - 30) / (40 + 30) of four times the speed is less"
    old = msgspec.structs.replace(here, age_s=4_000.0, adjustments=1)
    assert counts(allocate(nodes("t4", 1), old)) == {"a": 4}


def test_unchanged_apps_keep_their_nodes() -> None:
    apps = [app(f"a{i}", n_max=2, current={f"t4{i}": 2}, age_s=1000.0) for i in range(2)]
    found = allocate(nodes("t4", 2), *apps)
    assert found.counts == {"a0": {"t40": 2}, "a1": {"t41": 2}}
    assert found.overhead == 0


def test_an_app_moves_if_another_needs_a_whole_node() -> None:
    """Two apps of one container each on its own node, and a rigid one of four: one of them has to move."""
    small = [app(f"a{i}", n_max=1, current={f"t4{i}": 1}, age_s=1000.0) for i in range(2)]
    found = allocate(nodes("t4", 2), *small, app("big", n_min=4, n_max=4))
    assert counts(found) == {"a0": 1, "a1": 1, "big": 4}
    assert len(found.counts["big"]) == 1
    assert found.overhead == 1


def test_the_answer_has_batch_sizes_and_reasons() -> None:
    batch = Batch(64, 64, 4096, 256, 100_000.0)
    found = allocate(nodes("t4", 1), app("a", 0.6, batch=batch), *(app(f"b{i}") for i in range(4)))
    assert found.batches.keys() <= {"a"}
    assert {found.reasons[name].code for name, n in counts(found).items() if not n} == {"resources"}


def test_parameters_are_checked() -> None:
    with raises(ValueError, "policy.parameter.out_of_range"):
        policy("sia").check_params({"p": 0})
    with raises(ValueError, "policy.parameter.unknown"):
        policy("sia").check_params({"theta1": 0.1})
