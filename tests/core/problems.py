"""Hypothesis strategies for allocation problems, and short ways to write one by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import strategies as st

from dorm.core.policies import policy
from dorm.core.policies.problem import Allocation, AppDemand, NodeRoom, Problem

if TYPE_CHECKING:
    from typing import Any

GIB = 2**30


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
    """Rounds until nothing changes any more; fails where that does not happen."""
    answers = []
    for _ in range(rounds):
        answers.append(policy(by).allocate(problem, params))
        following = after(problem, answers[-1])
        if following == problem:
            return answers
        problem = following
    raise AssertionError(f"still changing after {rounds} rounds")


@st.composite
def problems(draw: st.DrawFn, max_apps: int = 3, max_nodes: int = 3, most: int = 3) -> Problem:
    """Some apps run where there was room for them, some wait, some are pinned; now and then a node is gone."""
    nodes = [
        NodeRoom(f"n{j}", {"cpu": draw(st.integers(0, 6)) * 1000, "memory": draw(st.integers(1, 6)) * GIB})
        for j in draw(st.permutations(range(draw(st.integers(1, max_nodes)))))
    ]
    free = {each.id: dict(each.capacity) for each in nodes}
    apps = []
    for i in draw(st.permutations(range(draw(st.integers(1, max_apps))))):
        n_min = draw(st.integers(1, most))
        n_max = draw(st.integers(n_min, most))
        demand = {"cpu": draw(st.integers(1, 3)) * 1000, "memory": draw(st.integers(0, 3)) * GIB}
        current: dict[str, int] = {}
        for name in draw(st.lists(st.sampled_from(sorted(free)), max_size=n_max)):
            if all(free[name][kind] >= need for kind, need in demand.items()):
                free[name] = {kind: free[name][kind] - need for kind, need in demand.items()}
                current[name] = current.get(name, 0) + 1
        if sum(current.values()) < n_min:
            for name, count in current.items():
                free[name] = {kind: free[name][kind] + count * need for kind, need in demand.items()}
            current = {}
        weight = draw(st.sampled_from([0.5, 1.0, 1.0, 2.0]))
        pinned = bool(current) and draw(st.integers(0, 5)) == 0
        apps.append(AppDemand(f"a{i}", demand, weight, n_min, n_max, current, pinned))
    if len(nodes) > 1 and draw(st.integers(0, 4)) == 0:
        nodes.pop()
    return Problem(tuple(nodes), tuple(apps))
