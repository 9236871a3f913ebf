"""Changing identities: the log first, then the configuration of the servers.

The log is authoritative.  If the second step fails, or this process is killed between the two, the next change, or
`dorm user list --apply`, writes the configuration again from the log.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

import msgspec

from dorm.core.identities import refusal_at
from dorm.security.files import SecurityError
from events import subjects
from events.appending import append_event
from events.kinds import NodeEnrolled, NodeExpelled, TrustEnabled, UserAdded, UserRemoved
from events.log.records import LogRefused, LogUnavailable
from events.nats.access import public_key
from events.nats.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.client.client import Client
    from dorm.core.state import State
    from dorm.security.folder import KeyFolder
    from events.identities import Identities
    from events.kinds import Event
    from events.nats.access import Credentials

_TRIES, _PAUSE_S = 50, 0.1


class Admin:
    """An admin who changes the identities of one cluster."""

    def __init__(self, client: Client, folder: KeyFolder | None, *, clock: Callable[[], int]) -> None:
        """`folder`: the cluster's keys and configuration, if they are on this machine."""
        self._client = client
        self._folder = folder
        self._clock = clock

    async def known(self) -> Identities:
        """Return the cluster's identities.  Raises SecurityError if it is open."""
        found = await self._client.look(lambda state: state.known)
        if found is None:
            raise SecurityError(
                "this cluster is open: it knows no users; `dorm init` makes one that does", code="identity.open_cluster"
            )
        return found

    async def enable(self, credentials: Credentials, masters: list[str]) -> None:
        """Make the cluster authenticate its users, with the author as its first admin; if it already does, change nothing."""
        if await self._client.look(lambda state: state.known) is None:
            await self._publish(TrustEnabled(public_key=public_key(credentials.seed), masters=masters))

    async def add_user(self, user: UserAdded) -> None:
        """Raises SecurityError if the log refuses it."""
        await self._publish(user)

    async def remove_user(self, name: str) -> None:
        await self._publish(UserRemoved(name=name))

    async def enroll(self, node: NodeEnrolled) -> None:
        await self._publish(node)

    async def expel(self, node: str) -> None:
        await self._publish(NodeExpelled(node=node))

    async def apply(self) -> bool:
        """Write the servers' configuration from the log; return whether a server here was asked to reload it."""
        if self._folder is None:
            return False
        known = await self.known()
        await asyncio.to_thread(self._folder.write_known, self._client.cluster, known, self._clock())
        return await asyncio.to_thread(self._folder.reload)

    async def _publish(self, event: Event) -> None:
        """Append an event, and wait until it is folded.  Raises SecurityError if the log refuses it, and the log's errors."""
        who = self._client.user
        said = msgspec.structs.replace(event, id=f"{who}.{secrets.token_hex(8)}", at=self._clock(), by=who)
        subject = subjects.fact(self._client.cluster, type(event).__name__, who)
        stored = await append_event(self._client.log, subject, said)

        def refused(state: State) -> tuple[str, str] | None:
            found = refusal_at(state, stored.seq)
            return (found.code, found.reason) if found is not None else None

        if (why := await self._client.look(refused)) is not None:
            raise SecurityError(why[1], code=why[0])


async def admitted(credentials: Credentials) -> None:
    """Wait until the server admits an identity: it reads a changed configuration a moment after the request, and ends
    connections meanwhile. Raises LogRefused or LogUnavailable if it does not."""
    for tries in range(_TRIES):
        try:
            connection = await Connection.open(credentials.url, credentials.cluster, credentials=credentials)
        except (LogRefused, LogUnavailable):
            if tries == _TRIES - 1:
                raise
            await asyncio.sleep(_PAUSE_S)
        else:
            await connection.close()
            return
