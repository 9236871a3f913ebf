"""What a policy is given and what it gives back: the paper's allocation problem, free of logs, masters and simulators.

A policy is a pure function from (nodes, apps with their current placement) to a placement.  Anyone may call one:

    allocation = policy("dorm").allocate(Problem(nodes=…, apps=…), params)

Everything here is an integer in base units (milli-cores, bytes, whole devices, counts); weights and shares are floats.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec


class NodeRoom(msgspec.Struct, frozen=True):
    """A node that may be given containers, and all it has (not what is free now)."""

    id: str
    capacity: dict[str, int]
    labels: dict[str, str] = {}


class AppDemand(msgspec.Struct, frozen=True):
    """An app as the optimizer sees it: the numbers of the paper's 6-tuple, and where its containers are now."""

    id: str
    demand: dict[str, int]
    """Resources of one container (d_i)."""
    weight: float
    n_min: int
    n_max: int
    current: dict[str, int] = {}
    """Containers by node id (x⁰_ij), only positive counts; empty while the app waits.  A node that is not in the
    problem is gone: the app has to change, and that change is *forced* (it does not count against θ2)."""
    pinned: bool = False
    """In the middle of an adjustment: stays exactly at `current`."""


class Problem(msgspec.Struct, frozen=True):
    """Nodes in any order, apps in the order of arrival (ties and first-come-first-served go by it)."""

    nodes: tuple[NodeRoom, ...]
    apps: tuple[AppDemand, ...]


class Reason(msgspec.Struct, frozen=True):
    """Why an app waits or has fewer than n_max containers: a code for programs, a sentence for people."""

    code: str
    """One of `resources` (no room on any set of nodes), `overhead` (θ2 lets no further app change), `fairness` (θ1),
    `no_nodes` (no node that could take one container), `static_count` (the static policy's fixed number)."""
    text: str


class Allocation(msgspec.Struct, frozen=True):
    """The answer, with the figures a reader of the decision needs to understand it.

    `counts` has every app of the problem, in sorted order of ids, each with its containers by node (positive counts
    only, sorted by node id); an app that must wait has an empty map.
    """

    counts: dict[str, dict[str, int]]
    reasons: dict[str, Reason]
    """For each app below its n_max."""
    utilization: float
    """U = Σ_k (Σ_ij x_ij d_ik) / (Σ_j c_jk), between 0 and the number of resource kinds (paper, eq. 1)."""
    fairness_loss: float
    """F = Σ_i |s_i - ŝ_i| (paper, eq. 2)."""
    fairness_budget: float
    """2m·θ1, where the policy has a θ1; else infinity is written as -1."""
    excess: float
    """ξ = max(0, F - budget): what integrality and n_min did not allow to meet."""
    overhead: int
    """How many apps that ran before and still run have any x_ij changed, without the forced ones (paper, eq. 4)."""
    overhead_budget: int
    """⌈θ2·|P|⌉, or -1 where the policy has none."""
    shortage: dict[str, int]
    """Apps that get less than n_min (they get nothing and wait), with how many containers they lack."""
    status: str
    """`optimal`, or what limited the solver (`node_limit`, `guard` where a crash guard fired, `fallback`)."""
    bound: float
    """The solver's proven upper bound on utilization under the goals that were fixed before it."""


class Policy(Protocol):
    """Deterministic: the same problem and parameters give the same allocation, byte for byte, in whatever order nodes
    come and under any hash seed."""

    name: str
    version: int

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """Fill in defaults; raise `ValueError` with one clear line for an unknown or absurd parameter."""
        ...

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation: ...
