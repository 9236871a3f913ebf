"""The policy `task-level`: containers are slots for short tasks, so every decision may give any of them to another app.

This is the other end of two-level sharing, as in Sparrow (Ousterhout et al., SOSP 2013): a task takes about a second, so a
slot is free again at once, nothing has to be checkpointed, and changed apps need no bound.  The cost is paid by every task
(its launch and its queueing) and is not part of the policy: the simulator models it (`replay.simulator.scenario`).

Slots are shared by weighted max-min fairness (§4.2 there: weighted fair shares at the workers): one after the other goes to
the app with the fewest for its weight.  Each is placed by batch sampling (§3): an app that wants m slots probes d·m nodes and
takes those with the most room.  Sparrow probes at random; here a hash of the app's and the nodes' ids decides, so the same
problem has the same answer.  A probe that finds no room is followed by others, since new tasks come every second, until no
node is left.

An app needs n_min slots to make any progress: running apps get them first, where they have their containers now, then waiting
apps, by arrival.  Beyond that nothing is reserved, but among equally good slots an app takes those it had.
"""

from __future__ import annotations

import heapq
from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.policies import answer, greedy, integer, laboratory, reasons
from dorm.policies.problem import Reason

if TYPE_CHECKING:
    from dorm.policies.integer import Instance
    from dorm.policies.problem import Allocation, Problem


class TaskLevelPolicy:
    """Parameters:

    `probes` (2)  nodes that are probed for each task; Sparrow's d
    """

    name = "task-level"
    version = 1

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return laboratory.check_params(self.name, params)

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        probes = int(self.check_params(params)["probes"])
        instance = integer.read(problem)
        slots = _Slots(instance, probes)
        running = np.flatnonzero(instance.kept).tolist()
        for app in running:
            slots.keep_least(app)
        started = [app for app in integer.queue(instance) if slots.start(app)]
        slots.share([*running, *started])
        return answer.by_rule(instance, slots.rows, _explain(instance, slots))


class _Slots:
    """Free room by node, and the part that each app has taken.  Plain lists: each slot is a few numbers on two
    nodes."""

    def __init__(self, instance: Instance, probes: int) -> None:
        self.instance = instance
        self.rows = [
            dict(row) if pinned else {} for row, pinned in zip(instance.rows, instance.pinned.tolist(), strict=True)
        ]
        self.free: list[list[int]] = instance.room.tolist()
        self.n = [sum(row.values()) for row in self.rows]
        self._probes = probes
        self._needs = [[(k, need) for k, need in enumerate(row) if need > 0] for row in instance.demand.tolist()]
        self._own = [dict(row) for row in instance.rows]
        """Slots that an app had and has not taken again."""
        self._left: dict[int, deque[int]] = {}
        """Nodes that an app may still probe, in its own order."""
        self._hashes = _hashes(instance.nodes)
        self._place = {app: place for place, app in enumerate(instance.arrival)}
        self._refused: set[tuple[bytes, int, int]] = set()
        """Demand, requirement and n_min of apps that found no room: equal apps need not try before slots are shared."""

    def keep_least(self, app: int) -> None:
        """Keep n_min slots of a running app in place, on the nodes where it has most."""
        lacks = int(self.instance.n_min[app])
        for node, count in sorted(self.instance.rows[app].items(), key=lambda item: (-item[1], item[0])):
            here = min(count, lacks)
            if here:
                self._put(app, node, here)
                lacks -= here

    def start(self, app: int) -> bool:
        """Take n_min slots or none; return whether they were taken."""
        instance = self.instance
        n_min = int(instance.n_min[app])
        key = (instance.demand[app].tobytes(), int(instance.requirement[app]), n_min)
        if key in self._refused:
            return False
        if self._take(app, n_min) == n_min:
            return True
        for node, count in self.rows[app].items():
            for k, need in self._needs[app]:
                self.free[node][k] += need * count
        self.rows[app], self.n[app], self._own[app] = {}, 0, dict(instance.rows[app])
        self._left.pop(app, None)
        self._refused.add(key)
        return False

    def share(self, apps: list[int]) -> None:
        """Give the rest, slot by slot, to the app with the fewest slots for its weight; ties go to the earlier app.  Extreme
        counts go in larger steps."""
        heap = [(self._level(app), self._place[app], app) for app in apps if self._wants(app) > 0]
        heapq.heapify(heap)
        while heap:
            _, place, app = heapq.heappop(heap)
            step = min(self._wants(app), 1 + int(self.instance.fits_empty[app]) // greedy.FINE_STEPS)
            if self._take(app, step) == step and self._wants(app) > 0:
                heapq.heappush(heap, (self._level(app), place, app))

    def _wants(self, app: int) -> int:
        """Return how many more slots it can use; none for an app without measured demand."""
        return int(self.instance.fits_empty[app]) - self.n[app] if self.instance.worth[app] > 0 else 0

    def _level(self, app: int) -> float:
        """Return containers per weight; apps without weight come last."""
        return integer.level(self.n[app] * int(self.instance.gang[app]), self.instance.apps[app].weight)

    def _take(self, app: int, count: int) -> int:
        """Take up to `count` more slots; return how many were found."""
        if self.instance.lacking[app]:
            return 0
        done = 0
        while done < count:
            node = self._former_node(app)
            node = self._probe(app) if node is None else node
            if node is None:
                break
            here = min(1 if count <= greedy.FINE_STEPS else count - done, self._fits(app, node, count - done))
            self._put(app, node, here)
            done += here
        return done

    def _former_node(self, app: int) -> int | None:
        """Return a node where it had a slot that is still free."""
        own = self._own[app]
        while own:
            node = next(iter(own))
            if self._fits(app, node, 1) and self._allowed(app, node):
                return node
            del own[node]
        return None

    def _allowed(self, app: int, node: int) -> bool:
        return bool(self.instance.eligible[self.instance.requirement[app], node])

    def _probe(self, app: int) -> int | None:
        """Probe the next `probes` nodes in its order, and return the one with the most room for it.  A full node is not probed
        again: within one decision, no app gives up its slots."""
        left = self._left.get(app)
        if left is None:
            left = self._left[app] = deque(self._order(app))
        while left:
            probed = [left.popleft() for _ in range(min(self._probes, len(left)))]
            rooms = [(self._fits(app, node, int(self.instance.n_max[app])), node) for node in probed]
            left.extend(node for room, node in rooms if room)
            best = max(rooms, key=lambda entry: entry[0])
            if best[0]:
                return best[1]
        return None

    def _order(self, app: int) -> list[int]:
        """Return all nodes that it may use, in its own order."""
        seed = _hashes((self.instance.apps[app].id,))[0]
        mixed = _mix(self._hashes ^ seed)
        allowed = self.instance.eligible[self.instance.requirement[app]]
        order = np.argsort(mixed, kind="stable")
        nodes: list[int] = order[allowed[order]].tolist()
        return nodes

    def _fits(self, app: int, node: int, most: int) -> int:
        free = self.free[node]
        return min([free[k] // need for k, need in self._needs[app]], default=most)

    def _put(self, app: int, node: int, count: int) -> None:
        free, own = self.free[node], self._own[app]
        for k, need in self._needs[app]:
            free[k] -= need * count
        self.rows[app][node] = self.rows[app].get(node, 0) + count
        self.n[app] += count
        if node in own:
            own[node] -= count
            if own[node] <= 0:
                del own[node]


def _hashes(names: tuple[str, ...]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return hashes that are equal for equal names in every process."""
    digests = b"".join(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest() for name in names)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def _mix(values: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, §5): all bits of a value depend on all bits of its
    input."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _explain(instance: Instance, slots: _Slots) -> dict[str, Reason]:
    def why(app: int, units: int, room: reasons.Room) -> Reason:
        if units:
            return reasons.no_more_room(instance, room, app, units)
        least = int(instance.n_min[app])
        return reasons.no_room(instance, room, app, least, "n_min") or Reason(
            "resources", f"its {least * int(instance.gang[app])} slots did not fit beside those of the others"
        )

    return reasons.by_rule(instance, slots.rows, why)
