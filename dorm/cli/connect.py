"""Which cluster a command connects to, and completion of the names in it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dorm.cli.errors import run
from dorm.cli.terminal import say
from events.addresses import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from dorm.client.client import Client
    from dorm.core.state import State

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="DORM_URL",
        help="NATS server of the cluster, or several with commas between; default: what `dorm up` wrote down, "
        "else nats://127.0.0.1:4222.",
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", envvar="DORM_CLUSTER", help="Name of the cluster on that server."),
]
User = Annotated[
    str | None,
    typer.Option(
        "--user", metavar="NAME", envvar="DORM_USER", help="User who makes the request; default: your login name."
    ),
]
_COMPLETION_S = 2.0


def where(url: str | None, cluster: str | None) -> tuple[str, str]:
    """Return URL and cluster name, from flags, environment, the cluster running on this machine, and defaults."""
    from dorm.local.home import DEFAULT_CLUSTER, DEFAULT_URL, read_running

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
    """Yield a connected client.  Reports on stderr when the connection is lost, and when it is back."""
    address, name = where(url, cluster)
    # The connection's dependencies take longer to import than everything else, so they are imported last.
    with _without_websockets(address):
        from dorm.client.client import Client
    connected = await Client.open(address, name, user=user, timeout=timeout)
    connected.tell_outages(lambda lost: _tell_outage(address, lost))
    try:
        yield connected
    finally:
        await connected.close()


@contextlib.contextmanager
def _without_websockets(url: str) -> Iterator[None]:
    """nats-py imports aiohttp only for WebSockets, if it is installed, which takes half of the time of a short command."""
    if url.startswith("ws") or "aiohttp" in sys.modules or "nats" in sys.modules:
        yield
        return
    sys.modules["aiohttp"] = None  # type: ignore[assignment]  # The import system's own sign for "not there".
    try:
        yield
    finally:
        del sys.modules["aiohttp"]


def _tell_outage(url: str, lost: bool) -> None:
    words = (
        f"the connection to {shown(url)} is lost; trying to reach it again, Ctrl-C ends this"
        if lost
        else f"connected to {shown(url)} again"
    )
    with contextlib.suppress(BrokenPipeError):
        say(words, error=True, flush=True)


def complete(context: typer.Context, incomplete: str, names: Callable[[State], Iterable[str]]) -> list[str]:
    """Return matching names in the state of the command's cluster; none if no cluster answers at once: a shell that waits for
    TAB shows no errors."""

    async def ask() -> list[str]:
        given = {
            name: context.params.get(name) or os.environ.get(f"DORM_{name.upper()}") for name in ("url", "cluster")
        }
        async with client(given["url"], given["cluster"], timeout=1.0) as connected:
            return sorted({name for name in names(await connected.state()) if name.startswith(incomplete)})

    try:
        found: list[str] = run(asyncio.wait_for(ask(), _COMPLETION_S))
    except Exception:
        return []
    return found


def complete_app(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of apps for tab completion."""
    return complete(ctx, incomplete, lambda state: [app.name for app in state.apps.values()])


def complete_node(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of nodes for tab completion."""
    return complete(ctx, incomplete, lambda state: state.nodes)


AppName = Annotated[str, typer.Argument(metavar="APP", help="Name or id of the app.", autocompletion=complete_app)]
