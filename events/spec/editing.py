"""Edits of a spec: what differs, and what can change while the app runs.

    at once       what only the master and the policy use: bounds, weight, limits.  The containers run on
    before start  what says when it may start, and from which checkpoint: nothing of it means anything later
    by restart    everything else, by an adjustment: checkpoint, and a new generation with the new spec
    never         the name, the user and the group: they say which app it is.  Of the group, how many of it run at once
                  changes at once, and for all of it (`dorm.core.gates`)

Each field says which of these it is (`events.spec.declared`); one that says nothing needs a restart.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from events.spec.declared import declared_in
from events.spec.faults import SpecError
from events.spec.gates import origin_of
from events.spec.spec import AppSpec, document_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_DECLARED = declared_in(AppSpec)
AT_ONCE = tuple(name for name, declared in _DECLARED.items() if declared.edited == "live")
"""Fields that can change without a restart, and the gates of an app that has not started."""
NEVER = tuple(name for name, declared in _DECLARED.items() if declared.edited == "never")
"""Fields that identify the app."""
BEFORE_START = {name: declared.later for name, declared in _DECLARED.items() if declared.later}
"""Fields that count until the first containers start, and what to do later instead."""
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class Changes(NamedTuple):
    """The fields in which two specs differ, in the order of the spec."""

    at_once: tuple[str, ...]
    by_restart: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.at_once, *self.by_restart)


def differing(before: AppSpec, after: AppSpec) -> Changes:
    """Compare two specs of one app."""
    differ = [name for name in before.__struct_fields__ if getattr(before, name) != getattr(after, name)]
    at_once = tuple(name for name in differ if name in AT_ONCE)
    return Changes(at_once, tuple(name for name in differ if name not in (*AT_ONCE, *NEVER)))


def check_same_app(before: AppSpec, after: AppSpec, *, started: bool) -> None:
    """Raises SpecError if a field differs that no edit can change, or none of an app that has started."""
    for name in NEVER:
        was, is_now = getattr(before, name), getattr(after, name)
        if was != is_now:
            text = f"{name}: an edit can't change it from {was!r} to {is_now!r}"
            raise SpecError(f"{text}; submit another app, and cancel this one", code="edit.another_app")
    if not same_group(before, after):
        how = "`dorm sweep edit` changes how many of a sweep run at once"
        text = f"group: an edit can't move an app into another sweep, or to another place in its own; {how}"
        raise SpecError(text, code="edit.group")
    late = [name for name in BEFORE_START if getattr(before, name) != getattr(after, name)] if started else []
    if late:
        shown = "from" if late[0] == "origin" else late[0]
        instead = BEFORE_START[late[0]].format(app=before.name)
        raise SpecError(
            f"{shown}: {before.name} has started, so this can't change any more; {instead}", code="edit.started"
        )


def same_group(before: AppSpec, after: AppSpec) -> bool:
    """Return whether both belong to the same group, in the same place; how many of it may run at once can differ."""
    if before.group is None or after.group is None:
        return before.group is after.group
    return msgspec.structs.replace(before.group, parallel=after.group.parallel) == after.group


def same_origin(before: AppSpec, after: AppSpec) -> bool:
    """Return whether `from`, as its author writes it, means what an app starts from already: the same app, by its name or its
    id, and no other step."""
    was, wanted = origin_of(before.origin), origin_of(after.origin)
    if was is None or wanted is None:
        return before.origin == after.origin
    app = wanted.app in (was.app, was.app.rpartition("-")[0])
    return app and (wanted.step is None or wanted.step == was.step)


def merged(before: AppSpec, after: AppSpec) -> AppSpec:
    """Return the first spec with all fields of the second that hold at once."""
    return msgspec.structs.replace(before, **{name: getattr(after, name) for name in AT_ONCE})


def differences(before: AppSpec, after: AppSpec, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return these fields of two specs as plain values: `{"image": {"before": "a:1", "after": "a:2"}}`."""
    sides = (("before", before), ("after", after))
    return {name: {side: msgspec.to_builtins(getattr(spec, name)) for side, spec in sides} for name in names}


def patched(document: Any, patch: Any) -> Any:
    """Return a document with a merge patch applied (RFC 7396): maps are merged, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged_document = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged_document.pop(name, None)
        else:
            merged_document[name] = patched(merged_document.get(name), value)
    return merged_document


def fingerprint(spec: AppSpec) -> str:
    """Return 16 hexadecimal digits that are equal for equal specs, of whatever class and process."""
    document: dict[str, Any] = document_of(spec)
    return hashlib.blake2b(_encode(document), digest_size=8).hexdigest()
