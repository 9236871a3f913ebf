"""All answers to a tiny problem, judged by a second implementation of the goals: maps and fractions, no matrices.

Shares nothing with the optimizer but ŝ_i, which has tests of its own.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.core import shares

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm.core.policies.problem import AppDemand, Problem

Placement = dict[str, int]
Answer = dict[str, Placement]


class Rank(NamedTuple):
    lost: int
    waiting: int
    order: tuple[int, ...]
    excess: float
    below_floor: int
    net: Fraction
    changed: int
    moved: int


class World:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.room = {node.id: node.capacity for node in problem.nodes}
        self.kinds = sorted({kind for room in self.room.values() for kind, have in room.items() if have})
        self.total = {kind: sum(room.get(kind, 0) for room in self.room.values()) for kind in self.kinds}

    def fits(self, app: AppDemand, node: str) -> int:
        parts = [self.room[node].get(kind, 0) // need for kind, need in app.demand.items() if need]
        return min([*parts, app.n_max])

    def possible(self, app: AppDemand) -> bool:
        return app.pinned or sum(self.fits(app, node) for node in self.room) >= app.n_min

    def overfull(self, node: str, answer: Answer) -> bool:
        return any(
            sum(answer[app.id].get(node, 0) * app.demand.get(kind, 0) for app in self.problem.apps) > have
            for kind, have in self.room[node].items()
        )

    def forced(self, app: AppDemand) -> bool:
        if not app.current or app.pinned:
            return False
        now = {each.id: each.current for each in self.problem.apps}
        count = sum(app.current.values())
        return (
            any(node not in self.room or self.overfull(node, now) for node in app.current)
            or not app.n_min <= count <= app.n_max
        )

    def kept(self, app: AppDemand) -> bool:
        return bool(app.current) and not app.pinned and not self.forced(app)

    def placements(self, app: AppDemand) -> Iterator[Placement]:
        if app.pinned:
            yield {node: count for node, count in app.current.items() if node in self.room}
            return
        names = sorted(self.room)
        for counts in product(*(range(self.fits(app, node) + 1) for node in names)):
            total = sum(counts)
            if app.n_min <= total <= app.n_max or (total == 0 and not self.kept(app)):
                yield {node: count for node, count in zip(names, counts, strict=True) if count}

    def changed(self, app: AppDemand, placement: Placement) -> bool:
        return placement != app.current

    def answers(self, budget: int) -> Iterator[Answer]:
        apps = self.problem.apps
        for combination in product(*(list(self.placements(app)) for app in apps)):
            answer = {app.id: placement for app, placement in zip(apps, combination, strict=True)}
            changes = sum(self.kept(app) and self.changed(app, answer[app.id]) for app in apps)
            if changes <= budget and not any(self.overfull(node, answer) for node in self.room):
                yield answer

    def unit(self, app: AppDemand) -> Fraction:
        return max(
            (Fraction(need, self.total[kind]) for kind, need in app.demand.items() if kind in self.total),
            default=Fraction(0),
        )

    def worth(self, app: AppDemand) -> Fraction:
        return sum(
            (Fraction(need, self.total[kind]) for kind, need in app.demand.items() if kind in self.total), Fraction(0)
        )

    def service(self, answer: Answer) -> tuple[int, int, tuple[int, ...]]:
        """Goal 1."""
        apps = [app for app in self.problem.apps if self.possible(app) and not app.pinned]
        short = [app for app in apps if sum(answer[app.id].values()) < app.n_min]
        asks = [app for app in apps if not self.kept(app)]
        queue = [app for app in asks if app.current] + [app for app in asks if not app.current]
        return (
            sum(app.n_min for app in short if app.current),
            sum(app.n_min for app in short if not app.current),
            tuple(int(app in short) for app in queue),
        )

    def rank(self, answer: Answer, theoretical: dict[str, float], settings: dict[str, float]) -> Rank:
        apps = self.problem.apps
        n = {app.id: sum(answer[app.id].values()) for app in apps}
        loss = sum(
            abs(n[app.id] * float(self.unit(app)) - theoretical[app.id]) for app in apps if self.has_all_kinds(app)
        )
        excess = loss - 2 * len(self.kinds) * settings["theta1"]
        below = 0
        for app in apps:
            if not app.pinned and n[app.id] >= app.n_min and self.possible(app) and theoretical[app.id] > 0:
                floor = int(settings["floor"] * theoretical[app.id] / float(self.unit(app)) + 1e-6)
                below += max(0, min(floor, app.n_max) - n[app.id])
        price = sum(
            Fraction(settings["adjust_s"]) / 1500 * self.worth(app) * sum(app.current.values())
            for app in apps
            if self.kept(app) and self.changed(app, answer[app.id])
        )
        moved = sum(
            max(0, count - app.current.get(node, 0))
            for app in apps
            if app.current and not app.pinned
            for node, count in answer[app.id].items()
        )
        changed = sum(self.kept(app) and self.changed(app, answer[app.id]) for app in apps)
        used = sum((n[app.id] * self.worth(app) for app in apps), Fraction(0))
        return Rank(*self.service(answer), excess if excess > 1e-9 else 0.0, below, used - price, changed, moved)

    def has_all_kinds(self, app: AppDemand) -> bool:
        return all(kind in self.total for kind, need in app.demand.items() if need)

    def theoretical(self, answer: Answer) -> dict[str, float]:
        """ŝ among the apps that get what they need."""
        apps = [app for app in self.problem.apps if self.has_all_kinds(app)]
        fractions = np.array([[app.demand.get(kind, 0) / self.total[kind] for kind in self.kinds] for app in apps])
        caps = []
        for app in apps:
            here = sum(answer[app.id].values())
            most = min(app.n_max, sum(self.fits(app, node) for node in self.room))
            owed = self.possible(app) and (here >= app.n_min or app.pinned)
            caps.append(max(most, here if app.pinned else 0) if owed else 0)
        found = shares.theoretical_shares(
            fractions.reshape(len(apps), len(self.kinds)),
            np.array([app.weight for app in apps]),
            np.array(caps, np.int64),
        )
        return {app.id: 0.0 for app in self.problem.apps} | dict(
            zip((app.id for app in apps), found.tolist(), strict=True)
        )
