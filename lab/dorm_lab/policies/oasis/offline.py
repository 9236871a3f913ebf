"""The optimum of small instances with all arrivals known: the program of OASiS §III, as a mixed-integer linear program.

    max Σ_i Σ_t f_i(t - a_i) u_it                                u_it: job i is done in slot t
    Σ_t u_it ≤ 1
    Σ_t Σ_h y_ih(t) ≥ W_i Σ_t u_it                                 enough worker-slots
    Σ_h y_ih(t) ≤ D_i Σ_{t' ≥ t} u_it'                             at most D workers, none after the end
    b_i Σ_h y_ih(t) ≤ B_i Σ_k z_ik(t),  Σ_k z_ik(t) ≤ Σ_h y_ih(t)  parameter servers
    Σ_i w_i^r y_ih(t) ≤ c_h^r,  Σ_i s_i^r z_ik(t) ≤ c_k^r          room

The text states the end as the last slot with workers.  Here it is chosen, which is the same at the optimum: f does not rise.
The number of nodes of the search decides when to stop, so the answer is the same on every machine.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from dorm_lab.policies.oasis.model import worth_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm_lab.policies.oasis.model import Cluster, Job

NODE_LIMIT = 100_000


class Optimum(NamedTuple):
    utility: float
    """The utility of the best schedules found."""
    bound: float
    """No schedules have a larger utility.  Equal to `utility`, to the solver's tolerance, if `proven`."""
    proven: bool


def optimum(cluster: Cluster, jobs: Sequence[Job], node_limit: int = NODE_LIMIT) -> Optimum:
    """Solve the instance.  Without jobs, or if none can end, the utility is 0."""
    program = _Program(cluster, jobs)
    if not program.worths:
        return Optimum(0.0, 0.0, True)
    return program.solve(node_limit)


class _Program:
    def __init__(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        self.cluster = cluster
        self._most: list[float] = []
        self._rows: list[tuple[list[tuple[int, float]], float]] = []
        """Each row with the most that it may be."""
        self.worths: dict[int, float] = {}
        """Worths by column."""
        self._used: dict[tuple[bool, int, int, int], list[tuple[int, float]]] = {}
        for job in jobs:
            if job.arrival + job.fewest_slots(cluster.slot_s) <= cluster.slots:
                self._add(job)
        for (of_servers, machine, _, kind), row in self._used.items():
            room = (cluster.servers if of_servers else cluster.workers)[machine][kind]
            scale = max(room, 1e-12)
            self._rows.append(([(column, amount / scale) for column, amount in row], room / scale))

    def _column(self, most: float) -> int:
        self._most.append(most)
        return len(self._most) - 1

    def _add(self, job: Job) -> None:
        cluster, work = self.cluster, job.work(self.cluster.slot_s)
        ends = {slot: self._column(1) for slot in range(job.arrival, cluster.slots)}
        self.worths |= {column: worth_in(job, slot, cluster.slot_s) for slot, column in ends.items()}
        self._rows.append(([(column, 1.0) for column in ends.values()], 1.0))
        done = [(column, float(work)) for column in ends.values()]
        for slot in range(job.arrival, cluster.slots):
            workers = self._containers(slot, cluster.workers, job.worker, job.chunks, of_servers=False)
            servers = self._containers(slot, cluster.servers, job.server, job.chunks, of_servers=True)
            done += [(column, -1.0) for column in workers]
            running = [(column, 1.0) for column in workers]
            still = [(ends[later], -float(job.chunks)) for later in range(slot, cluster.slots)]
            self._rows.append((running + still, 0.0))
            ratio = job.worker_bandwidth / job.server_bandwidth
            self._rows.append(([(c, ratio) for c in workers] + [(c, -1.0) for c in servers], 0.0))
            self._rows.append(([(c, 1.0) for c in servers] + [(c, -1.0) for c in workers], 0.0))
        self._rows.append((done, 0.0))

    def _containers(
        self, slot: int, machines: Sequence[Sequence[float]], demand: Sequence[float], most: int, *, of_servers: bool
    ) -> list[int]:
        columns = []
        for machine, capacity in enumerate(machines):
            fits = min((capacity[kind] // need for kind, need in enumerate(demand) if need > 0), default=most)
            column = self._column(min(most, fits))
            columns.append(column)
            for kind, need in enumerate(demand):
                if need > 0:
                    self._used.setdefault((of_servers, machine, slot, kind), []).append((column, need))
        return columns

    def solve(self, node_limit: int) -> Optimum:
        objective = np.zeros(len(self._most))
        for column, worth in self.worths.items():
            objective[column] = -worth
        starts = np.cumsum([0, *(len(row) for row, _ in self._rows)])
        columns = np.array([column for row, _ in self._rows for column, _ in row], np.int32)
        values = np.array([value for row, _ in self._rows for _, value in row], np.float64)
        matrix = csr_array((values, columns, starts), shape=(len(self._rows), len(self._most)))
        result = milp(
            objective,
            integrality=np.ones(len(self._most), np.int64),
            bounds=Bounds(np.zeros(len(self._most)), np.array(self._most)),
            constraints=LinearConstraint(matrix, -math.inf, np.array([most for _, most in self._rows])),
            # HiGHS 1.12 calls a worse answer optimal in some small instances that its presolve has simplified.
            options={"node_limit": node_limit, "mip_rel_gap": 0.0, "presolve": False},
        )
        bound = -float(result.mip_dual_bound) if result.mip_dual_bound is not None else math.inf
        if result.x is None:
            return Optimum(0.0, bound, False)
        return Optimum(-float(result.fun), bound, int(result.status) == 0)
