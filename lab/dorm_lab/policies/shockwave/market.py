"""The market of `shockwave`: the worth of rounds of the next window to each app.

Zheng et al., "Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine Learning", NSDI 2023, §6.
In the published code (`scheduler/shockwave.py` of uw-mad-dash/shockwave), `nash_social_welfare_first_order_apx` and
`dynamic_eisenberg_gale_scheduling`:

    max  1/(N T) Σ_j B_j log U_j  -  λ max_j R_j          (eq. 11)
    U_j = (f_j + min(n_j D, l_j)) / (f_j + l_j)           (eq. 7) the part of its work that is done when the window ends
    R_j = max(0, l_j - n_j D)                             (eq. 10) the rest: its maximum bounds the makespan

for N apps, where app j has run for f_j seconds, has l_j seconds left, and gets n_j of the T rounds of D seconds.  log
is linear between `BASES`, and log 0 is log `ORIGIN`.  It is concave, so the program needs no binary variables for it,
which the published code has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from dorm.policies.integer import Floats, Ints

BASES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""`log_approximation_bases` of all published configurations."""
ORIGIN = 1e-6
"""`logapx_origin` of the published code."""
_LOGS = np.log([ORIGIN, *BASES[1:]])


class Market(NamedTuple):
    """One window.  Arrays have the apps that take part as rows."""

    ran_s: Floats
    left_s: Floats
    """More than 0."""
    budget: Floats
    """B_j"""
    use: Floats
    """The part of each resource that an app holds in a round, at most 1."""
    rounds: int
    round_s: float
    regularizer: float
    """λ, per second."""

    @property
    def makespan_worth(self) -> float:
        """The cost of a second of the makespan, if log U_j counts as B_j."""
        return self.regularizer * len(self.left_s) * self.rounds

    @property
    def useful(self) -> Ints:
        """Rounds after which an app is done, or all of them."""
        return np.minimum(np.ceil(self.left_s / self.round_s - 1e-9), self.rounds).astype(np.int64)

    def planned_s(self, counts: Ints) -> Floats:
        return np.asarray(np.minimum(counts * self.round_s, self.left_s))

    def log_utility(self, counts: Ints) -> Floats:
        """Return log U of each app with this many rounds."""
        done = (self.ran_s + self.planned_s(counts)) / (self.ran_s + self.left_s)
        return np.asarray(np.interp(done, BASES, _LOGS))

    def value(self, counts: Ints) -> float:
        """Return N T times the objective."""
        left = float((self.left_s - self.planned_s(counts)).max(initial=0.0))
        return float(self.budget @ self.log_utility(counts)) - self.makespan_worth * left

    def segments(self) -> tuple[Ints, Floats, Floats]:
        """Return app, seconds, and worth of a second, of each piece of log U that rounds of the window can reach."""
        total = self.ran_s + self.left_s
        ends = self.ran_s + np.minimum(self.rounds * self.round_s, self.left_s)
        low = np.maximum(np.outer(total, BASES[:-1]), self.ran_s[:, None])
        high = np.minimum(np.outer(total, BASES[1:]), ends[:, None])
        slope = np.diff(_LOGS) / np.diff(BASES)
        app, piece = np.nonzero(high - low > 1e-9)
        return app, (high - low)[app, piece], self.budget[app] * slope[piece] / total[app]
