"""A client of the cluster that `dorm up` runs on this machine, for programs of the user who started it.

async with await open_running() as client:
    await client.submit({"name": "hello", "command": ["sleep", "5"], "demand": {"cpu": 1}})
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from dorm.client.opening import open_client
from dorm.local.home import read_running
from events.errors import DormError
from events.nats.access import read_credentials

if TYPE_CHECKING:
    from dorm.client.client import Client


class NotRunning(DormError):
    """No cluster runs on this machine, according to the record of this user's `dorm up`."""

    code = "cluster.not_running"


async def open_running(*, user: str | None = None, timeout: float = 5.0) -> Client:
    """Connect with the credentials of that cluster.  `user`: the author of requests on an open cluster; `timeout` in seconds.
    Raises NotRunning, CredentialsError, and the log's errors."""
    running = await asyncio.to_thread(read_running)
    if running is None:
        raise NotRunning("no cluster runs on this machine; start one with `dorm up`, or name one by its URL")
    credentials = await asyncio.to_thread(read_credentials, Path(running.credentials)) if running.credentials else None
    return await open_client(running.url, running.cluster, user=user, timeout=timeout, credentials=credentials)
