"""Greedy placement by buckets of nodes with equal free room: the work is by bucket instead of by node.

A `Draft` is a placement under construction.  Containers go where the free room points most in the direction of the demand (the
cosine of the two, each resource as a part of the largest node's), which leaves rare resources to apps that need them: a node
with idle GPUs points away from an app that needs none.  Tightest fit instead loses a fifth of the cluster.
"""

from __future__ import annotations

import heapq
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from dorm.policies import integer
from dorm.policies.classes import classes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.integer import Flags, Instance, Ints, Rows

DIRECTIONS = 30
"""Cosines are rounded to one in this many; among nodes with the same cosine, the one with most room is used.  Finer steps fill
nodes in their order and strand the rest of each: on 1,000 nodes of three shapes, 2 % of the cluster against 0.01 % with
this."""


RARE = 0.75
"""A kind that a smaller part of the nodes has is a device: only some apps use it."""

DEVICES = 0.6
"""Penalty of a node for devices that a container would leave idle there, each as a part of the most that a node has: large
sets of devices stay whole, and apps without devices avoid them."""

FINE_STEPS = 1_000
"""Up to this many containers per node are placed one by one, more than that a node at a time: counts may be extreme."""


class Draft:
    """Counts of all apps by node, the free room, and nodes by free room."""

    def __init__(self, instance: Instance, rows: Rows, node_class: Ints | None = None) -> None:
        self.instance = instance
        self.node_class = np.zeros(len(instance.nodes), np.int64) if node_class is None else node_class
        self.rows: list[dict[int, int]] = list(rows)
        """Shared with the caller's rows until `_own` copies one."""
        self.owned: set[int] = set()
        self.n = integer.counts_of(rows)
        self.free = integer.free_room(instance, rows)
        self.scale = np.maximum(instance.capacity.max(axis=0, initial=1), 1).astype(np.float64)
        having = (instance.capacity > 0).mean(axis=0) if len(instance.nodes) else np.ones(len(instance.kinds))
        self.rare = np.asarray(having < RARE)
        self.closed = np.zeros(len(instance.nodes), np.bool_)
        self._index()

    def copy(self) -> Draft:
        """Return another draft that starts from this one."""
        other = copy(self)
        other.rows, other.owned, other.n, other.free = list(self.rows), set(), self.n.copy(), self.free.copy()
        self.owned = set()  # Rows are shared from now on.
        other.vectors, other.kinds_of_bucket = self.vectors.copy(), self.kinds_of_bucket.copy()
        other.size, other.bucket = self.size.copy(), self.bucket.copy()
        other.members, other.place = [list(nodes) for nodes in self.members], dict(self.place)
        return other

    def close(self, nodes: Flags) -> None:
        """From now on, give these nodes nothing."""
        self.closed = nodes
        self._index()

    def _index(self) -> None:
        """Build all buckets from scratch."""
        instance = self.instance
        eligible = classes(np.column_stack([self.closed, self.node_class, instance.eligible.T]).astype(np.int64))
        self.may_use = (eligible.rows[:, 2:].T > 0) & (eligible.rows[:, 0] == 0)
        """requirement × kind of node: whether it may get containers."""
        self.class_of_kind = eligible.rows[:, 1]
        self.kind_of = eligible.of
        buckets = classes(np.column_stack([self.free, eligible.of]))
        count = len(buckets.rows)
        room = max(2 * count, 64)
        kinds = len(instance.kinds)
        self.vectors = np.full((room, kinds), -1, np.int64)
        self.kinds_of_bucket = np.zeros(room, np.int64)
        self.size = np.zeros(room, np.int64)
        self.vectors[:count] = buckets.rows[:, :kinds]
        self.kinds_of_bucket[:count] = buckets.rows[:, kinds]
        self.size[:count] = buckets.size
        self.count = count
        self.bucket = buckets.of.copy()
        order = np.argsort(buckets.of, kind="stable")
        ends = np.cumsum(buckets.size)[:-1]
        self.members: list[list[int]] = [part.tolist() for part in np.split(order, ends)] if count else []
        self.place = {
            (*vector, kind): b
            for b, (vector, kind) in enumerate(
                zip(self.vectors[:count].tolist(), self.kinds_of_bucket[:count].tolist(), strict=True)
            )
        }

    # One node

    def _own(self, app: int) -> dict[int, int]:
        if app not in self.owned:
            self.rows[app] = dict(self.rows[app])
            self.owned.add(app)
        return self.rows[app]

    def add(self, app: int, node: int, count: int) -> None:
        """Put `count` containers on a node (or remove them, if negative)."""
        row = self._own(app)
        left = row.get(node, 0) + count
        if left:
            row[node] = left
        else:
            row.pop(node, None)
        self.n[app] += count
        self.free[node] -= count * self.instance.demand[app]
        self._move(node)

    def clear(self, app: int) -> None:
        """Remove all of its containers."""
        for node, count in list(self.rows[app].items()):
            self.add(app, node, -count)

    def restore(self, app: int, row: dict[int, int]) -> None:
        """Give it exactly this row; containers that stay are not touched."""
        now = self.rows[app]
        for node in [*now, *(node for node in row if node not in now)]:
            if change := row.get(node, 0) - self.rows[app].get(node, 0):
                self.add(app, node, change)

    def _move(self, node: int) -> None:
        self.size[self.bucket[node]] -= 1
        vector = self.free[node]
        kind = int(self.kind_of[node])
        key = (*vector.tolist(), kind)
        bucket = self.place.get(key)
        if bucket is None:
            bucket = self.count
            if bucket == len(self.size):
                self._grow()
            self.vectors[bucket] = vector
            self.kinds_of_bucket[bucket] = kind
            self.members.append([])
            self.place[key] = bucket
            self.count += 1
        self.size[bucket] += 1
        self.bucket[node] = bucket
        heapq.heappush(self.members[bucket], node)

    def _grow(self) -> None:
        more = len(self.size)
        self.vectors = np.vstack([self.vectors, np.full((more, self.vectors.shape[1]), -1, np.int64)])
        self.kinds_of_bucket = np.concatenate([self.kinds_of_bucket, np.zeros(more, np.int64)])
        self.size = np.concatenate([self.size, np.zeros(more, np.int64)])

    def _some(self, bucket: int, most: int) -> list[int]:
        """Return the first nodes of a bucket, by id.  Drops stale entries of nodes that have left it."""
        members = self.members[bucket]
        nodes: list[int] = []
        while members and len(nodes) < most:
            node = heapq.heappop(members)
            if self.bucket[node] == bucket and (not nodes or nodes[-1] != node):
                nodes.append(node)
        for node in nodes:
            heapq.heappush(members, node)
        return nodes

    # One app

    def put(self, app: int, count: int, within: int | None = None) -> int:
        """Place up to `count` more containers, on nodes of one class if given; return how many found room."""
        instance = self.instance
        if instance.lacking[app] or not len(instance.nodes):
            return 0
        left = min(count, int(instance.n_max[app] - self.n[app]))
        wish = instance.apps[app].placement
        left = total = max(left, 0)
        if wish == "pack":
            left -= self._fill_own(app, left)
        while left > 0:
            bucket = self._best(app, within)
            if bucket is None:
                break
            nodes = self._some(bucket, left if wish != "pack" else 1)
            if wish == "spread":
                nodes = [node for node in nodes if node not in self.rows[app]] or nodes[:1]
            if wish == "pack":
                each = min(left, self._fits(app, nodes[0]))
                self.add(app, nodes[0], each)
                left -= each
                continue
            each = min(1 if left <= FINE_STEPS * len(nodes) else left, self._fits(app, nodes[0]))
            for node in nodes:
                self.add(app, node, min(each, left))
                left -= min(each, left)
        return total - left

    def _fits(self, app: int, node: int) -> int:
        demand = self.instance.demand[app]
        needed = demand > 0
        return int((self.free[node][needed] // demand[needed]).min(initial=int(self.instance.n_max[app])))

    def _usable(self, app: int, node: int) -> bool:
        return bool(self.may_use[self.instance.requirement[app], self.kind_of[node]])

    def _fill_own(self, app: int, count: int) -> int:
        """Fill the nodes that it is on already first."""
        done = 0
        for node in sorted(self.rows[app]):
            here = min(count - done, self._fits(app, node)) if self._usable(app, node) else 0
            if here > 0:
                self.add(app, node, here)
                done += here
        return done

    def _best(self, app: int, within: int | None) -> int | None:
        instance, demand = self.instance, self.instance.demand[app]
        vectors = self.vectors[: self.count]
        fits = (vectors >= demand).all(axis=1) & (self.size[: self.count] > 0)
        usable = self.may_use[instance.requirement[app]]
        if within is not None:
            usable = usable & (self.class_of_kind == within)
        fits &= usable[self.kinds_of_bucket[: self.count]]
        at = np.flatnonzero(fits)
        if not len(at):
            return None
        room = vectors[at] / self.scale
        need = demand / self.scale
        length = np.sqrt((room * room).sum(axis=1))
        of_need = float(np.sqrt((need * need).sum()))
        cosine = np.divide(room @ need, length * of_need, out=np.zeros(len(at)), where=length * of_need > 0)
        if self.rare.any():
            cosine = cosine - DEVICES * (room - need)[:, self.rare].sum(axis=1)
        return int(at[int(np.argmax(np.round(cosine * DIRECTIONS) + np.minimum(length, 9.0) / 10))])

    def keep_in_place(self, app: int) -> None:
        """A partition that was hit keeps as many containers as possible in place (it holds nothing in the draft
        yet)."""
        for node, count in self.instance.rows[app].items():
            if self._usable(app, node):
                most = min(count, self._fits(app, node), int(self.instance.n_max[app] - self.n[app]))
                if most > 0:
                    self.add(app, node, most)

    def take(self, app: int, count: int) -> None:
        """Remove `count` containers from the nodes where this leaves most room, so that others can use it whole."""
        while count > 0:
            row = self.rows[app]
            nodes = np.array(sorted(row), np.int64)
            left = ((self.free[nodes] + self.instance.demand[app]) / self.scale).min(axis=1)
            node = int(nodes[int(np.argmax(np.round(left, 9)))])
            off = min(1 if count <= FINE_STEPS else count, row[node])
            self.add(app, node, -off)
            count -= off

    def takes(self, app: int) -> int:
        """Return how many more containers of the app fit into the free room, at most up to n_max."""
        instance, demand = self.instance, self.instance.demand[app]
        needed = demand > 0
        most = int(instance.n_max[app] - self.n[app])
        if instance.lacking[app] or most <= 0:
            return 0
        vectors = self.vectors[: self.count]
        usable = self.may_use[instance.requirement[app]][self.kinds_of_bucket[: self.count]]
        if not needed.any():
            return most if (usable & (self.size[: self.count] > 0)).any() else 0
        each = np.maximum((vectors[:, needed] // demand[needed]).min(axis=1), 0)
        return int(min((each * self.size[: self.count])[usable].sum(), most))


def entries(rows: Rows, apps: Sequence[int]) -> tuple[Ints, Ints, Ints]:
    """Return app, node and count of each place where one of the apps has containers."""
    which, node, count = integer.entries([rows[i] for i in apps])
    return np.array(apps, np.int64)[which], node, count
