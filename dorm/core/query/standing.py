"""Each app's dominant share, compared with its share in a perfectly fair cluster.

The same numbers as the optimizer's (`dorm.policies.shares`, `dorm.policies.integer`), computed from a state instead of an
answer, so a view can show them for any moment and any policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dorm.policies import integer, shares

if TYPE_CHECKING:
    from dorm.policies.problem import Problem


class Standing(msgspec.Struct, frozen=True):
    """One app's standing; shares are parts of the whole cluster, between 0 and 1."""

    containers: int
    dominant: str
    """The kind of resource of which it takes the largest share; '' if no node has what it needs."""
    share: float
    """s_i = n_i δ_i (DRF paper, §4.1)."""
    fair: float
    """ŝ_i: weighted DRF with divisible containers among all apps that an empty cluster could run."""
    possible: bool
    """Whether an empty cluster could run it."""


class Standings(msgspec.Struct, frozen=True):
    """All apps of a problem as they are placed now."""

    apps: dict[str, Standing]
    """Standings by id, sorted."""
    fairness_loss: float
    """F = Σ |s_i - ŝ_i| over the apps that an empty cluster could run."""
    kinds: int
    """Number of kinds of resources: the upper bound of utilization, and half the upper bound of the fairness loss."""


def standings(problem: Problem) -> Standings:
    """Return each app's current share and its fair share."""
    instance = integer.read(problem)
    fair = integer.theoretical_shares(instance, instance.possible)
    apps: dict[str, Standing] = {}
    for row, app in enumerate(instance.apps):
        count = sum(app.current.values())
        unit = float(instance.unit[row])
        known = bool(np.isfinite(unit))
        apps[app.id] = Standing(
            containers=count,
            dominant=instance.kinds[int(np.argmax(instance.fractions[row]))] if known and instance.kinds else "",
            share=count / max(app.gang, 1) * unit if known else 0.0,
            fair=float(fair[row]),
            possible=bool(instance.possible[row]),
        )
    counted = [app for app in apps.values() if app.possible]
    loss = shares.fairness_loss([standing.share for standing in counted], [standing.fair for standing in counted])
    return Standings(apps=apps, fairness_loss=loss, kinds=len(instance.kinds))
