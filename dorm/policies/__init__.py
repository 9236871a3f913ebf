"""Policies: pure functions from a problem (nodes; apps with their placement) to an allocation.

    problem      what a policy takes and returns
    registry     policies by name, loaded on first use
    parameters   how a policy declares its parameters, and checks what it is given
    shares       dominant shares, weighted DRF, utilization and fairness loss
    goals        the goals of `dorm` and `dorm-exact`, in order
    integer      a problem in sorted integer arrays;  scoring: the exact score of an answer, and what it breaks
    classes      equal rows of those arrays
    greedy       the answer that always exists
    answer       from counts by node to the recorded allocation
    reasons      why an app has less than its n_max
    matching     which labels satisfy a requirement
    checking     which rules an answer breaks

    dorm/, exact/, speed/, baselines/   the policies themselves, each a class that describes itself (`registry`)
    laboratory   which parameters of the policies in `dorm_lab.policies` logs may hold

To add a policy, write a class in a module of its own with what `registry` lists, and register it there.  Start with `problem`.
Policies import only `events`: no state, no log, no clock.

A policy is a pure function from a `Problem` to an `Allocation`. `dorm` approximates the goals of `policies/goals.py`
at any size; `dorm-exact` solves them one after the other as mixed-integer programs on HiGHS and is the reference. The
hard limits are capacity, bounds, labels, gangs, θ2, and that no undisturbed running app is stopped; everything else is
an ordered goal.

`policies/dorm/optimizer.py` takes four steps: serve (which apps get their n_min), count (how many containers each app
should have, by a linear program over classes of nodes), place (greedily, with everything else pinned), and polish
(small exact programs over a few apps and nodes). Each step only proposes an answer: `integer.faults` and
`integer.score` decide in exact integers, so a failing solver costs quality, never validity. The count program is a
relaxation, so its value bounds every placement, and the decision records it. Apps and nodes are sorted by id, and a
number of nodes bounds each search, never time, so the answer is the same everywhere. The price of a change is measured
for each app (`dorm.core.costs`).

No answer is trusted. The core calls policies only through `Guarded`, which checks each answer in exact integers. If a
policy fails, the round holds a `PolicyFailed`, and every app keeps its place. Plug-ins run in their own processes; a
master announces them in `MasterElected`, so the fold does not depend on what is installed. `dorm plan` copies the
state, folds assumptions into the copy as records, and calls the same `decide`.
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
