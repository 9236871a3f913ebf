"""Finish-time fairness: how much longer an app takes than it would with a fair part of the cluster to itself.

ρ = T_shared / T_isolated (Mahajan et al., "Themis", NSDI 2020, §3): T_shared is the time from submission to completion,
T_isolated the time that the app would have taken with 1/N of the cluster, where N is the mean number of living apps in
its time, itself included (as in Sia, SOSP 2023, §5).  1/N of the cluster is n = 1 / (N δ_i) containers (δ_i is the
dominant share of one), at most n_max, packed onto as few nodes as they need.  Between whole numbers of containers its
speed is interpolated linearly; below one it is a fraction of one container's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


def contention(born: Sequence[int], gone: Sequence[int]) -> NDArray[np.float64]:
    """Return N of each app: the mean number of apps that lived between its times (UTC ns), at least 1."""
    if not born:
        return np.zeros(0)
    first = min(born)
    begins = np.array([at - first for at in born], np.int64)
    ends = np.maximum(np.array([at - first for at in gone], np.int64), begins)
    times = np.concatenate([begins, ends])
    order = np.argsort(times, kind="stable")
    moments = times[order].astype(np.float64)
    alive = np.cumsum(np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])[order])
    lived = np.concatenate([[0.0], np.cumsum(alive[:-1] * np.diff(moments))])
    between = np.interp(ends, moments, lived) - np.interp(begins, moments, lived)
    length = (ends - begins).astype(np.float64)
    mean = np.divide(between, length, out=np.ones(len(begins)), where=length > 0)
    return np.asarray(np.maximum(mean, 1.0), np.float64)


def fair_containers(unit: float, n_max: int, apps: float) -> float:
    """Return n: 1/N of the cluster in containers of this dominant share; 0 if none fits anywhere."""
    if not math.isfinite(unit):
        return 0.0
    return min(float(n_max), 1 / (apps * unit)) if unit > 0 else float(n_max)


def fair_rate(rate: Callable[[int], float], containers: float) -> float:
    """Return units of work per second with a fractional number of containers."""
    below = math.floor(containers)
    low = rate(below) if below else 0.0
    part = containers - below
    return low + (rate(below + 1) - low) * part if part > 0 else low
