"""The accounts, permissions and limits of a cluster, as configuration of a NATS server.

Pure: the identities on the log (`events.identities`) and the public keys of the cluster's own processes in, text out.
The file can therefore be written again from the log at any time, and the permissions at a moment follow from the log's state
at that moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.security.quoting import quoted, quoted_list
from dorm.security.roles import LOG, NODES, USERS, Services, access, account_of, exported
from events.nats.access import IMPORTED_API, OWN_API, largest_message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from events.identities import Identities

_LIMITS = {
    USERS: f"max_payload: {largest_message('user')}, max_connections: 1000, max_subscriptions: 50000",
    NODES: "max_connections: 20000, max_subscriptions: 200000",
}
"""Keeps people from using up the connections of nodes and masters."""


class Key(msgspec.Struct, frozen=True):
    """Someone who may connect."""

    name: str
    role: str
    public_key: str
    tenant: str = ""
    """Of a user; "" for the tenant named like the user."""


def known_keys(known: Identities) -> list[Key]:
    """Return the users and nodes that the log knows with a key."""
    users = [Key(user.name, user.role, user.public_key, user.tenant) for user in known.users.values()]
    nodes = [Key(node.node, "node", node.public_key) for node in known.nodes.values()]
    return [key for key in (*users, *nodes) if key.public_key]


def accounts(cluster: str, keys: Iterable[Key]) -> str:
    """Return the configuration's part about accounts.  Of two identities with one key, which a server refuses, the first one
    counts."""
    mine: dict[str, list[Key]] = {LOG: [], USERS: [], NODES: []}
    taken: set[str] = set()
    for key in sorted(keys, key=lambda key: (account_of(key.role), key.role, key.name)):
        if key.public_key not in taken:
            taken.add(key.public_key)
            mine[account_of(key.role)].append(key)
    exports = exported(cluster)
    blocks = [_account(cluster, account, mine[account], exports) for account in (LOG, USERS, NODES)]
    return (
        f"# Who may do what on cluster {cluster}, as its log says: written by `dorm init`, `dorm user` and `dorm node`.\n"
        "# The next one of them overwrites a change by hand.\n"
        "accounts {\n" + "".join(blocks) + "}\n"
    )


def _account(cluster: str, account: str, keys: list[Key], exports: Mapping[str, Mapping[str, Services]]) -> str:
    lines = ["jetstream: enabled"] if account == LOG else []
    if account in _LIMITS:
        lines.append(f"limits {{ {_LIMITS[account]} }}")
    lines.append(_list("users", [_user(cluster, key) for key in keys]))
    if account in exports:
        lines.append(_list("exports", _exports(exports[account])))
    imports = [
        _import(exporter, subject)
        for exporter, importers in exports.items()
        if account in importers
        for subject in (*importers[account].single, *importers[account].many)
    ]
    if imports:
        lines.append(_list("imports", imports))
    return f"  {account} {{\n" + "".join(f"    {line}\n" for line in lines) + "  }\n"


def _user(cluster: str, key: Key) -> str:
    may = access(cluster, key.role, key.name, key.tenant)
    return (
        f"{{ nkey: {key.public_key}, permissions: {{ # {key.role} {key.name}\n"
        f"        publish: {{ allow: {quoted_list(may.publish)} }}\n"
        f"        subscribe: {{ allow: {quoted_list(may.subscribe)} }} }} }}"
    )


def _exports(importers: Mapping[str, Services]) -> list[str]:
    """Return each service once, with all accounts that import it."""
    accounts_of: dict[tuple[str, bool], list[str]] = {}
    for account, services in importers.items():
        for many, subjects in ((False, services.single), (True, services.many)):
            for subject in subjects:
                accounts_of.setdefault((subject, many), []).append(account)
    return [
        f"{{ service: {quoted(subject)}, {'response_type: stream, ' if many else ''}accounts: {quoted_list(found)} }}"
        for (subject, many), found in accounts_of.items()
    ]


def _import(exporter: str, subject: str) -> str:
    to = f", to: {quoted(subject.replace(OWN_API, IMPORTED_API, 1))}" if subject.startswith(OWN_API) else ""
    return f"{{ service: {{ account: {exporter}, subject: {quoted(subject)} }}{to} }}"


def _list(name: str, items: list[str]) -> str:
    return f"{name}: [\n" + "".join(f"      {item}\n" for item in items) + "    ]"
