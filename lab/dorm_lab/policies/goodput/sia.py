"""The policy `sia`: one configuration for each app, chosen by an integer program over normalized goodputs.

Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023, §3.  A configuration
is a type of nodes and a number of containers there (`configurations`).  G is the matrix of goodputs of apps and
configurations, each with its best batch size (`throughput`).  Each row is divided by its least goodput and multiplied by the
units of its smallest configuration, so that rows can be compared across apps.  Configurations other than a running app's
present one are multiplied by its restart factor (T - N S) / (T + S): T its age, N how often it was restarted, S the seconds
that a restart costs.  For p < 0 the program is

    min  Σ_ij w_i A_ij G_ij^p  +  λ Σ_i w_i (1 - Σ_j A_ij)
         Σ_j A_ij ≤ 1                     one configuration for each app, or none
         Σ_ij A_ij n_ij d_ik ≤ C_tk       on each type of nodes, of each kind of resource

and with p > 0 the maximum of the first sum less the second.  p = -0.5 and λ = 1.1 are the paper's (§4, and
`simulator_config.py` of its public code, `siasosp23/artifacts`).  The gap at which the search ends, the largest entry, and the
factor of 1 for an app younger than one restart are from that code (`sia-simulator/sia.py`, `optimize` and
`__solve_mip_rescaled`).  That code also rounds G^p to two decimals, which makes near equals equal; here they stay apart.  The
paper has GPUs alone; here each kind of resource has its row, and apps have weights.  `placing` puts the configurations on
nodes.

A type on which the app's speed is not known has `AppDemand.speed`; the paper estimates it from the other types.  An app that
has been tried with n containers at most gets 2n at most (§3.2, as in Pollux).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from scipy.sparse import csc_array, csr_array, vstack

from dorm.policies import answer, integer, laboratory
from dorm_lab.policies.goodput import explaining
from dorm_lab.policies.goodput.bounds import relative_weights, restart_factor
from dorm_lab.policies.goodput.configurations import configurations, types
from dorm_lab.policies.goodput.placing import Placing
from dorm_lab.policies.goodput.program import Rows, solve

if TYPE_CHECKING:
    from dorm.policies.integer import Floats, Instance, Ints
    from dorm.policies.problem import Allocation, Problem
    from dorm_lab.policies.goodput.configurations import Configurations, Types

MOST_WORTH = 3000.0
"""Normalized goodputs to the power p are clipped here (`sia_goodput_clip_val`)."""


class SiaPolicy:
    """Parameters:

    `p` (-0.5)       exponent of normalized goodputs
    `lambda` (1.1)   penalty for an app that gets nothing
    `adjust_s` (30)  seconds that a restart costs if none was measured
    """

    name = "sia"
    version = 2

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return laboratory.check_params(self.name, params)

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        settings = self.check_params(params)
        instance = integer.read(problem)
        types_ = types(instance)
        offered = configurations(instance, types_)
        chosen, status = _choose(instance, types_, offered, _costs(instance, offered, settings))
        rows, batches = _placed(instance, types_, offered, chosen)
        allocation = answer.by_rule(instance, rows, explaining.explain(instance, rows))
        return msgspec.structs.replace(allocation, batches=batches, status=status)


def normalized(app: Ints, units: Ints, goodput: Floats) -> Floats:
    """Return goodputs divided by the least of their app, times the units of its smallest configuration."""
    least = np.full(int(app.max(initial=-1)) + 1, np.inf)
    smallest = np.full(len(least), np.inf)
    np.minimum.at(least, app, goodput)
    np.minimum.at(smallest, app, units)
    return np.asarray(goodput / least[app] * smallest[app])


def _costs(instance: Instance, offered: Configurations, settings: dict[str, Any]) -> Floats:
    """Return each configuration's contribution to the objective, including the penalty that it avoids."""
    if not len(offered.app):
        return np.zeros(0)
    usual, p = float(settings["adjust_s"]), float(settings["p"])
    factors = np.array([max(restart_factor(app, usual), 1e-9) for app in instance.apps], np.float64)
    young = np.array([app.age_s < (usual if app.adjust_s is None else app.adjust_s) for app in instance.apps], np.bool_)
    factors[young | ~instance.kept] = 1.0
    goodput = normalized(offered.app, offered.units, offered.goodput)
    goodput = goodput * np.where(offered.current, 1.0, factors[offered.app])
    worth = np.minimum(np.maximum(goodput, 1e-9) ** p, MOST_WORTH)
    cost = (worth if p < 0 else -worth) - float(settings["lambda"])
    return np.asarray(np.round(relative_weights(instance.apps)[offered.app] * cost, 12))


def _choose(instance: Instance, types_: Types, offered: Configurations, cost: Floats) -> tuple[Ints, str]:
    """Return the chosen configurations, at most one of each app, and the solver's status."""
    useful = np.flatnonzero(cost < 0)
    if not len(useful):
        return useful, "optimal"
    chosen, status = solve(_rows(instance, types_, offered, useful), cost[useful], offered.app[useful])
    # If the solver fails, everything stays as it is.
    return (np.flatnonzero(offered.current), status) if chosen is None else (useful[chosen], status)


def _rows(instance: Instance, types_: Types, offered: Configurations, useful: Ints) -> Rows:
    """Return the rows of the program for these configurations."""
    app, units = offered.app[useful], offered.units[useful]
    columns, kinds = np.arange(len(useful)), instance.demand.shape[1]
    apps, row = np.unique(app, return_inverse=True)
    blocks = [csr_array((np.ones(len(useful)), (row, columns)), shape=(len(apps), len(useful)))]
    limits = [np.ones(len(apps))]
    for type_ in range(len(types_.names)):
        room = instance.room[types_.of == type_].sum(axis=0).astype(np.float64)
        scale = np.maximum(room, 1.0)
        here = np.flatnonzero(offered.type[useful] == type_)
        used = instance.demand[app[here]] * units[here, None] / scale
        places = np.tile(np.arange(kinds), len(here)), np.repeat(here, kinds)
        blocks.append(csr_array((used.ravel(), places), shape=(kinds, len(useful))))
        limits.append(room / scale)
    return Rows(csc_array(vstack(blocks)), np.concatenate(limits))


def _placed(
    instance: Instance, types_: Types, offered: Configurations, chosen: Ints
) -> tuple[list[dict[int, int]], dict[str, int]]:
    """Return the chosen configurations on nodes, and the batch sizes of the apps that have a range of them, if their speed is
    known."""
    wanted, units = np.full(len(instance.apps), -1), np.zeros(len(instance.apps), np.int64)
    wanted[offered.app[chosen]], units[offered.app[chosen]] = offered.type[chosen], offered.units[chosen]
    stays = np.zeros(len(instance.apps), np.bool_)
    stays[offered.app[chosen[offered.current[chosen]]]] = True
    placing = Placing(instance, types_.of, wanted, units, stays)
    placing.place()
    batches = {}
    for place in chosen.tolist():
        app = instance.apps[int(offered.app[place])]
        size = int(offered.batch[place])
        if app.batch is not None and placing.rows[int(offered.app[place])] and size:
            batches[app.id] = size
    return placing.rows, batches
