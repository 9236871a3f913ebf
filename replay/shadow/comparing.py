"""What differs now between the log's allocation and a hypothetical one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dorm.policies import integer
from dorm.policies.problem import PolicyFailure

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from dorm.policies.problem import Allocation, Problem
    from replay.shadow.hypothetical import Hypothetical, Places

MOST_APPS = 1000
"""Apps that a comparison names, so that it fits into one message."""


class AppDifference(msgspec.Struct, frozen=True):
    """An app that would have another number of containers."""

    app: str
    """Its id."""
    name: str
    has: int
    """Containers that the log's last decision about it gives it, whether or not they run yet."""
    would_have: int
    nodes: dict[str, int]
    nodes_then: dict[str, int]
    why: str
    """Why it would have no more, by the policy; if it would have its maximum, why it has less, by the log."""
    code: str
    """The reason's code, "" for none."""


class Figures(msgspec.Struct, frozen=True):
    """The cluster under one of the two allocations; both are computed alike, from counts alone."""

    utilization: float
    """U: the used part of each resource, summed over the resources."""
    fairness_loss: float
    """F: distance from weighted DRF."""
    containers: int
    running: int
    """Apps that have containers."""
    waiting: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True, tag="comparison", tag_field="kind"):
    """One line of the comparison stream, for one decision of the leading master."""

    cluster: str
    policy: str
    """The policy of the shadow."""
    version: int
    plugin: str
    params: dict[str, object]
    seq: int
    """The record of the master's decision."""
    at: int
    """Its log time (UTC ns)."""
    decided_by: str
    """The policy that decided it."""
    live: int
    """Apps that may hold containers now, which are compared."""
    differing: int
    """How many of them would have another number of containers."""
    moved: int
    """How many others have the same number of containers, on other nodes."""
    apps: list[AppDifference]
    """Those that differ, by id, at most `MOST_APPS`."""
    now: Figures
    then: Figures
    changes: int
    """Adjustments of running apps since the shadow began, by the policy."""
    changes_really: int
    """The same by the log."""
    decisions: int
    """Decisions of the master that were compared so far."""
    skipped: int
    """Decisions that were not compared, because the next one arrived before the policy had answered."""
    took_s: float
    """Seconds that the policy took."""
    failed: str
    """Why it gave no usable answer, "" if it did; the hypothetical allocation then stays as it was."""


def compared(hypothetical: Hypothetical, state: State, now: int) -> tuple[Problem, list[AppDifference], int, str]:
    """Let the policy decide; return its problem, the apps that differ, how many moved, and why it failed."""
    problem = hypothetical.problem(state, now)
    answer, failed = None, ""
    try:
        answer = hypothetical.decide(problem)
    except PolicyFailure as failure:
        failed = f"{failure} [{failure.code}]"
    different, moved = [], 0
    for demand in problem.apps:
        app = state.apps[demand.id]
        has, then = held(app), hypothetical.places.get(demand.id, {})
        if sum(has.values()) != sum(then.values()):
            different.append(_difference(app, has, then, answer))
        elif has != then:
            moved += 1
    return problem, sorted(different, key=lambda one: one.app), moved, failed


def held(app: App) -> Places:
    return app.current.by_node() if app.current is not None else {}


def _difference(app: App, has: Places, then: Places, answer: Allocation | None) -> AppDifference:
    reason = answer.reasons.get(app.id) if answer is not None else None
    text, code = (reason.text, reason.code) if reason is not None else ("", "")
    if reason is None and app.waiting is not None and sum(has.values()) < sum(then.values()):
        text, code = app.waiting.text, app.waiting.code
    return AppDifference(app.id, app.name, sum(has.values()), sum(then.values()), has, then, text, code)


def figures(problem: Problem, places: dict[str, Places]) -> Figures:
    """Return the figures of a cluster in which the problem's apps have these containers."""
    instance = integer.read(problem)
    n = np.array(
        [
            sum(places.get(app.id, {}).values()) // int(gang)
            for app, gang in zip(instance.apps, instance.gang, strict=True)
        ],
        np.int64,
    )
    counts = [sum(places.get(app.id, {}).values()) for app in problem.apps]
    return Figures(
        utilization=integer.utilization(instance, n) if len(n) else 0.0,
        fairness_loss=(
            integer.loss(instance, n, integer.theoretical_shares(instance, instance.possible)) if len(n) else 0.0
        ),
        containers=sum(counts),
        running=sum(1 for count in counts if count),
        waiting=sum(1 for count in counts if not count),
    )
