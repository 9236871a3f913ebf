"""Plans equal the decisions that a master then makes, and leave no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dorm.core.asking import problem_of
from dorm.core.evolve import evolve
from dorm.core.offers import offers_of_new
from dorm.core.query.assumed import Assumed, NewNodes, PlanError
from dorm.core.query.plans import copy_of, plan
from dorm.core.query.standing import standings
from dorm.core.query.views import sizes
from dorm.core.state import State, digest
from events import kinds as k
from tests.core.records import Bench, checked, joined
from tests.errors import raises
from tests.replay.made_log import two_apps

if TYPE_CHECKING:
    from dorm.core.query.assumed import Plan, PlannedApp

EXACT = k.PolicyChanged(policy="dorm-exact", params={"theta2": 1.0})
"""What is planned is the policy's affair; the reference leaves no choice."""


def planned(bench: Bench, rounds: int = 1, **assumed: Any) -> Plan:
    """A plan of the bench as it is, which has to leave the bench as it was."""
    before, records = digest(bench.state), len(bench.records)
    found = plan(bench.state, bench.now, Assumed(**assumed), rounds=rounds)
    assert digest(bench.state) == before
    assert len(bench.records) == records
    return found


def named(found: Plan, name: str = "app") -> PlannedApp:
    return next(app for app in found.apps if app.name == name)


def busy() -> Bench:
    """Two nodes of four cores, one app on all of them."""
    bench = Bench(n1=4, n2=4)
    bench.add(EXACT)
    bench.running("app", n_max=8)
    assert sum(sizes(bench.app()).values()) == 8
    return bench


def test_a_copy_shares_nothing_and_has_the_same_digest() -> None:
    state = State()
    for record in two_apps().records:
        evolve(state, record)
        copied = copy_of(state)
        assert digest(copied) == digest(state)
    before = digest(state)
    for app in copied.apps.values():
        app.generations.clear()
        app.demand["cpu"] = 7
    copied.nodes.clear()
    assert digest(state) == before


def test_a_new_node_builds_what_the_others_build() -> None:
    bench = Bench()
    bench.add(EXACT)
    bench.add(joined("n1", 4, offers=k.NodeOffers(environments=True, pythons=["3.11", "3.12"])))
    for python in ("/usr/bin/python3", "3.12"):
        found = planned(
            bench, specs=(checked("new", n_min=8, n_max=8, python=python),), joins=(NewNodes(1, {"cpu": 4000}),)
        )
        assert named(found, "new").nodes_after == {"n1": 4, "new-1": 4}
    bench.add(joined("n2", 1, offers=k.NodeOffers(environments=True)))  # Its images bring any.
    assert offers_of_new(bench.state) == k.NodeOffers(environments=True)
    assert offers_of_new(busy().state) is None


def test_nothing_would_change_on_a_cluster_at_rest() -> None:
    found = planned(busy())
    assert not found.changes
    assert found.rounds == []
    assert named(found).kind == ""
    assert named(found).before == named(found).after == 8
    assert found.before == found.after


def test_a_plan_for_a_new_app_equals_the_decision() -> None:
    bench = busy()
    found = planned(bench, specs=(checked("new", n_max=8),))
    assert found.changes
    assert found.assumed == ["new submitted"]
    assert (named(found).kind, named(found, "new").kind) == ("restart", "start")
    assert (named(found).before, named(found, "new").before) == (8, 0)
    bench.submit("new", n_max=8)
    bench.settle()
    for name in ("app", "new"):
        assert named(found, name).nodes_after == sizes(bench.app(name))
        assert named(found, name).after == sum(sizes(bench.app(name)).values()) > 0
    assert found.rounds[0].overhead == 1


def test_while_scheduling_is_paused_a_plan_shows_the_decision_on_resumption() -> None:
    bench = busy()
    bench.add(k.SchedulingPaused(reason="new switches"))
    bench.submit("new", n_max=8)
    bench.settle()
    assert not sizes(bench.app("new"))
    found = planned(bench)
    assert found.paused.endswith(": new switches")
    assert (named(found).kind, named(found, "new").kind) == ("restart", "start")
    bench.add(k.SchedulingResumed())
    bench.settle()
    assert named(found, "new").nodes_after == sizes(bench.app("new"))
    assert planned(bench).paused == ""


def test_figures_equal_those_of_the_decision() -> None:
    bench = busy()
    found = planned(bench, specs=(checked("new", n_max=8),))
    bench.submit("new", n_max=8)
    resized = next(fact for fact in bench.settle() if isinstance(fact, k.Resized))
    assert found.after.utilization == pytest.approx(resized.utilization)
    assert found.after.fairness_loss == pytest.approx(resized.fairness_loss)
    assert found.after.fairness_budget == pytest.approx(resized.fairness_budget)
    standing = standings(problem_of(bench.state, bench.now))
    assert standing.fairness_loss == pytest.approx(resized.fairness_loss)
    assert {one.dominant for one in standing.apps.values()} == {"cpu"}
    assert standing.apps[bench.app().id].fair == pytest.approx(0.5)


def test_an_app_that_would_wait_changes_nothing_and_has_a_reason() -> None:
    found = planned(busy(), settings={"theta2": 0}, specs=(checked("new", n_min=4, n_max=8),))
    assert not found.changes
    waits = named(found, "new")
    assert (waits.kind, waits.after) == ("", 0)
    assert waits.reason is not None
    assert waits.reason.code == "overhead"
    assert found.after.waiting == 1
    assert found.assumed[0] == "theta2 = 0 (now 1.0)"


def test_an_app_that_would_be_refused() -> None:
    bench = busy()
    for spec, code in ((checked("app"), "spec.name.taken"), (checked("huge", cpu=5), "spec.demand.too_large")):
        with raises(PlanError, code, spec.name):
            planned(bench, specs=(spec,))
    # It would not be with a node that has room, or once the first has gone.
    assert planned(bench, specs=(checked("huge", cpu=5),), joins=(NewNodes(1, {"cpu": 8000}),)).changes
    assert planned(bench, specs=(checked("app"),), cancelled=("app",)).changes


def test_more_nodes() -> None:
    bench = Bench(n1=2)
    bench.add(EXACT)
    bench.add(joined("new-1", 2, labels={"zone": "a"}))
    bench.running("app", n_max=16)
    found = planned(bench, joins=(NewNodes(2, {"cpu": 4000}, {"zone": "b"}), NewNodes(1, like="new-1")))
    assert found.assumed == [
        "2 more nodes of 4 cores, zone=b (new-2 to new-3)",
        "1 more node of 2 cores, zone=a (new-4)",
    ]
    assert named(found).nodes_after == {"n1": 2, "new-1": 2, "new-2": 4, "new-3": 4, "new-4": 2}
    assert (found.before.nodes, found.after.nodes) == (2, 5)
    with raises(PlanError, "node.not_found", "n9", "n1, new-1"):
        planned(bench, joins=(NewNodes(1, like="n9"),))


def test_a_node_less() -> None:
    bench = busy()
    found = planned(bench, removed=("n2",))
    assert found.assumed == ["without n2"]
    assert named(found).kind == "restart"
    assert named(found).nodes_after == {"n1": 4}
    assert (found.before.nodes, found.after.nodes) == (2, 1)
    bench.conclude(n2=1e9)
    bench.conclude(n2=1e9)
    with raises(PlanError, "node.gone", "n2"):
        planned(bench, removed=("n2",))


def test_a_drained_node() -> None:
    found = planned(busy(), drained=("n1",))
    assert named(found).nodes_after == {"n2": 4}
    assert named(found).kind == "restart"
    assert named(found).reason is not None


def test_the_end_of_a_drain() -> None:
    bench = Bench(n1=4, n2=4)
    bench.add(EXACT)
    bench.add(k.NodeDrainRequested(node="n1"))
    bench.running("app", n_max=8)
    assert sizes(bench.app()) == {"n2": 4}
    found = planned(bench, undrained=("n1",))
    assert named(found).nodes_after == {"n1": 4, "n2": 4}
    assert found.assumed == ["the drain of n1 ended"]


def test_an_app_that_is_cancelled_makes_room() -> None:
    bench = busy()
    bench.submit("new", n_min=8, n_max=8)
    bench.settle()
    assert bench.app("new").phase == "waiting"
    found = planned(bench, cancelled=("app",))
    assert (named(found).kind, named(found).end) == ("stop", "cancelled")
    assert (named(found, "new").kind, named(found, "new").after) == ("start", 8)


def test_several_rounds() -> None:
    bench = Bench(**{f"n{index}": 4.0 for index in range(3)})
    bench.add(EXACT)
    for name in ("a", "b", "c"):
        bench.running(name, n_max=4)
    bench.add(k.PolicyChanged(policy="dorm-exact", params={"theta2": 0.25}))
    assert planned(bench).rounds == []
    found = planned(bench, rounds=6, specs=(checked("d", n_min=6, n_max=6),))
    assert len(found.rounds) > 1
    assert all(one.overhead <= one.overhead_budget == 1 for one in found.rounds)
    assert named(found, "d").after == 6
    one = planned(bench, rounds=1, specs=(checked("d", n_min=6, n_max=6),))
    assert len(one.rounds) == 1
    assert named(one, "d").after == 0


def test_the_cost_of_a_restart() -> None:
    bench = busy()
    found = planned(bench, specs=(checked("new", n_max=8),), settings={"adjust_s": 12})
    assert (named(found).adjust_s, named(found).measured) == (12.0, False)
    assert named(found, "new").adjust_s is None


@pytest.mark.parametrize(
    ("assumed", "code"),
    [
        ({"settings": {"theta9": 1}}, "policy.parameter.unknown"),
        ({"settings": {"theta1": 7}}, "policy.parameter.out_of_range"),
        ({"settings": {"policy": "lottery"}}, "policy.unknown"),
        ({"removed": ("n9",)}, "node.not_found"),
        ({"drained": ("n9",)}, "node.not_found"),
        ({"undrained": ("n9",)}, "node.not_found"),
        ({"cancelled": ("nobody",)}, "app.not_found"),
    ],
)
def test_impossible_requests(assumed: dict[str, Any], code: str) -> None:
    with raises(PlanError, code):
        planned(busy(), **assumed)


def test_another_policy() -> None:
    found = planned(busy(), settings={"policy": "static", "count": 2}, specs=(checked("new"),))
    assert found.assumed[:2] == ["policy static (now dorm-exact)", "count = 2 (default 2)"]
    assert found.after.fairness_budget == -1


def test_an_empty_log() -> None:
    found = plan(State(), 0, Assumed(specs=(checked(),), joins=(NewNodes(1, {"cpu": 2000}),)))
    assert named(found).after == 2
    assert not plan(State(), 0).changes


def test_any_moment_of_a_log_can_be_planned_from() -> None:
    """Also amid adjustments, with lost nodes, and between a decision's basis and its round."""
    state = State()
    changes = 0
    for record in two_apps().records:
        evolve(state, record)
        before = digest(state)
        found = plan(state, state.time, Assumed(specs=(checked("extra", n_max=1),)), rounds=3)
        assert digest(state) == before
        changes += found.changes
        assert named(found, "extra").after in (0, 1)
    assert changes > 10


def test_a_live_app_is_resized_without_a_restart() -> None:
    """The following rounds continue from the reports that its members would have made."""
    bench = Bench(n1=4, n2=4)
    bench.add(EXACT)
    bench.running("app", n_max=8, elastic="live")
    found = planned(bench, 3, specs=(checked("other", n_max=2), checked("third", n_max=1)))
    assert (named(found, "other").after, named(found, "third").after) == (2, 1)
    assert (named(found).after, named(found).kind) == (5, "live")


def test_a_plan_with_a_hold_equals_the_decision_and_so_does_one_with_its_end() -> None:
    bench = busy()
    found = planned(bench, held=("app",))
    assert found.assumed == ["app held"]
    assert (named(found).kind, named(found).after) == ("stop", 0)
    bench.add(k.AppHoldRequested(app="app"))
    bench.settle()
    assert sizes(bench.app()) == named(found).nodes_after
    bench.all_exited(code=143, asked=True, generation=1)
    found = planned(bench, released=("app",))
    bench.add(k.AppReleaseRequested(app="app"))
    bench.settle()
    assert sizes(bench.app()) == named(found).nodes_after != {}


def test_a_plan_with_a_restart_equals_the_decision() -> None:
    bench = busy()
    found = planned(bench, restarted=("app",))
    bench.add(k.AppRestartRequested(app="app"))
    bench.settle()
    assert (named(found).kind, named(found).nodes_after) == ("restart", sizes(bench.app()))
    with raises(PlanError, "app.not_found"):
        planned(bench, restarted=("none",))


def test_a_plan_without_a_sweep_gives_its_room_to_others() -> None:
    bench = busy()
    for index in range(3):
        group = {"name": "grid", "run": "0123456789abcdef", "index": index, "count": 3, "parameters": {"seed": index}}
        bench.submit(f"grid-{index}", n_max=1, group=group)
    bench.settle()
    found = planned(bench, cancelled_sweeps=("grid",))
    assert found.assumed == ["3 apps of grid cancelled"]
    assert [named(found, f"grid-{index}").end for index in range(3)] == ["cancelled"] * 3
    with raises(PlanError, "sweep.not_found"):
        planned(bench, cancelled_sweeps=("other",))
