"""A policy without sense: any placement that keeps the rules.  The core has to cope with any answer of a policy."""

from __future__ import annotations

import hashlib
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.query import in_force
from dorm.policies import registry as policies
from dorm.policies.matching import satisfies
from dorm.policies.problem import Allocation, AppDemand, Problem, Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dorm.policies.parameters import Other

NAME = "any"


def register() -> None:
    """Make it known by its name, as a policy of ours is."""
    policies._REGISTRY[NAME] = (__name__, "AnyPolicy")


@contextmanager
def forgotten() -> Iterator[None]:
    """It is not known meanwhile."""
    known = policies._REGISTRY.pop(NAME, None)
    in_force._own.cache_clear()  # An earlier test may have listed the policies while it was known.
    try:
        yield
    finally:
        if known is not None:
            register()
            in_force._own.cache_clear()


FIELDS = (
    "id", "demand", "weight", "n_min", "n_max", "current", "pinned", "absent", "require", "placement", "gang", "waited_s",
    "adjust_s", "served_s", "remaining_steps", "speed",
)  # fmt: skip
"""What decides its answer of an app: with others too, the histories of all seeds would change whenever a field is added."""


def _digested(problem: Problem) -> bytes:
    apps = [{name: getattr(app, name) for name in FIELDS} for app in problem.apps]
    return msgspec.msgpack.encode({"nodes": problem.nodes, "apps": apps})


class AnyPolicy:
    """Keeps, moves, resizes, stops and starts apps as a digest of the problem says."""

    name = NAME
    version = 1
    summary = "any placement that keeps the rules"
    parameters: Mapping[str, Other] = {}

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        if params:
            raise ValueError("policy any: it has no parameters")
        return {}

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        chance = random.Random(hashlib.blake2b(_digested(problem)).digest())
        free = {node.id: dict(node.capacity) for node in problem.nodes if not node.drained}
        counts: dict[str, dict[str, int]] = {}
        for app in problem.apps:
            if app.pinned:
                counts[app.id] = dict(app.current)
                _take(free, app, app.current)
        askers = [app for app in problem.apps if not app.pinned]
        chance.shuffle(askers)
        labels = {node.id: node.labels for node in problem.nodes}
        for app in askers:
            may_use = {
                name: room for name, room in free.items() if not app.require or satisfies(app.require, labels[name])
            }
            wanted = app.current if chance.random() < 0.5 else {}
            if not wanted or not _fits(may_use, app, wanted):
                wanted = _anywhere(chance, may_use, app) if chance.random() < 0.9 else {}
            counts[app.id] = wanted
            _take(free, app, wanted)
        reasons = {
            app.id: Reason("resources", "chance") for app in problem.apps if sum(counts[app.id].values()) < app.n_max
        }
        return Allocation(
            counts=dict(sorted(counts.items())),
            reasons=reasons,
            utilization=0.0,
            fairness_loss=0.0,
            fairness_budget=-1.0,
            excess=0.0,
            overhead=0,
            overhead_budget=-1,
            shortage={},
            status="optimal",
            bound=0.0,
        )


def _fits(free: dict[str, dict[str, int]], app: AppDemand, wanted: dict[str, int]) -> bool:
    if not app.n_min <= sum(wanted.values()) <= app.n_max:
        return False
    return all(
        node in free and free[node].get(name, 0) >= amount * count
        for node, count in wanted.items()
        for name, amount in app.demand.items()
    )


def _anywhere(chance: random.Random, free: dict[str, dict[str, int]], app: AppDemand) -> dict[str, int]:
    wanted: dict[str, int] = {}
    count = chance.randint(app.n_min, app.n_max)
    for node in chance.sample(sorted(free), len(free)):
        fits = min(free[node].get(name, 0) // amount for name, amount in app.demand.items())
        here = min(fits, count - sum(wanted.values()))
        if here > 0:
            wanted[node] = here
    return dict(sorted(wanted.items())) if sum(wanted.values()) >= app.n_min else {}


def _take(free: dict[str, dict[str, int]], app: AppDemand, wanted: dict[str, int]) -> None:
    for node, count in wanted.items():
        for name, amount in app.demand.items():
            if node in free:
                free[node][name] = free[node].get(name, 0) - amount * count
