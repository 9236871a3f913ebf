"""A cluster that knows its users: its keys, the configuration of its server, its streams, and the first events of its log.

`dorm init` and `dorm up` do the same, and repeat it at each start: existing parts are kept.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from dorm.client.client import Client
from dorm.master.sealing import open_key
from dorm.security.files import SecurityError
from dorm.security.folder import PROCESSES, Key
from dorm.security.joining import Admin, admitted
from events.kinds import NodeEnrolled, UserAdded
from events.log.records import until_answered
from events.nats.access import public_key
from events.nats.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from dorm.security.folder import KeyFolder
    from events.nats.access import Credentials

_TIMEOUT_S = 10.0
KEYS = "security"
"""The folder of keys, in the folder of the NATS server."""


def knows_users(server: Path) -> bool:
    """Return whether the folder of a NATS server holds a cluster that authenticates its users.  Keys are made before
    the log, so a first start that was interrupted leaves no log without them."""
    return (server / KEYS).exists()


def has_log(server: Path) -> bool:
    """Return whether a NATS server has started on this folder."""
    return (server / "jetstream").exists()


def make_keys(
    keys: KeyFolder,
    cluster: str,
    url: str,
    admin: str,
    hosts: Sequence[str],
    now: int,
    nodes: Sequence[str] = (),
    *,
    readers: Sequence[str] = (),
) -> Credentials:
    """Create the missing keys of a cluster; return the admin's credentials.  `hosts` are the server's names and
    addresses for its certificate; without any there is no TLS.  `nodes` are those of this machine, and `readers`
    processes; the server lets both in from its first start.  Raises SecurityError, CredentialsError, KeyFileError."""
    if admin in (*PROCESSES, *readers):
        raise SecurityError(f"{admin} can't be the name of an admin: it is a process's", code="identity.name.reserved")
    if hosts:
        keys.make_certificates(cluster, hosts, now)
    for name in PROCESSES:
        keys.make_credentials(cluster, url, name, name)
    open_key(keys.seal_key)
    made = keys.make_credentials(cluster, url, admin, "admin", alone=True)
    first = [made, *(keys.make_credentials(cluster, url, node, "node") for node in nodes)]
    first += [keys.make_credentials(cluster, url, reader, "reader") for reader in readers]
    if not keys.exists:
        keys.write_accounts(
            cluster,
            [Key(credentials.name, credentials.role, public_key(credentials.seed)) for credentials in first],
            now,
        )
    return made


async def found(
    keys: KeyFolder,
    admin: Credentials,
    url: str,
    nodes: Sequence[str],
    *,
    clock: Callable[[], int],
    users: Sequence[UserAdded] = (),
) -> str:
    """Create the streams, put the first admin, these nodes of this machine and these users on the log, and admit them to the
    server.  Return the admin's tenant.  Raises SecurityError, CredentialsError, and the log's errors."""
    connection = await Connection.open(
        url, admin.cluster, name="dorm-init", timeout=_TIMEOUT_S, create=True, patient=True, credentials=admin
    )
    try:
        client = Client(connection.log, connection.bus, admin.cluster, connection=connection)
        await until_answered(connection.comparisons("any", admin.name).prepare, "making the streams")
        administration = Admin(client, keys, clock=clock)
        await administration.enable(admin, [open_key(keys.seal_key).public])
        for node in nodes:
            key = public_key(keys.credentials(node).seed)
            there = (await administration.known()).nodes.get(node)
            if there is None or there.public_key != key:
                await administration.enroll(NodeEnrolled(node=node, public_key=key))
        for user in users:
            listed = (await administration.known()).users.get(user.name)
            if listed is None or (listed.role, listed.public_key) != (user.role, user.public_key):
                await administration.add_user(user)
        known = await administration.known()
        # A server that reloads its accounts is unavailable for a moment, so it only reloads when needed.
        if not await asyncio.to_thread(keys.matches, admin.cluster, known, clock()) and await administration.apply():
            for node in nodes:
                await admitted(replace(keys.credentials(node), url=url))
            await until_answered(connection.log.end, "waiting for the server's new accounts")
        return known.tenant_of(admin.name)
    finally:
        await connection.close()
