"""Why an app has fewer containers than it could use: the constraint that binds, as a code and a sentence.

Reasons are derived from the answer itself, not from the search for it, so they are true for the decided placement.  Apps
with the same demand lack the same resources, and nodes with the same free room are alike, so each kind is examined once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.policies import goals, integer, scoring
from dorm.policies.classes import classes
from dorm.policies.matching import satisfies
from dorm.policies.problem import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dorm.policies.classes import Classes
    from dorm.policies.integer import Flags, Instance, Ints, Rows
    from dorm.policies.problem import AppDemand, NodeRoom
    from dorm.policies.scoring import Terms

GIB, MIB, KIB = 2**30, 2**20, 2**10

ADJUSTING = Reason("adjusting", "in the middle of an adjustment; stays as it is until that is done")


def amount(kind: str, value: int) -> str:
    """Format `cpu` in cores, `memory` in GiB (or a smaller unit if needed), anything else as a count with its name."""
    if kind == "cpu":
        return f"{_short(value, 1000)} {'core' if value == 1000 else 'cores'}"
    if kind == "memory":
        for size, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
            if value >= size:
                return f"{_short(value, size)} {name}"
        return f"{value} B"
    if kind == "gpu":
        return f"{value} {'GPU' if value == 1 else 'GPUs'}"
    return f"{value} {kind}"


def _short(value: int, size: int) -> str:
    """Format to at most three decimals, never rounded up, so that the reported room is really free."""
    return f"{value * 1000 // size / 1000:.3f}".rstrip("0").rstrip(".")


def _noun(kind: str) -> str:
    return {"cpu": "cores", "gpu": "GPUs"}.get(kind, kind)


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


class Lack(NamedTuple):
    """Why no further container fits anywhere; an empty text if one does."""

    code: str
    text: str


@dataclass(eq=False)
class Room:
    """Free room by node, grouped into distinct rooms."""

    instance: Instance
    free: Ints
    _seen: dict[tuple[bytes, int], Lack] = field(default_factory=dict)

    @cached_property
    def rooms(self) -> Classes:
        return classes(np.hstack([self.free, self.instance.eligible.T.astype(np.int64)]))

    def takes(self, app: int, most: int) -> int:
        """Return how many containers of the app fit, at most `most`."""
        instance, kinds = self.instance, len(self.instance.kinds)
        demand = instance.demand[app]
        needed = demand > 0
        allowed = self.rooms.rows[:, kinds + int(instance.requirement[app])] > 0
        if instance.lacking[app] or not allowed.any():
            return 0
        if not needed.any():
            return most
        each = np.maximum((self.rooms.rows[:, :kinds][:, needed] // demand[needed]).min(axis=1), 0)
        return int(min((each * self.rooms.size)[allowed].sum(), most))

    def lack(self, app: int) -> Lack:
        """Return which resources the nodes lack for the app."""
        key = (self.instance.demand[app].tobytes(), int(self.instance.requirement[app]))
        if self.instance.lacking[app]:
            return self._lack(app)
        if key not in self._seen:
            self._seen[key] = self._lack(app)
        return self._seen[key]

    def _lack(self, app: int) -> Lack:
        instance, kinds = self.instance, len(self.instance.kinds)
        nodes = len(instance.nodes)
        if nodes == 0:
            return (
                Lack(
                    "drained",
                    "all nodes are drained"
                    if not all(node.unmounted for node in instance.drained)
                    else "no node has the folder of checkpoints",
                )
                if instance.drained
                else Lack("resources", "there are no nodes")
            )
        demanding = instance.apps[app]
        absent = [
            kind
            for kind, need in sorted(demanding.demand.items())
            if need > 0 and kind not in instance.kinds[: instance.measured]
        ]
        if absent:
            return Lack("resources", f"no node has any {_noun(absent[0])}")
        short = self.rooms.rows[:, :kinds] < instance.demand[app]
        fits = ~short.any(axis=1)
        allowed = self.rooms.rows[:, kinds + int(instance.requirement[app])] > 0
        if (fits & allowed).any():
            return Lack("", "")
        if not allowed.any():
            return Lack("constraint", f"no node satisfies {demanding.require}")
        if instance.measured < kinds and (open_but_for_ports := ~short[:, :-1].any(axis=1) & allowed).any():
            return Lack("ports", self._no_ports(app, open_but_for_ports))
        sizes = self.rooms.size
        where = f" that satisfies {demanding.require}" if demanding.require else ""
        text = self._shortage(app, short, allowed, where, int(sizes[allowed].sum()))
        if fits.any():
            others = _counted(int(sizes[fits].sum()), "other node")
            return Lack(
                "constraint", f"{text}; {others} with room {'does' if others[:2] == '1 ' else 'do'} not satisfy it"
            )
        return Lack("resources", text)

    def _no_ports(self, app: int, rooms: Flags) -> str:
        """Name the node with the most ports left among those that have room."""
        most = int(np.argmax(np.where(rooms, self.rooms.rows[:, len(self.instance.kinds) - 1], -1)))
        node = self.instance.node_rooms[int(self.rooms.first[most])]
        assert node.ports, "only a node with a range of ports lacks one"
        gang = int(self.instance.gang[app])
        thing = "container" if gang == 1 else f"{gang} containers, which have to be on one node"
        others = int(self.rooms.size[rooms].sum()) - 1
        more = f", nor has {_counted(others, 'other node')} with room for it" if others else ""
        return (
            f"node {node.id} has no free port for a further {thing}: its range {node.ports.first}-{node.ports.last} "
            f"is in use{more}"
        )

    def _shortage(self, app: int, short: Flags, allowed: Flags, where: str, nodes: int) -> str:
        instance, rooms = self.instance, self.rooms
        gang = int(instance.gang[app])
        whole = f" for {gang} containers, which have to be on one node" if gang > 1 else ""
        for k, kind in enumerate(instance.kinds):
            if short[allowed, k].all():
                most = int(np.argmax(np.where(allowed, rooms.rows[:, k], -1)))
                closest = f"{instance.nodes[int(rooms.first[most])]} with {amount(kind, int(rooms.rows[most, k]))}"
                return (
                    f"no node{where} has {amount(kind, int(instance.demand[app, k]))} free{whole} (closest: {closest})"
                )
        parts = [
            f"{int(rooms.size[short[:, k] & allowed].sum())} of {nodes} nodes lack {_noun(kind)}"
            for k, kind in enumerate(instance.kinds)
            if short[allowed, k].any()
        ]
        needs = [
            amount(kind, int(instance.demand[app, k]))
            for k, kind in enumerate(instance.kinds)
            if instance.demand[app, k]
        ]
        return f"no node{where} has {' and '.join(needs)} free at once{whole} ({', '.join(parts)})"


def by_rule(instance: Instance, rows: Rows, why: Callable[[int, int, Room], Reason]) -> dict[str, Reason]:
    """Return the reason of each app below its n_max, for policies that follow a simple rule.

    `why(app, units, room)` is asked about apps that could run and are not being adjusted; `units` is the app's number
    of units, and `room` the room that the whole answer leaves free."""
    room = Room(instance, integer.free_room(instance, rows))
    reasons = {}
    for i, app in enumerate(instance.apps):
        units = sum(rows[i].values())
        if (sum(app.current.values()) if instance.pinned[i] else units * int(instance.gang[i])) >= app.n_max:
            continue
        if instance.pinned[i]:
            reasons[app.id] = ADJUSTING
        elif not instance.possible[i]:
            reasons[app.id] = impossible(instance, i)
        else:
            reasons[app.id] = why(i, units, room)
    return reasons


def drained(instance: Instance, app: int, missing: int) -> Reason | None:
    """Return the reason if drained nodes would hold the missing containers, if they were empty; else None."""
    demanding = instance.apps[app]
    names, room = [], 0
    for node in instance.drained:
        here = min(
            [
                node.capacity.get(kind, 0) // (need * max(demanding.gang, 1))
                for kind, need in demanding.demand.items()
                if need > 0
            ],
            default=missing,
        )
        if here > 0 and satisfies(demanding.require, node.labels):
            names.append(node.id)
            room += here
    if room < missing or not names:
        return None
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    off = [node for node in instance.drained if node.id in names]
    return Reason("drained", f"there would be room on {some}, which {_closed(off)}")


def _closed(nodes: Sequence[NodeRoom]) -> str:
    """Return why the nodes get nothing."""
    if all(node.unmounted for node in nodes):
        return "has another folder of checkpoints" if len(nodes) == 1 else "have other folders of checkpoints"
    return "is drained" if len(nodes) == 1 else "are drained"


def impossible(instance: Instance, app: int) -> Reason:
    """Return the reason for an app that not even an empty cluster could run."""
    n_min, fitting, gang = int(instance.n_min[app]), int(instance.fits_empty[app]), int(instance.gang[app])
    off = drained(instance, app, n_min - fitting)
    if off:
        return off
    lack = Room(instance, instance.capacity).lack(app)
    if not lack.text and instance.measured < len(instance.kinds):
        return Reason("ports", _too_few_ports(instance, app))
    text = lack.text or (
        f"an empty cluster would hold {fitting * gang} of its containers, {(n_min - fitting) * gang} short of n_min "
        f"{n_min * gang}"
    )
    sentence = text.replace(" (closest: ", " (the largest: ").replace(" free at once", " together").replace(" free", "")
    return Reason("no_nodes", sentence)


def _too_few_ports(instance: Instance, app: int) -> str:
    """Describe an app of which an empty cluster would hold only some containers."""
    largest = max(instance.node_rooms, key=lambda node: (node.ports.most if node.ports else integer.LARGEST, node.id))
    ports = f", such as {largest.id}: {largest.ports.first}-{largest.ports.last}" if largest.ports else ""
    fitting, gang = int(instance.fits_empty[app]), int(instance.gang[app])
    return (
        f"an empty cluster would hold {fitting * gang} of its containers, n_min is {int(instance.n_min[app]) * gang}: "
        f"each needs a port of its node's range, and every app one more{ports}"
    )


def no_room(instance: Instance, room: Room, app: int, wanted: int, name: str) -> Reason | None:
    """Return the reason for an app that waits for `wanted` containers (n_min or the static count, see `name`); None if they
    fit."""
    fitting, gang = room.takes(app, wanted), int(instance.gang[app])
    if fitting >= wanted:
        return None
    lack = room.lack(app)
    if fitting:
        rest = room.free - np.minimum(goals.fits(instance, room.free, app), wanted)[:, None] * instance.demand[app]
        lack = Room(instance, rest).lack(app)
    prefix = f"beside {fitting * gang} of its containers, " if fitting else ""
    missing = _counted((wanted - fitting) * gang, "container")
    text = f"{prefix}{lack.text}; {missing} short of {name} {wanted * gang}"
    off = drained(instance, app, wanted - fitting)
    return Reason("drained", f"{text}; {off.text}") if off else Reason(lack.code or "resources", text)


_USES_NOTHING = Reason("price", "it needs nothing of what is counted, so more containers use nothing more")


def _whole_gangs(app: AppDemand) -> Reason:
    return Reason("resources", f"its containers come in groups of {app.gang}, and n_max is no multiple of it")


def no_more_room(instance: Instance, room: Room, app: int, n: int) -> Reason:
    """Return the reason for an app with `n` containers (or gangs) that takes every further one that fits."""
    if n >= instance.n_max[app]:
        return _whole_gangs(instance.apps[app])
    if not instance.worth[app] > 0:
        return _USES_NOTHING
    lack = room.lack(app)
    off = drained(instance, app, 1)
    if off and lack.text:
        return Reason("drained", f"{lack.text}; {off.text}")
    return Reason(lack.code or "resources", lack.text or "others took the room before its turn came")


def explain(instance: Instance, rows: Rows, terms: Terms, *, held_back: Flags, status: str) -> dict[str, Reason]:
    """Return the optimizer's reasons, for every app below its n_max."""
    return _Explanation(instance, rows, terms, held_back, status).reasons()


class _Explanation:
    def __init__(self, instance: Instance, rows: Rows, terms: Terms, held_back: Flags, status: str) -> None:
        self.instance, self.rows, self.terms, self.held_back, self.status = instance, rows, terms, held_back, status
        self.n = integer.counts_of(rows)
        self.room = Room(instance, integer.free_room(instance, rows))
        self.kept, self.possible = instance.kept, instance.possible
        self.touched = integer.changed(instance, rows)
        self.spent = int((self.touched & self.kept).sum())
        self.running = instance.in_budget
        self.loss = integer.loss(instance, self.n, terms.shares)
        units = np.where(np.isfinite(instance.unit), instance.unit, 0.0)
        self.over = self.kept & ~self.touched & (self.n * units > terms.shares + integer.LOSS_TOLERANCE)
        self.can_shrink = (self.over & (self.n > np.maximum(terms.floors, instance.n_min))).any()
        kept_for = goals.reserved(instance, terms.aged)
        self.reserved = kept_for if kept_for and self.n[kept_for[0]] == 0 else None

    def reasons(self) -> dict[str, Reason]:
        instance = self.instance
        result = {}
        for i in np.flatnonzero((self.n < instance.n_max) | instance.pinned | (instance.gang > 1)).tolist():
            app = instance.apps[i]
            n = int(self.n[i]) if not instance.pinned[i] else sum(app.current.values())
            if n * (1 if instance.pinned[i] else int(instance.gang[i])) >= app.n_max:
                continue
            if instance.pinned[i]:
                reason = ADJUSTING
            elif n >= instance.n_max[i] and self.possible[i]:
                reason = _whole_gangs(app)
            elif not self.possible[i]:
                reason = impossible(instance, i)
            elif n < instance.n_min[i]:
                reason = self._waits(i)
            else:
                reason = self._could_grow(i)
            result[app.id] = reason
        return result

    def _limit(self) -> str:
        who = "max_changes" if self.terms.capped else "θ2"
        return f"{who} lets {self.terms.change_budget} of {self.running} running apps change in"

    def _waits(self, app: int) -> Reason:
        n_min = int(self.instance.n_min[app])
        short = no_room(self.instance, self.room, app, n_min, "n_min")
        if self.held_back[app]:
            text = f"others have to shrink first, and {self._limit()} a round"
            return Reason("overhead", f"{text}; {short.text}" if short else text)
        if short is None and self.reserved and app != self.reserved[0]:
            return self._reserved()
        if short is None:
            return Reason("solver", f"there is room for n_min {n_min}, but no answer with it was found")
        return short

    def _reserved(self) -> Reason:
        assert self.reserved
        first, nodes = self.reserved
        name = self.instance.apps[first].id
        if self.held_back[first]:
            return Reason("reserved", f"room is being made for {name}, which has waited long and comes first")
        return Reason(
            "reserved", f"free room on {_counted(int(nodes.sum()), 'node')} is kept for {name}, which has waited long"
        )

    def _could_grow(self, app: int) -> Reason:
        instance, terms = self.instance, self.terms
        unit, n, theoretical = float(instance.unit[app]), int(self.n[app]), float(terms.shares[app])
        stays = bool(self.kept[app] and not self.touched[app])
        used_up = stays and self.spent >= terms.change_budget
        lack = self.room.lack(app)
        if lack.text:
            return self._no_room_to_grow(app, lack, below=n * unit < theoretical - unit, used_up=used_up)
        if used_up:
            return Reason("overhead", f"{self._limit()} this round")
        most = int(instance.n_max[app]) - n
        if self.reserved and (goals.fits(instance, self.room.free, app)[~self.reserved[1]] == 0).all():
            return self._reserved()
        if terms.target is not None and self._in_the_way(app):
            return Reason(
                "overhead", "the free room is being cleared for an app that waits, over several rounds as θ2 wants it"
            )
        after = self.loss + abs((n + 1) * unit - theoretical) - abs(n * unit - theoretical)
        if after > max(self.loss, terms.loss_budget) + integer.LOSS_TOLERANCE:
            share = f"its dominant share is {n * unit:.3g} of a fair {theoretical:.3g}"
            return Reason(
                "fairness",
                f"one more would raise the fairness loss to {after:.3g}, θ1 allows {terms.loss_budget:.3g}; {share}",
            )
        more = self.room.takes(app, most)
        gain = more * float(instance.worth[app])
        gang = int(instance.gang[app])
        if stays and gain <= float(terms.prices[app]) + scoring.resolution(instance):
            return Reason(
                "price",
                f"{more * gang} more would gain less than the checkpoint and restart of {n * gang} containers costs",
            )
        if gain <= 0:
            return _USES_NOTHING
        if gain <= scoring.resolution(instance):
            return Reason("price", f"{more * gang} more would be too small a part of the cluster to count")
        return Reason("solver", f"there is room for {more * gang} more, but no better answer was found ({self.status})")

    def _no_room_to_grow(self, app: int, lack: Lack, *, below: bool, used_up: bool) -> Reason:
        """Nothing is free: return what keeps others from making room, if they should."""
        off = drained(self.instance, app, 1)
        if off:
            return Reason("drained", f"{lack.text}; {off.text}")
        if lack.code == "resources" and below and used_up and self.over.any():
            return Reason("overhead", f"{lack.text}; others have more than their share, but {self._limit()} this round")
        if lack.code == "resources" and below and self.over.any() and not self.can_shrink:
            return Reason("floor", f"{lack.text}; the others are at their floor or at n_min already")
        return Reason(lack.code, lack.text)

    def _in_the_way(self, app: int) -> bool:
        assert self.terms.target is not None
        target, row = self.terms.target[app], self.rows[app]
        takes = goals.fits(self.instance, self.room.free, app)
        return all(row.get(node, 0) + 1 > target.get(node, 0) for node in np.flatnonzero(takes).tolist())
