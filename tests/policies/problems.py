"""Hypothesis strategies for allocation problems, and short ways to write one by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from dorm.policies.exact.exact_policy import ExactPolicy
from dorm.policies.problem import Allocation, AppDemand, NodeRoom, Problem
from dorm.policies.registry import policy

if TYPE_CHECKING:
    from typing import Any

GIB = 2**30

DEFAULTS = {name: parameter.default for name, parameter in ExactPolicy.parameters.items()}
PARAMS = st.fixed_dictionaries(
    {
        "theta1": st.sampled_from([0.0, 0.1, 0.3]),
        "theta2": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
        "adjust_s": st.sampled_from([0.0, 30.0, 750.0]),
        "floor": st.sampled_from([0.0, 0.5]),
        "max_changes": st.sampled_from([50, 50, 1, 0]),
    }
)
slow_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def node(name: str, cpu: float, memory: float, **extra: int) -> NodeRoom:
    """Cores and GiB."""
    return NodeRoom(name, {"cpu": int(cpu * 1000), "memory": int(memory * GIB), **extra})


def app(
    name: str,
    cpu: float,
    memory: float,
    bounds: tuple[int, int],
    current: dict[str, int] | None = None,
    *,
    weight: float = 1.0,
    pinned: bool = False,
    **extra: int,
) -> AppDemand:
    demand = {"cpu": int(cpu * 1000), "memory": int(memory * GIB), **extra}
    return AppDemand(name, demand, weight, *bounds, current=current or {}, pinned=pinned)


def after(problem: Problem, allocation: Allocation) -> Problem:
    """The problem of the next round, once the allocation has come true."""
    apps = tuple(
        msgspec.structs.replace(each, current=allocation.counts[each.id], pinned=False) for each in problem.apps
    )
    return Problem(problem.nodes, apps)


def settle(problem: Problem, params: dict[str, Any], rounds: int = 25, by: str = "dorm-exact") -> list[Allocation]:
    """Rounds until nothing changes any more; fails if that does not happen."""
    answers = []
    for _ in range(rounds):
        answers.append(policy(by).allocate(problem, params))
        following = after(problem, answers[-1])
        if following == problem:
            return answers
        problem = following
    raise AssertionError(f"still changing after {rounds} rounds")


LABELS: tuple[dict[str, str], ...] = ({}, {"zone": "a"}, {"zone": "b"}, {"zone": "a", "gpu_type": "h100"})
REQUIREMENTS = ('zone == "a"', 'zone != "a"', 'zone == "b" or gpu_type == "h100"')


@st.composite
def problems(draw: st.DrawFn, max_apps: int = 3, max_nodes: int = 3, most: int = 3, *, plain: bool = False) -> Problem:
    """Some apps run where there was room for them, some wait (some for long), some are pinned; now and then a node is gone
    or drained.  Unless `plain`, nodes have labels, and apps requirements, wishes, gangs and measured costs, some of them."""
    nodes = [
        NodeRoom(
            f"n{j}",
            {"cpu": draw(st.integers(0, 6)) * 1000, "memory": draw(st.integers(1, 6)) * GIB},
            {} if plain else draw(st.sampled_from(LABELS)),
        )
        for j in draw(st.permutations(range(draw(st.integers(1, max_nodes)))))
    ]
    free = {each.id: dict(each.capacity) for each in nodes}
    apps = [
        draw(app_among(f"a{i}", free, most, plain=plain))
        for i in draw(st.permutations(range(draw(st.integers(1, max_apps)))))
    ]
    if len(nodes) > 1 and draw(st.integers(0, 4)) == 0:
        nodes.pop()
    if not plain and draw(st.integers(0, 5)) == 0:
        nodes[0] = msgspec.structs.replace(nodes[0], drained=True)
    return Problem(tuple(nodes), tuple(apps))


@st.composite
def app_among(draw: st.DrawFn, name: str, free: dict[str, dict[str, int]], most: int, *, plain: bool) -> AppDemand:
    """An app, which runs in what is `free` (and takes it) where hypothesis wants it to."""
    gang = 2 if not plain and most >= 2 and draw(st.integers(0, 5)) == 0 else 1
    n_min = draw(st.integers(1, most // gang)) * gang
    n_max = draw(st.integers(n_min // gang, most // gang)) * gang
    demand = {"cpu": draw(st.integers(1, 3)) * 1000, "memory": draw(st.integers(0, 3)) * GIB}
    current: dict[str, int] = {}
    for node in draw(st.lists(st.sampled_from(sorted(free)), max_size=n_max // gang)):
        if all(free[node][kind] >= need * gang for kind, need in demand.items()):
            free[node] = {kind: free[node][kind] - need * gang for kind, need in demand.items()}
            current[node] = current.get(node, 0) + gang
    if sum(current.values()) < n_min:
        for node, count in current.items():
            free[node] = {kind: free[node][kind] + count * need for kind, need in demand.items()}
        current = {}
    pinned = bool(current) and draw(st.integers(0, 5)) == 0
    again = bool(current) and not plain and draw(st.integers(0, 5)) == 0
    if again and not pinned:  # Its owner may have asked for more than it has.
        demand["cpu"] *= draw(st.sampled_from([1, 2]))
    made = AppDemand(
        name,
        demand,
        draw(st.sampled_from([0.5, 1.0, 1.0, 2.0])),
        n_min,
        n_max,
        current,
        pinned=pinned,
        again=again,
        waited_s=0.0 if current else draw(st.sampled_from([0.0, 60.0, 700.0, 900.0])),
    )
    if plain:
        return made
    return msgspec.structs.replace(
        made,
        require=draw(st.sampled_from(REQUIREMENTS)) if draw(st.integers(0, 3)) == 0 else "",
        placement=draw(st.sampled_from(["", "spread", "pack"])),
        gang=gang,
        adjust_s=draw(st.sampled_from([None, None, 0.0, 5.0, 700.0, 9000.0])),
    )


@st.composite
def crowded(draw: st.DrawFn) -> Problem:
    """Two full nodes, whose apps have to shrink or move for those that wait: often more of them than θ2 allows at once."""
    cores = draw(st.integers(3, 4))
    free = dict.fromkeys(("n0", "n1"), cores)
    apps = []
    for i in range(draw(st.integers(2, 3))):
        current: dict[str, int] = {}
        for _ in range(draw(st.integers(1, 4))):
            node = max(free, key=lambda name: (free[name], name == f"n{i % 2}"))
            if free[node]:
                free[node] -= 1
                current[node] = current.get(node, 0) + 1
        if current:
            n_min = draw(st.integers(1, min(2, sum(current.values()))))
            apps.append(AppDemand(f"a{i}", {"cpu": 1000}, 1.0, n_min, max(4, n_min), current))
    for i in range(draw(st.integers(1, 2))):
        need = draw(st.integers(1, cores))
        n_min = draw(st.integers(1, max(1, 5 // need)))
        waited_s = draw(st.sampled_from([0.0, 700.0, 900.0]))
        apps.insert(
            draw(st.integers(0, len(apps))),
            AppDemand(f"w{i}", {"cpu": 1000 * need}, 1.0, n_min, n_min, waited_s=waited_s),
        )
    return Problem(tuple(NodeRoom(name, {"cpu": cores * 1000}) for name in free), tuple(apps))
