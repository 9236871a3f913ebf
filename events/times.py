"""The cluster's times: what a `PolicyChanged` makes of them, and which ones would do harm.

Master and agents fold the same changes, each on its own, so both ask here: a change that one of them refuses the other
refuses too.  A change is judged by the times that it would lead to, all of them together, and is taken as a whole or not at
all.  So the times in force always keep every rule, and one valid change can lead from any of them to any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from events.kinds import PolicyChanged

LEAST_LEASE_S = 3.0
"""A guard looks at the lease once a second, and the answer to a heartbeat is awaited for at least one: a shorter lease
ends at the first hiccup of a disk or of the network."""


class HarmfulTimes(ValueError):
    """A change that would lead to times that break a rule; the message names the values and what to do."""


class Times(msgspec.Struct, frozen=True):
    """By their names in `PolicyChanged`."""

    quiet_ms: int = 200
    quiet_limit_ms: int = 1000
    idle_s: float = 30.0
    heartbeat_s: float = 5.0
    node_grace_s: float = 15.0
    node_lease_s: float = 300.0
    retention_s: float = 86_400.0


NAMES = Times.__struct_fields__


class Rule(NamedTuple):
    """One constraint between the times."""

    holds: bool
    text: str
    """The constraint with the values that it compares, as people write them."""
    otherwise: str
    """What happens where it is broken, and what to set instead."""


def rules(times: Times) -> list[Rule]:
    """Every constraint, in the order in which the first broken one is reported."""
    quiet, limit = times.quiet_ms / 1000, times.quiet_limit_ms / 1000
    beat, grace, lease = times.heartbeat_s, times.node_grace_s, times.node_lease_s
    return [
        Rule(
            grace > 2 * beat,
            f"node_grace ({written(grace)}) > 2 x heartbeat ({written(beat)})",
            "a single late heartbeat would lose a node: set a longer node_grace, or a shorter heartbeat in the same change",
        ),
        Rule(
            lease >= grace + beat,
            f"node_lease ({written(lease)}) >= node_grace ({written(grace)}) + heartbeat ({written(beat)})",
            "nodes would kill their containers before anybody counts them as lost: set a longer node_lease, or a shorter "
            "node_grace in the same change",
        ),
        Rule(
            lease >= LEAST_LEASE_S,
            f"node_lease ({written(lease)}) >= {written(LEAST_LEASE_S)}",
            "any hiccup of the network would kill every container: set a longer node_lease",
        ),
        Rule(
            limit >= quiet,
            f"quiet_limit ({written(limit)}) >= quiet ({written(quiet)})",
            "no log would ever be quiet for long enough: set a longer quiet_limit, or a shorter quiet, in the same change",
        ),
        Rule(
            times.idle_s >= limit,
            f"idle ({written(times.idle_s)}) >= quiet_limit ({written(limit)})",
            "the cluster would count as idle while a decision is still put off: set a longer idle, or a shorter quiet_limit, "
            "in the same change",
        ),
    ]


def refusal(times: Times) -> str:
    """Why these times are refused, in one line; "" where they keep every rule."""
    for rule in rules(times):
        if not rule.holds:
            return f"{rule.text} does not hold, so {rule.otherwise}"
    return ""


def asked(times: Times, change: PolicyChanged) -> Times:
    """What a change asks for, whether or not it is refused."""
    given = {name: getattr(change, name) for name in NAMES}
    return msgspec.structs.replace(times, **{name: value for name, value in given.items() if value is not None})


def times_after(times: Times, change: PolicyChanged) -> Times:
    """Once the change is folded.  Raises HarmfulTimes where it is refused."""
    after = asked(times, change)
    if after != times and (reason := refusal(after)):
        raise HarmfulTimes(reason)
    return after


def written(seconds: float) -> str:
    """`90s`, `200ms`, `5m`: in the largest unit of which it is a whole number."""
    thousandths = round(seconds * 1000)
    for name, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if thousandths % length == 0 and thousandths:
            return f"{thousandths // length}{name}"
    return f"{thousandths}ms" if thousandths else "0s"
