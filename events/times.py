"""The cluster's times: how a `PolicyChanged` changes them, and which combinations would do harm.

Master and agents fold the same changes independently, so both use these rules: a change that one refuses, the other refuses
too.  A change is judged by all the times that would result, and is applied as a whole or not at all.  So the times in force
always satisfy every rule, and one valid change can lead from any set to any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from events.kinds import PolicyChanged

LEAST_LEASE_S = 3.0
"""Seconds.  A guard checks the lease once a second, and the answer to a heartbeat is awaited for at least one: a shorter
lease would expire at the first hiccup of a disk or of the network."""


class SettingRefused(DormError, ValueError):
    """A change of the cluster's settings is refused; the message is one line that says what to set instead."""

    code = "settings.refused"


class HarmfulTimes(SettingRefused):
    """A change would break a rule; the message names the values and what to do."""


class Times(msgspec.Struct, frozen=True):
    """The times, by their names in `PolicyChanged`."""

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
    code: str
    text: str
    """The constraint with the values that it compares, formatted for people."""
    otherwise: str
    """Consequence of breaking the rule, and the setting to change."""


def rules(times: Times) -> list[Rule]:
    """Every constraint, in the order in which the first broken one is reported."""
    quiet, limit = times.quiet_ms / 1000, times.quiet_limit_ms / 1000
    beat, grace, lease = times.heartbeat_s, times.node_grace_s, times.node_lease_s
    return [
        Rule(
            grace > 2 * beat,
            "settings.node_grace.too_short",
            f"node_grace ({written(grace)}) > 2 x heartbeat ({written(beat)})",
            "a single late heartbeat would lose a node: set a longer node_grace, or a shorter heartbeat in the same change",
        ),
        Rule(
            lease >= grace + beat,
            "settings.node_lease.below_grace",
            f"node_lease ({written(lease)}) >= node_grace ({written(grace)}) + heartbeat ({written(beat)})",
            "nodes would kill their containers before the master counts them as lost: set a longer node_lease, or a shorter "
            "node_grace in the same change",
        ),
        Rule(
            lease >= LEAST_LEASE_S,
            "settings.node_lease.too_short",
            f"node_lease ({written(lease)}) >= {written(LEAST_LEASE_S)}",
            "any hiccup of the network would kill every container: set a longer node_lease",
        ),
        Rule(
            limit >= quiet,
            "settings.quiet_limit.below_quiet",
            f"quiet_limit ({written(limit)}) >= quiet ({written(quiet)})",
            "no log would ever be quiet for long enough: set a longer quiet_limit, or a shorter quiet, in the same change",
        ),
        Rule(
            times.idle_s >= limit,
            "settings.idle.below_quiet_limit",
            f"idle ({written(times.idle_s)}) >= quiet_limit ({written(limit)})",
            "the cluster would count as idle while a decision is still put off: set a longer idle, or a shorter quiet_limit, "
            "in the same change",
        ),
    ]


def broken_rule(times: Times) -> Rule | None:
    """Return the first rule that these times break, None if they satisfy all."""
    return next((rule for rule in rules(times) if not rule.holds), None)


def asked(times: Times, change: PolicyChanged) -> Times:
    """Return the times that a change asks for, whether or not it is refused."""
    given = {name: getattr(change, name) for name in NAMES}
    return msgspec.structs.replace(times, **{name: value for name, value in given.items() if value is not None})


def times_after(times: Times, change: PolicyChanged) -> Times:
    """Return the times once the change is folded.  Raises HarmfulTimes if it is refused."""
    after = asked(times, change)
    if after != times and (rule := broken_rule(after)):
        raise HarmfulTimes(f"{rule.text} does not hold, so {rule.otherwise}", code=rule.code)
    return after


def retentions_after(known: Mapping[str, float], change: PolicyChanged) -> dict[str, float]:
    """Return the retention of each tenant that has its own, once the change is folded."""
    after = {**known, **(change.tenant_retention_s or {})}
    return {tenant: seconds for tenant, seconds in sorted(after.items()) if seconds is not None}


def written(seconds: float) -> str:
    """Format seconds as `90s`, `200ms`, `5m`: in the largest unit that gives a whole number."""
    thousandths = round(seconds * 1000)
    for name, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if thousandths % length == 0 and thousandths:
            return f"{thousandths // length}{name}"
    return f"{thousandths}ms" if thousandths else "0s"
