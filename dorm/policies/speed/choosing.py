"""One count for each app, by a linear program over all choices: the multiple-choice knapsack problem.

    max  Σ worth x      Σ_c x_ic = 1          for each app
                        Σ demand x ≤ room     for each kind of resource, the cluster treated as one machine
                        Σ disturbs x ≤ left   θ2
                        Σ loss x ≤ 2mθ1 + ξ   θ1, as far as it can be met; ξ and what lacks to a floor are penalized

(Sinha and Zoltners, "The Multiple-Choice Knapsack Problem", Operations Research 27, 1979.)  The choice that the draft makes
for an app is left out of the program: it is what remains of the one.  So no row is an equation, and doing nothing is a
feasible start.  A few choices are solved in integers.  Many are relaxed: a basic solution has few apps between two choices, no
more than there are rows in addition to the first.  The program ignores nodes; `resizing` places as much of the answer as
possible.

If types of nodes matter to some app, a choice of such an app is a count and the slowest type that it may be on (`types`),
and there is a row of room for each set of types that some choice is bound to.  An app that stays as it is takes its room where
it is; one of another kind that changes may go anywhere.  All apps may then move with the count that they have, for a pause.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.policies.integer import counts_of
from dorm.policies.speed.columns import WHOLE, in_whole, maximize
from dorm.policies.speed.types import MOST_SETS
from dorm.policies.speed.worth import DIGITS, counts_up_to

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.policies.integer import Flags, Floats, Instance, Ints, Rows
    from dorm.policies.scoring import Terms
    from dorm.policies.speed.types import Types
    from dorm.policies.speed.worth import Worth

BELOW_FLOOR = 10.0
"""Penalty of a whole fair share below the floor, in worths of the most valuable choice."""
LEAST_PART = 1e-6
"""Smaller parts of a choice count as none."""


class Choices(NamedTuple):
    """The counts that each app may have: rows sorted by app and units."""

    app: Ints
    units: Ints
    worth: Floats
    loss: Floats
    """|s - ŝ|"""
    disturbs: Floats
    stays: Flags
    """The app keeps its containers where they are."""
    first: Ints
    """The first row of each app, and the number of rows."""
    draft: Ints
    """The rows that the draft chose, one for each app with choices."""
    pace: tuple[str | None, ...]
    """Slowest type that an app to which types matter may be on; None for those that may be anywhere."""
    allowed: tuple[int, ...]
    """The types that they may be on, as bits (`Types.bits`); -1 for all."""


class Chosen(NamedTuple):
    """Two counts of each app in units, equal but for the few apps between two choices; 0 for apps without choices."""

    low: Ints
    high: Ints
    pace: dict[int, str]
    """Slowest type that an app to which types matter may be on, by app."""
    moves: frozenset[int]
    """Apps that the program does not leave where they are."""


def choices(instance: Instance, worth: Worth, terms: Terms, served: Rows, *, exact: bool = False) -> Choices:
    """Return the choices of all apps that have a place in the draft `served`, and may be elsewhere.

    If they are `exact`, every count is one, and after it to have what it has on other nodes, which costs a pause."""
    n = counts_of(served)
    listed = _Listed()
    movable = instance.free_to_move & (n >= instance.n_min)
    for i in range(len(instance.apps)):
        if movable[i]:
            least, most = int(instance.n_min[i]), max(int(instance.fits_empty[i]), int(n[i]))
            rests = bool(worth.rests[i]) and n[i] == worth.count[i]
            if rests:
                least = most = int(n[i])
            sizes = counts_up_to(least, most, int(worth.count[i]), int(n[i]))
            if exact:
                sizes = list(range(least, most + 1))
            if i in worth.paces:
                listed.typed(worth, i, served[i], [] if rests else sizes)
            else:
                moved = not rests and least <= worth.count[i] <= most and (exact or worth.types is not None)
                listed.plain(worth, i, int(n[i]), sizes, moved=moved)
        listed.first.append(len(listed.app))
    app, counts = np.array(listed.app, np.int64), np.array(listed.units, np.int64)
    as_it_is = np.array(listed.stays, np.bool_)
    unit = np.where(np.isfinite(instance.unit), instance.unit, 0.0)
    values = np.concatenate(listed.worths) if listed.worths else np.zeros(0)
    below = np.maximum(terms.floors[app] - counts, 0) / np.maximum(terms.floors[app], 1)
    return Choices(
        app=app,
        units=counts,
        worth=np.round(values / values.max(initial=1e-300), DIGITS) - BELOW_FLOOR * below,
        loss=np.abs(counts * unit[app] - terms.shares[app]),
        disturbs=np.where(~as_it_is & (worth.count[app] >= 0), worth.disturbs[app], 0.0),
        stays=as_it_is,
        first=np.array(listed.first, np.int64),
        draft=np.array(listed.draft, np.int64),
        pace=tuple(listed.pace),
        allowed=tuple(listed.allowed),
    )


class _Listed:
    """Rows of choices, app by app."""

    def __init__(self) -> None:
        self.app: list[int] = []
        self.units: list[int] = []
        self.stays: list[bool] = []
        self.worths: list[Floats] = []
        self.draft: list[int] = []
        self.first = [0]
        self.pace: list[str | None] = []
        self.allowed: list[int] = []

    def plain(self, worth: Worth, i: int, n: int, counts: list[int], *, moved: bool) -> None:
        """Add the counts of an app to which types do not matter; `moved` to have what it has on other nodes too."""
        self.draft.append(len(self.app) + counts.index(n))
        self.worths.append(worth.of(i, np.array(counts, np.int64)))
        self.stays += [count == worth.count[i] for count in counts]
        if moved:
            counts = [*counts, int(worth.count[i])]
            self.worths.append(np.array([worth.moved(i)]))
            self.stays.append(False)
        self._rest(i, counts, [None] * len(counts), [-1] * len(counts))

    def typed(self, worth: Worth, i: int, row: Mapping[int, int], counts: list[int]) -> None:
        """Add the counts of an app on each type, unless all of them are as fast.  `row` is what the draft gives it; without
        counts it stays that."""
        types = worth.types
        if types is None:
            return
        n, there = sum(row.values()), types.pace(i, row)
        stays = worth.count[i] == n
        options: list[tuple[int, str, bool, int, float]] = []
        if stays:
            options.append((n, there, True, types.bits(types.on(row)), worth.placed(i, row)))
        offers = types.offers(i, np.array(counts or [n], np.int64))
        values, fits = (worth.at_speed(i, offers.speed) * offers.part).tolist(), offers.fits.tolist()
        for at, count in enumerate(counts):
            seen: set[int] = set()
            for name, each, value, fit in zip(offers.names, offers.bits, values, fits, strict=True):
                bits = each[at]
                drafted = not stays and (count, name) == (n, there)
                if drafted or (fit[at] and bits not in seen):
                    options.append((count, name, False, bits, value[at]))
                    seen.add(bits)
        place = next(place for place, (count, name, *_) in enumerate(options) if (count, name) == (n, there))
        self.draft.append(len(self.app) + place)
        units, pace, stay, bits_of, worths = zip(*options, strict=True)
        self.worths.append(np.array(worths))
        self.stays += stay
        self._rest(i, list(units), pace, list(bits_of))

    def _rest(self, i: int, counts: list[int], pace: Sequence[str | None], allowed: list[int]) -> None:
        self.app += [i] * len(counts)
        self.units += counts
        self.pace += pace
        self.allowed += allowed


def choose(
    instance: Instance,
    offered: Choices,
    left: float,
    loss_budget: float,
    fixed_loss: float,
    pools: Pools | None = None,
) -> Chosen:
    """Return what the program chooses.

    `left` is what θ2 still allows, `fixed_loss` the fairness loss of apps without choices, and `pools` the room by types if
    these matter.  Raises SolverFailed."""
    apps = len(instance.apps)
    low, high = np.zeros(apps, np.int64), np.zeros(apps, np.int64)
    pace: dict[int, str] = {}
    moves: set[int] = set()
    if not len(offered.draft):
        return Chosen(low, high, pace, frozenset())
    x = _solve(instance, offered, left, loss_budget - fixed_loss, pools)
    positive = np.flatnonzero(x > LEAST_PART)
    at = np.searchsorted(positive, offered.first).tolist()
    rows, units, stays = (
        positive.tolist(),
        offered.units.tolist(),
        offered.stays.tolist(),
    )  # Plain numbers are faster one by one.
    for app in np.flatnonzero(np.diff(offered.first)).tolist():
        taken = rows[at[app] : at[app + 1]]
        if pools is not None:
            if not any(stays[row] for row in taken):
                moves.add(app)
            if offered.pace[taken[0]] is not None:
                pace[app] = _pace(offered, taken, x)
                taken = [row for row in taken if offered.pace[row] == pace[app]]
        counts = [units[row] for row in taken]
        low[app], high[app] = min(counts), max(counts)
    return Chosen(low, high, pace, frozenset(moves))


def _pace(offered: Choices, taken: list[int], x: Floats) -> str:
    """Return the type with the largest part of what is taken of an app to which types matter, the first of equal ones."""
    on = [(offered.pace[row], float(x[row])) for row in taken]
    return min((-math.fsum(part for name, part in on if name == each), each) for each, _ in on if each is not None)[1]


class Pools(NamedTuple):
    """Room by sets of types."""

    room: Floats
    """A row for each set and kind of resource, as parts of the cluster."""
    used: Floats
    """Amounts that each choice takes of it: choices × rows."""


def pools(instance: Instance, offered: Choices, types: Types) -> Pools:
    """Return the room of each set of types that some choice is bound to."""
    totals = np.maximum(instance.totals, 1).astype(np.float64)
    bound = Counter(bits for bits, name in zip(offered.allowed, offered.pace, strict=True) if name is not None)
    whole = (1 << len(types.names)) - 1
    sets = [bits for bits, _ in sorted(bound.items(), key=lambda entry: (-entry[1], entry[0])) if bits != whole]
    distinct = {allowed: place for place, allowed in enumerate(dict.fromkeys(offered.allowed))}
    which = np.array([distinct[allowed] for allowed in offered.allowed], np.int64)
    stays = np.flatnonzero(offered.stays)
    staying = types.units(instance.rows)[offered.app[stays]]
    rooms, used = [], []
    for bits in sets[:MOST_SETS]:
        inside = np.array([allowed >= 0 and bits & allowed == allowed for allowed in distinct], np.bool_)[which]
        units = np.where(inside, offered.units, 0)
        units[stays] = staying[:, types.inside(bits)].sum(axis=1)
        rooms.append(instance.room[types.nodes(bits)].sum(axis=0) / totals)
        used.append(instance.demand[offered.app] * units[:, None] / totals)
    if not rooms:
        return Pools(np.zeros(0), np.zeros((len(offered.app), 0)))
    return Pools(np.concatenate(rooms), np.hstack(used))


def _solve(instance: Instance, offered: Choices, left: float, loss_budget: float, pools: Pools | None = None) -> Floats:
    """Return the part of each choice."""
    rows, base = len(offered.app), offered.draft
    of = np.zeros(len(instance.apps), np.int64)
    of[offered.app[base]] = np.arange(len(base))
    member = of[offered.app]
    totals = np.maximum(instance.totals, 1).astype(np.float64)
    used = instance.demand[offered.app] * offered.units[:, None] / totals
    room = instance.room.sum(axis=0) / totals
    if pools is not None:
        used, room = np.hstack([used, pools.used]), np.concatenate([room, pools.room])
    limits = np.column_stack([used, offered.disturbs, offered.loss])
    rest = np.concatenate([room, [max(left, 0.0), loss_budget]]) - limits[base].sum(axis=0)
    rest[:-1] = np.maximum(rest[:-1], 0.0)
    others = np.setdiff1d(np.arange(rows), base)
    apart = member[others]
    gain = (offered.worth - offered.worth[base][member])[others]
    uses = (limits - limits[base][member])[others]
    whole = in_whole(gain, uses, apart, rest, len(base)) if 0 < len(others) <= WHOLE else None
    x = np.zeros(rows)
    x[others] = maximize(gain, uses, apart, rest, len(base)) if whole is None else whole
    x[base] = 1.0 - np.bincount(apart, weights=x[others], minlength=len(base))
    return x
