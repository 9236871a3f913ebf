"""A fold that hides each record of a log, and shows it to a tenant.

    projection = Projection(state, key)         the state before the first record
    seen = projection.take(record)              folds it
    seen.record_for("vision")                   what a user of the tenant `vision` reads in its place
    projection.state_for("vision")              and the state that those records fold to

One projection serves all tenants: the public version of a record is computed once.  A record that must not be seen
becomes an event of the unknown kind `Withheld`, so the log's sequences remain.

Forbidden and unreadable records changed nothing.  Only their author's
tenant sees them.  The rounds of a projection are not signed, since they differ from the master's; whether a round
counts was decided by this fold.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.evolve import evolve
from dorm.core.submissions import app_of_request
from events import kinds as k
from events import subjects
from events.codec import decode, encode
from events.identities import tenant_in
from events.log.records import Record
from replay.tenants.hiding import REQUESTS, SHOWN, Hiding
from replay.tenants.names import KEY_BYTES, Names
from replay.tenants.showing import Showing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.app import App
    from dorm.core.state import State

WITHHELD = "Withheld"
"""The kind of a record that shows only its position."""
_NOTHING = b"\x80"
_UNREADABLE = b"\xc1"
_CHANGED = (k.Round, k.TrustEnabled, k.UserAdded)
"""Kinds that no tenant sees as they are."""
_NAMING = frozenset(kind.__name__ for kind in (k.UserAdded, k.UserRemoved, k.TokenAdded, k.TokenRemoved))


def key_of(secret: bytes) -> bytes:
    """Return the key of a cluster's pseudonyms, from a secret of its masters."""
    return hashlib.blake2b(secret, digest_size=KEY_BYTES, person=b"dorm pseudonyms").digest()


class Seen:
    """One record, as it was folded."""

    __slots__ = ("_hidden", "_made", "_names", "_own", "event", "owners", "record")

    def __init__(self, record: Record, event: Any, hidden: Any, owners: frozenset[str], own: str, names: Names) -> None:
        self.record = record
        self.event = event
        self.owners = owners
        """The tenants that it is about."""
        self._hidden = hidden
        self._own = own
        """The tenant of its author, which sees it as it is."""
        self._names = names
        self._made: Record | None = None

    def record_for(self, tenant: str) -> Record:
        """Return the record as a tenant sees it."""
        if tenant and tenant == self._own and (self._hidden is None or not isinstance(self.event, _CHANGED)):
            return self.record
        if tenant in self.owners:
            return self._shown(Showing(self._names, tenant))
        if self._made is None:
            self._made = self._written(self._hidden, self._names.user(subjects.who_of(self.record.subject)))
        return self._made

    def _shown(self, showing: Showing) -> Record:
        made = showing.event(self.event, self._hidden)
        author = subjects.who_of(self.record.subject)
        who = showing.user(author)
        if (
            who == author
            and not isinstance(self.event, _CHANGED)
            and msgspec.structs.replace(self.event, id="") == made
        ):
            return self.record
        return self._written(made, who)

    def _written(self, event: Any, who: str) -> Record:
        record = self.record
        if subjects.kind_of(record.subject) == k.Round.__name__:
            return Record(record.seq, record.time, record.subject, _UNREADABLE if event is None else encode(event))
        kind = WITHHELD if event is None else type(event).__name__
        subject = subjects.fact(subjects.cluster_of(record.subject) or "unknown", kind, who)
        return Record(record.seq, record.time, subject, _NOTHING if event is None else encode(event))


class Projection:
    """Folds a log from a state on."""

    def __init__(self, state: State, key: bytes) -> None:
        """`state` is that before the first record; it is folded in place.  `key`: `key_of` a secret."""
        self.state = state
        self.names = Names(state, key)
        self._hiding = Hiding(self.names)

    def take(self, record: Record) -> Seen:
        """Fold the next record.  Raises GapError."""
        owners = self._tenants_of_identities(record)
        folded = evolve(self.state, record)
        event = folded.event
        if not folded.counts:
            return Seen(record, event, None, frozenset(), self._author(record), self.names)
        named = None
        if isinstance(event, REQUESTS):
            named = app_of_request(self.state, event.app, subjects.who_of(record.subject))
        refused = folded.outcome == "refused" and isinstance(event, REQUESTS)
        hidden = self._hiding.event(event, named) if isinstance(event, SHOWN) and not refused else None
        own = self._author(record)
        owners |= self._tenants_of_identities(record) | self._tenants_of(event, named)
        if isinstance(event, k.TrustEnabled | k.UserAdded):
            owners |= {own}
        return Seen(record, event, hidden, owners - {""}, own, self.names)

    def state_for(self, tenant: str) -> State:
        """Return the state as a tenant sees it.  It shares parts with the state of the fold: encode it before the fold
        continues."""
        hidden = self._hiding.struct(self.state)
        return Showing(self.names, tenant).state(hidden)

    def _author(self, record: Record) -> str:
        """Return the tenant of a record's author, "" without one."""
        who, known = subjects.who_of(record.subject), self.state.known
        return known.tenant_of(who) if known is not None else who

    def _tenants_of_identities(self, record: Record) -> frozenset[str]:
        """Return the tenants of the users that a record about identities names, if the state knows them now."""
        known = self.state.known
        if known is None or subjects.kind_of(record.subject) not in _NAMING:
            return frozenset()
        event: Any = decode(record)
        token = known.tokens.get(getattr(event, "token", ""))
        names = (getattr(event, "name", ""), getattr(event, "user", ""), token.user if token is not None else "")
        return frozenset(tenant for name in names if name and (tenant := known.tenant_of(name)))

    def _tenants_of(self, event: Any, named: App | None) -> frozenset[str]:
        """Return the tenants whose apps an event is about."""
        if isinstance(event, k.Round):
            return frozenset().union(*map(self._tenants_of_fact, event.events))
        if isinstance(event, k.NodeJoined) and event.offers is not None:
            offers, known = event.offers, self.state.known
            listed = (tenant for volume in offers.volumes.values() for tenant in volume.tenants)
            users = () if known is None else map(known.tenant_of, offers.secrets or ())
            return frozenset((*listed, *users, offers.tenant))
        if named is not None:
            return frozenset((named.tenant,))
        return self._owners(k.apps_named(event))

    def _tenants_of_fact(self, fact: Any) -> frozenset[str]:
        match fact:
            case k.RecordsRefused():
                known = self.state.known
                return (
                    frozenset(known.tenant_of(record.who) for record in fact.records)
                    if known is not None
                    else frozenset()
                )
            case k.AppAccepted() | k.AppRejected() if tenant_in(fact.submission):
                return frozenset((tenant_in(fact.submission),))
        return self._owners(k.apps_named(fact))

    def _owners(self, apps: Iterable[str]) -> frozenset[str]:
        known = self.state.apps
        return frozenset(known[app].tenant for app in apps if app in known)
