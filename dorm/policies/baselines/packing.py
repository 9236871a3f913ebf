"""An answer under construction, for policies that place an app on few nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dorm.policies import integer
from dorm.policies.integer import LARGEST

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Instance, Ints


class Packing:
    """Rows of the answer, and the free room of each node."""

    def __init__(self, instance: Instance, stays: Flags) -> None:
        """Apps that stay keep their containers, the others start with none."""
        self._instance = instance
        self.rows = [dict(row) if keeps else {} for row, keeps in zip(instance.rows, stays.tolist(), strict=True)]
        self.free = integer.free_room(instance, self.rows)

    def put(self, app: int, count: int, nodes: Flags | None = None) -> int:
        """Place up to `count` containers on the nodes that hold most of them, so on few nodes; return how many found room.

        Optimus (EuroSys 2018, §4.2) and Tiresias (NSDI 2019, §3.3) both place a job this way.  With `nodes`, only those are
        used."""
        if count <= 0:
            return 0
        here = self.fits(app, count, nodes)
        done = 0
        for node in np.argsort(-here, kind="stable").tolist():
            amount = min(int(here[node]), count - done)
            if amount <= 0:
                break
            self._take(app, node, amount)
            done += amount
        return done

    def put_all(self, app: int, count: int, nodes: Flags | None = None) -> bool:
        """Place all containers or none; return whether they were placed."""
        if self.put(app, count, nodes) == count:
            return True
        self.take_back(app)
        return False

    def shrink(self, app: int, count: int) -> None:
        """Remove `count` containers from the nodes where the app has fewest, so that it is on few nodes."""
        row = self.rows[app]
        for node in sorted(row, key=lambda node: (row[node], -node)):
            amount = min(row[node], count)
            if amount <= 0:
                break
            count -= amount
            self.free[node] += amount * self._instance.demand[app]
            row[node] -= amount
            if not row[node]:
                del row[node]

    def put_back(self, app: int, row: dict[int, int]) -> bool:
        """Place the app exactly there, or nowhere; return whether it was placed."""
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

    def fits(self, app: int, most: int, nodes: Flags | None = None, free: Ints | None = None) -> Ints:
        """Return how many containers each node takes, `most` if the app needs no counted resource; not limited by the app's
        wish, so that the emptiest nodes come first.  `free` replaces the free room."""
        instance = self._instance
        room = self.free if free is None else free
        demand = instance.demand[app]
        if instance.lacking[app]:
            return np.zeros(len(room), np.int64)
        here = np.full(len(room), LARGEST)
        for k in np.flatnonzero(demand > 0).tolist():
            np.minimum(here, room[:, k] // demand[k], out=here)
        here = np.where(here == LARGEST, most, np.maximum(here, 0))
        allowed = instance.eligible[instance.requirement[app]]
        return np.asarray(np.where(allowed if nodes is None else allowed & nodes, here, 0))

    def _take(self, app: int, node: int, count: int) -> None:
        self.free[node] -= count * self._instance.demand[app]
        self.rows[app][node] = self.rows[app].get(node, 0) + count


def within(demand: Ints, count: int, left: Ints) -> bool:
    """Return whether this many containers fit into the free room of the cluster, treated as one machine."""
    return bool((demand * count <= left).all())
