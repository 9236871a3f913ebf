"""The worth of containers: finished work, weighted so that short apps go first and no app starves.

    worth = w · (time until the app is done)^-p        time = caution · pause + work / speed(n)

With p = ½ the sum over all apps is Σ w (S(n) / T)^½, with S the speed and T the remaining work.  A change of a running app
costs its own pause, so it pays if it shortens the app's own remaining time: with a fixed horizon a long pause would never pay,
and long apps would stay small.  `caution` is how many times its pause a change has to save: apps arrive and end, so the
next decision may make this one worthless, and an app that is restarted for every small gain is restarted again soon. If the
pause or the remaining work is only assumed, `MOST_OF_ASSUMED` times are enough.

`rest` bounds how much of its time an app loses to restarts, however often something happens on the cluster.  An app that
has held its containers for less than `rest` times its measured pause keeps them, unless others need the room for their
n_min.  From then on, a change has to save `caution` · (1 + rest · pause / held) pauses, because an allocation that has
lasted long is likely to last longer.  A live app, or another whose pause is a few seconds, may change at any time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dorm.policies.integer import MOST_WEIGHT
from dorm.policies.parameters import RESTS_FROM_S
from dorm.policies.speed import curves

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.policies.integer import Flags, Floats, Instance, Ints
    from dorm.policies.problem import AppDemand
    from dorm.policies.speed.curves import Curve, Paces
    from dorm.policies.speed.locality import Locality
    from dorm.policies.speed.types import Types

DIGITS = 9
"""Worths are rounded to this many digits of the largest, so that the last bits of a power decide nothing."""
MOST_OF_ASSUMED = 2.0
"""The largest factor for an assumed pause, or for an app with unknown remaining work: both assumptions are already cautious,
and an app that is never changed is never measured."""
LATELY_S = 55.0
"""Seconds within which a disturbance still counts against θ2, so apps are not restarted more often because a master decides
more often.  It is a little less than a usual round of a minute, which starts with the whole budget."""
SHORTEST_S = 1.0
"""A shorter time since the last change counts as this."""
MOST_PAUSE_S = 1e12
"""A longer pause is an error of measurement, and clipped."""


class Worth:
    """The worth of every count of every app of one problem."""

    def __init__(
        self,
        instance: Instance,
        settings: Mapping[str, float],
        changed: Flags,
        types: Types | None = None,
        locality: Locality | None = None,
    ) -> None:
        """`changed` apps change in any case, so no count of theirs is free of a pause.  `types` matter to some apps: by
        default, such an app works at the pace of the slowest type that it can use.  Without `locality`, all apps are as fast
        across nodes as on one."""
        self.instance, self.types = instance, types
        self.count = np.where(instance.kept & ~changed, instance.count, -1)
        """The count with which an app is not disturbed; -1 where there is none."""
        self.paces: Mapping[int, Paces] = {} if types is None else types.paces
        self.curves = [
            self.paces[i].mixed if i in self.paces else curves.curve(app) for i, app in enumerate(instance.apps)
        ]
        self.work = [curves.work_s(app, self.paces.get(i)) for i, app in enumerate(instance.apps)]
        self.across: dict[int, dict[str | None, tuple[float, ...]]] = {}
        """Parts of their speed that apps which are slower across nodes keep there with 0, 1, … units, up to those that one
        node holds; by type of node if types matter to them, else under None."""
        if locality is not None:
            self.across = _across(instance, self.paces, types, locality)
        self.weight = [_weight(app.weight) for app in instance.apps]
        full = settings["full_pause_s"]
        measured = [_pause_s(app) for app in instance.apps]
        pauses = [settings["adjust_s"] if seconds is None else seconds for seconds in measured]
        self.pause = np.where(instance.kept, np.array(pauses, np.float64), 0.0)
        """Seconds; 0 for apps that have to start anyhow."""
        assumed = np.array(
            [
                seconds is None or app.remaining_steps is None
                for app, seconds in zip(instance.apps, measured, strict=True)
            ],
            np.bool_,
        )
        held = np.array([_held_s(app) for app in instance.apps], np.float64)
        own = np.array([app.adjust_s is not None for app in instance.apps], np.bool_)
        self.rest_s = np.where(own & (self.pause >= RESTS_FROM_S), settings["rest"] * self.pause, 0.0)
        """Seconds for which it keeps what it has after a change; 0 while its own pause has not been measured, or is short."""
        self.rests: Flags = (self.count >= 0) & (held < self.rest_s)
        """Apps that were changed lately, and keep what they have."""
        caution = np.where(assumed, min(settings["caution"], MOST_OF_ASSUMED), settings["caution"])
        self.caution = caution * (1.0 + self.rest_s / np.maximum(held, SHORTEST_S))
        """Gain that a change of the app has to bring, in multiples of its pause."""
        self.price = self.caution * self.pause
        """Seconds that a change has to save."""
        self.disturbs = np.minimum(self.pause / full, 1.0)
        """Part of θ2's budget that a change of the app takes: a live one of milliseconds hardly anything."""
        again = np.array([app.adjustments > 0 for app in instance.apps], np.bool_)
        lately = instance.running & ~instance.absent & again & (held < LATELY_S)
        costs = np.array([seconds or 0.0 for seconds in measured], np.float64)
        self.lately = float(np.minimum(costs / full, 1.0)[lately].sum())
        """Part of that budget that earlier decisions have taken within `LATELY_S`, as far as pauses have been measured."""
        self.power = settings["power"]

    def of(self, app: int, units: Ints) -> Floats:
        """Return the worth of these numbers of units, each at least 1, on as few nodes as possible unless it stays."""
        speed = self.curves[app].speed_up(units)
        if app in self.across and self.count[app] > 0:
            speed = np.where(units == self.count[app], self.speed(app, self.instance.rows[app]), speed)
        time = self.work[app] / speed + np.where(units == self.count[app], 0.0, self.price[app])
        return np.asarray(self.weight[app] * time**-self.power)

    def moved(self, app: int) -> float:
        """Return the worth of the present count after a pause: that of an app which goes to other nodes."""
        time = self.work[app] / self.curves[app].one(int(self.count[app])) + float(self.price[app])
        return float(self.weight[app] * time**-self.power)

    def one(self, app: int, units: int) -> float:
        if units <= 0:
            return 0.0
        price = 0.0 if units == self.count[app] else float(self.price[app])
        return float(self.weight[app] * (self.work[app] / self.curves[app].one(units) + price) ** -self.power)

    def spread(self, app: int, units: int, pace: str | None) -> float:
        """Return the worth of this many units across nodes, after a pause, for an app that is slower there."""
        time = self.work[app] / self.across_speed(app, units, pace) + float(self.price[app])
        return float(self.weight[app] * time**-self.power)

    def at_speed(self, app: int, speed: Floats) -> Floats:
        """Return the worth of an app after a pause, at these speeds."""
        time = self.work[app] / speed + float(self.price[app])
        return np.asarray(self.weight[app] * time**-self.power)

    def on(self, app: int, units: int, pace: str) -> float:
        """Return the worth of this many units of a typed app, after a pause, at the pace of this type."""
        if units <= 0:
            return 0.0
        time = self.work[app] / self.paces[app].curves[pace].one(units) + float(self.price[app])
        return float(self.weight[app] * time**-self.power)

    def placed(self, app: int, row: Mapping[int, int]) -> float:
        """Return the worth of exactly this partition."""
        units = sum(row.values())
        if not units:
            return 0.0
        stays = self.count[app] >= 0 and row == self.instance.rows[app]
        time = self.work[app] / self.speed(app, row) + (0.0 if stays else float(self.price[app]))
        return float(self.weight[app] * time**-self.power)

    def speed(self, app: int, row: Mapping[int, int]) -> float:
        """Return its speed with this partition, relative to one unit."""
        units, pace = sum(row.values()), self.pace(app, row)
        if len(row) > 1 and self.on_one(app, units, pace):
            return self.across_speed(app, units, pace)
        return self._curve(app, pace).one(units)

    def across_speed(self, app: int, units: int, pace: str | None) -> float:
        """Return the same across nodes, for an app that is slower there."""
        return self._curve(app, pace).one(units) * self.across[app][pace][units]

    def _curve(self, app: int, pace: str | None) -> Curve:
        return self.curves[app] if pace is None else self.paces[app].curves[pace]

    def pace(self, app: int, row: Mapping[int, int]) -> str | None:
        """Return the slowest type that an app to which types matter is on; None for others."""
        return self.types.pace(app, row) if app in self.paces and self.types is not None else None

    def on_one(self, app: int, units: int, pace: str | None) -> bool:
        """Return whether this many units are faster on one node, of this type."""
        here = self.across[app].get(pace) if app in self.across else None
        return here is not None and 1 < units < len(here)

    def apart(self, app: int, row: Mapping[int, int]) -> bool:
        """Return whether an app that is slower across nodes is on several where one could hold all its units."""
        return len(row) > 1 and app in self.across and self.on_one(app, sum(row.values()), self.pace(app, row))

    def speeds_up(self, app: int, units: int, most: int) -> bool:
        """Return whether any larger number of units, up to `most`, is faster on any type."""
        if most <= units:
            return False
        counts = np.array([units, *counts_up_to(units + 1, most)], np.int64)
        on = self.paces[app].curves.values() if app in self.paces else [self.curves[app]]
        return any(bool(speed[1:].max() > speed[0] * (1 + 1e-9)) for speed in (each.speed_up(counts) for each in on))


def _across(
    instance: Instance, paces: Mapping[int, Paces], types: Types | None, locality: Locality
) -> dict[int, dict[str | None, tuple[float, ...]]]:
    across: dict[int, dict[str | None, tuple[float, ...]]] = {}
    for i, app in enumerate(instance.apps):
        if i in paces and types is not None:
            kept: dict[str | None, tuple[float, ...]] = dict(locality.across_on(app, types.names).items())
        else:
            alone = locality.across(app)
            kept = {} if alone is None else {None: alone}
        if kept:
            across[i] = kept
    return across


def _pause_s(app: AppDemand) -> float | None:
    """Return the cost of a change of the app: as measured, or else as usual on this cluster; None if neither is known."""
    known = (seconds for seconds in (app.adjust_s, app.usual_adjust_s) if seconds is not None)
    pause_s = next((seconds for seconds in known if 0 <= seconds < math.inf), None)
    return None if pause_s is None else min(pause_s, MOST_PAUSE_S)


def _held_s(app: AppDemand) -> float:
    """Return for how long it has had its containers; infinite where that is unknown."""
    held = app.held_s
    return held if held is not None and 0 <= held < math.inf else math.inf


def _weight(weight: float) -> float:
    return min(max(weight, 1 / MOST_WEIGHT), MOST_WEIGHT) if weight == weight else 1 / MOST_WEIGHT


EACH_UP_TO = 8
STEP = 5
"""Every count up to the first is offered, and beyond it every fifth part more: the program mixes neighbours, and the remaining
room is filled unit by unit."""


def counts_up_to(least: int, most: int, *others: int) -> list[int]:
    """Return the counts that are tried between two bounds, with `others` that lie between them."""
    counts = {most, *others, *range(least, min(most, least + EACH_UP_TO) + 1)}
    n = least + EACH_UP_TO
    while n < most:
        n += max(1, n // STEP)
        counts.add(n)
    return sorted(n for n in counts if least <= n <= most)
