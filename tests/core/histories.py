"""A cluster at the policy's level over many rounds, one a minute: no master and no log, only problems and answers.

Apps run for a number of rounds that is known here and to no policy, whatever size they are given.  An app that loses
its partition waits again and continues where it was.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.policies.problem import AppDemand, NodeRoom, Problem
from dorm.policies.registry import policy
from dorm_lab.bench.optimizer import judge

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from dorm.policies.problem import Allocation

ROUND_S = 60.0
FOREVER = 10**9


class History:
    def __init__(self, nodes: Iterable[NodeRoom], params: dict[str, float] | None = None, by: str = "dorm") -> None:
        self.nodes = {node.id: node for node in nodes}
        self.away: dict[str, NodeRoom] = {}
        self.params: dict[str, Any] = dict(params or {})
        self.policy = policy(by)
        self.last: tuple[Problem, Allocation] | None = None
        """A policy is a pure function: the answer to the same problem is not computed again."""
        self.now = 0.0
        self.apps: dict[str, AppDemand] = {}
        self.left: dict[str, int] = {}
        """Rounds that each app has still to run."""
        self.waits_since: dict[str, float] = {}
        self.waits: dict[str, float] = {}
        """The longest wait of each app so far, also of those that wait on; seconds."""
        self.ahead: Counter[str] = Counter()
        """How many older apps at most waited while this one did."""
        self.losses: Counter[str] = Counter()
        """How many nodes were lost while this one waited."""
        self.changes: Counter[str] = Counter()
        """How often each app was changed while it ran, without what could not stay as it was."""

    def submit(self, app: AppDemand, rounds: int = FOREVER) -> None:
        self.apps[app.id] = app
        self.left[app.id] = rounds
        if not app.current:
            self.waits_since[app.id] = self.now

    def lose(self, name: str) -> None:
        self.away[name] = self.nodes.pop(name)
        self.losses.update(list(self.waits_since))

    def give_back(self, name: str) -> None:
        self.nodes[name] = self.away.pop(name)

    def finish(self, name: str) -> None:
        del self.apps[name], self.left[name]
        self.waits_since.pop(name, None)

    def problem(self) -> Problem:
        apps = [
            msgspec.structs.replace(app, waited_s=self.now - self.waits_since.get(name, self.now))
            for name, app in self.apps.items()
        ]
        return Problem(tuple(self.nodes.values()), tuple(apps))

    def round(self) -> Allocation:
        """Decides, puts it to work, and lets a minute go by."""
        problem = self.problem()
        if self.last is None or self.last[0] != problem:
            self.last = problem, self.policy.allocate(problem, self.params)
        got = self.last[1]
        assert judge.faults(problem, got.counts) == []
        assert got.overhead <= got.overhead_budget
        older = 0
        for name, app in list(self.apps.items()):
            given = got.counts[name]
            if app.current and given != app.current and self._could_stay(app):
                assert given, f"{name} was stopped without need"
                self.changes[name] += 1
            self.apps[name] = msgspec.structs.replace(app, current=given)
            if app.current and not given:
                self.waits_since[name] = self.now
            if given and name not in self.waits_since:
                continue
            waits = self.now - self.waits_since[name]
            self.waits[name] = max(waits, self.waits.get(name, 0.0))
            if given:
                del self.waits_since[name]
            else:
                self.ahead[name] = max(older, self.ahead[name])
                older += 1
        self._continue()
        return got

    def _could_stay(self, app: AppDemand) -> bool:
        return all(node in self.nodes and not self.nodes[node].drained for node in app.current)

    def _continue(self) -> None:
        self.now += ROUND_S
        for name in [name for name, app in self.apps.items() if app.current]:
            self.left[name] -= 1
            if self.left[name] <= 0:
                self.finish(name)

    def placement(self) -> dict[str, dict[str, int]]:
        return {name: dict(app.current) for name, app in self.apps.items()}

    def settle(self, rounds: int) -> int:
        """Rounds until one changes nothing; fails if that does not happen."""
        for count in range(rounds):
            before = self.placement()
            self.round()
            if self.placement() == before:
                return count
        raise AssertionError(f"still changing after {rounds} rounds")


def cores(name: str, count: int, **labels: str) -> NodeRoom:
    return NodeRoom(name, {"cpu": count * 1000, "memory": count * 4 * 2**30}, labels)


def small(random: Random, name: str) -> AppDemand:
    """One or two cores a container, and room for growth in most."""
    n_min = random.choice((1, 1, 2))
    size = random.choice((1, 2))
    return AppDemand(
        name,
        {"cpu": size * 1000, "memory": random.choice((1, 2, 4)) * size * 2**30},
        random.choice((1.0, 1.0, 2.0)),
        n_min,
        n_min * random.choice((1, 2, 4)),
        adjust_s=random.choice((None, 2.0, 60.0)),
    )


def large(name: str, n_min: int, size: int, n_max: int | None = None) -> AppDemand:
    """`size` cores a container."""
    return AppDemand(name, {"cpu": size * 1000, "memory": size * 2**30}, 1.0, n_min, n_max or n_min)
