"""Authority: which records an author may publish on a cluster that knows its users and nodes.

The author is the last token of the record's subject.  `enforce` runs before any other part of the fold and returns the event
that counts: with its true author, and, if it asks for an answer, with an id of the author's tenant.  A record without
authority changes nothing; the state remembers why (`Identities.refusals`), and a known user's submission or update gets an
answer.

    submissions            users, operators, admins; in the own name
    updates, cancels, retries,
    edits, restarts        the app's tenant, operators, admins
    holds and releases     the same; only operators and admins release a hold of someone else's app
    drains                 operators, admins; a node drains itself before it stops
    settings, seals,       operators, admins
    rotations, pauses,
    forgotten nodes
    archives               masters, with a signature of one of their keys
    webhooks               operators, admins
    deliveries of webhooks the reader that deliverers run as, operators, admins
    identities             admins (`events.identities`)
    facts about a node     this node; what it claims when it joins stays within its enrolment
    facts about an app     a node that has a part of the generation
    sessions               both: this node, and a part of the generation

The master's rounds have their own subject. If the cluster names its masters' keys, a round that none of them signed
is void (`is_by_master`), here as for agents and audits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import msgspec

from dorm.core.admission import app_id, name_of
from dorm.core.folded import Effect, ignored
from dorm.core.gates import hold_of
from dorm.core.identities import refuse
from dorm.core.submissions import app_of_request, queue_refused
from events import kinds as k
from events import subjects
from events.codec import submission_of
from events.identities import NotAllowed, claims_too_much, owned_id, takes
from events.limits import LONGEST_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.state import State, Submission
    from events.identities import Identities
    from events.log.records import Record

    Rule = Callable[[State, Identities, Any, str], NotAllowed | None]
    _OfApp = (
        k.AppUpdated
        | k.AppCancelRequested
        | k.AppNoted
        | k.AppRetryRequested
        | k.OfGates
        | k.AppEditRequested
        | k.AppRestartRequested
    )


def enforce(state: State, known: Identities, event: k.Event, record: Record) -> tuple[k.Event, Effect | None]:
    """Return the event that counts, and the effect if its author may not publish it; None if the fold continues."""
    rule = _RULES.get(type(event))
    if rule is None:
        return _without_rule(state, known, event, record)
    who = subjects.who_of(record.subject)
    if event.by != who:
        event = msgspec.structs.replace(event, by=who)
    if type(event) in _SCOPED:
        event = _own_id(known, event, who, record.seq)
    refused = rule(state, known, event, who)
    if refused is None:
        return event, None
    return event, _refused(state, known, event, record, refused)


def forbidden(state: State, event: k.Event, who: str) -> NotAllowed | None:
    """Return why `who` may not publish this event now; None if nothing is known against it.  For clients, before they
    publish."""
    known = state.known
    if isinstance(event, get_args(k.OfIdentities)):
        return takes(known, event, who, state.seq + 1)
    rule = _RULES.get(type(event))
    return rule(state, known, event, who) if known is not None and rule is not None else None


def _without_rule(state: State, known: Identities, event: k.Event, record: Record) -> tuple[k.Event, Effect | None]:
    """Rounds are guarded by their subject and their signature.  An unreadable submission is answered only to a user."""
    if not isinstance(event, k.Unreadable) or not submission_of(event):
        return event, None
    who = subjects.who_of(record.subject)
    if who in known.users:
        return _own_id(known, msgspec.structs.replace(event, by=who), who, record.seq), None
    state.counters.unreadable += 1
    return event, refuse(state, event, who, _unknown(who))


def _own_id(known: Identities, event: Any, who: str, seq: int) -> Any:
    """Return the event with an id that belongs to its author's tenant."""
    tenant = known.tenant_of(who)
    id = owned_id(tenant, event.id)
    if len(id) > LONGEST_NAME:
        id = owned_id(tenant, f"{who}.{seq}")
    return event if id == event.id else msgspec.structs.replace(event, id=id)


def _refused(state: State, known: Identities, event: Any, record: Record, why: NotAllowed) -> Effect:
    who = subjects.who_of(record.subject)
    answered = who in known.users and type(event) in _SCOPED
    if answered and isinstance(event, k.AppSubmitted):
        queue_refused(state, event, record, why.reason, why.code, spec=event.spec)
    elif answered:
        queue_refused(state, event, record, why.reason, why.code, app=event.app)
    return refuse(state, event, who, why, answered=answered)


# --- users --------------------------------------------------------------------------------------------------------------


def _unknown(who: str) -> NotAllowed:
    return NotAllowed("identity.unknown", f"the cluster knows no user {who}; an admin adds one with `dorm user add`")


def _submits(state: State, known: Identities, event: k.AppSubmitted, who: str) -> NotAllowed | None:
    role = known.role_of(who)
    if role is None:
        return _unknown(who)
    if role == "reader":
        return NotAllowed("identity.role.too_low", f"{who} is a reader, and submits no apps")
    named = event.spec.get("user") if isinstance(event.spec, dict) else None
    if isinstance(named, str) and named not in ("", "anonymous", who):
        return NotAllowed("submission.user.not_own", f"the spec names another user; {who} submits for {who} only")
    return None


def _changes_app(state: State, known: Identities, event: _OfApp, who: str) -> NotAllowed | None:
    """An app that does not exist is the handler's to refuse."""
    role = known.role_of(who)
    if role is None:
        return _unknown(who)
    if role == "reader":
        return NotAllowed("identity.role.too_low", f"{who} is a reader, and changes no apps")
    app = state.find_app(event.app, known.tenant_of(who))
    if app is None or app_of_request(state, event.app, who) is not None:
        return None
    if isinstance(event, k.AppCancelRequested) and submission_of_request(state, event.app, who) is not None:
        return None
    return NotAllowed(
        "app.not_owner", f"{app.id} belongs to {app.tenant[:64]}; its tenant or an operator may change it"
    )


def _releases(state: State, known: Identities, event: k.AppReleaseRequested, who: str) -> NotAllowed | None:
    refused = _changes_app(state, known, event, who)
    app = app_of_request(state, event.app, who) if refused is None else None
    hold = hold_of(app) if app is not None else None
    if app is None or hold is None or not hold.operator or known.operates(who):
        return refused
    text = f"an operator ({hold.by[:64]}) holds {app.name}, and only operators release it"
    return NotAllowed("app.held_by_operator", text)


def _operates(state: State, known: Identities, event: k.Event, who: str) -> NotAllowed | None:
    if known.operates(who):
        return None
    if who not in known.users:
        return _unknown(who)
    return NotAllowed("identity.not_operator", f"{who} is no operator, and only operators change what concerns all")


def _delivers(state: State, known: Identities, event: k.Event, who: str) -> NotAllowed | None:
    return None if known.delivers(who) else _operates(state, known, event, who)


def _drains(state: State, known: Identities, event: k.NodeDrainRequested, who: str) -> NotAllowed | None:
    itself = who == event.node and who in known.nodes and event.drain and event.until_rejoin
    return None if itself else _operates(state, known, event, who)


# --- what a request is about --------------------------------------------------------------------------------------------


def submission_of_request(state: State, name_or_id: str, who: str) -> Submission | None:
    """Return the unanswered submission that a request names, if its author may cancel it."""
    known = state.known
    for submission in state.submissions.values():
        name = name_of(submission.spec)
        if submission.refused or not name or name_or_id not in (name, app_id(name, submission.id)):
            continue
        if known is None or submission.tenant == known.tenant_of(who) or known.operates(who):
            return submission
    return None


# --- the master ---------------------------------------------------------------------------------------------------------


def is_by_master(state: State, event: k.Round, record: Record) -> bool:
    """Return whether a round counts as a master's; note one that does not."""
    known = state.known
    keys = known.keys_at(event.basis) if known is not None else None
    if not keys:
        return True
    from events.chain import is_round_signed_by  # Few readers need it, and it takes long to import.

    if is_round_signed_by(record.body, state.round_seq, keys):
        return True
    state.counters.void_rounds += 1
    text = "none of the masters' keys signed this round, in this place"
    refuse(state, event, subjects.who_of(record.subject), NotAllowed("round.unsigned", text))
    return False


def is_own(state: State, event: Any, record: Record) -> bool:
    """Return whether a record is on the node's own subject: permissions go by subjects, and its agent reads no other.
    Count it as ignored if it is not."""
    if subjects.who_of(record.subject) == subjects.token(event.node):
        return True
    ignored(state)
    return False


def _rotates(state: State, known: Identities, event: k.LogRotated | k.RotationFailed, who: str) -> NotAllowed | None:
    if who != subjects.MASTER:
        return NotAllowed("identity.not_master", f"{who} is no master, and only masters move the log into archives")
    keys = known.keys_at(state.seq)
    if isinstance(event, k.RotationFailed) or not keys:
        return None
    from events.chain import is_signed_cut

    if event.key in keys and is_signed_cut(event):
        return None
    return NotAllowed("cut.unsigned", "none of the masters' keys signed this statement about an archive")


# --- nodes --------------------------------------------------------------------------------------------------------------


def _of_node(state: State, known: Identities, event: Any, who: str) -> NotAllowed | None:
    if who not in known.nodes:
        return NotAllowed(
            "identity.node.unknown", f"no node {who} is enrolled; an admin enrols one with `dorm node intro`"
        )
    if event.node != who:
        return NotAllowed("node.not_own", f"{who} reports for the node {event.node[:64]}")
    return None


def _joins(state: State, known: Identities, event: k.NodeJoined, who: str) -> NotAllowed | None:
    return _of_node(state, known, event, who) or claims_too_much(known.nodes[who], event)


def _of_app(state: State, known: Identities, event: Any, who: str) -> NotAllowed | None:
    """Progress records are the bulk of a log: a generation's first container is nearly always where they come from."""
    if who not in known.nodes:
        return NotAllowed(
            "identity.node.unknown", f"no node {who} is enrolled; an admin enrols one with `dorm node intro`"
        )
    try:
        generation = state.apps[event.app].generations[event.generation]
    except KeyError:
        return None
    for container in generation.containers.values():
        if container.node == who:
            return None
    for container in generation.all_containers():
        if container.node == who:
            return None
    return NotAllowed("app.not_on_node", f"{who} has no part of {event.app[:100]} in generation {event.generation}")


def _of_session(state: State, known: Identities, event: k.OfSessions, who: str) -> NotAllowed | None:
    return _of_node(state, known, event, who) or _of_app(state, known, event, who)


_SCOPED = frozenset(kind for kind in k.EVENTS if kind.KIND.answered)
"""Kinds whose ids belong to their author's tenant, because answers go to them."""
_BY_WORD: dict[k.Rule, Rule] = {
    "submits": _submits,
    "changes_app": _changes_app,
    "releases": _releases,
    "operates": _operates,
    "delivers": _delivers,
    "drains": _drains,
    "joins": _joins,
    "of_node": _of_node,
    "of_app": _of_app,
    "of_session": _of_session,
    "rotates": _rotates,
}
"""Rules that kinds name. Identities have their own, which the agents share (`events.identities.takes`)."""
_RULES: dict[type[k.Event], Rule] = {kind: _BY_WORD[kind.KIND.rule] for kind in k.EVENTS if kind.KIND.rule in _BY_WORD}
