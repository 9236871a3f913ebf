"""Names in a log, and the pseudonyms that replace them in exports.

A pseudonym is made from the kind of a name and its rank among all names of that kind in the log: `app-017`, `node-2`.  So the
same log gives the same pseudonyms; names keep their order, and every tie that is broken by name or id is broken the same way;
and nothing is left that a dictionary attack could find, unlike with a hash.  Another log, or more of this one, gives other
pseudonyms, so logs to be compared must be exported together.

An app's id is made from its name and a hash of its submission's id (`dorm.core.admission.app_id`), and deciding again
derives it again.  So submissions are numbered: those of one app name in the order of their apps' ids, with numbers that hash
to the same order.  If submissions belong to tenants, their pseudonyms do as well.  If an app `a` was submitted twice,
`a-b-…` may lie between `a-…` and `a-…`; its pseudonym then starts with the first one's.
"""

from __future__ import annotations

from bisect import bisect
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from dorm.core.admission import DIGITS, app_id
from events.identities import owned_id, tenant_in
from events.quantities import CPU, GPU, MEMORY
from events.spec.requirements import Comparison, Either, Every, Expression, Not, requirement
from events.subjects import token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

LONGEST_NAME = 48
KEPT_USERS = frozenset(("", "anonymous"))
"""User names that mean an unknown user, also to the fold."""
_LABELS = frozenset(("type",))
"""Labels that policies read (`dorm.policies.problem.NodeRoom.type`); their values get pseudonyms, in the same order."""
_RESOURCES = (CPU, GPU, MEMORY)
_BEFORE = "adhr"
"""First letters of words that sort before, between and after those."""


class Names(msgspec.Struct):
    """Every name that a log holds, by kind."""

    apps: dict[str, tuple[str, str]] = {}
    """Ids of apps to their names and submissions."""
    app_names: set[str] = set()
    app_references: set[str] = set()
    """Names and ids by which requests and facts refer to an app, whether it exists or not."""
    requests: set[str] = set()
    """Ids of submissions and updates."""
    users: set[str] = set()
    """Users, and publishers' tokens of subjects."""
    agents: set[str] = set()
    """Publishers of events that only agents publish: nodes, or other clients."""
    masters: set[str] = set()
    nodes: set[str] = set()
    addresses: set[str] = set()
    identities: set[str] = set()
    """Identities of machines that have a node's name."""
    resources: set[str] = set()
    labels: set[str] = set()
    values: set[str] = set()
    requirements: set[str] = set()
    images: set[str] = set()
    arguments: set[str] = set()
    variables: set[str] = set()
    settings: set[str] = set()
    """Values of variables."""
    policies: set[str] = set()
    kinds: set[str] = set()
    """Kinds of events that this build does not know."""
    clusters: set[str] = set()
    webhooks: set[str] = set()
    tokens: set[str] = set()
    """Names of bearer tokens."""


class Pseudonyms:
    """A pseudonym of the same kind for every name; each map holds the names that were collected and no others."""

    def __init__(self, names: Names, *, keep_nodes: bool = False) -> None:
        self.app_ids: dict[str, str] = {}
        self.app_names: dict[str, str] = {}
        self.requests: dict[str, str] = {}
        self.nodes = dict(zip(names.nodes, names.nodes, strict=True)) if keep_nodes else _numbered("node", names.nodes)
        self.node_tokens = {token(node): token(name) for node, name in self.nodes.items() if node}
        strangers = {who for who in names.agents if who not in self.nodes and who not in self.node_tokens}
        self.users = _numbered("user", {*names.users, *strangers} - KEPT_USERS) | {name: name for name in KEPT_USERS}
        self.user_tokens = {token(user): name for user, name in self.users.items()} | {"_": "_"}
        _Apps(names, self)
        others = names.app_references.difference(self.app_ids, self.app_names)
        self.app_references = {**_numbered("missing", others), **self.app_names, **self.app_ids}
        for number, request in enumerate(sorted(names.requests.difference(self.requests))):
            self.requests[request] = owned_id(self.users.get(tenant_in(request), ""), f"request-x{number}")
        self.masters = _numbered("master", names.masters)
        self.addresses = _numbered("address", names.addresses)
        self.identities = _numbered("machine", names.identities)
        self.resources = _resources(names.resources)
        self.labels = _numbered("label", names.labels - _LABELS) | {name: name for name in _LABELS & names.labels}
        self.values = _numbered("value", names.values)
        self.images = _numbered("image", names.images)
        self.arguments = _numbered("argument", names.arguments)
        # A spec's secrets are keyed by names that a shell could have.
        self.variables = {name: made.replace("-", "_") for name, made in _numbered("VARIABLE", names.variables).items()}
        self.settings = _numbered("setting", names.settings)
        self.policies = _numbered("policy", names.policies)
        self.kinds = _numbered("Kind", names.kinds)
        self.clusters = _clusters(names.clusters)
        self.webhooks = _numbered("webhook", names.webhooks)
        self.tokens = _numbered("token", names.tokens)
        self.requirements = _requirements(names.requirements, self)

    def key(self) -> dict[str, dict[str, str]]:
        """Return the names by pseudonym, by kind."""
        kinds = {
            "apps": self.app_names, "app_ids": self.app_ids, "users": self.users, "nodes": self.nodes,
            "addresses": self.addresses, "identities": self.identities, "masters": self.masters,
            "clusters": self.clusters, "images": self.images,
            "arguments": self.arguments, "variables": self.variables, "settings": self.settings, "labels": self.labels,
            "values": self.values, "resources": self.resources, "requests": self.requests, "webhooks": self.webhooks,
            "tokens": self.tokens,
        }  # fmt: skip
        return {kind: {made: name for name, made in names.items() if made != name} for kind, names in kinds.items()}

    def expression(self, expression: Expression) -> Expression:
        """Return the same expression over pseudonyms."""
        match expression:
            case Comparison(label=label, values=values):
                renamed = tuple(self.values[value] for value in values)
                return msgspec.structs.replace(expression, label=self.labels[label], values=renamed)
            case Not(part=part):
                return Not(self.expression(part))
            case Every(parts=parts):
                return Every(tuple(map(self.expression, parts)))
            case Either(parts=parts):
                return Either(tuple(map(self.expression, parts)))


def words_of(expression: Expression) -> tuple[set[str], set[str]]:
    """Return the labels and values in a requirement."""
    match expression:
        case Comparison(label=label, values=values):
            return {label}, set(values)
        case Not(part=part):
            return words_of(part)
        case Every(parts=parts) | Either(parts=parts):
            labels, values = zip(*map(words_of, parts), strict=True)
            return set().union(*labels), set().union(*values)


def _numbered(kind: str, names: Iterable[str]) -> dict[str, str]:
    """Number names with equal width, so that they sort as numbers do.  The empty name stays empty."""
    ordered = sorted(set(names) - {""})
    width = len(str(len(ordered)))
    return {"": "", **{name: f"{kind}-{number:0{width}}" for number, name in enumerate(ordered, start=1)}}


def _resources(names: set[str]) -> dict[str, str]:
    """Name resources.  Cores, memory and GPUs keep their names; others keep their place among them."""
    renamed = {name: name for name in (*_RESOURCES, "")}
    for place, letter in enumerate(_BEFORE):
        others = [name for name in names if name not in renamed and bisect(_RESOURCES, name) == place]
        renamed |= _numbered(f"{letter}-resource", others)
    return renamed


def _clusters(names: set[str]) -> dict[str, str]:
    """Name clusters.  A log belongs to one cluster; only records on foreign subjects add others."""
    return {name: "cluster" if not number else f"cluster-{number}" for number, name in enumerate(sorted(names))}


def _requirements(texts: set[str], pseudonyms: Pseudonyms) -> dict[str, str]:
    """Rename requirements.  Policies number them in the order of their texts, so they must stay as many and in the same order;
    if the renamed words do not sort that way, leading white space does."""
    ordered = sorted(texts - {""})
    renamed = []
    for text in ordered:
        try:
            expression = requirement(text).expression
            renamed.append(" " if expression is None else str(pseudonyms.expression(expression)))
        except ValueError:
            renamed.append("?")
    if any(lower >= higher for lower, higher in pairwise(renamed)):
        width = (len(ordered) - 1).bit_length()
        bits = str.maketrans("01", "\t ")
        renamed = [f"{number:0{width}b}".translate(bits) + text for number, text in enumerate(renamed)]
    return {"": "", **dict(zip(ordered, renamed, strict=True))}


class _Apps:
    """Names, submissions and ids of apps, all in order."""

    def __init__(self, names: Names, made: Pseudonyms) -> None:
        self._made = made
        self._submissions = names.apps
        self._ids: dict[str, list[str]] = {name: [] for name in names.app_names}
        for app, (name, _) in sorted(names.apps.items()):
            self._ids[name].append(app)
        self._requests = 0
        self._top = 0
        self._width = len(str(len(self._ids)))
        self._name_all(sorted((name for name in self._ids if name), key=self._first), self._next_top)

    def _first(self, name: str) -> str:
        return (self._ids[name] or [name])[0]

    def _next_top(self) -> str:
        self._top += 1
        return f"app-{self._top:0{self._width}}"

    def _name_all(self, names: Sequence[str], next_name: Callable[[], str]) -> None:
        """Assign pseudonyms to names, which are in the order of their first ids."""
        place = 0
        while place < len(names):
            name, ids = names[place], self._ids[names[place]]
            place += 1
            self._name(name, next_name())
            inside = place
            while ids and inside < len(names) and self._first(names[inside]) < ids[-1]:
                inside += 1
            if inside > place:
                self._name_between(ids, names[place:inside])
            place = inside

    def _name_between(self, ids: list[str], names: Sequence[str]) -> None:
        """Assign pseudonyms to names whose ids lie between those of an app that was submitted more than once."""
        gaps: dict[int, list[str]] = {}
        for name in names:
            gaps.setdefault(bisect(ids, self._first(name)), []).append(name)
        for gap, between in gaps.items():
            before = self._made.app_ids[ids[gap - 1]] if gap else ""
            width, used = len(str(len(between))), iter(range(1, len(between) + 1))
            fits = before and len(before) + width <= LONGEST_NAME

            def next_name(before: str = before, width: int = width, used: Iterator[int] = used) -> str:
                return f"{before}{next(used):0{width}}"

            self._name_all(between, next_name if fits else self._next_top)

    def _name(self, name: str, pseudonym: str) -> None:
        """Assign a pseudonym to a name, its apps' submissions, and their ids."""
        made = self._made
        made.app_names[name] = pseudonym
        new = [app for app in self._ids[name] if self._submissions[app][1] not in made.requests]
        tenants = [tenant_in(self._submissions[app][1]) for app in new]
        if any(tenants):
            requests = [
                self._drawn(pseudonym, made.users.get(tenant, ""), i, len(new)) for i, tenant in enumerate(tenants)
            ]
        else:
            drawn: dict[str, str] = {}
            while len(drawn) < len(new):
                self._requests += 1
                request = f"request-{self._requests}"
                drawn.setdefault(app_id(pseudonym, request), request)
            requests = [request for _, request in sorted(drawn.items())]
        for app, request in zip(new, requests, strict=True):
            made.requests[self._submissions[app][1]] = request
        for app in self._ids[name]:
            made.app_ids[app] = app_id(pseudonym, made.requests[self._submissions[app][1]])

    def _drawn(self, pseudonym: str, tenant: str, place: int, count: int) -> str:
        """Return a submission of this tenant whose app's id is at this place among `count` equal parts of all ids."""
        while True:
            self._requests += 1
            request = owned_id(tenant, f"request-{self._requests}")
            first = app_id(pseudonym, request)[len(pseudonym) + 1 :][:4]
            number = sum(DIGITS.index(digit) << 5 * (3 - i) for i, digit in enumerate(first))
            if number * count >> 20 == place:
                return request
