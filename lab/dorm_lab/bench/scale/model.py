"""Loads of a control plane by the size of its cluster.  Pure arithmetic; the unit costs are measured (`measuring`).

    heartbeats    nodes / heartbeat_s                                    records a second
    facts         apps x facts_per_app_s                                 records a second
    rounds        min(decisions_per_s, 1 / quiet_limit_s)                records a second: the others come together
    a round       ROUND + changes x CHANGE + waiting apps x REASON       bytes
    parts         rounds x changes x PARTS                               stored a second: what the nodes concerned receive
    out           nodes x IDLE + parts x PART + rounds x READERS x bytes of a round         bytes a second
    deciding      rounds x decide_s(apps, nodes)                cores of the leading master
    folding       (facts + rounds) x fold_us                             cores of each master

Everything is a share of what there is, so 1.0 is full.
"""

from __future__ import annotations

import itertools
import math
from typing import Final

import msgspec

ROUND, CHANGE, REASON = 1200, 250, 150
"""Bytes, of logs of real clusters: a round without any of these, one resized app in it, one waiting app's reason."""
PARTS, PART = 8, 1500
"""Parts of nodes for one resized app, and bytes of one: two nodes, each when it is decided, ends, is released and runs."""
IDLE: Final = 1300
"""Bytes a second that an agent receives without any decision: answers to its heartbeats (docs/figures.md)."""
READERS: Final = 3
"""Readers of whole rounds: two masters that follow, and the API."""
LARGEST_ROUND: Final = 2**20
"""Reasons are shortened beyond that (`dorm.core.round_size`)."""
NODE_CONNECTIONS: Final = 20_000
"""The total that `dorm init` and `dorm deploy` grant to nodes (`dorm.security.folder`)."""
_NETWORK: Final = 110e6
"""Bytes a second of a server's network: one gigabit."""
_DECIDED: Final = ((500 * 1_000, 0.081), (2_000 * 10_000, 0.255), (10_000 * 50_000, 1.1))
"""Apps x nodes, and CPU seconds of a decision of the policy `dorm`, p50: docs/figures.md."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster and its workload."""

    nodes: int
    apps: int
    """Apps that run or wait at any time."""
    decisions_per_s: float
    """Arrivals, ends and failures for which the allocation is computed again."""
    quiet_limit_s: float = 1.0
    """The setting `quiet_limit`: how long events are gathered at most."""
    waiting: float = 0.1
    """The part of the apps that waits or has less than it could use; each has a reason in each decision."""
    changed: float = 0.05
    """The part of the apps that a decision resizes, at most 100 of them."""
    facts_per_app_s: float = 1 / 60
    """Progress marks, checkpoints, starts and exits that go to the log."""
    heartbeat_s: float = 5.0
    servers: int = 3
    cores: int = 4
    """Number of cores of each server's machine, for the NATS server."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Unit costs."""

    appends_per_s: float
    """Appends per second that the servers store together, each on all copies and synced."""
    append_cpu_us: float
    """CPU of all servers together for one append."""
    out_cpu_s_per_mb: float
    """CPU seconds of a server for a megabyte sent to readers."""
    fold_us: float
    """CPU of a master for one record."""


def changes(cluster: Cluster) -> float:
    """Return how many apps a decision resizes."""
    return min(cluster.changed * cluster.apps, 100.0)


def round_bytes(cluster: Cluster) -> float:
    return min(float(LARGEST_ROUND), ROUND + changes(cluster) * CHANGE + cluster.waiting * cluster.apps * REASON)


def decide_s(apps: int, nodes: int) -> float:
    """Return the CPU seconds of a decision: a power law between the measured sizes and beyond them."""
    size = math.log(max(1, apps * nodes))
    points = [(math.log(where), math.log(value)) for where, value in _DECIDED]
    pairs = list(itertools.pairwise(points))
    (x0, y0), (x1, y1) = next((pair for pair in pairs if size <= pair[1][0]), pairs[-1])
    return math.exp(y0 + (y1 - y0) * (size - x0) / (x1 - x0))


def loads(cluster: Cluster, costs: Costs) -> dict[str, float]:
    """Return the utilization of each resource by the cluster; above 1.0, the cluster does not work."""
    heartbeats = cluster.nodes / cluster.heartbeat_s
    facts = cluster.apps * cluster.facts_per_app_s
    rounds = min(cluster.decisions_per_s, 1 / cluster.quiet_limit_s)
    parts = rounds * changes(cluster) * PARTS
    records = heartbeats + facts + rounds + parts
    out = cluster.nodes * IDLE + parts * PART + rounds * READERS * round_bytes(cluster)
    sending = out / 1e6 * costs.out_cpu_s_per_mb
    return {
        "appends": records / costs.appends_per_s,
        "server_cpu": (records * costs.append_cpu_us / 1e6 + sending) / (cluster.servers * cluster.cores),
        "server_network": out / cluster.servers / _NETWORK,
        "deciding": rounds * decide_s(cluster.apps, cluster.nodes),
        "folding": (facts + rounds) * costs.fold_us / 1e6,
        "connections": cluster.nodes / NODE_CONNECTIONS,
    }


def first_full(shares: dict[str, float]) -> str:
    """Return the resource that is used most."""
    return max(shares, key=shares.__getitem__)
