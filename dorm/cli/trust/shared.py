"""The admin of a command: connected with its credentials, and with the cluster's folder if that is on this machine."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dorm.cli.connect import Cluster
from dorm.cli.errors import Fail
from dorm.cli.terminal import say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dorm.client.client import Client
    from dorm.security.admin import Admin
    from dorm.security.folder import KeyFolder
    from events.nats.access.credentials import Credentials
    from events.nats.connection import Connection

Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the cluster, created by `dorm init`; default: that of the context, or of the "
        "running `dorm up`.",
    ),
]


class Acting:
    """An admin at work."""

    def __init__(self, connection: Connection, credentials: Credentials, client: Client, admin: Admin) -> None:
        self.connection = connection
        self.credentials = credentials
        self.client = client
        self.admin = admin
        self.folder: KeyFolder | None = None


@contextlib.asynccontextmanager
async def acting(cx: Cluster, folder: Path | None) -> AsyncIterator[Acting]:
    """Yield the admin of this command.  Raises Fail, SecurityError, CredentialsError, and the log's errors."""
    from dorm.client.client import Client
    from dorm.local.founding import KEYS
    from dorm.security.admin import Admin
    from dorm.security.folder import KeyFolder

    found = cx.target()
    credentials = found.read()
    if credentials is None:
        raise Fail(
            "identities are changed with an admin's credentials: name them with --credentials or --context",
            code="credentials.none",
        )
    at = folder or (Path(found.folder) if found.folder else None)
    keys = KeyFolder(at.absolute() / KEYS) if at is not None else None
    if keys is not None and not keys.exists:
        raise Fail(f"{at} is not the folder of a cluster with identities; see --folder", code="security.no_folder")
    connection = await found.connection("dorm-admin")
    try:
        client = Client(connection.log, connection.bus, found.cluster, connection=connection)
        one = Acting(connection, credentials, client, Admin(client, keys, clock=time.time_ns))
        one.folder = keys
        yield one
    finally:
        await connection.close()


async def apply(one: Acting) -> None:
    """Write the servers' configuration, and say what remains to be done."""
    told = await one.admin.apply()
    if told:
        return
    if one.folder is None:
        say(
            "the log has it; on the machine of the cluster's folder, run `dorm user list --apply --folder DIR`, so that the "
            "NATS servers know it too"
        )
    else:
        say(
            f"{one.folder.accounts} is written, and no NATS server of this folder runs here: copy it to each server, and "
            "reload them (`nats-server --signal reload`)"
        )
