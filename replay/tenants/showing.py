"""A tenant's view of an event: its own part in full, in place of a stranger's view.

Sentences about an app may name others' apps (`room is being made for …`), by their ids, which cannot be confused with other
text.  Those are replaced by the pseudonyms that the rest of the projection has.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dorm.core.admission import ID_DIGITS
from events import kinds as k
from events.identities import tenant_in

if TYPE_CHECKING:
    from dorm.core.app import App, Gates
    from dorm.core.state import Node, State, Submission
    from events.identities import Identities
    from replay.tenants.names import Names

T = TypeVar("T")
_ID = re.compile(rf"(?<![a-z0-9-])[a-z0-9][a-z0-9-]*-(?:{ID_DIGITS})(?![a-z0-9-])")
_CUT = re.compile(r"([a-z0-9][a-z0-9-]*)(\.\.\. \([0-9,]+ more characters\))")
"""The end of a text that was cut (`events.limits.clipped`), maybe within an id."""
_TENANT = re.compile(r"(?<= belongs to | and serves )[A-Za-z0-9_@+=-]{1,64}(?=; its tenant | only: )")
"""The tenant that such a sentence names: the owner of an app that another user may not change, or of a node that runs
plain processes."""
_encode = msgspec.json.Encoder().encode


class Showing:
    """One tenant's part of a state and of the events that it was folded from."""

    def __init__(self, names: Names, tenant: str) -> None:
        self._names = names
        self.tenant = tenant

    @property
    def _state(self) -> State:
        return self._names.state

    def owns(self, app_id: str) -> bool:
        """Return whether an app of the state is the tenant's."""
        app = self._state.apps.get(app_id)
        return app is not None and app.tenant == self.tenant

    def is_own_user(self, name: str) -> bool:
        """Return whether a user is of the tenant, according to the cluster."""
        known = self._state.known
        return known is not None and known.tenant_of(name) == self.tenant

    def user(self, name: str) -> str:
        return name if name == self.tenant or self.is_own_user(name) else self._names.user(name)

    # --- events ---------------------------------------------------------------------------------------------------------

    def event(self, event: Any, hidden: Any) -> Any:
        """Return an event that is about this tenant's apps or users; `hidden` is what strangers see of it."""
        if isinstance(event, k.Round):
            facts = [self._fact(fact, other) for fact, other in zip(event.events, hidden.events, strict=True)]
            return msgspec.structs.replace(hidden, events=facts)
        if isinstance(event, k.NodeJoined):
            return msgspec.structs.replace(hidden, offers=self._offers(event.offers))
        made = msgspec.structs.replace(event, id="", by=self.user(event.by))
        if isinstance(event, k.TrustEnabled):
            # No round of a projection is as a master signed it.
            return msgspec.structs.replace(made, masters=[])
        if isinstance(event, k.UserAdded):
            return self._user_added(made)
        if isinstance(event, k.OfSessions):  # An operator may have entered it.
            made = msgspec.structs.replace(made, user=self.user(event.user))
        return self.without_others(made)

    def _offers(self, offers: T) -> T:
        """Return a node's offers, with the names of other tenants hidden, and without the secrets of other tenants' users."""
        if not isinstance(offers, k.NodeOffers):
            return offers
        volumes = {
            name: msgspec.structs.replace(offer, tenants=list(map(self.user, offer.tenants)))
            for name, offer in offers.volumes.items()
        }
        secrets = None
        if offers.secrets is not None:
            secrets = {user: names for user, names in offers.secrets.items() if self.is_own_user(user)}
        return msgspec.structs.replace(
            offers, volumes=volumes, secrets=secrets, tenant=offers.tenant and self.user(offers.tenant)
        )

    def _user_added(self, event: k.UserAdded) -> k.UserAdded:
        """A user of this tenant may be its admin and add users of other tenants, or move to another tenant."""
        tenant = event.tenant or event.name
        own = self.is_own_user(event.name) or tenant == self.tenant
        return msgspec.structs.replace(
            event,
            name=event.name if own else self._names.user(event.name),
            tenant=event.tenant and (tenant if tenant == self.tenant else self._names.user(tenant)),
            public_key=event.public_key if own else "",
        )

    def _fact(self, fact: Any, hidden: Any) -> Any:
        match fact:
            case k.Resized():
                return self._resized(fact, hidden)
            case k.RecordsRefused():
                records = [
                    self.without_others(record) if self.is_own_user(record.who) else hidden_record
                    for record, hidden_record in zip(fact.records, hidden.records, strict=True)
                ]
                return msgspec.structs.replace(hidden, records=records)
            case k.NodeSuspected():
                apps, failures = self._failed_there(fact, hidden)
                return msgspec.structs.replace(hidden, apps=apps, failures=failures)
            case k.AppAccepted() | k.AppRejected() if tenant_in(fact.submission):
                # An answer belongs to the tenant that asked, no matter whose app it is about.
                owned = tenant_in(fact.submission) == self.tenant
            case _:
                owned = self.owns(getattr(fact, "app", ""))
        if not owned:
            return hidden
        return fact if isinstance(fact, k.AppAccepted) else self.without_others(fact)

    def _failed_there(self, known: Any, hidden: Any) -> tuple[list[str], list[str]]:
        """Put the tenant's apps back into the apps that failed on a node, and into how each of them failed."""
        owned = [self.owns(app) for app in known.apps]
        apps = [app if own else other for own, app, other in zip(owned, known.apps, hidden.apps, strict=True)]
        pairs = zip(known.failures, hidden.failures, strict=True)
        failures = [
            self.text(why) if number < len(owned) and owned[number] else other
            for number, (why, other) in enumerate(pairs)
        ]
        return apps, failures

    def _node(self, node: Node, hidden: Node) -> Node:
        """Put the tenant's apps back into the failures on a node."""
        made = msgspec.structs.replace(hidden, offers=self._offers(node.offers))
        if node.failed:
            pairs = zip(node.failed.items(), hidden.failed.items(), strict=True)
            made.failed = dict(known if self.owns(known[0]) else other for known, other in pairs)
        if node.suspect is not None and hidden.suspect is not None:
            apps, failures = self._failed_there(node.suspect, hidden.suspect)
            probe = node.suspect.probe if self.owns(node.suspect.probe) else hidden.suspect.probe
            made.suspect = msgspec.structs.replace(hidden.suspect, apps=apps, failures=failures, probe=probe)
            if all(map(self.owns, node.suspect.apps)):
                made.suspect = msgspec.structs.replace(made.suspect, needs=node.suspect.needs)
        return made

    def _resized(self, fact: k.Resized, hidden: k.Resized) -> k.Resized:
        """Put the tenant's apps back into a decision, so that data of others is hidden once for all tenants."""
        own = {app for app in (*fact.reasons, *fact.shortage, *fact.batches) if self.owns(app)}
        pseudonyms = {app: self._names.app(self._state.apps[app]) for app in own}

        def back(given: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
            own_part = {app: self.without_others(given[app]) for app in own & given.keys()}
            if not own_part:
                return others
            kept = dict(others)
            for app in own_part:
                kept.pop(pseudonyms[app], None)
            return {**kept, **dict(sorted(own_part.items()))}

        changes = [
            change if self.owns(change.app) else hidden_change
            for change, hidden_change in zip(fact.changes, hidden.changes, strict=True)
        ]
        return msgspec.structs.replace(
            hidden,
            changes=changes,
            reasons=back(fact.reasons, hidden.reasons),
            shortage=back(fact.shortage, hidden.shortage),
            batches=back(fact.batches, hidden.batches),
        )

    # --- states ---------------------------------------------------------------------------------------------------------

    def state(self, hidden: State) -> State:
        """Return the state as the tenant sees it; `hidden` is what strangers see of it."""
        state, names = self._state, self._names
        apps: dict[str, App] = {}
        for (app, app_state), (pseudonym, hidden_app) in zip(state.apps.items(), hidden.apps.items(), strict=True):
            apps |= {app: self._app(app_state)} if app_state.tenant == self.tenant else {pseudonym: hidden_app}
        submissions: dict[str, Submission] = {}
        for (id, waiting), (pseudonym, unseen) in zip(
            state.submissions.items(), hidden.submissions.items(), strict=True
        ):
            is_own = (waiting.tenant or waiting.who) == self.tenant
            submissions |= {id: waiting} if is_own else {pseudonym: unseen}
        keys = {
            (key if self.owns(app) else names.key_of(state.apps[app])): app
            if self.owns(app)
            else names.app(state.apps[app])
            for key, app in state.names.items()
        }
        nodes = {name: self._node(state.nodes[name], app_state) for name, app_state in hidden.nodes.items()}
        made = msgspec.structs.replace(hidden, apps=apps, submissions=submissions, names=keys, nodes=nodes)
        if state.known is not None and hidden.known is not None:
            made.known = self._identities(state.known, hidden.known)
        return made

    def _app(self, app: App) -> App:
        waiting = self.without_others(app.waiting) if app.waiting is not None else None
        gates = self._gates(app.gates) if app.gates is not None else app.gates
        reasons = {"end_reason": self.text(app.end_reason), "cancel_reason": self.text(app.cancel_reason)}
        return msgspec.structs.replace(app, waiting=waiting, gates=gates, **reasons)

    def _gates(self, gates: Gates) -> Gates:
        """A user who holds an app of this tenant, such as an operator, is shown like any other user."""
        hold = gates.hold
        if hold is None:
            return gates
        shown = msgspec.structs.replace(hold, by=self.user(hold.by), reason=self.text(hold.reason))
        return msgspec.structs.replace(gates, hold=shown)

    def _identities(self, known: Identities, hidden: Identities) -> Identities:
        users = {self.user(name): known_one if self.is_own_user(name) else hidden.users[self._names.user(name)]
                 for name, known_one in known.users.items()}  # fmt: skip
        tokens = {name: known_one for name, known_one in known.tokens.items() if self.is_own_user(known_one.user)}
        refusals = [self.without_others(refusal) for refusal in known.refusals if self.is_own_user(refusal.who)]
        return msgspec.structs.replace(hidden, users=users, tokens=tokens, refusals=refusals)

    # --- sentences ------------------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """Return a text with the pseudonyms of others' apps."""
        if not text:
            return text
        shown = _TENANT.sub(lambda match: self.user(match[0]), text)
        return _ID.sub(self._other, _CUT.sub(self._cut, shown))

    def without_others(self, value: T) -> T:
        """Return a part of an event with this done for all its texts."""
        body = _encode(value).decode()
        changed = self.text(body)
        return value if changed == body else msgspec.json.decode(changed, type=type(value))

    def _cut(self, match: re.Match[str]) -> str:
        """Remove an id of another tenant that was cut in half."""
        apps = self._state.apps
        other = any(app.startswith(match[1]) for app, app_state in apps.items() if app_state.tenant != self.tenant)
        return match[2] if other else match[0]

    def _other(self, match: re.Match[str]) -> str:
        app = self._state.apps.get(match[0])
        return match[0] if app is None or app.tenant == self.tenant else self._names.app(app)
