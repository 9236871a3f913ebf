"""Gates: whether an app may run at all now, however much room there is.

    hold          its owner or an operator holds it (`dorm hold`, `hold: true` in its spec) until it is released
    start_after   its time has not come
    after         it waits for other apps to end; if one ends otherwise than it has to, this app is cancelled
    group         at most `parallel` apps of its group have a place at once, and it is not its turn

An app with a closed gate is no demand.  Policies are not asked about it, so nothing is reserved for it and no share is
computed for it.  The time for which a gate is closed counts neither as a wait (`App.waiting_since`, and so patience)
nor as an age (`age_ns`).

What holds in every state:

    one way      a gate is opened by a record (a release, the end of an awaited app), or by time (`start_after`).
                 `Gates.closed_at` says since when one is closed that a record opens; it is never before `starts_at`, so
                 that no moment counts twice in `closed_ns`
    no release   none of its containers is released while a gate is closed: the decision may be older than the hold.  If
                 the app runs, the next decision stops it by the usual adjustment, with a checkpoint (`stops`); an
                 adjustment that is under way stops too, for a hold need not wait for a start
    no cycle     an app can name only apps that were submitted earlier; an edit, which could close a cycle, is refused
                 if the other app waits for this one, also by way of edits that are answered in the same round
                 (`edited_links`).  In a cycle no app would ever run
    links        an app that waits (`Gates.after`) is in the list of the other (`App.awaited_by`) until that one ends.
                 The end itself is kept in the gate (`Awaited.outcome`), because the state forgets ended apps; so a gate
                 needs no app that is gone
    broken       an awaited app that ended otherwise can't end again, so waiting would have no end.  `due_end` cancels
                 the app that waits
    operator     an operator's hold of someone else's app replaces the owner's, and only operators end it: neither a
                 release nor an edit of the owner does

An edit changes gates before the app has started, and its `max_runtime` at any time; a limit that an edit sets counts
from the start of the containers that run then, because nothing was counted before.  Waiting time that an edit makes
unnecessary is taken back (`_open_all`).

A name in `after` refers to the tenant's own live app, otherwise to the latest ended app of that name.  Apps of other
tenants and apps that do not exist are both unknown.

The limit of a group is that of its apps' specs until an edit of one of them changes it: `App.parallel` of all of them
then, and of those that are submitted later to the same run of the group.  It counts an app from its first place to the
end of its last container, so also while it pauses or is held; one with a closed gate takes no turn.  A limit that is
lowered stops nothing that runs.  Which apps wait follows from the apps and the time alone; `dorm.core.rounds`
notes it, and that they do not wait for room: patience counts from their turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dorm.core.app import Awaited, Gates, Hold, RunTime, name_key
from dorm.core.deadlines import ends_at, ran_ns
from dorm.core.effects import mark_dirty, request_rebalance
from dorm.core.folded import Effect, ignored, touching
from dorm.core.round_size import LARGEST_CHANGES, first_that_fit, size
from dorm.core.submissions import app_of_request, begin
from events import subjects
from events.instants import shown
from events.kinds import AppCancelled, Resize, Waiting
from events.limits import clipped
from events.quantities import SECOND
from events.spec import SpecError
from events.spec.gates import awaited, starts_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.state import App, State, Submission
    from events import kinds as k
    from events.log.records import Record
    from events.spec import AppSpec
    from events.spec.gates import After


# --- what is closed ---------------------------------------------------------------------------------------------------


def closed(app: App, now: int) -> bool:
    """Return whether a gate of the app is closed at `now` (UTC ns)."""
    gates = app.gates
    return gates is not None and (gates.starts_at > now or waits_for_record(app))


def waits_for_record(app: App) -> bool:
    """Return whether a gate is closed that only a record opens."""
    gates = app.gates
    return gates is not None and (gates.hold is not None or not all(awaited_app.holds for awaited_app in gates.after))


def hold_of(app: App) -> Hold | None:
    """Return who holds the app and why, None if it is not held."""
    return app.gates.hold if app.gates is not None else None


def may_start_at(app: App) -> int:
    """Return before when it gets no containers (UTC ns), 0 for any time."""
    return app.gates.starts_at if app.gates is not None else 0


def still_awaited(app: App) -> list[Awaited]:
    """Return the apps that it still waits for, in the order of its spec."""
    return [awaited_app for awaited_app in app.gates.after if not awaited_app.outcome] if app.gates is not None else []


def broken(app: App) -> Awaited | None:
    """Return the first awaited app that has not ended as required; None if there is none."""
    after = app.gates.after if app.gates is not None else []
    return next((awaited_app for awaited_app in after if awaited_app.broken), None)


def closed_since(app: App) -> int:
    """Return since when a gate of the app is closed (log time, UTC ns); 0 if all are open."""
    return app.gates.closed_at if app.gates is not None else 0


def age_ns(app: App, now: int) -> int:
    """Return how long the app has been able to run at `now` (UTC ns): since its submission, without the time in which
    a gate was closed."""
    age = now - app.submitted_at
    if app.gates is not None:
        age -= app.gates.closed_ns
        age -= max(0, now - app.gates.closed_at) if app.gates.closed_at else 0
    return max(0, age)


def hold(app: App, by: Hold, now: int) -> None:
    """Close the gate of a hold."""
    gates = app.gates = app.gates or Gates()
    gates.hold = by
    close(app, now)


def close(app: App, now: int) -> None:
    """Note that a gate is closed, unless they all are open."""
    if app.gates is not None and not app.gates.closed_at and waits_for_record(app):
        app.gates.closed_at = max(now, app.gates.starts_at)


def open_again(app: App, now: int) -> bool:
    """Note that a gate may have opened; return whether all have.  The app's wait begins now."""
    gates = app.gates
    if gates is None or waits_for_record(app) or not gates.closed_at:
        return False
    gates.closed_ns += max(0, now - gates.closed_at)
    gates.closed_at = 0
    if app.current is None:
        app.waiting_since = max(now, app.retry_at, gates.starts_at)
    return True


# --- the limit of a group ---------------------------------------------------------------------------------------------

CODE = "group"
"""Code of the reason why such an app waits."""


def held_back(state: State, now: int) -> dict[str, Waiting]:
    """Return by app why it may not start at `now` (UTC ns), for those that their group's limit keeps waiting."""
    groups: dict[tuple[str, str], list[App]] = {}
    for app in state.apps.values():
        group = app.spec.group
        if group is not None and limit_of(app) and (not app.ended or app.stopping):
            groups.setdefault((app.tenant, group.name), []).append(app)
    reasons: dict[str, Waiting] = {}
    for members in groups.values():
        reasons |= _held_back(members, now)
    return reasons


def limit_of(app: App) -> int:
    """Return how many apps of its group may run at once; 0 for no limit, and for an app of no group."""
    if app.parallel is not None:
        return app.parallel
    return app.spec.group.parallel if app.spec.group is not None else 0


def same_run(app: App, other: App) -> bool:
    """Return whether two apps were submitted as parts of one group."""
    group, other_group = app.spec.group, other.spec.group
    if group is None or other_group is None or (group.name, group.run) != (other_group.name, other_group.run):
        return False
    return app.tenant == other.tenant  # Last, for it has to be computed.


def _held_back(members: list[App], now: int) -> dict[str, Waiting]:
    """Return those of one group.  If its apps state different limits, the least of them holds."""
    limits = [limit_of(app) for app in members if not app.ended]
    if not limits:
        return {}
    least = min(limits)
    waiting = [app for app in members if not (app.ended or app.generation)]
    free = max(0, least - (len(members) - len(waiting)))
    waiting = [app for app in waiting if not closed(app, now)]
    waiting.sort(key=lambda app: (app.seq, app.id))
    reason = Waiting(code=CODE, text=f"at most {least} of its group run at once")
    return {app.id: reason for app in waiting[free:]}


# --- what a new app waits for -----------------------------------------------------------------------------------------

VERBS = {"completed": "complete", "failed": "fail", "ended": "end"}
"""Verb for what the other app has to do, by `when`."""


def awaited_apps(state: State, spec: AppSpec, submission: Submission, taken: dict[str, str]) -> list[str]:
    """Return the ids of the apps that it waits for, in the order of its spec.

    `taken` maps names that were assigned earlier in the same round to their apps.  Raises SpecError for an app that is not
    known, and for one that has ended otherwise than it has to."""
    return [_id_of(state, entry, submission, taken) for entry in awaited(spec)]


def _id_of(state: State, link: After, submission: Submission, taken: dict[str, str]) -> str:
    newcomer = taken.get(name_key(link.app, submission.id))
    if newcomer is None:
        newcomer = link.app if link.app in _own(taken, submission) else None
    if newcomer is not None:
        return newcomer
    app = _find(state, link.app, submission)
    if app is None:
        raise SpecError(
            f"after: there is no app {link.app!r} of yours; submit it first, and leave out one that ended so long ago that "
            "the cluster has forgotten it",
            code="spec.after.unknown",
        )
    gate = Awaited(app.id, app.name, link.when, app.ended)
    if gate.broken:
        raise SpecError(f"after: {cannot(gate)}; submit {app.name} again first", code="spec.after.never")
    return app.id


def _own(taken: dict[str, str], submission: Submission) -> list[str]:
    return [app for key, app in taken.items() if key.rpartition("//")[0] == submission.tenant]


def _find(state: State, name: str, submission: Submission) -> App | None:
    tenant = submission.tenant
    named = state.names.get(name_key(name, submission.id)) or (name if name in state.apps else None)
    if named is not None:
        app = state.apps[named]
        return app if not tenant or app.tenant == tenant else None
    namesakes = [app for app in state.apps.values() if app.name == name and (not tenant or app.tenant == tenant)]
    return max(namesakes, key=lambda app: app.seq, default=None)


def cannot(gate: Awaited) -> str:
    """`prep failed, so it can't complete`"""
    was = "was cancelled" if gate.outcome == "cancelled" else gate.outcome
    return f"{gate.name} {was}, so it can't {VERBS[gate.when]}"


# --- which edits may be -----------------------------------------------------------------------------------------------


def has_started(app: App) -> bool:
    """Return whether containers of it were ever to start, or it has ended: its gates mean nothing any more."""
    return bool(app.ended) or any(generation.released for generation in app.generations.values())


def check_release(app: App, before: AppSpec, after: AppSpec) -> None:
    """Refuse an edit that would end an operator's hold.  Raises SpecError."""
    hold = hold_of(app)
    if before.hold and not after.hold and hold is not None and hold.operator:
        text = f"hold: an operator ({hold.by[:64]}) holds {app.name}, and only operators release it (`dorm release`)"
        raise SpecError(text, code="app.held_by_operator")


def edited_links(
    state: State, app: App, before: AppSpec, after: AppSpec, request: Submission, taken: dict[str, str]
) -> list[str]:
    """Return the ids of the apps that an edit has it wait for in addition, in the order of its spec.

    `taken` notes them for later answers of the same round.  Raises SpecError for an app that is unknown or has ended
    otherwise, and for an app that itself waits for this one."""
    known = awaited(before)
    added = [entry for entry in awaited(after) if entry not in known]
    if not added:
        return []
    submission = msgspec.structs.replace(request, id=app.submission)
    ids = awaited_apps(state, msgspec.structs.replace(after, after=added), submission, {})
    for entry, id in zip(added, ids, strict=True):
        if id == app.id or _waits_for(state, id, app.id, taken):
            text = f"after: {entry.app} waits for {app.name}, so neither would ever run; leave one of the two out"
            raise SpecError(text, code="edit.after.cycle")
    taken[_links(app.id)] = " ".join(ids)
    return ids


def _waits_for(state: State, app: str, other: str, taken: dict[str, str]) -> bool:
    """Return whether an app waits for another, directly or by way of others."""
    seen, left = dict[str, None](), [app]
    while left:
        name = left.pop()
        if name == other:
            return True
        if name in seen:
            continue
        seen[name] = None
        next_app = state.apps.get(name)
        gates = next_app.gates if next_app is not None else None
        left += [link.app for link in gates.after if link.app] if gates is not None else []
        left += taken.get(_links(name), "").split()
    return False


def _links(app: str) -> str:
    return f"{app} after"


# --- the gates of a new app, and the end of an awaited one ------------------------------------------------------------

SUBMITTED_HELD = "submitted so"
"""The reason of a hold that the spec asks for."""


def close_gates(state: State, app: App, ids: Sequence[str]) -> None:
    """Close the gates that an accepted app's spec asks for, and begin to measure its time.  `ids` are of the apps that it
    waits for, one for each entry of `after` in its spec."""
    spec = app.spec
    start, after = starts_at(spec, app.submitted_at), links(state, app, awaited(spec), ids)
    if spec.hold or after or start > state.time:
        app.gates = Gates(after=after)
    if app.gates is not None and start > state.time:
        app.gates.starts_at = app.waiting_since = start
        app.gates.closed_ns = start - app.submitted_at
    if spec.hold:
        hold(app, Hold(app.user, state.time, SUBMITTED_HELD), state.time)
    close(app, state.time)
    if spec.max_runtime_s is not None:
        app.run_time = RunTime()


def links(state: State, app: App, entries: Sequence[After], ids: Sequence[str]) -> list[Awaited]:
    """Return the gates for the entries of `after`, whose apps are `ids`, and note that the app waits for each."""
    gates = []
    for entry, id in zip(entries, ids, strict=False):
        other = state.apps.get(id)
        if other is None or other is app:
            continue  # No master publishes this.
        if not other.ended:
            other.awaited_by = [*other.awaited_by, app.id]
        gates.append(Awaited("" if other.ended else id, other.name, entry.when, other.ended))
    return gates


def note_end(state: State, app: App) -> list[str]:
    """The app has ended: note how for each that waits for it, and return their ids."""
    waiting, app.awaited_by = app.awaited_by, []
    noted: list[str] = []
    for id in waiting:
        other = state.apps.get(id)
        if other is None or other.ended or other.gates is None:
            continue
        other.gates.after = [
            Awaited("", gate.name, gate.when, app.ended) if gate.app == app.id else gate for gate in other.gates.after
        ]
        open_again(other, state.time)
        noted.append(id)
    return noted


# --- what an edit changes ---------------------------------------------------------------------------------------------

EDITED_HELD = "edited so"
"""The reason of a hold that an edit asks for."""


def apply_edit(state: State, app: App, before: AppSpec, event: k.AppRevised) -> list[str]:
    """Apply what an edit says in addition to what containers are started with.  `before` is the spec that was in force.
    Return the ids of the other apps that this changes: those of its group, and those that it waits for no longer."""
    after = app.spec
    others: list[str] = []
    if after.max_runtime_s is not None and app.run_time is None and not app.ended:
        app.run_time = RunTime(since=_runs_since(app))
    if after.group is not None and before.group is not None:
        others += _set_limit(state, app, app.parallel if app.parallel is not None else before.group.parallel)
    if has_started(app):
        return others
    if after.origin != before.origin:
        app.checkpoint, app.checkpoint_in = None, ""
        begin(state, app)
    if (after.hold, after.after, after.start_after) != (before.hold, before.after, before.start_after):
        others += _edit_gates(state, app, before, event)
    return others


def _set_limit(state: State, app: App, before: int) -> list[str]:
    """Give all apps of its group the present limit of the app's spec, if it differs from `before`; return their ids."""
    limit = app.spec.group.parallel if app.spec.group is not None else 0
    if limit == before:
        return []
    members = [other for other in state.apps.values() if same_run(app, other)]
    for other in members:
        other.parallel = limit
    return [other.id for other in members]


def join_group(state: State, app: App) -> None:
    """Give a new app the limit of its group if an edit has set one.  All apps of a group have the same, and the latest are
    the likeliest to be of it."""
    if app.spec.group is None:
        return
    other = next(
        (member for member in reversed(state.apps.values()) if member is not app and same_run(app, member)), None
    )
    if other is not None:
        app.parallel = other.parallel


def _runs_since(app: App) -> int:
    """Return when the first container started of those that run (log time, UTC ns); 0 if none runs."""
    return min((container.started_at for container in app.running_containers()), default=0)


def _edit_gates(state: State, app: App, before: AppSpec, event: k.AppRevised) -> list[str]:
    """Return the ids of the apps that it waits for no longer."""
    now, spec = state.time, app.spec
    was_closed = bool(closed_since(app)) or (app.gates is not None and app.gates.starts_at > now)
    gates = app.gates = app.gates or Gates()
    _open_all(gates, now)
    was = [gate.app for gate in gates.after if gate.app]
    gates.after = _awaited(state, app, before, gates.after, event.after)
    start = starts_at(spec, app.submitted_at)
    if start > now:
        gates.starts_at, gates.closed_ns = start, gates.closed_ns + start - now
    if spec.hold != before.hold:
        gates.hold = (gates.hold or Hold(event.editor, now, EDITED_HELD)) if spec.hold else None
    close(app, now)
    if start > now:
        app.waiting_since = start
    elif was_closed and not waits_for_record(app) and app.current is None:
        app.waiting_since = max(now, app.retry_at)
    return was


def _open_all(gates: Gates, now: int) -> None:
    """Add up how long gates were closed until now; time that they would have stayed closed is not counted."""
    if gates.closed_at:
        gates.closed_ns += max(0, now - gates.closed_at)
    if gates.starts_at > now:
        gates.closed_ns -= gates.starts_at - now
    gates.closed_at = gates.starts_at = 0


def _awaited(state: State, app: App, before: AppSpec, gates: list[Awaited], added: list[str]) -> list[Awaited]:
    """Return what it waits for from now on: what stays as it stands, and the apps of `added`, one for each new entry."""
    was = awaited(before)
    stays = dict(zip(was, gates, strict=True)) if len(was) == len(gates) else {}
    wanted = awaited(app.spec)
    for entry, gate in stays.items():
        other = state.apps.get(gate.app)
        if entry not in wanted and other is not None:
            other.awaited_by = [id for id in other.awaited_by if id != app.id]
    fresh = [entry for entry in wanted if entry not in stays]
    return [*(stays[entry] for entry in wanted if entry in stays), *links(state, app, fresh, added)]


# --- holds and releases -----------------------------------------------------------------------------------------------


def is_operators(state: State, app: App, who: str) -> bool:
    """Return whether a hold of the app by `who`, who may change it, is an operator's, because the app belongs to
    another user."""
    known = state.known
    return known is not None and known.tenant_of(who) != app.tenant


def may_be_held(state: State, app: App, who: str) -> bool:
    """Return whether a hold by `who` changes anything.  An operator's replaces the owner's, which then cannot end it."""
    before = hold_of(app)
    if before is not None and (before.operator or not is_operators(state, app, who)):
        return False
    return not app.ended and not app.cancel_requested


def hold_requested(state: State, event: k.AppHoldRequested, record: Record) -> Effect:
    who = subjects.who_of(record.subject)
    app = app_of_request(state, event.app, who)
    if app is None or not may_be_held(state, app, who):
        return ignored(state)
    by, operator = subjects.author_of(record.subject, event.by), is_operators(state, app, who)
    hold(app, Hold(by, state.time, clipped(event.reason), operator=operator), state.time)
    app.changed_seq = state.seq
    if app.current is not None:
        request_rebalance(state)
    mark_dirty(state)
    return touching(app)


def release_requested(state: State, event: k.AppReleaseRequested, record: Record) -> Effect:
    app = app_of_request(state, event.app, subjects.who_of(record.subject))
    if app is None or app.ended or hold_of(app) is None:
        return ignored(state)
    assert app.gates is not None
    app.gates.hold = None
    open_again(app, state.time)
    mark_dirty(state)
    return touching(app)


# --- decisions: what stops, and what ends -----------------------------------------------------------------------------


class Stops(NamedTuple):
    """The part of a decision about apps that have to stop because a gate is closed."""

    changes: list[Resize]
    put_off: int
    """Number of those that do not fit; they come with the next decision."""

    @property
    def size(self) -> int:
        """Bytes in a message."""
        return sum(map(size, self.changes))


def stops(state: State, now: int) -> Stops:
    """Return the adjustments at `now` (UTC ns), in order of arrival.  An app in the middle of an adjustment stops
    too: its hold need not wait for its start."""
    stopped = [
        Resize(
            app=app.id,
            from_generation=app.generation,
            to_generation=app.generation + 1,
            placement=[],
            adjustment="stop",
        )
        for app in state.live_apps()
        if app.current is not None and not app.cancel_requested and closed(app, now)
    ]
    fitting = first_that_fit(stopped, LARGEST_CHANGES // 2)
    return Stops(fitting, len(stopped) - len(fitting))


def due_end(app: App, now: int) -> AppCancelled | None:
    """Return the end at `now` (UTC ns) of an app that cannot continue because of its spec; None if it can."""
    gate, end = broken(app), ends_at(app)
    if gate is not None:
        reason, code = f"{cannot(gate)}, and {app.name} was to run once it had {gate.when}", "after"
    elif end is not None and end <= now:
        reason, code = f"it has run for {app.spec.max_runtime}, as long as it may (max_runtime)", "max_runtime"
    else:
        return None
    return AppCancelled(app=app.id, generation=app.generation, reason=reason, code=code)


# --- in words ---------------------------------------------------------------------------------------------------------

MOST_NAMED = 5
"""Apps that a reason names one by one."""


def reason_of(app: App, now: int) -> Waiting | None:
    """Return why a live app waits or has less than its n_max at `now` (UTC ns): its closed gates, otherwise the
    reason of the last decision; None if there is none, and for an ended app."""
    if app.ended:
        return None
    return closed_gates(app, now) or app.waiting


def shown_reason(app: App, now: int) -> tuple[str, str]:
    """Return that reason as a code and a text; of an app that has ended how, with a code only if the master ended it."""
    reason = reason_of(app, now)
    return (reason.code, reason.text) if reason is not None else (app.end_code, app.end_reason)


def closed_gates(app: App, now: int) -> Waiting | None:
    """Return the closed gates of an app as a reason, with the code of the first; None if all are open."""
    reasons = [Waiting(code="hold", text=held_by(by))] if (by := hold_of(app)) is not None else []
    if apps := still_awaited(app):
        reasons.append(Waiting(code="after", text=f"waits for {awaited_named(apps)}"))
    if (start := may_start_at(app)) > now:
        reasons.append(Waiting(code="start_after", text=f"starts at {moment(start)} or later"))
    if not reasons:
        return None
    return Waiting(code=reasons[0].code, text="; ".join(reason.text for reason in reasons))


def held_by(hold: Hold) -> str:
    """`held by ann: wrong data`"""
    who = f"the operator {hold.by}" if hold.operator else hold.by
    return f"held by {who}" + (f": {hold.reason}" if hold.reason else "")


def awaited_named(awaited: Sequence[Awaited]) -> str:
    """`prep to complete, data to end`"""
    named = [f"{gate.name} to {VERBS[gate.when]}" for gate in awaited[:MOST_NAMED]]
    more = len(awaited) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def moment(time: int) -> str:
    """`2026-11-24 08:00:00 UTC`"""
    return shown(time)


def hold_shown(app: App) -> dict[str, Any] | None:
    """Return who holds a live app, since when and why, for people and programs; None if it is not held."""
    hold = hold_of(app) if not app.ended else None
    return None if hold is None else msgspec.to_builtins(hold)


def runtime_shown(app: App, now: int) -> dict[str, float] | None:
    """Return for how long an app has run at `now` (UTC ns) and may run, in seconds; None without a limit."""
    limit_s = app.spec.max_runtime_s
    return None if limit_s is None else {"ran_s": ran_ns(app, now) / SECOND, "max_s": limit_s}
