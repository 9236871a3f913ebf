"""Every metric: its name, type, labels and help.  `docs/metrics.md` lists them; a test compares the two.

Units are base units: seconds, bytes, cores, and ratios from 0 to 1.  A counter ends in `_total`.  Each label has a fixed set
of values; anything else counts as `other`, so a log from a newer release or a plug-in cannot add series without limit.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from dorm.core.state import ShownCondition
from events.kinds import Adjustment, Failure, OfWhom, Trigger

OTHER = "other"
Type = Literal["gauge", "counter", "histogram"]


class Family(NamedTuple):
    """One metric."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()


PHASES = ("submitted", "waiting", "retrying", "starting", "running", "adjusting", "stopping", "ending")
"""Phases of apps that have not ended: `App.phase`, and before it a submission without an answer."""
ENDS = ("completed", "failed", "cancelled")
REASONS = (
    "adjusting", "after", "budget", "constraint", "drained", "fairness", "floor", "gain", "held", "hold", "learning",
    "no_checkpoint", "no_nodes", "not_resizable", "not_resized", "overhead", "ports", "price", "put_off", "queue",
    "reserved", "resources", "retry", "settling", "solver", "start_after", "static_count", "unsaid", OTHER,
)  # fmt: skip
"""Reasons why apps wait: codes of `Waiting`."""
CONDITIONS: tuple[str, ...] = get_args(ShownCondition)
"""Conditions of nodes.  A node that is up but drained, in maintenance, or has another folder of checkpoints mounted, counts as
that; one in maintenance may be silent.  One that is suspect takes nothing new, because different apps failed there."""
FAILURES = (*(arg or "unknown" for arg in get_args(Failure) if arg != "unknown"), OTHER)
FAULTS = (*(arg for arg in get_args(OfWhom) if arg), OTHER)
"""Whose fault a failure is; `other` for one that says nothing about that."""
RETURNS = ("probe", "evidence", "operator")
"""Ways in which suspect nodes return: as `NodeTrusted.how`."""
TRIGGERS = get_args(Trigger)
ADJUSTMENTS = get_args(Adjustment)
"""Ways in which decisions change apps."""
PHASES_OF: dict[str, tuple[str, ...]] = {
    "start": ("wait", "start", "work"),
    "restart": ("prepare", "stop", "wait", "start", "work"),
    "live": ("wait", "warm_up", "barrier", "pause"),
}
"""Phases of a completed adjustment in order, by its kind."""
OUTCOMES = ("applied", "ignored", "forbidden", "refused", "void", "unknown", "unreadable")
ROTATIONS = ("done", "failed")
MOST_RESOURCES = 16
"""Kinds of resources with a series of their own, by name; the metrics leave out the rest."""

CLUSTER = (
    Family("dorm_apps", "gauge", "Apps that have not ended, by phase.", ("phase",)),
    Family("dorm_apps_waiting", "gauge", "Apps without a partition, by the reason of the last decision.", ("reason",)),
    Family("dorm_apps_short", "gauge", "Apps that run with fewer containers than n_max."),
    Family("dorm_longest_wait_seconds", "gauge", "How long the longest-waiting app has waited; 0 if none waits."),
    Family("dorm_containers", "gauge", "Containers of apps that have not ended: placed, and running.", ("state",)),
    Family("dorm_nodes", "gauge", "Nodes by condition.", ("condition",)),
    Family("dorm_capacity_cores", "gauge", "Cores of nodes that can be used or hold containers."),
    Family("dorm_used_cores", "gauge", "Cores that placed containers take of dorm_capacity_cores."),
    Family("dorm_capacity_memory_bytes", "gauge", "Memory of nodes that can be used or hold containers."),
    Family("dorm_used_memory_bytes", "gauge", "Memory that placed containers take of dorm_capacity_memory_bytes."),
    Family(
        "dorm_capacity_units",
        "gauge",
        "Other resources of nodes that can be used or hold containers, such as GPUs, counted.",
        ("resource",),
    ),
    Family("dorm_used_units", "gauge", "What placed containers take of dorm_capacity_units.", ("resource",)),
    Family(
        "dorm_capacity",
        "gauge",
        "The former name of dorm_capacity_cores, dorm_capacity_memory_bytes and dorm_capacity_units; 0.8 drops it.",
        ("resource",),
    ),
    Family(
        "dorm_used",
        "gauge",
        "The former name of dorm_used_cores, dorm_used_memory_bytes and dorm_used_units; 0.8 drops it.",
        ("resource",),
    ),
    Family(
        "dorm_utilization",
        "gauge",
        "Utilization as the paper defines it: used parts, summed over the kinds of resources.",
    ),
    Family(
        "dorm_utilization_limit", "gauge", "The number of kinds of resources, which dorm_utilization cannot exceed."
    ),
    Family("dorm_fairness_loss", "gauge", "Fairness loss of the last decision: the distance from weighted DRF."),
    Family("dorm_fairness_budget", "gauge", "The fairness loss that the last decision might have (theta1)."),
    Family(
        "dorm_fairness_excess",
        "gauge",
        "Fairness loss of the last decision beyond its budget, which whole containers force.",
    ),
    Family("dorm_overhead_apps", "gauge", "Apps that the last decision changed."),
    Family("dorm_overhead_budget_apps", "gauge", "How many apps the last decision might change (theta2)."),
    Family(
        "dorm_policy_failing", "gauge", "1 while the policy gives no usable answer and every app keeps what it has."
    ),
    Family("dorm_scheduling_paused", "gauge", "1 while an operator has paused scheduling: nothing new is decided."),
    Family("dorm_epoch", "gauge", "Epoch of the leading master; it grows with each election."),
    Family("dorm_folded_sequence", "gauge", "The last record that these figures contain."),
    Family("dorm_counted_from_sequence", "gauge", "The record after which the counters below count."),
    Family("dorm_records_total", "counter", "Records of the log, by what the fold made of them.", ("outcome",)),
    Family("dorm_submissions_total", "counter", "Submissions."),
    Family("dorm_apps_accepted_total", "counter", "Submissions that were accepted."),
    Family("dorm_apps_rejected_total", "counter", "Submissions and updates that were refused."),
    Family("dorm_apps_ended_total", "counter", "Apps that ended.", ("outcome",)),
    Family(
        "dorm_failures_total", "counter", "Generations, and members of live apps, that failed, by cause.", ("cause",)
    ),
    Family("dorm_faults_total", "counter", "The same failures, by whose fault they are.", ("fault",)),
    Family("dorm_nodes_suspected_total", "counter", "Times a node became suspect because different apps failed there."),
    Family("dorm_nodes_trusted_total", "counter", "Times a suspect node was trusted again, by why.", ("how",)),
    Family("dorm_decisions_total", "counter", "Decisions, by what led to them.", ("trigger",)),
    Family("dorm_changes_total", "counter", "Apps that decisions changed, by kind of adjustment.", ("kind",)),
    Family("dorm_idle_ticks_total", "counter", "Times the allocation was computed again though nothing had happened."),
    Family("dorm_policy_failures_total", "counter", "Answers of the policy that were not usable."),
    Family("dorm_elections_total", "counter", "Elections of a master."),
    Family("dorm_nodes_lost_total", "counter", "Times a node was silent for longer than node_grace."),
    Family("dorm_node_leases_ended_total", "counter", "Times a node was silent for longer than its lease."),
    Family(
        "dorm_rotations_total",
        "counter",
        "Archives of the log's past, and rotations that failed, by outcome.",
        ("outcome",),
    ),
    Family(
        "dorm_adjustments_total",
        "counter",
        "Adjustments that were carried out: all containers have started.",
        ("kind",),
    ),
    Family("dorm_adjustment_phase_seconds", "histogram", "Durations of the phases of adjustments.", ("kind", "phase")),
    Family("dorm_wait_seconds", "histogram", "Ended waits of apps for a partition."),
    Family("dorm_turnaround_seconds", "histogram", "Time from an app's submission to its end."),
    Family(
        "dorm_lost_steps_total", "counter", "Steps that apps repeat because they were done after the last checkpoint."
    ),
    Family("dorm_lost_work_seconds_total", "counter", "Time that these steps had taken, if the app's speed is known."),
    Family("dorm_killed_containers_total", "counter", "Containers killed because they outlived their grace time."),
)
"""Families of the cluster: from its log alone, so the same in any process that reads it."""

LOG = (
    Family("dorm_log_up", "gauge", "1 if the log answered this scrape."),
    Family("dorm_log_sequence", "gauge", "The last record of the log."),
    Family("dorm_log_lag_records", "gauge", "Records of the log that these figures do not contain yet."),
    Family("dorm_log_size_bytes", "gauge", "What the log takes on one NATS server."),
    Family("dorm_log_limit_bytes", "gauge", "What the log may take there; absent if the disk is the limit."),
)

MASTER = (
    Family("dorm_master_leading", "gauge", "1 while this master leads."),
    Family("dorm_master_folded_sequence", "gauge", "The last record that this master has folded."),
    Family(
        "dorm_master_lease_left_seconds",
        "gauge",
        "How long this master surely leads without renewing its lease; 0 while it follows.",
    ),
    Family("dorm_master_solve_seconds", "histogram", "How long this master computed a decision."),
)

AGENT = (
    Family(
        "dorm_agent_joined",
        "gauge",
        "1 once the agent has announced its node and while it holds the node's name.",
        ("node",),
    ),
    Family("dorm_agent_containers", "gauge", "Containers that the runtime lists on the node.", ("node", "state")),
    Family(
        "dorm_agent_folded_sequence",
        "gauge",
        "The last record that concerns the node and that its agent has folded.",
        ("node",),
    ),
    Family("dorm_agent_pending_facts", "gauge", "Facts that the agent has not stored on the log yet.", ("node",)),
    Family(
        "dorm_agent_runtime_silence_seconds", "gauge", "Time since the runtime last listed its containers.", ("node",)
    ),
    Family(
        "dorm_agent_lease_left_seconds",
        "gauge",
        "How long the node's containers may run without a further heartbeat on the log.",
        ("node",),
    ),
)
WEBHOOK = (
    Family("dorm_webhooks", "gauge", "Webhooks by state.", ("state",)),
    Family(
        "dorm_webhook_attempts_total",
        "counter",
        "Requests to endpoints of webhooks, by what came of them.",
        ("outcome",),
    ),
    Family("dorm_webhook_events_given_up_total", "counter", "Events that a webhook gave up after the last attempt."),
    Family("dorm_webhook_request_seconds", "histogram", "How long endpoints took to answer."),
    Family("dorm_webhook_delivery_seconds", "histogram", "Time from an event on the log until its endpoint had it."),
)
"""Families of a process that delivers webhooks."""
WEBHOOK_STATES = ("active", "disabled")
WEBHOOK_OUTCOMES = ("delivered", "refused", "failed", "no_answer", "gone")
PROCESS = (
    Family(
        "dorm_log_lines_lost_total",
        "counter",
        "Lines of this process's output and log that could not be written.",
    ),
)
CONTAINER_STATES = ("placed", "running")
AGENT_STATES = ("created", "running", "exited")

ALL = {family.name: family for family in (*CLUSTER, *LOG, *MASTER, *AGENT, *WEBHOOK, *PROCESS)}
