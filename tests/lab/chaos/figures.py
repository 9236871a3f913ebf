"""The figures of `make chaos`, and its violations in words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from dorm.bench.report import figure, percentile
from replay.audit.audit import Report as Audit
from tests.lab.chaos.faults import KINDS, Injected
from tests.lab.chaos.log import Told
from tests.lab.chaos.record import Stay, doubled
from tests.lab.chaos.recovery import Pause, Recovery, takeovers
from tests.lab.chaos.results import other_results
from tests.lab.chaos.work import Probe, Submission

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from dorm.bench.report import Figure
    from dorm.core.state import App
    from tests.lab.chaos.results import Result
    from tests.lab.chaos.work import Training


class Evidence(msgspec.Struct, frozen=True):
    """Everything that is known about one run."""

    faults: list[Injected]
    submissions: list[Submission]
    probes: list[Probe]
    told: Told
    records: dict[str, list[Stay]]
    """The records of each app's processes."""
    unended: list[str]
    """Apps and submissions without a result in time."""
    containers_left: int
    """Containers that still ran when all apps had ended."""
    services_ended: int
    """How often a service ended by itself, mostly because something that it needs to start was missing."""
    audit: Audit
    recovered: list[Recovery]
    """One entry for each fault."""
    pauses: list[Pause]
    copies_wrong: list[str]
    """Differences of servers' copies from the log, one line each."""


def figures(
    evidence: Evidence, alone: Mapping[Training, Result], checkpoints: Path
) -> tuple[dict[str, Figure], list[str]]:
    """Return the figures, and one line for each violation."""
    lost, between = list(_lost(evidence)), list(_between(evidence))
    twice = [f"{app}: {pair}" for app, record in evidence.records.items() for pair in doubled(record)]
    ended = list(_ended(evidence))
    completed = [(app, one.job.training) for one, app in ended if app.ended == "completed" and one.job.training]
    other = other_results(completed, alone, checkpoints)
    other_end = [
        f"{app.name} {app.ended}, not {one.job.fate}: {app.end_reason}"
        for one, app in ended
        if app.ended != one.job.fate
    ]
    unseen = [f"{app.name} completed without a record" for app, _ in completed if not evidence.records[app.id]]
    divergence = evidence.audit.divergence
    said = Counter(one.outcome for one in evidence.submissions)
    found = {
        "faults_injected": figure(len(evidence.faults), "count"),
        **_by_kind(evidence.faults),
        "submissions": figure(len(evidence.submissions), "count"),
        "submissions_lost": figure(len(lost), "count", "<= 0"),
        "submissions_refused": figure(said["refused"], "count"),
        "submissions_refused_but_stored": figure(len(between), "count", "<= 0"),
        "submissions_unknown": figure(said["unknown"], "count"),
        "generations_doubled": figure(len(twice), "count", "<= 0"),
        "apps_completed": figure(len(completed), "apps"),
        "apps_with_other_loss": figure(len({line.split(":")[0] for line in other}), "apps", "<= 0"),
        "apps_with_other_end": figure(len(other_end), "apps", "<= 0"),
        "apps_unended": figure(len(evidence.unended), "apps", "<= 0"),
        "containers_left": figure(evidence.containers_left, "containers", "<= 0"),
        "services_ended_count": figure(evidence.services_ended, "count"),
        **_recovery_figures(evidence.recovered),
        **_spread("master_takeover", takeovers(evidence.faults, evidence.told)),
        "rounds_verified": figure(evidence.audit.decisions_checked + evidence.audit.conclusions_checked, "count"),
        "rounds_not_verified": figure(evidence.audit.not_checked, "count", "<= 0"),
        "divergences": figure(divergence is not None, "count", "<= 0"),
        "copies_differing_count": figure(len({one.split(":")[0] for one in evidence.copies_wrong}), "count", "<= 0"),
    }
    never = [f"{one.kind}: no master answered afterwards" for one in evidence.recovered if one.seconds is None]
    wrong = [*evidence.copies_wrong, *lost, *between, *twice, *other, *other_end, *unseen, *never]
    wrong += [f"{name} has not ended" for name in evidence.unended]
    wrong += [str(divergence)] if divergence is not None else []
    return found, wrong


def _lost(evidence: Evidence) -> Iterator[str]:
    for one in evidence.submissions:
        if one.outcome in ("accepted", "stored") and one.id not in evidence.told.submitted:
            yield f"{one.id} was {one.outcome}, and is not on the log"
        elif one.outcome == "accepted" and one.id not in evidence.told.accepted:
            yield f"{one.id} was accepted, and no app is on the log"


def _between(evidence: Evidence) -> Iterator[str]:
    for one in evidence.submissions:
        if one.outcome == "refused" and one.id in evidence.told.submitted:
            yield f"{one.id} failed with an error ({one.said}), and is on the log"
        elif not one.outcome:
            yield f"{one.id} never came to an end"


def _ended(evidence: Evidence) -> Iterator[tuple[Submission, App]]:
    """Return the submissions whose apps have ended."""
    apps = evidence.told.state.apps
    for one in evidence.submissions:
        app = apps.get(evidence.told.accepted.get(one.id, ""))
        if app is not None and app.ended:
            yield one, app


def _by_kind(faults: Sequence[Injected]) -> dict[str, Figure]:
    counts = Counter(fault.kind for fault in faults)
    return {f"faults_{kind}": figure(counts[kind], "count") for kind in KINDS if counts[kind]}


def _recovery_figures(recovered: Sequence[Recovery]) -> dict[str, Figure]:
    found = _spread("recovery", [one.seconds for one in recovered if one.seconds is not None])
    for kind in KINDS:
        of_kind = [one.seconds for one in recovered if one.kind == kind and one.seconds is not None]
        found |= _spread(f"recovery_{kind}", of_kind)
    return found


def _spread(name: str, samples: Sequence[float]) -> dict[str, Figure]:
    """Return percentiles as figures; none without samples."""
    if not samples:
        return {}
    return {
        f"{name}_p50_s": figure(percentile(samples, 50), "s"),
        f"{name}_max_s": figure(max(samples), "s"),
    }
