"""Dominant shares, weighted DRF, utilization, fairness loss: the paper's figures as pure functions on numbers.

Symbols as in the Dorm paper (Sun, Wen, Ta, Yan, arXiv 1704.06738, its utilization-fairness optimizer) and in the DRF
paper (Ghodsi et al., "Dominant Resource Fairness", NSDI 2011): node capacities c[j,k], cluster totals C_k = Σ_j c[j,k],
the demand of one container d[i,k], weight w_i, count n_i.  Rows are apps, columns kinds of resources.

Everything is a sort and prefix sums, so a view may call it on each event: 2,000 apps take under a millisecond.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

QUANTUM_DIGITS = 9
"""Theoretical shares are rounded to 1e-9, so the last bits of a sum decide nothing."""


def demand_fractions(demand: NDArray[np.int64], totals: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return d_ik / C_k, the part of the cluster's k that one container takes; infinite if the cluster has none of it."""
    need = demand.astype(np.float64)
    have = np.broadcast_to(totals.astype(np.float64), need.shape)
    missing = np.where(need > 0, math.inf, 0.0)
    return np.divide(need, have, out=missing, where=have > 0)


def dominant_units(fractions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return δ_i = max_k d_ik / C_k, the dominant share of one container, so that s_i = n_i δ_i (DRF paper, §4.1)."""
    if fractions.shape[1] == 0:
        return np.zeros(fractions.shape[0])
    return np.asarray(fractions.max(axis=1), dtype=np.float64)


def theoretical_shares(
    fractions: NDArray[np.float64], weights: NDArray[np.float64], caps: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return ŝ_i: weighted DRF of divisible containers by progressive filling, at most `caps` containers each.

    All dominant shares grow at rates w_i until a resource is used up; apps that need it stop, the others continue (DRF paper:
    progressive filling §4.2 and the divisible case in §6, weights §4.3; the Dorm paper takes this as ŝ_i).  An app without
    weight, without demand, with a cap of 0 or that needs what the cluster lacks has ŝ_i = 0.

    At level λ app i has min(λ w_i, limit_i).  With apps sorted by the level at which their cap binds, the use of each
    resource is linear between two such levels, and prefix sums give it at all of them at once.  Each pass uses up at
    least one resource, so there are at most as many passes as kinds.
    """
    unit = dominant_units(fractions)
    shares = np.zeros(len(unit))
    grows = np.flatnonzero((unit > 0) & np.isfinite(unit) & (weights > 0) & (caps > 0))
    reach = caps[grows] * unit[grows] / weights[grows]
    active = grows[np.argsort(reach, kind="stable")]
    use = np.zeros_like(fractions)
    use[grows] = fractions[grows] / unit[grows, None]
    room = np.ones(fractions.shape[1])
    while active.size:
        weight, part = weights[active], use[active]
        limit = caps[active] * unit[active]
        level, used_up = _next_full(part, weight, limit, room)
        stops = (part[:, used_up] > 0).any(axis=1) if used_up.any() else np.ones(len(active), dtype=np.bool_)
        got = np.minimum(level * weight[stops], limit[stops])
        shares[active[stops]] = got
        room = np.maximum(room - (part[stops] * got[:, None]).sum(axis=0), 0.0)
        active = active[~stops]
    return np.round(shares, QUANTUM_DIGITS)


def _next_full(
    part: NDArray[np.float64],
    weight: NDArray[np.float64],
    limit: NDArray[np.float64],
    room: NDArray[np.float64],
) -> tuple[float, NDArray[np.bool_]]:
    """Return the level at which the next resource is used up, and which ones are; infinity and none if caps come first.

    Rows are sorted by limit / weight.
    """
    rate = part * weight[:, None]
    before = np.zeros((1, part.shape[1]))
    capped = np.concatenate([before, np.cumsum(part * limit[:, None], axis=0)])
    growing = np.concatenate([np.cumsum(rate[::-1], axis=0)[::-1], before])
    reach = limit / weight
    used_at_reach = capped[:-1] + reach[:, None] * growing[:-1]
    needed = part.max(axis=0) > 0
    first = (used_at_reach >= room * (1 - 1e-12)).argmax(axis=0)
    kinds = np.arange(part.shape[1])
    fills = needed & (used_at_reach[-1] >= room * (1 - 1e-12))
    levels = np.full(part.shape[1], math.inf)
    rest = room - capped[first, kinds]
    np.divide(rest, growing[first, kinds], out=levels, where=fills & (growing[first, kinds] > 0))
    level = float(levels.min(initial=math.inf))
    return max(level, 0.0), fills & (levels <= level * (1 + 1e-12))


def fairness_loss(shares: Sequence[float], theoretical: Sequence[float]) -> float:
    """Return F = Σ_i |s_i - ŝ_i| (the fairness loss of the Dorm paper); summed exactly, so independent of the order."""
    return math.fsum(abs(s - t) for s, t in zip(shares, theoretical, strict=True))


def fairness_budget(kinds: int, theta1: float) -> float:
    """Return 2m·θ1: the paper bounds F by this part of its maximum, twice the number of kinds of resources."""
    return 2.0 * kinds * theta1


def change_budget(running: int, theta2: float) -> int:
    """Return ⌈θ2·|P|⌉, how many of the running apps may change in one round; 0 only if θ2 is 0 or none runs.

    A product such as 0.07 · 100 lies just above the intended integer, hence the small slack.
    """
    return math.ceil(theta2 * running - 1e-9)


def utilization(used: Mapping[str, int], totals: Mapping[str, int]) -> float:
    """Return U = Σ_k used_k / C_k (the Dorm paper's resource utilization), between 0 and the number of kinds; kinds with no
    capacity are skipped."""
    return math.fsum(used.get(kind, 0) / total for kind, total in sorted(totals.items()) if total > 0)
