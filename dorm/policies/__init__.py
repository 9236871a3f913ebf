"""Policies: pure functions from a problem (nodes; apps with their placement) to an allocation.

    problem      what a policy takes and returns
    registry     policies by name, loaded on first use
    parameters   names, defaults and ranges of parameters
    shares       dominant shares, weighted DRF, utilization and fairness loss
    goals        the goals of `dorm` and `dorm-exact`, in order
    integer      a problem in sorted integer arrays;  scoring: the exact score of an answer, and what it breaks
    classes      equal rows of those arrays
    greedy       the answer that always exists
    answer       from counts by node to the recorded allocation
    reasons      why an app has less than its n_max
    matching     which labels satisfy a requirement
    checking     which rules an answer breaks

    dorm/        the optimizer, near the exact optimum at any size; the default
    speed/       Dorm's promises, with containers where they finish most work
    exact/       the same goals solved exactly: the reference
    baselines/   static, fifo, drf
    laboratory   names and parameters of the policies that only papers compare (`dorm_lab.policies`)

To add a policy, implement `problem.Policy` in its own module and register it in `registry`.  Start with `problem`.
Policies import only `events`: no state, no log, no clock.
"""

from __future__ import annotations

from dorm.policies.problem import (
    Allocation,
    AppDemand,
    Batch,
    Measured,
    NodeRoom,
    Plan,
    Policy,
    PortRoom,
    Problem,
    Reason,
    Slot,
    Utility,
)
from dorm.policies.registry import UnknownPolicy, names, policy

__all__ = [
    "Allocation",
    "AppDemand",
    "Batch",
    "Measured",
    "NodeRoom",
    "Plan",
    "Policy",
    "PortRoom",
    "Problem",
    "Reason",
    "Slot",
    "UnknownPolicy",
    "Utility",
    "names",
    "policy",
]
