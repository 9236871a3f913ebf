"""Pseudonyms of other tenants' names: keyed hashes, so they need no table and resist dictionary attacks.

A pseudonym follows from the key and the name alone.  So it is the same in every record, in every snapshot, and in every
process that has the key, and a reader may continue with another process at any record.  An app's id is derived from the
pseudonyms of its name and its submission, as the fold derives it.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

from dorm.core.admission import DIGITS, app_id
from dorm.core.app import name_key
from events.identities import RESERVED, owned_id, tenant_in
from events.quantities import CPU, GPU, MEMORY
from replay.export.pseudonyms import KEPT_USERS

if TYPE_CHECKING:
    from dorm.core.state import App, State

_KEPT = frozenset(("masters", "addresses", "identities", "labels", "values"))
"""Kinds of names that `Names` does not hide because they belong to no tenant: masters, and the nodes' statements about
themselves."""
_PREFIXES = {
    "users": "user", "nodes": "node", "app_references": "missing", "resources": "resource", "policies": "policy",
    "webhooks": "webhook", "tokens": "token",
}  # fmt: skip
_BITS = 60
KEY_BYTES = 32


class Names:
    """The names in one state, as other tenants see them."""

    def __init__(self, state: State, key: bytes) -> None:
        """`state` may be folded further.  `key`: from 16 to 64 bytes, unknown to those who read the pseudonyms."""
        self.state = state
        self._hashed = lru_cache(65536)(lambda kind, text: _hashed(key, kind, text))

    # --- replay.export.disguise.Naming ----------------------------------------------------------------------------------

    def name(self, kind: str, name: str) -> str:
        if kind in _KEPT or self._is_shared(kind, name):
            return name
        if kind == "users":
            return self.user(name)
        if kind == "requests":
            return self.request(name)
        if kind == "app_references" and name in self.state.apps:
            return self.app(self.state.apps[name])
        return f"{_PREFIXES.get(kind, 'name')}-{self._hashed(kind, name)}"

    def request(self, text: str) -> str:
        if not text:
            return ""
        tenant = tenant_in(text)
        return owned_id(self.user(tenant) if tenant else "", f"request-{self._hashed('request', text)}")

    def beginning(self, prefix: str) -> list[str]:
        return [self.app(app) for app in self.state.apps.values() if app.id.startswith(prefix)]

    # --- names of one kind ----------------------------------------------------------------------------------------------

    def user(self, name: str) -> str:
        """Return a user's or a tenant's pseudonym.  The names of nodes, which share subjects with those of users, stay."""
        if name in KEPT_USERS or name in RESERVED or self._is_shared("nodes", name):
            return name
        return f"user-{self._hashed('user', name)}"

    def app_name(self, name: str, tenant: str) -> str:
        """Return the pseudonym of an app's name; equal names of several tenants have different pseudonyms."""
        return f"app-{self._hashed('app', f'{tenant}//{name}')}" if name else ""

    def app(self, app: App) -> str:
        """Return the pseudonym of an app's id."""
        return self.app_of(app.name, app.submission, app.tenant)

    def app_of(self, name: str, submission: str, tenant: str) -> str:
        """Return the pseudonym of the id of the app of this name and submission."""
        return app_id(self.app_name(name, tenant), self.request(submission))

    def key_of(self, app: App) -> str:
        """Return the pseudonym of an app's key in `State.names`."""
        return name_key(self.app_name(app.name, app.tenant), self.request(app.submission))

    def _is_shared(self, kind: str, name: str) -> bool:
        """Return whether a name belongs to the cluster: nodes, their resources, and policies."""
        state = self.state
        if kind == "nodes":
            return name in state.nodes or (state.known is not None and name in state.known.nodes)
        if kind == "resources":
            return name in (CPU, GPU, MEMORY) or any(name in node.capacity for node in state.nodes.values())
        return kind == "policies" and name in state.plugins


def _hashed(key: bytes, kind: str, text: str) -> str:
    given = text.encode("utf-8", "surrogatepass")
    bits = int.from_bytes(hashlib.blake2b(given, key=key, digest_size=8, person=kind.encode()[:16]).digest(), "big")
    return "".join([DIGITS[bits >> shift & 31] for shift in range(_BITS - 1, 0, -5)])
