"""A cluster that knows its users: its keys, the configuration of its server, its streams, and the first events of its log.

`dorm init` and `dorm up --trust` do the same, and do it again at each start: what exists is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.client.client import Client
from dorm.master.sealing import open_key
from dorm.security.admin import Admin, first_keys
from dorm.security.files import SecurityError
from dorm.security.folder import PROCESSES
from events.kinds import NodeEnrolled, UserAdded
from events.log.waiting import until_answered
from events.nats.access.credentials import public_key
from events.nats.log import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dorm.security.folder import KeyFolder
    from events.nats.access.credentials import Credentials

_TIMEOUT_S = 10.0
KEYS = "security"
"""The folder of keys, in the folder of the NATS server."""


def make_keys(keys: KeyFolder, cluster: str, url: str, admin: str, hosts: Sequence[str], now: int) -> Credentials:
    """Make what is missing of a cluster's keys; return the admin's credentials.  `hosts` are the server's names and addresses
    for its certificate; without any there is no TLS.  Raises SecurityError, CredentialsError, KeyFileError."""
    if admin in PROCESSES:
        raise SecurityError(f"{admin} can't be the name of an admin: it is a process's", code="identity.name.reserved")
    if hosts:
        keys.make_certificates(cluster, hosts, now)
    for name in PROCESSES:
        keys.make_credentials(cluster, url, name, name)
    open_key(keys.seal_key)
    made = keys.make_credentials(cluster, url, admin, "admin")
    if not keys.exists:
        keys.write_accounts(cluster, first_keys(made), now)
    return made


async def found(
    keys: KeyFolder,
    admin: Credentials,
    url: str,
    nodes: Sequence[str],
    *,
    clock: Callable[[], int],
    users: Sequence[UserAdded] = (),
) -> None:
    """Make the streams, have the log know its first admin, these nodes of this machine and these users, and the server all of
    them.  Raises SecurityError, CredentialsError, and the log's errors."""
    connection = await Connection.open(
        url, admin.cluster, name="dorm-init", timeout=_TIMEOUT_S, create=True, patient=True, credentials=admin
    )
    try:
        client = Client(connection.log, connection.bus, admin.cluster, connection=connection)
        await until_answered(connection.comparisons("any", admin.name).prepare, "making the streams")
        one = Admin(client, keys, clock=clock)
        await one.enable(admin, [open_key(keys.seal_key).public])
        for node in nodes:
            key = public_key(keys.make_credentials(admin.cluster, url, node, "node").seed)
            there = (await one.known()).nodes.get(node)
            if there is None or there.public_key != key:
                await one.enroll(NodeEnrolled(node=node, public_key=key))
        for user in users:
            known = (await one.known()).users.get(user.name)
            if known is None or (known.role, known.public_key) != (user.role, user.public_key):
                await one.add_user(user)
        await one.apply()
    finally:
        await connection.close()
