"""All answers to a tiny problem, judged by a second implementation of the goals: maps and fractions, no matrices.

Shares nothing with the optimizer but ŝ_i, which has tests of its own.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.policies import shares
from events.spec.requirements import requirement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm.policies.problem import AppDemand, Problem

Placement = dict[str, int]
Answer = dict[str, Placement]


class Service(NamedTuple):
    """Goal 1."""

    lost: int
    aged: tuple[int, ...]
    waiting: int
    order: tuple[int, ...]


class Rank(NamedTuple):
    service: Service
    excess: float
    below_floor: int
    net: Fraction
    changed: int
    moved: int
    misplaced: int


class World:
    """One problem.  All counts are containers, never gangs."""

    def __init__(self, problem: Problem, settings: dict[str, float]) -> None:
        self.problem = problem
        self.settings = settings
        self.nodes = {node.id: node for node in problem.nodes if not node.drained}
        self.room = {name: node.capacity for name, node in self.nodes.items()}
        self.kinds = sorted({kind for room in self.room.values() for kind, have in room.items() if have})
        self.total = {kind: sum(room.get(kind, 0) for room in self.room.values()) for kind in self.kinds}
        self.now = {app.id: app.current for app in problem.apps}
        self.others = {app.id: {} if app.again and not app.pinned else app.current for app in problem.apps}
        """Without those that are restarted for their owners."""

    # What apps can have

    def allowed(self, app: AppDemand, node: str) -> bool:
        return requirement(app.require).matches(self.nodes[node].labels)

    def fits(self, app: AppDemand, node: str, room: dict[str, int] | None = None) -> int:
        room = self.room[node] if room is None else room
        if not self.allowed(app, node):
            return 0
        parts = [room.get(kind, 0) // (need * app.gang) for kind, need in app.demand.items() if need > 0]
        return max(0, min([*parts, app.n_max // app.gang])) * app.gang

    def most(self, app: AppDemand) -> int:
        """How many containers of it an empty cluster would hold."""
        return min(app.n_max, sum(self.fits(app, node) for node in self.room))

    def possible(self, app: AppDemand) -> bool:
        return app.pinned or self.most(app) >= app.n_min

    def left(self, node: str, answer: Answer) -> dict[str, int]:
        return {
            kind: have - sum(answer[app.id].get(node, 0) * app.demand.get(kind, 0) for app in self.problem.apps)
            for kind, have in self.room[node].items()
        }

    def overfull(self, node: str, answer: Answer) -> bool:
        return min(self.left(node, answer).values(), default=0) < 0

    def has_all_kinds(self, app: AppDemand) -> bool:
        return all(kind in self.total for kind, need in app.demand.items() if need)

    def forced(self, app: AppDemand) -> bool:
        if not app.current or app.pinned:
            return False
        return (
            any(
                node not in self.room
                or self.overfull(node, self.now if app.again else self.others)
                or not self.allowed(app, node)
                for node in app.current
            )
            or not app.n_min <= sum(app.current.values()) <= app.n_max
            or any(count % app.gang for count in app.current.values())
            or not self.has_all_kinds(app)
        )

    def kept(self, app: AppDemand) -> bool:
        return bool(app.current) and not app.pinned and not self.forced(app)

    def stays(self, app: AppDemand) -> Placement:
        """Where a pinned app is, of what is there."""
        return {node: count for node, count in app.current.items() if node in self.room}

    def placements(self, app: AppDemand) -> Iterator[Placement]:
        if app.pinned:
            yield self.stays(app)
            return
        names = sorted(self.room)
        for counts in product(*(range(0, self.fits(app, node) + 1, app.gang) for node in names)):
            total = sum(counts)
            if (app.n_min <= total <= app.n_max and self.possible(app)) or (total == 0 and not self.kept(app)):
                yield {node: count for node, count in zip(names, counts, strict=True) if count}

    def changed(self, answer: Answer) -> int:
        return sum(app.id in self._kept and answer[app.id] != app.current for app in self.problem.apps)

    def answers(self, budget: int) -> Iterator[Answer]:
        """All that give no node more than it has and change no more apps than that."""
        yield from self._extended(
            {}, list(self.problem.apps), {name: dict(room) for name, room in self.room.items()}, budget
        )

    def _extended(
        self, answer: Answer, apps: list[AppDemand], room: dict[str, dict[str, int]], budget: int
    ) -> Iterator[Answer]:
        if not apps:
            yield answer
            return
        app, *others = apps
        for placement in self._placements[app.id]:
            changes = int(app.id in self._kept and placement != app.current)
            left = {
                name: {kind: have - placement.get(name, 0) * app.demand.get(kind, 0) for kind, have in has.items()}
                for name, has in room.items()
            }
            if changes <= budget and all(have >= 0 for has in left.values() for have in has.values()):
                yield from self._extended({**answer, app.id: placement}, others, left, budget - changes)

    @cached_property
    def _placements(self) -> dict[str, list[Placement]]:
        return {app.id: list(self.placements(app)) for app in self.problem.apps}

    @cached_property
    def _kept(self) -> set[str]:
        return {app.id for app in self.problem.apps if self.kept(app)}

    # Who goes first

    @cached_property
    def aged(self) -> list[AppDemand]:
        return [
            app
            for app in self.problem.apps
            if not app.current and self.possible(app) and app.waited_s > self.settings["patience_s"]
        ]

    @cached_property
    def reserved(self) -> list[str]:
        """Nodes that are kept for the first who has waited too long: with the most room now, enough of them if empty."""
        if not self.aged:
            return []
        app = self.aged[0]
        pinned = {each.id: self.stays(each) if each.pinned else {} for each in self.problem.apps}
        staying = {each.id: self.stays(each) if each.pinned or self.kept(each) else {} for each in self.problem.apps}
        now = {node: self.fits(app, node, self.left(node, staying)) for node in self.room}
        empty = {node: self.fits(app, node, self.left(node, pinned)) for node in self.room}
        if sum(empty.values()) < app.n_min:
            return []
        taken: list[str] = []
        for node in sorted(self.room, key=lambda name: (-now[name], -empty[name], name)):
            if sum(empty[name] for name in taken) < app.n_min:
                taken.append(node)
        return taken

    def respects_the_reserved(self, answer: Answer) -> bool:
        if not self.aged or answer[self.aged[0].id]:
            return True
        return not any(
            answer[app.id].get(node, 0) > app.current.get(node, 0) for app in self._not_hit for node in self.reserved
        )

    @cached_property
    def _not_hit(self) -> list[AppDemand]:
        return [app for app in self.problem.apps if not app.pinned and not self.forced(app)]

    @cached_property
    def _asked(self) -> list[AppDemand]:
        return [app for app in self.problem.apps if self.possible(app) and not app.pinned]

    def service(self, answer: Answer) -> Service:
        short = [app for app in self._asked if sum(answer[app.id].values()) < app.n_min]
        asks = [app for app in self._asked if app.id not in self._kept]
        queue = [app for app in asks if app.current] + [app for app in asks if not app.current]
        return Service(
            sum(app.n_min for app in short if app.current),
            tuple(int(app in short) for app in self.aged),
            sum(app.n_min for app in short if not app.current),
            tuple(int(app in short) for app in queue),
        )

    # How good an answer is

    def unit(self, app: AppDemand) -> Fraction:
        return max(
            (Fraction(need, self.total[kind]) for kind, need in app.demand.items() if kind in self.total),
            default=Fraction(0),
        )

    def worth(self, app: AppDemand) -> Fraction:
        return sum(
            (Fraction(need, self.total[kind]) for kind, need in app.demand.items() if kind in self.total), Fraction(0)
        )

    def price(self, app: AppDemand) -> Fraction:
        adjust_s = self.settings["adjust_s"] if app.adjust_s is None else app.adjust_s
        part = min(Fraction(adjust_s) / Fraction(self.settings["horizon_s"]), Fraction(1))
        return part * self.worth(app) * sum(app.current.values())

    def rank(self, answer: Answer, theoretical: dict[str, float]) -> Rank:
        apps = self.problem.apps
        n = {app.id: sum(answer[app.id].values()) for app in apps}
        loss = sum(
            abs(n[app.id] * float(self.unit(app)) - theoretical[app.id]) for app in apps if self.has_all_kinds(app)
        )
        excess = loss - 2 * len(self.kinds) * self.settings["theta1"]
        below = 0
        for app in apps:
            if not app.pinned and n[app.id] >= app.n_min and self.possible(app) and theoretical[app.id] > 0:
                gangs = int(self.settings["floor"] * theoretical[app.id] / float(self.unit(app) * app.gang) + 1e-6)
                below += max(0, min(gangs * app.gang, app.n_max) - n[app.id])
        price = sum(self.price(app) for app in apps if self.kept(app) and answer[app.id] != app.current)
        used = sum((n[app.id] * self.worth(app) for app in apps), Fraction(0))
        return Rank(
            self.service(answer),
            excess if excess > 1e-9 else 0.0,
            below,
            used - price,
            self.changed(answer),
            self.started(answer),
            sum(
                misplaced(app, answer[app.id])
                for app in apps
                if not app.pinned and (self.forced(app) or answer[app.id] != app.current)
            ),
        )

    def started(self, answer: Answer) -> int:
        """Containers that apps which ran start on a node."""
        return sum(beyond(answer[app.id], app.current) for app in self.problem.apps if app.current and not app.pinned)

    def stopped(self, answer: Answer) -> int:
        """Containers on nodes that are there which apps that ran stop."""
        return sum(
            beyond(self.stays(app), answer[app.id]) for app in self.problem.apps if app.current and not app.pinned
        )

    def in_the_way(self, answer: Answer, target: Answer) -> int:
        return sum(beyond(answer[app.id], target[app.id]) for app in self.problem.apps if not app.pinned)

    def theoretical(self, entitled: list[str]) -> dict[str, float]:
        """ŝ among these apps."""
        apps = [app for app in self.problem.apps if self.has_all_kinds(app)]
        fractions = np.array(
            [[app.demand.get(kind, 0) * app.gang / self.total[kind] for kind in self.kinds] for app in apps]
        )
        caps = [
            (max(self.most(app), sum(self.stays(app).values()) if app.pinned else 0) if app.id in entitled else 0)
            // app.gang
            for app in apps
        ]
        found = shares.theoretical_shares(
            fractions.reshape(len(apps), len(self.kinds)),
            np.array([app.weight for app in apps]),
            np.array(caps, np.int64),
        )
        return {app.id: 0.0 for app in self.problem.apps} | dict(
            zip((app.id for app in apps), found.tolist(), strict=True)
        )

    def placed(self, answer: Answer) -> list[str]:
        return [
            app.id
            for app in self.problem.apps
            if app.pinned or (self.possible(app) and sum(answer[app.id].values()) >= app.n_min)
        ]


def beyond(placement: Placement, other: Placement) -> int:
    return sum(max(0, count - other.get(node, 0)) for node, count in placement.items())


def misplaced(app: AppDemand, placement: Placement) -> int:
    """Nodes beyond the first, or gangs beyond the first of each node."""
    if app.placement == "pack":
        return max(0, len(placement) - 1)
    return sum(count // app.gang - 1 for count in placement.values()) if app.placement == "spread" else 0
