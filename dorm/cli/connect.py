"""Which cluster a command talks to, and completion of the names in it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Annotated

import typer

from dorm.client import Client
from dorm.home import DEFAULT_CLUSTER, DEFAULT_URL, read_running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="DORM_URL",
        help="NATS server of the cluster; default: what `dorm up` wrote down, else " + DEFAULT_URL,
    ),
]
ClusterName = Annotated[
    str | None, typer.Option("--cluster", envvar="DORM_CLUSTER", help="Name of the cluster on that server.")
]
User = Annotated[str | None, typer.Option("--user", envvar="DORM_USER", help="Who asks; default: your login name.")]


def where(url: str | None, cluster: str | None) -> tuple[str, str]:
    """URL and cluster name, from flags, environment, what runs on this machine, and defaults."""
    running = read_running()
    if url:
        return url, cluster or DEFAULT_CLUSTER
    if running is not None:
        return running.url, cluster or running.cluster
    return DEFAULT_URL, cluster or DEFAULT_CLUSTER


@contextlib.asynccontextmanager
async def client(
    url: str | None, cluster: str | None, *, user: str | None = None, timeout: float = 5.0
) -> AsyncIterator[Client]:
    """A connected client."""
    address, name = where(url, cluster)
    connected = await Client.open(address, name, user=user, timeout=timeout)
    try:
        yield connected
    finally:
        await connected.close()


def complete_app(incomplete: str) -> list[str]:
    """Names of apps for tab completion; none where no cluster answers at once."""

    async def names() -> list[str]:
        async with client(os.environ.get("DORM_URL"), os.environ.get("DORM_CLUSTER"), timeout=1.0) as connected:
            state = await connected.state()
            return sorted({app.name for app in state.apps.values() if app.name.startswith(incomplete)})

    try:
        return asyncio.run(asyncio.wait_for(names(), 2.0))
    except Exception:
        return []


def complete_node(incomplete: str) -> list[str]:
    """Names of nodes for tab completion."""

    async def names() -> list[str]:
        async with client(os.environ.get("DORM_URL"), os.environ.get("DORM_CLUSTER"), timeout=1.0) as connected:
            return sorted(node for node in (await connected.state()).nodes if node.startswith(incomplete))

    try:
        return asyncio.run(asyncio.wait_for(names(), 2.0))
    except Exception:
        return []


AppName = Annotated[str, typer.Argument(metavar="APP", help="Name or id of the app.", autocompletion=complete_app)]
