"""Who may do what on a cluster: identities folded from the log, and the rules that master and agents share.

A cluster whose log holds no `TrustEnabled` is open, and has no `Identities`.  On every other one a record's author is its
subject's last token, whatever the body says, and `role_of` says what that author may do (`events.kinds.identities.Role`).

A submission's id starts with its tenant: `<tenant>//<anything>`.  So another tenant cannot take over an id by guessing
or repeating it, and everything that derives from a submission's id (the app's id, its name's scope) belongs to the
tenant as well.

A node's name alone does not identify its machine: an operator may give the successor of a cut-off machine the same name
while the first one still runs containers. So each agent keeps a random identity in its node's folder and adds it to every
event. The first identity that joins holds the name until it leaves cleanly or its lease ends (`may_hold`, `ends`). The
master's fold and every agent's fold apply the rules here, so they agree on the holder, and on whether it has left.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from events import kinds as k
from events.fields import CoreWord, FreeText, Label, LabelValue, NodeKey, Own, ResourceKey, TokenKey, UserKey, holds
from events.kinds import Role

MOST_REFUSALS = 32
"""Number of refused records that are remembered."""
MOST_IDENTITIES = 10_000
"""Largest number of users, of nodes and of tokens each: a state with all of them has to fit into memory and snapshots."""
RESERVED = frozenset(("master", "_"))
"""Names that no user and no node can have: subjects use them."""
DELIVERER = "webhooks"
"""The reader whose identity deliverers of webhooks use: it also reports on what they delivered."""
_OWNED = re.compile(r"([A-Za-z0-9_@+=-]{1,64})//.")
_OPERATORS = ("operator", "admin")


class User(msgspec.Struct, frozen=True):
    name: UserKey
    role: Role
    tenant: UserKey
    public_key: Own
    seq: int
    """The record that states it."""


class Enrolment(msgspec.Struct, frozen=True):
    """What a node may claim when it joins; see `NodeEnrolled`."""

    node: NodeKey
    public_key: Own
    seq: int
    capacity: dict[ResourceKey, int] | None = None
    labels: dict[Label, LabelValue] | None = None
    addresses: list[Annotated[str, holds("address")]] = []
    ports: tuple[int, int] | None = None


class Token(msgspec.Struct, frozen=True):
    """A bearer token of the HTTP API; see `TokenAdded`."""

    name: TokenKey
    user: UserKey
    digest: Annotated[str, holds("secret")]
    expires_at: int
    seq: int


class Refusal(msgspec.Struct, frozen=True):
    """A record that its author may not publish."""

    seq: int
    at: int
    """Log time (UTC ns)."""
    who: UserKey
    kind: CoreWord
    about: Own
    """The app, node, user or webhook that it names; "" for none."""
    code: CoreWord
    reason: FreeText
    answered: bool = False
    """Whether its author gets an answer of its own (`AppRejected`)."""


class Identities(msgspec.Struct):
    """Everyone whom a cluster knows, at one sequence."""

    since: int
    """Sequence of the first `TrustEnabled`."""
    masters: Annotated[list[str], holds("own")] = []
    """Public keys, one of which has to sign each round.  Empty if rounds need no signature."""
    masters_since: int = 0
    """The record that named them."""
    masters_before: Annotated[list[str], holds("own")] = []
    """Those that counted before it."""
    users: dict[UserKey, User] = {}
    nodes: dict[NodeKey, Enrolment] = {}
    tokens: dict[TokenKey, Token] = {}
    refused: int = 0
    """Number of records that were refused because their authors may not publish them."""
    refusals: list[Refusal] = []
    """The latest of them, at most `MOST_REFUSALS`."""
    told: int = 0
    """Up to which sequence the master has reported them (`RecordsRefused`)."""
    untold: int = 0
    """Number of refusals that it has yet to report; those with an answer of their own do not count."""

    def role_of(self, who: str) -> Role | None:
        user = self.users.get(who)
        return user.role if user is not None else None

    def tenant_of(self, who: str) -> str:
        """Return a user's tenant, "" for an unknown user."""
        user = self.users.get(who)
        return user.tenant if user is not None else ""

    def operates(self, who: str) -> bool:
        """Return whether this user may change what belongs to others or to all."""
        return self.role_of(who) in _OPERATORS

    def delivers(self, who: str) -> bool:
        """Return whether this user may report on webhooks that it delivers."""
        return (who == DELIVERER and self.role_of(who) == "reader") or self.operates(who)

    def keys_at(self, basis: int) -> list[str]:
        """Return the keys, one of which has to sign a round with this basis; empty if it needs no signature.  A round
        that was decided before the keys changed may be stored after that."""
        return self.masters if basis >= self.masters_since else self.masters_before

    def unreported_refusals(self) -> list[Refusal]:
        """Return the refused records that the master has yet to report, as far as they are kept."""
        return [refusal for refusal in self.refusals if refusal.seq > self.told and not refusal.answered]


class NotAllowed(msgspec.Struct, frozen=True):
    """Why a record changes nothing: a stable code, and a sentence for people."""

    code: str
    reason: str


def tenant_in(submission: str) -> str:
    """Return the tenant that a submission's id belongs to, "" for the id of an open cluster."""
    match = _OWNED.match(submission)
    return match[1] if match else ""


def owned_id(tenant: str, id: str) -> str:
    """Return an id of this tenant."""
    return id if not tenant or tenant_in(id) == tenant else f"{tenant}//{id}"


FOUNDING = 100
"""Records of a log among which a cluster is made to know its users."""


def takes(known: Identities | None, event: Any, who: str, seq: int) -> NotAllowed | None:
    """Return why an event about identities has no effect; None if it has.

    `seq`: its place in the log.  An open cluster believes everyone, so anyone could make it know users of their own choice,
    and end its masters by that: it is made to know its users among its first records, or never."""
    if isinstance(event, k.TokenAdded | k.TokenRemoved):
        return _takes_token(known, event, who)
    if known is None:
        if isinstance(event, k.TrustEnabled):
            if seq > FOUNDING:
                return NotAllowed(
                    "identity.was_open",
                    f"the cluster has been open for more than {FOUNDING} records; make a new one with `dorm init`",
                )
            return None if who not in RESERVED else NotAllowed("identity.name.reserved", f"{who} is no user's name")
        return NotAllowed(
            "identity.open_cluster", "the cluster is open: it knows no users; `dorm init` makes it know them"
        )
    if known.role_of(who) != "admin":
        return NotAllowed("identity.not_admin", f"{who} is no admin, and only admins change identities")
    match event:
        case k.UserAdded():
            return _takes_user(known, event)
        case k.UserRemoved():
            if event.name not in known.users:
                return NotAllowed("identity.user.not_found", f"there is no user {event.name}")
            return _last_admin(known, event.name)
        case k.NodeEnrolled():
            if event.node in RESERVED or event.node in known.users:
                return NotAllowed("identity.name.taken", f"{event.node} can't be a node's name: it is in use")
            if event.node not in known.nodes and len(known.nodes) >= MOST_IDENTITIES:
                return NotAllowed("identity.too_many", f"there are {MOST_IDENTITIES:,} nodes already; expel some")
        case k.NodeExpelled():
            if event.node not in known.nodes:
                return NotAllowed("identity.node.not_found", f"there is no enrolled node {event.node}")
    return None


def _takes_user(known: Identities, event: k.UserAdded) -> NotAllowed | None:
    if event.name in RESERVED or event.name in known.nodes:
        return NotAllowed("identity.name.taken", f"{event.name} can't be a user's name: it is in use")
    if event.tenant in RESERVED:  # What subjects say of all tenants would be this one's.
        return NotAllowed("identity.name.reserved", f"{event.tenant} is no tenant's name")
    if event.name not in known.users and len(known.users) >= MOST_IDENTITIES:
        return NotAllowed("identity.too_many", f"there are {MOST_IDENTITIES:,} users already; remove some")
    return _last_admin(known, event.name) if event.role != "admin" else None


def _last_admin(known: Identities, name: str) -> NotAllowed | None:
    admins = [user.name for user in known.users.values() if user.role == "admin"]
    if admins != [name]:
        return None
    return NotAllowed("identity.last_admin", f"{name} is the only admin; add another one first")


def _takes_token(known: Identities | None, event: k.TokenAdded | k.TokenRemoved, who: str) -> NotAllowed | None:
    if known is None:
        return NotAllowed(
            "identity.open_cluster", "the cluster is open: it knows no users; `dorm init` makes it know them"
        )
    token = known.tokens.get(event.token)
    if isinstance(event, k.TokenRemoved) and token is None:
        return NotAllowed("identity.token.not_found", f"there is no token {event.token[:64]}")
    admin, user = known.role_of(who) == "admin", event.user if isinstance(event, k.TokenAdded) else ""
    owners = {user, token.user if token is not None else ""} - {""}
    if who not in known.users or (not admin and owners != {who}):
        return NotAllowed("identity.not_admin", f"{who} may add and remove tokens of {who} only; an admin may any")
    if user and user not in known.users:
        return NotAllowed("identity.user.not_found", f"there is no user {user}")
    if user and token is None:
        free = MOST_IDENTITIES - len(known.tokens)
        if not free:
            return NotAllowed("identity.too_many", f"there are {MOST_IDENTITIES:,} tokens already; remove some")
        # Users add tokens for themselves: one of them leaves room for all others.
        if not admin and len(known.tokens) >= free:
            own = sum(token.user == user for token in known.tokens.values())
            if own >= free:
                return NotAllowed("identity.too_many", f"{user} has {own:,} tokens already; remove some")
    return None


def after(known: Identities | None, event: Any, who: str, seq: int) -> Identities:
    """Return the identities once an event that `takes` allows is folded; those given are changed in place."""
    if known is None:
        known = Identities(since=seq)
    match event:
        case k.TrustEnabled():
            known.masters_before, known.masters_since = known.masters, seq
            known.masters = [key for key in event.masters if key]
            before = known.users.get(who)
            key = event.public_key or (before.public_key if before is not None else "")
            tenant = before.tenant if before is not None else who
            known.users[who] = User(who, "admin", tenant, key, seq)
            for node in event.nodes:
                if node not in known.users and node not in RESERVED and len(known.nodes) < MOST_IDENTITIES:
                    known.nodes.setdefault(node, Enrolment(node, "", seq))
        case k.UserAdded():
            known.users[event.name] = User(event.name, event.role, event.tenant or event.name, event.public_key, seq)
        case k.UserRemoved():
            del known.users[event.name]
            known.tokens = {name: token for name, token in known.tokens.items() if token.user != event.name}
        case k.NodeEnrolled():
            known.nodes[event.node] = Enrolment(
                event.node,
                event.public_key,
                seq,
                dict(sorted(event.capacity.items())) if event.capacity is not None else None,
                dict(sorted(event.labels.items())) if event.labels is not None else None,
                list(event.addresses),
                event.ports,
            )
        case k.NodeExpelled():
            del known.nodes[event.node]
        case k.TokenAdded():
            known.tokens[event.token] = Token(event.token, event.user, event.digest, event.expires_at, seq)
        case k.TokenRemoved():
            del known.tokens[event.token]
    return known


def claims_too_much(enrolled: Enrolment, event: k.NodeJoined) -> NotAllowed | None:
    """Return what a join claims beyond the node's enrolment; None if it claims no more."""
    most, labels, ports = enrolled.capacity, enrolled.labels, enrolled.ports
    if most is not None:
        for name, amount in sorted(event.capacity.items()):
            if amount > most.get(name, 0):
                text = f"it claims {amount} of {name[:64]}, and is enrolled with {most.get(name, 0)}"
                return NotAllowed("node.capacity.beyond_enrolment", text)
    if labels is not None:
        for name, value in sorted(event.labels.items()):
            if labels.get(name) != value:
                return NotAllowed("node.label.not_enrolled", f"it claims the label {name[:64]}={value[:64]}")
    if enrolled.addresses and event.address not in enrolled.addresses:
        text = f"it claims the address {event.address[:64]}, and is enrolled with {', '.join(enrolled.addresses)[:200]}"
        return NotAllowed("node.address.not_enrolled", text)
    if ports is not None and not ports[0] <= event.ports[0] <= event.ports[1] <= ports[1]:
        text = (
            f"it claims the ports {event.ports[0]} to {event.ports[1]}, and is enrolled with {ports[0]} to {ports[1]}"
        )
        return NotAllowed("node.ports.beyond_enrolment", text)
    return None


def may_hold(holder: str, identity: str, *, gone: bool) -> bool:
    """Return whether a join as `identity` takes effect.  `gone`: no container of the holder can run any more.

    Agents before 0.6.0 have no identity (""): the first agent with one succeeds them, since it usually is the same node after
    an upgrade."""
    return gone or not holder or holder == identity


def ends(joined: str, left: str) -> bool:
    """Return whether a `NodeLeft` of the process `left` ends the stay of a node that joined by the process `joined`.

    An agent that stops before its `NodeLeft` is acknowledged may be started again, and its successor may join first: servers
    keep the order of one connection's messages only.  What arrives late must not count the successor's containers as ended.
    Agents before 0.6.0 name no process ("")."""
    return not joined or not left or joined == left
