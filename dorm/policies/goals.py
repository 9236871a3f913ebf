"""The goals of `dorm` and `dorm-exact` in order of priority, and the terms that answers are scored by.

The paper (arXiv 1704.06738) maximises U subject to F ≤ 2mθ1 and an overhead of at most ⌈θ2·|P|⌉.  Integrality and n_min often
leave nothing that meets θ1, so the goals are ordered, and θ2 always holds:

 1. n_min of every app: first those whose partition was hit, then those that have waited longer than `patience_s`, by
    arrival, then as many waiting containers as possible, then arrival.  An app that runs undisturbed is never stopped.
    Apps that an empty cluster could not run are left out everywhere.
 2. If θ2 alone keeps an app waiting: containers that stand where the least-changing placement with that app has none.
    Each round clears as much as θ2 allows, so the app starts some rounds later instead of never.  If it has waited
    longer than `patience_s`, no app starts meanwhile that would not start next to it, so it can't be overtaken endlessly.
 3. ξ, the fairness loss beyond θ1.
 4. Containers below `floor` · ŝ_i: θ1 bounds only the sum, which can leave one app far under its share.
 5. U, less a price for each changed app (the paper's objective moves apps gratuitously).  The price is the cost of the
    change relative to the horizon of a decision: u_i n_i · adjust_s / horizon_s, where adjust_s is the measured pause and
    lost work of this app's adjustments.  So apps that resume fast are resized first, and those that resume slowly rarely.
 6. Changed apps, then containers started on a node by apps that ran, then how far placements miss their apps' wishes.

ŝ_i is weighted DRF among the apps that can run together (those of goal 1, with an app that only waits for θ2).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dorm.policies import integer, scoring, shares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.policies.integer import Flags, Instance, Ints
    from dorm.policies.scoring import Terms


def change_budget(instance: Instance, settings: Mapping[str, float]) -> int:
    """R: ⌈θ2·|P|⌉, and never more than the absolute cap."""
    return min(shares.change_budget(instance.in_budget, settings["theta2"]), int(settings["max_changes"]))


def placed(instance: Instance, n: Ints) -> Flags:
    """Return the apps that have the containers that they need to run."""
    return instance.possible & ((n >= instance.n_min) | instance.pinned)


def terms(
    instance: Instance,
    settings: Mapping[str, float],
    budget: int,
    entitled: Flags,
    target: Sequence[dict[int, int]] | None = None,
) -> Terms:
    """Return the terms that answers are scored by if the `entitled` apps are owed a share."""
    theoretical = integer.theoretical_shares(instance, entitled)
    unit = np.where(np.isfinite(instance.unit) & (instance.unit > 0), instance.unit, np.inf)
    floors = np.floor(settings["floor"] * theoretical / unit + 1e-6).astype(np.int64)
    measured = [
        settings["adjust_s"] if app.adjust_s is None or not 0 <= app.adjust_s < math.inf else app.adjust_s
        for app in instance.apps
    ]
    lost = np.minimum(np.array(measured, np.float64) / settings["horizon_s"], 1.0)
    return scoring.Terms(
        shares=theoretical,
        loss_budget=shares.fairness_budget(instance.measured, settings["theta1"]),
        change_budget=budget,
        floors=np.minimum(floors, instance.fits_empty),
        prices=lost * instance.worth * instance.count,
        aged=integer.aged(instance, settings["patience_s"]),
        target=target,
        capped=settings["max_changes"] < shares.change_budget(instance.in_budget, settings["theta2"]),
    )


def reserved(instance: Instance, aged: Flags) -> tuple[int, Flags] | None:
    """The app that has waited longest beyond its patience, and the nodes that are reserved for it while it can't start.

    Others get no further containers there, so each app that ends leaves it more room, and it starts once enough is free: as in
    EASY backfilling (Lifka, "The ANL/IBM SP Scheduling System", 1995), with nodes for processors.  The nodes are those with
    the most room for it already, as many as would suffice if they were empty; so the free room on them never shrinks.
    """
    waits = [i for i in instance.arrival if aged[i]]
    if not waits:
        return None
    app = waits[0]
    staying = [row if kept else {} for row, kept in zip(instance.rows, instance.kept, strict=True)]
    now = fits(instance, integer.free_room(instance, staying), app)
    empty = fits(instance, instance.room, app)
    flags = np.zeros(len(instance.nodes), np.bool_)
    if empty.sum() < instance.n_min[app]:
        return app, flags
    order = np.lexsort((np.arange(len(now)), -empty, -now))
    enough = int(np.searchsorted(np.cumsum(empty[order]), instance.n_min[app])) + 1
    flags[order[:enough]] = True
    return app, flags


def fits(instance: Instance, free: Ints, app: int) -> Ints:
    """Return how many containers of an app fit into the free room of each node, at most n_max."""
    demand = instance.demand[app]
    here = np.full(len(free), 0 if instance.lacking[app] else int(instance.n_max[app]))
    for k in np.flatnonzero(demand > 0).tolist():
        here = np.minimum(here, free[:, k] // demand[k])
    return np.where(instance.eligible[instance.requirement[app]], np.maximum(here, 0), 0)
