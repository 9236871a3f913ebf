"""Figures of `make overload`, from measurements and from the log."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from dorm.bench.report import figure, percentile
from events import kinds as k
from events.codec import decode
from events.subjects import kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.bench.report import Figure
    from events.log.records import Record
    from tests.lab.overload.toy_agents import Told
    from tests.lab.overload.users import Answer

_SECOND = 1e9
_NONE = ("nodes_lost", "apps_failed", "unreadable")
"""Figures that have to be 0."""


class Phase(NamedTuple):
    """A stretch of the bench, up to the next one; monotonic seconds."""

    name: str
    began: float
    ended: float
    log_time: int
    """Of its start, UTC nanoseconds; server and bench have the same clock."""
    answers: list[Answer]
    alive: int
    """Apps at its end."""


class Usage(NamedTuple):
    """Use by the processes in a phase: average processors (1.0 is one core), maximum bytes."""

    phase: str
    server: float
    master: float
    agents: float
    server_rss: int
    master_rss: int


def figures_of(
    agents: int, joined_s: float, phases: list[Phase], usages: list[Usage], told: list[Told], records: list[Record]
) -> dict[str, Figure]:
    """Return figures of the whole run, then of each phase's effect on others.  Raises BenchError if there is nothing to
    measure."""
    figures = {
        "agents_joined": figure(agents, "count"),
        "join_s": figure(joined_s, "s"),
        "agents_ended": figure(sum(len(one.ended) for one in told), "count", "<= 0"),
        "reports_failed": figure(sum(one.reports_failed for one in told), "count", "<= 0"),
        **_of_the_log(records),
    }
    lost, decisions, appended = _lost(records), _decisions(records), [record.time for record in records]
    reports = sorted((at, took) for one in told for at, took in one.reports)
    times = [at for at, _ in reports]
    for phase, usage in zip(phases, usages, strict=True):
        prefix = "" if phase.name == "steady" else f"{phase.name}_"
        ends = min(
            (later.log_time for later in phases if later.log_time > phase.log_time), default=records[-1].time + 1
        )
        figures[f"{phase.name}_nodes_lost"] = figure(sum(phase.log_time <= at < ends for at in lost), "count", "<= 0")
        stored = reports[bisect_left(times, phase.began) : bisect_left(times, phase.ended)]
        figures |= _of_a_phase(prefix, phase, usage, [took for _, took in stored])
        decided = sum(phase.log_time <= at < ends for at in decisions)
        figures |= _received(prefix, phase, told, decided, agents)
        seconds = phase.ended - phase.began
        until = phase.log_time + int(seconds * _SECOND)
        on_the_log = bisect_left(appended, until) - bisect_left(appended, phase.log_time)
        figures[f"{prefix}decisions_per_s"] = figure(
            sum(phase.log_time <= at < until for at in decisions) / seconds, "1/s"
        )
        figures[f"{prefix}appends_per_s"] = figure((on_the_log + len(stored)) / seconds, "1/s")
    return figures


def _lost(records: Sequence[Record]) -> list[int]:
    """Return the log times at which a node was declared lost."""
    rounds = ((record.time, decode(record)) for record in records if kind_of(record.subject) == k.Round.__name__)
    return [
        time
        for time, event in rounds
        for fact in (event.events if isinstance(event, k.Round) else ())
        if isinstance(fact, k.NodeLost)
    ]


def _decisions(records: Sequence[Record]) -> list[int]:
    """Return the log times of the decisions."""
    rounds = ((record.time, decode(record)) for record in records if kind_of(record.subject) == k.Round.__name__)
    return [
        time
        for time, event in rounds
        if isinstance(event, k.Round) and any(isinstance(fact, k.Resized) for fact in event.events)
    ]


def _received(prefix: str, phase: Phase, told: list[Told], decisions: int, agents: int) -> dict[str, Figure]:
    """Return the bytes that agents received from the server in a phase, including answers to their own reports: per agent, and
    in total for each decision."""
    total = 0
    for one in told:
        times = [at for at, _ in one.received]
        first, last = bisect_left(times, phase.began), bisect_left(times, phase.ended) - 1
        total += one.received[max(first, last)][1] - one.received[first][1]
    return {
        f"{prefix}decisions": figure(decisions, "count"),
        f"{prefix}agents_received_per_s": figure(total / (phase.ended - phase.began), "B/s"),
        f"{prefix}agents_received_per_decision": figure(total / max(1, decisions) / agents, "B"),
        f"{prefix}sent_to_agents_per_decision": figure(total / max(1, decisions), "B"),
    }


def _of_a_phase(prefix: str, phase: Phase, usage: Usage, reports: list[float]) -> dict[str, Figure]:
    answers = [answer.took_s for answer in phase.answers]
    return {
        f"{prefix}apps_alive": figure(phase.alive, "count"),
        f"{prefix}reports_per_s": figure(len(reports) / (phase.ended - phase.began), "1/s"),
        f"{prefix}report_p50_s": figure(percentile(reports, 50), "s"),
        f"{prefix}report_p99_s": figure(percentile(reports, 99), "s"),
        f"{prefix}answer_p50_s": figure(percentile(answers, 50), "s"),
        f"{prefix}answer_p99_s": figure(percentile(answers, 99), "s"),
        f"{prefix}answer_max_s": figure(max(answers), "s"),
        f"{prefix}server_cores": figure(usage.server, "cores"),
        f"{prefix}master_cores": figure(usage.master, "cores"),
        f"{prefix}agents_cores": figure(usage.agents, "cores"),
        f"{prefix}server_rss_mb": figure(usage.server_rss / 2**20, "MiB"),
        f"{prefix}master_rss_mb": figure(usage.master_rss / 2**20, "MiB"),
    }


def _of_the_log(records: Sequence[Record]) -> dict[str, Figure]:
    submitted: dict[str, int] = {}
    accepted: dict[str, int] = {}
    answer, placed, lag, lag_s = [], [], [], []
    counts = {"rounds": 0, "resized": 0, "nodes_lost": 0, "apps_completed": 0, "apps_failed": 0, "unreadable": 0}
    for record in records:
        event = decode(record)
        if isinstance(event, k.AppSubmitted):
            submitted[event.id] = record.time
        counts["unreadable"] += isinstance(event, k.Unreadable)
        if not isinstance(event, k.Round):
            continue
        counts["rounds"] += 1
        behind = record.seq - 1 - event.basis
        lag.append(behind)
        lag_s.append((record.time - records[event.basis].time) / _SECOND if behind else 0.0)
        for fact in event.events:
            match fact:
                case k.AppAccepted() | k.AppRejected() if fact.submission in submitted:
                    answer.append((record.time - submitted[fact.submission]) / _SECOND)
                    if isinstance(fact, k.AppAccepted):
                        accepted[fact.app] = record.time
                case k.Resized():
                    counts["resized"] += 1
                    first = [one.app for one in fact.changes if one.placement and one.app in accepted]
                    placed += [(record.time - accepted.pop(app)) / _SECOND for app in first]
                case k.NodeLost():
                    counts["nodes_lost"] += 1
                case k.AppCompleted():
                    counts["apps_completed"] += 1
                case k.AppFailed():
                    counts["apps_failed"] += 1
                case _:
                    pass
    return {
        "records": figure(len(records), "count"),
        **{
            name: figure(value, "count", "<= 0" if name in ("nodes_lost", "apps_failed") else None)
            for name, value in counts.items()
        },
        "decision_p50_s": figure(percentile(answer, 50), "s"),
        "decision_p99_s": figure(percentile(answer, 99), "s"),
        "decision_max_s": figure(max(answer), "s"),
        "placed_p50_s": figure(percentile(placed, 50), "s"),
        "placed_p99_s": figure(percentile(placed, 99), "s"),
        "lag_records_p99": figure(percentile(lag, 99), "count"),
        "lag_p99_s": figure(percentile(lag_s, 99), "s"),
        "lag_max_s": figure(max(lag_s), "s"),
    }
