"""Opening a client with credentials.

me = read_credentials(Path("alice.json"))
async with await open_client(me.url, me.cluster, credentials=me) as client:
    await client.submit({"name": "hello", "command": ["sleep", "5"], "demand": {"cpu": 1}})
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.client.client import Client
from dorm.history import with_history
from events.nats.connection import Connection

if TYPE_CHECKING:
    from events.nats.access import Credentials


async def open_client(
    url: str,
    cluster: str,
    *,
    user: str | None = None,
    timeout: float = 5.0,
    credentials: Credentials | None = None,
    archives: str = "",
) -> Client:
    """Connect; the user is that of the credentials, unless another one is named.  Raises LogUnavailable, LogRefused or
    CredentialsError with a line that says what to do.  `archives` is where the log's archives are, if not where the log
    says."""
    connection = await Connection.open(url, cluster, name="dorm-client", timeout=timeout, credentials=credentials)
    with_history(connection, archives)
    return Client(connection.log, connection.bus, cluster, user=user, connection=connection)
