"""How fast an app learns: Pollux's model of throughput and efficiency (OSDI 2021, §3), fitted to the data of a problem.

The time of one step of m samples on n containers, each with m / n of them in s passes, is

    T(n, m) = s · α + β · m / n + sync        sync = 0 for n = 1, else α' + β' · (n - 2)

with other α' and β' on one node than across nodes (§3.2, with γ = 1: computing and synchronizing do not overlap, which makes
the model linear).  The goodput of m samples is throughput times efficiency (§3.1), here relative to the app's initial batch of
m₀ samples, so it is in steps of that size per second:

    G(n, m) = m / m₀ / T(n, m) · (φ + m₀) / (φ + m)        φ: the gradient noise scale

Pollux fits its model to steps of many batch sizes; a problem has one curve, `AppDemand.speed`: steps per second of m₀ samples,
by containers on as few nodes as hold them.  The parts of each container become smaller along the curve, which separates β from
the rest.  So the model is fitted to the curve by non-negative least squares of relative errors, and then scaled at each count
such that it meets the curve there.  Unknown parameters are assumed as in the public code (`fit_perf_params`): half of a
single point is α; crossing nodes, if never measured, costs a tenth more than not crossing.

With a fixed batch, nothing is gained beyond the last declared count: its batch can't be spread further.  If no speed is known
at all, n containers are n times as fast as one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import nnls

if TYPE_CHECKING:
    from dorm.policies.integer import Floats, Ints
    from dorm.policies.problem import AppDemand, Batch

    Points = tuple[tuple[int, float], ...]

SIZES = 32
"""Batch sizes that are tried, in geometric steps (§4.1 searches them by golden-section search)."""
ALIKE = 0.02
"""Goodputs that differ by this part count as equal, because the model errs by more; then the size nearest to the initial one
is chosen."""
ACROSS = 1.1
"""The additional cost of crossing nodes, if it was never measured."""
PRIOR = 1e-3
"""The weight of the assumption about α relative to one measured point."""
LEAST_GAIN, MOST_GAIN = 0.01, 1.5
"""A speed-up below this part of one container, or above this many times the number of containers, is an error of
measurement."""
_LARGEST_NOISE = 1e15


class Goodputs(NamedTuple):
    """By count, in the order in which they were asked for: the first row on one node, the second across nodes."""

    values: Floats
    """Steps of the initial batch size per second."""
    batches: Ints
    """The batch sizes that give them; 0 for an app whose batch is fixed."""


def known(points: Points) -> Points:
    """Return the usable points of a curve, ascending: positive and finite."""
    return tuple(sorted({n: rate for n, rate in points if 0 < n < 2**53 and 1e-300 < rate < 1e300}.items()))


def goodputs(points: Points, batch: Batch | None, counts: Ints, per_node: int) -> Goodputs:
    """Return the goodput with these numbers of containers, each at least 1.

    `points` are those of the app's curve (`known`); a node holds `per_node` containers, at least 1."""
    if not points:
        return Goodputs(np.tile(counts.astype(np.float64), (2, 1)), np.zeros((2, len(counts)), np.int64))
    model = _fitted(points, batch, per_node)
    n = np.append(1, counts)  # The first one shows the speed of one container.
    tuned = _fixed(model, n, points[-1][0]) if batch is None else _tuned(model, batch, n)
    base = float(tuned.values[0, 0])
    sane = np.clip(tuned.values[:, 1:], LEAST_GAIN * base, MOST_GAIN * base * counts)
    return Goodputs(np.asarray(sane), tuned.batches[:, 1:])


def _fixed(model: _Model, n: Ints, last: int) -> Goodputs:
    n = np.minimum(n, last)
    values = np.stack([1 / model.step_s(n, 1.0, across) for across in (False, True)])
    return Goodputs(values, np.zeros((2, len(n)), np.int64))


def _tuned(model: _Model, batch: Batch, n: Ints) -> Goodputs:
    sizes = _sizes(batch)
    noise = min(max(batch.noise, 0.0), _LARGEST_NOISE) if batch.noise == batch.noise else 0.0
    distance = np.round(np.abs(np.log(sizes / batch.initial)), 9)
    worth = sizes / batch.initial * (noise + batch.initial) / (noise + sizes)
    values, chosen = [], []
    for across in (False, True):
        each = worth[:, None] / model.step_s(n[None, :], sizes[:, None].astype(np.float64), across)
        each[sizes[:, None] < np.minimum(n, sizes[-1])[None, :]] = 0.0  # A container without a sample is idle.
        good = np.round(each / each.max(axis=0), 9) >= 1 - ALIKE
        best = np.argmin(np.where(good, distance[:, None], np.inf), axis=0)
        values.append(each[best, np.arange(len(n))])
        chosen.append(sizes[best])
    return Goodputs(np.stack(values), np.stack(chosen))


def of_app(app: AppDemand, type_: str) -> Points:
    """Return the app's curve on nodes of this type."""
    return known(app.speed_on.get(type_, app.speed))


class _Model(NamedTuple):
    passes: float
    """α"""
    sample: float
    """β"""
    local: tuple[float, float]
    """α' and β' on one node."""
    node: tuple[float, float]
    """The same across nodes."""
    most_local: float
    """Samples of one container in one pass; inf if that is not a limit."""
    counts: Floats
    """Counts of the curve, and by how much its step times exceed the model's."""
    excess: Floats

    def step_s(self, n: Ints | Floats, samples: Floats | float, across: bool) -> Floats:
        """Return the seconds of one step; one container never crosses nodes."""
        alpha, beta = self.node if across else self.local
        sync = np.where(n > 1, alpha + beta * np.maximum(n - 2, 0), 0.0)
        compute = self.passes * _passes(n, samples, self.most_local) + self.sample * samples / n
        return np.asarray((compute + sync) * np.interp(n, self.counts, self.excess))


def _passes(n: Ints | Floats, samples: Floats | float, most_local: float) -> Floats:
    return np.asarray(np.maximum(np.ceil(samples / n / most_local - 1e-9), 1.0))


def _fitted(points: Points, batch: Batch | None, per_node: int) -> _Model:
    """Fit the model; `samples` of a fixed batch are counted in whole batches."""
    n = np.array([count for count, _ in points], np.float64)
    step = 1 / np.array([rate for _, rate in points], np.float64)
    samples = float(batch.initial) if batch is not None else 1.0
    most_local = float(batch.per_container) if batch is not None else math.inf
    alone, across = n == 1, n > per_node
    local = ~alone & ~across
    rounds = np.maximum(n - 2, 0.0)
    passes = _passes(n, samples, most_local)
    columns = np.column_stack([passes, samples / n, local, local * rounds, across, across * rounds])
    rows = np.vstack([columns / step[:, None], [PRIOR * passes[0] / step[0], 0, 0, 0, 0, 0]])
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    try:
        fitted = nnls(rows / scale, np.append(np.ones(len(n)), PRIOR / 2))[0] / scale
    except RuntimeError:  # Its iterations are limited; then only the curve is known, which is met exactly below.
        fitted = np.array([0.0, step[0] * n[0] / samples, 0.0, 0.0, 0.0, 0.0])
    alpha, beta, *sync = fitted.tolist()
    if not across.any():
        sync[2:] = [ACROSS * sync[0], ACROSS * sync[1]]
    if not alpha and not beta:
        beta = step[0] * n[0] / samples
    model = _Model(alpha, beta, (sync[0], sync[1]), (sync[2], sync[3]), most_local, n, np.ones(len(n)))
    exact = np.where(across, model.step_s(n, samples, across=True), model.step_s(n, samples, across=False))
    return model._replace(excess=step / np.maximum(exact, 1e-300))


def _sizes(batch: Batch) -> Ints:
    """Return the batch sizes that are tried, ascending; the initial one is among them."""
    least = max(batch.least, 1)
    most = max(batch.most, least)
    steps = np.rint(np.geomspace(least, most, SIZES)).astype(np.int64)
    return np.unique(np.append(np.clip(steps, least, most), min(max(batch.initial, least), most)))
