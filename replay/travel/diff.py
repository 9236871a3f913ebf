"""The difference between two states of one log: apps, nodes, settings, and the cluster as a whole.

It covers what users regard as a change, not everything in a digest: where containers are but not which ports they have,
how far an app is but not when it last reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dorm.core.progress import shown
from dorm.core.query.views import node_rows, note_of, sizes, summary
from dorm.core.settings import TIMES, parameters_in_force
from dorm.core.state import digest
from events.spec import document_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.core.progress import Newest
    from dorm.core.state import App, Settings, State

_UPDATED = ("n_min", "n_max", "weight")
"""Fields of a spec that have lines of their own, since updates change them too."""


class Changed(msgspec.Struct, frozen=True):
    """A property with another value; None if the app, node or setting does not exist."""

    field: str
    before: Any
    after: Any


class Thing(msgspec.Struct, frozen=True):
    """An app or a node that changed."""

    name: str
    id: str
    how: Literal["came", "gone", "changed"]
    """Ended apps stay in the state for a while; `gone` is an app that has left it since."""
    changes: list[Changed]
    """All properties of an app or node that came or is gone."""


class Point(msgspec.Struct, frozen=True):
    """A state's place in the log; log time in UTC nanoseconds."""

    seq: int
    time: int
    digest: str


class SetBy(msgspec.Struct, frozen=True):
    """The effective part of a change of settings between the two states."""

    seq: int
    time: int
    """Log time (UTC ns)."""
    by: str
    changes: list[Changed]


class Diff(msgspec.Struct, frozen=True):
    """The difference from one state to another, which may be the earlier one."""

    before: Point
    after: Point
    apps: list[Thing]
    """By arrival."""
    nodes: list[Thing]
    """By name."""
    settings: list[Changed]
    """The policy, its parameters, the master's times and the folder of checkpoints, by their names in the log."""
    cluster: list[Changed]
    set_by: list[SetBy] = []
    """Who changed settings between the two, in the log's order; including changes that were reverted."""

    @property
    def same(self) -> bool:
        """Return whether nothing that a diff covers has changed."""
        return not (self.apps or self.nodes or self.settings or self.cluster)


def diff(
    before: State, after: State, set_by: Sequence[SetBy] = (), reported: tuple[Newest, Newest] | None = None
) -> Diff:
    """Compare two states of one log; `set_by` are the changes of settings between them
    (`replay.travel.settings_between`), `reported` what apps had reported by then (`replay.travel.reported`)."""
    old, new = reported or ({}, {})
    arrivals = {app.id: (app.seq, app.id) for state in (before, after) for app in state.apps.values()}
    old_nodes, new_nodes = _nodes(before), _nodes(after)
    return Diff(
        before=_point(before),
        after=_point(after),
        apps=[
            thing
            for app in sorted(arrivals, key=arrivals.__getitem__)
            if (
                thing := _thing(
                    app, _app(before.apps.get(app), old, before.time), _app(after.apps.get(app), new, after.time)
                )
            )
        ],
        nodes=[
            thing
            for node in sorted({*old_nodes, *new_nodes})
            if (thing := _thing(node, old_nodes.get(node), new_nodes.get(node)))
        ],
        settings=settings_changed(before.settings, after.settings),
        cluster=_changes(_cluster(before), _cluster(after)),
        set_by=list(set_by),
    )


def only(found: Diff, name: str) -> Diff:
    """Return the part of a difference that concerns one app (by name or id) or node."""
    return msgspec.structs.replace(
        found,
        apps=[thing for thing in found.apps if name in (thing.name, thing.id)],
        nodes=[thing for thing in found.nodes if name == thing.name],
        settings=[],
        cluster=[],
        set_by=[],
    )


def _point(state: State) -> Point:
    return Point(state.seq, state.time, digest(state))


def _thing(identity: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> Thing | None:
    """Return the change of one app or node, or None if nothing has changed."""
    changes = _changes(before or {}, after or {})
    if not changes:
        return None
    name = str((after or before or {}).get("name", identity))
    return Thing(
        name=name,
        id=identity,
        how="came" if before is None else "gone" if after is None else "changed",
        changes=[change for change in changes if change.field != "name"],
    )


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Changed]:
    return [
        Changed(field, before.get(field), after.get(field))
        for field in dict.fromkeys([*before, *after])
        if before.get(field) != after.get(field) or (field in before) is not (field in after)
    ]


def _app(app: App | None, newest: Newest, time: int) -> dict[str, Any] | None:
    if app is None:
        return None
    now = shown(app, newest)
    return {
        "name": app.name,
        "user": app.user,
        "phase": app.phase,
        "why": note_of(app, time),
        "placement": sizes(app),
        "generation": app.generation,
        "n_min": app.n_min,
        "n_max": app.n_max,
        "weight": app.weight,
        "cancel_requested": app.cancel_requested,
        "adjustments": app.adjustments,
        "failures": app.failures,
        "step": now.step,
        "loss": now.loss,
        "checkpoint": app.checkpoint,
        "lost_steps": app.lost_steps,
        "revision": app.revision,
        "spec": {name: value for name, value in document_of(app.next_spec).items() if name not in _UPDATED},
    }


def _nodes(state: State) -> dict[str, dict[str, Any]]:
    return {
        row.name: {
            "condition": row.condition,
            "address": row.address,
            "runtime": row.runtime,
            "containers": row.containers,
            "capacity": row.capacity,
            "used": row.used,
            "labels": row.labels,
        }
        for row in node_rows(state)
    }


def settings_changed(before: Settings, after: Settings) -> list[Changed]:
    """Return the settings that differ, by their names in the log."""
    # Only policies know the parameters in force, and importing them takes a second.
    return [] if before == after else _changes(_settings(before), _settings(after))


def _settings(settings: Settings) -> dict[str, Any]:
    try:
        parameters = parameters_in_force(settings)
    except ValueError:  # Recorded under a policy that this build does not have.
        parameters = settings.params
    times = {name: getattr(settings, name) for name in TIMES}
    weights = {"weights": settings.weights} if settings.weights is not None else {}
    most = {"tenant_apps": settings.tenant_apps} if settings.tenant_apps is not None else {}
    suspicion = {"suspect_after": settings.suspect_after, "suspect_within_s": settings.suspect_within_s}
    folder = {"checkpoints": settings.checkpoints}
    return {"policy": settings.policy, **parameters, **times, **folder, **weights, **most, **suspicion}


def _cluster(state: State) -> dict[str, Any]:
    found = summary(state)
    return {
        "epoch": state.epoch,
        "decisions": state.figures.decisions,
        "utilization": round(found.utilization, 6),
        "fairness_loss": round(found.fairness_loss, 6),
        "unanswered": len(state.submissions),
        **msgspec.structs.asdict(state.counters),
    }
