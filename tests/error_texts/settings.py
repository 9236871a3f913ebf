"""Errors about settings: parameters of the policies, and times."""

# ruff: noqa: E501 - a text stands on one line, so that it can be searched for

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.policies.registry import policy
from events.kinds import PolicyChanged
from events.times import Times, times_after

if TYPE_CHECKING:
    from collections.abc import Callable


def times(change: dict[str, Any]) -> Callable[[], object]:
    return lambda: times_after(Times(), PolicyChanged(**change))


ROWS: list[tuple[str, Callable[[], object], str]] = [
    # parameters of policies
    (
        "policy.parameter.unknown",
        lambda: policy("dorm-exact").check_params({"theta": 1}),
        "policy dorm-exact: unknown parameter theta (it has adjust_s, floor, horizon_s, max_changes, patience_s, theta1, theta2)",
    ),
    (
        "policy.parameter.wrong_type",
        lambda: policy("dorm-exact").check_params({"theta1": "0.1"}),
        "policy dorm-exact: theta1 has to be a number, not '0.1'",
    ),
    (
        "policy.parameter.wrong_type",
        lambda: policy("dorm-exact").check_params({"theta2": True}),
        "policy dorm-exact: theta2 has to be a number, not True",
    ),
    (
        "policy.parameter.out_of_range",
        lambda: policy("dorm-exact").check_params({"theta2": 1.5}),
        "policy dorm-exact: theta2 has to be between 0 and 1, not 1.5",
    ),
    (
        "policy.parameter.unknown",
        lambda: policy("app-level").check_params({"theta1": 0.1}),
        "policy app-level: unknown parameter theta1 (it has grow)",
    ),
    (
        "policy.parameter.wrong_type",
        lambda: policy("app-level").check_params({"grow": 1}),
        "policy app-level: grow has to be true or false, not 1",
    ),
    (
        "policy.parameter.out_of_range",
        lambda: policy("task-level").check_params({"probes": 0}),
        "policy task-level: probes has to be between 1 and 1000, not 0",
    ),
    (
        "policy.parameter.wrong_type",
        lambda: policy("task-level").check_params({"probes": 1.5}),
        "policy task-level: probes has to be a whole number, not 1.5",
    ),
    (
        "policy.parameter.unknown",
        lambda: policy("task-level").check_params({"d": 2}),
        "policy task-level: unknown parameter d (it has probes)",
    ),
    (
        "policy.parameter.unknown",
        lambda: policy("tiresias").check_params({"backfill": True}),
        "policy tiresias: unknown parameter backfill (it has count, counts, thresholds)",
    ),
    (
        "policy.parameter.out_of_range",
        lambda: policy("tiresias").check_params({"count": 0}),
        "policy tiresias: count has to be a whole number from 1 to 1000000, not 0",
    ),
    (
        "policy.parameter.wrong_type",
        lambda: policy("tiresias").check_params({"thresholds": 5}),
        "policy tiresias: thresholds has to be a list of seconds, not 5",
    ),
    (
        "policy.parameter.wrong_type",
        lambda: policy("tiresias").check_params({"thresholds": [1, "2"]}),
        "policy tiresias: thresholds has to be a list of seconds, not [1, '2']",
    ),
    (
        "policy.parameter.not_ascending",
        lambda: policy("tiresias").check_params({"thresholds": [2, 2]}),
        "policy tiresias: thresholds have to ascend, not [2, 2]",
    ),
    (
        "policy.parameter.out_of_range",
        lambda: policy("optimus").check_params({"assumed_s": -1}),
        "policy optimus: assumed_s has to be between 0 and 3.1536e+07, not -1",
    ),
    (
        "policy.parameter.unknown",
        lambda: policy("optimus").check_params({"rounds": 1}),
        "policy optimus: unknown parameter rounds (it has assumed_s)",
    ),
    (
        "policy.parameter.wrong_type",
        lambda: policy("fifo").check_params({"backfill": 1}),
        "policy fifo: backfill has to be true or false, not 1",
    ),
    (
        "policy.parameter.unknown",
        lambda: policy("drf").check_params({"count": 2}),
        "policy drf: unknown parameter count (it has none)",
    ),
    (
        "policy.parameter.out_of_range",
        lambda: policy("themis").check_params({"fairness_knob": 1.5}),
        "policy themis: fairness_knob has to be between 0 and 1, not 1.5",
    ),
    (
        "policy.parameter.unknown",
        lambda: policy("static").check_params({"n": 1}),
        "policy static: unknown parameter n (it has backfill, count, counts)",
    ),
    (
        "policy.parameter.out_of_range",
        lambda: policy("static").check_params({"count": 0}),
        "policy static: count has to be a whole number from 1 to 1000000, not 0",
    ),
    (
        "policy.parameter.out_of_range",
        lambda: policy("static").check_params({"count": True}),
        "policy static: count has to be a whole number from 1 to 1000000, not True",
    ),
    (
        "policy.parameter.out_of_range",
        lambda: policy("static").check_params({"counts": {"a": 1.5}}),
        "policy static: counts[a] has to be a whole number from 1 to 1000000, not 1.5",
    ),
    (
        "policy.parameter.wrong_type",
        lambda: policy("static").check_params({"counts": [1]}),
        "policy static: counts has to be a map of app ids to numbers, not [1]",
    ),
    (
        "policy.parameter.wrong_type",
        lambda: policy("static").check_params({"counts": {1: 1}}),
        "policy static: counts has the key 1, which is not an app id",
    ),
    (
        "policy.parameter.wrong_type",
        lambda: policy("static").check_params({"backfill": "yes"}),
        "policy static: backfill has to be true or false, not 'yes'",
    ),
    # times
    (
        "settings.node_lease.below_grace",
        times({"node_lease_s": 1}),
        "node_lease (1s) >= node_grace (15s) + heartbeat (5s) does not hold, so nodes would kill their containers before the master counts them as lost: set a longer node_lease, or a shorter node_grace in the same change",
    ),
    (
        "settings.node_lease.below_grace",
        times({"node_grace_s": 600}),
        "node_lease (5m) >= node_grace (10m) + heartbeat (5s) does not hold, so nodes would kill their containers before the master counts them as lost: set a longer node_lease, or a shorter node_grace in the same change",
    ),
    (
        "settings.node_grace.too_short",
        times({"node_grace_s": 10}),
        "node_grace (10s) > 2 x heartbeat (5s) does not hold, so a single late heartbeat would lose a node: set a longer node_grace, or a shorter heartbeat in the same change",
    ),
    (
        "settings.node_grace.too_short",
        times({"heartbeat_s": 8}),
        "node_grace (15s) > 2 x heartbeat (8s) does not hold, so a single late heartbeat would lose a node: set a longer node_grace, or a shorter heartbeat in the same change",
    ),
    (
        "settings.node_lease.too_short",
        times({"heartbeat_s": 0.1, "node_grace_s": 0.3, "node_lease_s": 1}),
        "node_lease (1s) >= 3s does not hold, so any hiccup of the network would kill every container: set a longer node_lease",
    ),
    (
        "settings.quiet_limit.below_quiet",
        times({"quiet_ms": 5000}),
        "quiet_limit (1s) >= quiet (5s) does not hold, so no log would ever be quiet for long enough: set a longer quiet_limit, or a shorter quiet, in the same change",
    ),
    (
        "settings.idle.below_quiet_limit",
        times({"quiet_limit_ms": 60_000}),
        "idle (30s) >= quiet_limit (1m) does not hold, so the cluster would count as idle while a decision is still put off: set a longer idle, or a shorter quiet_limit, in the same change",
    ),
]
