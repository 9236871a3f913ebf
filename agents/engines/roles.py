"""Which containers of a generation are parameter servers, for the engines that have them.

The number of servers follows from the spec and the size of the partition, so a resize keeps the ratio.  The first container is
always a worker: it leads, and the rendezvous port is at its address.  Servers carry the traffic of all workers; therefore they
go to different nodes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.spec import server_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agents.engines.interface import Place
    from events.kinds import Placed


def servers_and_workers(place: Place) -> tuple[tuple[Placed, ...], tuple[Placed, ...]]:
    """Return the servers and the workers, each by slot."""
    wanted = server_count(place.spec.engine, place.spec.engine_options, place.size)
    # A spec is checked, but a launch has to be right for any: one container is left as a worker.
    chosen = _spread(place.placement, min(wanted, place.size - 1))
    servers = tuple(placed for placed in place.placement if placed.slot in chosen)
    return servers, tuple(placed for placed in place.placement if placed.slot not in chosen)


def _spread(placement: Sequence[Placed], count: int) -> list[int]:
    """Return the slots of `count` containers, never the first one: one on each node, then a second on each, and so on."""
    turns: dict[str, int] = {}
    order: list[tuple[int, int]] = []
    for placed in placement:
        turn = turns.get(placed.node, 0)
        turns[placed.node] = turn + 1
        order.append((turn, placed.slot))
    return [slot for _, slot in sorted(order[1:])[:count]]
