"""The gist of an event in one line, for lists of events: a terminal's, a page's, an API's.

Texts may hold anything that a user, an app or a node wrote.  The caller makes them safe for its output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from events.cloudevents import rfc3339
from events.quantities import humanize

if TYPE_CHECKING:
    from events.kinds import Event

_LONGEST = 120
"""Characters of one value."""
_CHANGES = 40
"""Changes of a decision that are named."""
_HIDDEN = frozenset(("id", "at", "by", "cause", "v", "started_at", "exited_at", "submission"))
"""The line already has the time, and the others mean nothing to a reader."""
_INTERNAL = frozenset(
    ("abilities", "checkpoints", "identity", "key", "ledger", "offers", "prepares", "process", "public_key")
)
"""Values for programs: ids of folders, machines and processes, keys, digests."""
_NOTHING = object()
_MOMENTS = frozenset(("retry_at", "resize_at", "expires_at", "last_heard", "previous_until", "probe_at", "since"))
"""UTC nanoseconds; 0 for none."""


def gist(event: Event, *, whole: bool = False) -> str:
    """Return one line: fields that differ from their defaults; `whole` has all fields, and cuts no value."""
    return _WORDS.get(type(event).__name__, _fields)(event, whole)


_KNOWN: dict[type[Event], dict[str, Any]] = {}


def _defaults(kind: type[Event]) -> dict[str, Any]:
    """Return the fields of a kind that are not worth showing while they have these values."""
    if kind not in _KNOWN:
        _KNOWN[kind] = {
            field.name: field.default
            for field in msgspec.structs.fields(kind)
            if field.default is not msgspec.NODEFAULT
        }
    return _KNOWN[kind]


def _fields(event: Any, whole: bool) -> str:
    usual = {} if whole else _defaults(type(event))
    hidden = _HIDDEN if whole else _HIDDEN | _INTERNAL
    fields: dict[str, Any] = {
        name: value
        for name in event.__struct_fields__
        if name not in hidden and (value := getattr(event, name)) != usual.get(name, _NOTHING)
    }
    spec = fields.pop("spec", None)
    if isinstance(spec, dict):
        fields["name"] = spec.get("name", "?")
    return " ".join(
        f"{name}={rfc3339(value)[:-7] + 'Z' if name in _MOMENTS else _short(value, whole)}"
        for name, value in fields.items()
        if value not in (None, "", [], {})
        and not (name in _MOMENTS and value == 0)
        and not (name in ("kill", "maintenance") and value is False)
    )


def _resized(event: Any, whole: bool) -> str:
    parts = []
    shown = event.changes if whole else event.changes[:_CHANGES]
    for change in shown:
        nodes: dict[str, int] = {}
        for placed in change.placement:
            nodes[placed.node] = nodes.get(placed.node, 0) + 1
        where = " ".join(f"{node}×{count}" for node, count in nodes.items()) or "nowhere"
        number = f"g{change.to_generation}" + (f" m{change.membership}" if change.membership else "")
        parts.append(f"{change.app} {change.adjustment} {number} -> {len(change.placement)} ({where})")
    if len(shown) < len(event.changes):
        parts.append(f"and {len(event.changes) - len(shown)} more")
    changed = "; ".join(parts) or "no change, new reasons"
    return f"{changed}  [U={event.utilization:.2f} F={event.fairness_loss:.2f} overhead={event.overhead}]"


def _revised(event: Any, whole: bool) -> str:
    changed = _short(", ".join(event.changed), whole)
    when = "from its next generation on" if event.next is not None else "at once"
    return f"app={event.app} revision={event.revision} by {event.editor}: {changed}, {when}"


def _restarted(event: Any, whole: bool) -> str:
    ended = " although it had ended" if event.spec is not None else ""
    fresh = " without its checkpoint" if event.fresh else ""
    why = f": {_short(event.reason, whole)}" if event.reason else ""
    return f"app={event.app} after generation {event.generation} by {event.editor}{ended}{fresh}{why}"


def _members_released(event: Any, whole: bool) -> str:
    if whole:
        return _fields(event, whole)
    joins = _short(", ".join(f"{member.slot} on {member.node}" for member in event.members), whole) or "none"
    leaves = f" leaves={_short(event.leavers, whole)}" if event.leavers else ""
    where = f"app={event.app} generation={event.generation} membership={event.membership}"
    return f"{where} joins={joins}{leaves} wait_s={event.wait_s:.4g}"


def _membership(event: Any, whole: bool) -> str:
    lost = f" lost={event.lost}" if event.lost else ""
    moved = f" bytes_moved={event.bytes_moved}" if event.bytes_moved else ""
    phases = f"warm_up_s={event.warm_up_s:.4g} barrier_s={event.barrier_s:.4g} pause_s={event.pause_s:.4g}"
    members = f"members={_short(event.members, whole)}"
    where = f"app={event.app} generation={event.generation} membership={event.membership}"
    return f"{where} {event.change} {members}{lost} step={event.step} {phases}{moved}"


def _planned(event: Any, whole: bool) -> str:
    from replay.story.story_words import planned  # Stories import NumPy, which a list of events should not wait for.

    return f"{event.app} {planned(event)}"


def _policy_failed(event: Any, whole: bool) -> str:
    from replay.story.story_words import policy_failed

    return policy_failed(event)


def _refused(event: Any, whole: bool) -> str:
    parts = [
        f"{record.of} by {record.who}" + (f" about {record.about}" if record.about else "") for record in event.records
    ]
    reasons = [
        f"{part} (record {refusal.seq}): {refusal.reason}" for part, refusal in zip(parts, event.records, strict=True)
    ]
    more = [f"and {event.omitted} earlier ones"] if event.omitted else []
    return _short("; ".join([*reasons, *more]), whole)


def _joined(event: Any, whole: bool) -> str:
    if whole:
        return _fields(event, whole)
    has = ", ".join(humanize(name, amount) for name, amount in event.capacity.items())
    unfit = event.offers.unfit if event.offers is not None else []
    why = f", takes nothing new: {_short('; '.join(misfit.text for misfit in unfit), whole)}" if unfit else ""
    return f"node={event.node} address={event.address} with {has}, {event.build}{why}"


def _suspected(event: Any, whole: bool) -> str:
    if whole:
        return _fields(event, whole)
    reasons = [*event.failures, *[""] * len(event.apps)]
    policy_failed = [f"{app} ({why})" if why else app for app, why in zip(event.apps, reasons, strict=False)]
    probe = f" probe_at={rfc3339(event.probe_at)[:-7]}Z" if event.probe_at else ""
    return f"node={event.node} failed={_short(', '.join(policy_failed), whole)}{probe}: {_short(event.reason, whole)}"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_plain(item)}' for name, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_plain(item) for item in value)}]"
    return str(value)


_WORDS = {
    "AppPlanned": _planned,
    "AppRestarted": _restarted,
    "AppRevised": _revised,
    "MembersReleased": _members_released,
    "MembershipChanged": _membership,
    "NodeJoined": _joined,
    "NodeSuspected": _suspected,
    "PolicyFailed": _policy_failed,
    "RecordsRefused": _refused,
    "Resized": _resized,
}


def _short(value: Any, whole: bool) -> str:
    text = _plain(value)
    return text if whole or len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
