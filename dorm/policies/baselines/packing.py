"""An answer under construction, for policies that give an app all of its containers at once or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dorm.policies import integer

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Instance, Ints


class Packing:
    """Rows of the answer, and the free room of each node."""

    def __init__(self, instance: Instance, stays: Flags) -> None:
        """Apps that stay keep what they had, the others start with nothing."""
        self._instance = instance
        self.rows = [dict(row) if keeps else {} for row, keeps in zip(instance.rows, stays.tolist(), strict=True)]
        self.free = integer.free_room(instance, self.rows)

    def put(self, app: int, count: int) -> int:
        """Place up to `count` containers on the nodes that hold most of them, so on few nodes; return how many found room.

        Optimus (EuroSys 2018, §4.2) and Tiresias (NSDI 2019, §3.3) both place a job this way."""
        if count <= 0:
            return 0
        here = self.fits(app, count)
        done = 0
        for node in np.argsort(-here, kind="stable").tolist():
            amount = min(int(here[node]), count - done)
            if amount <= 0:
                break
            self._take(app, node, amount)
            done += amount
        return done

    def put_all(self, app: int, count: int) -> bool:
        """Place all containers or none; return whether they were placed."""
        if self.put(app, count) == count:
            return True
        self.take_back(app)
        return False

    def put_back(self, app: int, row: dict[int, int]) -> bool:
        """Place the app exactly there, or not at all; return whether it was placed."""
        demand = self._instance.demand[app]
        if any((self.free[node] < count * demand).any() for node, count in row.items()):
            return False
        for node, count in row.items():
            self._take(app, node, count)
        return True

    def take_back(self, app: int) -> dict[int, int]:
        """Remove all its containers; return their row."""
        row, self.rows[app] = self.rows[app], {}
        for node, count in row.items():
            self.free[node] += count * self._instance.demand[app]
        return row

    def fits(self, app: int, most: int) -> Ints:
        """Return how many containers each node takes, not bounded by what the app wants: the emptiest nodes come first."""
        instance = self._instance
        demand = instance.demand[app]
        needed = demand > 0
        if instance.lacking[app]:
            return np.zeros(len(self.free), np.int64)
        if needed.any():
            here = np.maximum((self.free[:, needed] // demand[needed]).min(axis=1), 0)
        else:
            here = np.full(len(self.free), most)
        return np.asarray(np.where(instance.eligible[instance.requirement[app]], here, 0))

    def _take(self, app: int, node: int, count: int) -> None:
        self.free[node] -= count * self._instance.demand[app]
        self.rows[app][node] = self.rows[app].get(node, 0) + count


def within(demand: Ints, count: int, left: Ints) -> bool:
    """Return whether so many containers fit the free room of the cluster, treated as one machine."""
    return bool((demand * count <= left).all())
