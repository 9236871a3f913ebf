"""The size of a round: the log would refuse a round that is too large for one message.

Sizes are measured as the facts will be written, and bounds are the same everywhere (`events.limits`), so an audit cuts where
the master did.  Nothing is lost by a cut: the rest follows from the next state as well, and comes in the next round.

    first_that_fit    of answers, ends and releases, which are independent of what follows them
    changes_that_fit  of a decision's changes, so that what is left is a decision: an app grows together with those
                      whose room it needs
    reasons_that_fit  of the reasons why apps wait: in full for those that came first, then codes alone, then none
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from events.kinds import Waiting
from events.limits import LARGEST_FACTS, clipped

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dorm.policies.problem import Allocation, AppDemand, Problem
    from events.kinds import Resize

T = TypeVar("T")

LARGEST_CHANGES = LARGEST_FACTS // 2
"""Bytes of one decision's changes."""
LARGEST_REST = 64 * 1024
"""Bytes reserved for the other fields of a decision."""
MOST_CONTAINERS = 4096
"""Number of containers of one app in one generation: its placement has to fit into one decision, at some 60 bytes a
container."""
MOST_NAMED = 1000
"""Nodes, or slots, that a fact names one by one."""
PUT_OFF = Waiting(code="put_off", text="its turn comes with a later decision: this one is as large as a message may be")
CUT = "many apps wait for the same"
"""Text in place of that of a reason that does not fit."""
UNSAID = Waiting(code="unsaid", text="more apps wait than one decision can give reasons for")
"""The fold's note on an app whose reason is left out."""

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def size(value: object) -> int:
    """Bytes in a message."""
    return len(_encode(value))


def first_that_fit(facts: Sequence[T], largest: int = LARGEST_FACTS) -> list[T]:
    """As many of the first facts as fit, at least one."""
    room = largest
    for count, fact in enumerate(facts):
        room -= size(fact)
        if room < 0 and count:
            return list(facts[:count])
    return list(facts)


# --- changes ------------------------------------------------------------------------------------------------------------


def changes_that_fit(
    problem: Problem, answer: Allocation, changes: list[Resize], largest: int = LARGEST_CHANGES, *, reserved: int = 0
) -> list[Resize]:
    """All changes if they fit next to `reserved` other bytes; otherwise, in their order, each together with the changes
    whose room it needs."""
    largest -= reserved
    sizes = {change.app: size(change) for change in changes}
    if sum(sizes.values()) <= largest:
        return changes
    room = _Room(problem, answer, sizes)
    taken: dict[str, None] = {}
    for app in sizes:
        if app in taken:
            continue
        group = room.group(app, taken)
        needed = sum(sizes[member] for member in group)
        if needed <= largest:
            largest -= needed
            taken.update(dict.fromkeys(group))
            room.take(group)
    return [change for change in changes if change.app in taken]


class _Room:
    """Free room by node and resource, less than none if an app in the middle of an adjustment holds too much."""

    def __init__(self, problem: Problem, answer: Allocation, changing: Collection[str]) -> None:
        self._free = {node.id: dict(node.capacity) for node in problem.nodes}
        self._demands: dict[str, AppDemand] = {app.id: app for app in problem.apps}
        self._grows: dict[str, dict[str, int]] = {}
        """Number of additional containers on each node, by changing app; negative if it leaves some."""
        self._leaves: dict[str, list[str]] = {node: [] for node in self._free}
        """Changing apps that make room on each node."""
        for app in problem.apps:
            self._hold(app, app.holds)
            if app.id in changing:
                wanted = answer.counts.get(app.id, {})
                nodes = sorted({*app.holds, *wanted} & self._free.keys())
                more = {node: wanted.get(node, 0) - app.holds.get(node, 0) for node in nodes}
                self._grows[app.id] = more
                for node in nodes:
                    if more[node] < 0:
                        self._leaves[node].append(app.id)

    def _hold(self, app: AppDemand, counts: dict[str, int]) -> None:
        for node, count in counts.items():
            room = self._free.get(node)
            for name, amount in app.demand.items() if room is not None and count else ():
                assert room is not None
                room[name] = room.get(name, 0) - amount * count

    def take(self, group: Collection[str]) -> None:
        """From here on these have changed."""
        for app in group:
            self._hold(self._demands[app], self._grows[app])

    def group(self, app: str, taken: Collection[str]) -> list[str]:
        """This change and the remaining ones that depend on it, so that no app gets room that is not freed."""
        group = {app: None}
        need: dict[str, dict[str, int]] = {}
        joined, emptied = [app], dict[str, None]()
        while joined:
            nodes = dict[str, None]()
            for member in joined:
                for node, count in self._grows[member].items():
                    nodes[node] = None
                    of_node = need.setdefault(node, {})
                    for name, amount in self._demands[member].demand.items():
                        of_node[name] = of_node.get(name, 0) + amount * count
            joined = []
            for node in nodes:
                if node not in emptied and self._is_short(node, need[node]):
                    emptied[node] = None
                    joined += [leave for leave in self._leaves[node] if leave not in taken and leave not in group]
                    group |= dict.fromkeys(joined)
        return list(group)

    def _is_short(self, node: str, need: dict[str, int]) -> bool:
        free = self._free[node]
        return any(amount > 0 and amount > free.get(name, 0) for name, amount in need.items())


# --- reasons ------------------------------------------------------------------------------------------------------------


def reasons_that_fit(
    reasons: dict[str, Waiting], order: Sequence[str], largest: int
) -> tuple[dict[str, Waiting], dict[str, Waiting]]:
    """The facts to write, and each app's resulting reason in the fold; `order` has the apps, those first whose reason
    matters most."""
    reasons = {app: Waiting(code=waiting.code, text=clipped(waiting.text)) for app, waiting in reasons.items()}
    if size(reasons) <= largest:
        return reasons, reasons
    short = {app: Waiting(code=waiting.code, text=min(waiting.text, CUT, key=len)) for app, waiting in reasons.items()}
    named: dict[str, Waiting] = {}
    room, spare = largest - _MAP, largest // 8
    for app in order:
        if app not in reasons:
            continue
        more = size(reasons[app]) - size(short[app])
        reason = reasons[app] if more <= spare else short[app]
        needed = size(app) + size(reason)
        if needed > room:
            break
        named[app] = reason
        room -= needed
        spare -= more if reason is reasons[app] else spare
    for app in named:
        more = size(reasons[app]) - size(named[app])
        if more <= room:
            named[app] = reasons[app]
            room -= more
    written = {app: named[app] for app in reasons if app in named}
    return written, {app: written.get(app, UNSAID) for app in reasons}


def shortage_that_fits(shortage: dict[str, int], order: Sequence[str], largest: int) -> dict[str, int]:
    """Of how many containers each waiting app lacks, those of the apps that come first."""
    if size(shortage) <= largest:
        return shortage
    fitting: dict[str, int] = {}
    room = largest - _MAP
    for app in order:
        if app in shortage:
            room -= size(app) + size(shortage[app])
            if room < 0:
                break
            fitting[app] = shortage[app]
    return dict(sorted(fitting.items()))


_MAP = 5
"""Bytes that the largest map begins with."""
