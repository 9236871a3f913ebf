"""Which cluster a command connects to, and completion of the names in it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dorm.cli.errors import Fail, run
from dorm.cli.terminal import print_line
from events.addresses import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from dorm.client.client import Client
    from dorm.core.state import State
    from dorm.security.contexts import Context
    from events.nats.access import Credentials
    from events.nats.connection import Connection


def _option(name: str, metavar: str, meaning: str) -> Any:
    return Annotated[
        str | None, typer.Option(f"--{name}", metavar=metavar, envvar=f"DORM_{name.upper()}", help=meaning)
    ]


User = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="NAME",
        envvar="DORM_USER",
        help="User who makes the request; default: that of your credentials, or your login name.",
    ),
]
OPTIONS: dict[str, Any] = {
    "context": _option(
        "context", "NAME", "Cluster and credentials under a name of `dorm context`; default: the one in use."
    ),
    "credentials": _option("credentials", "FILE", "Your credentials on the cluster."),
    "archives": _option(
        "archives", "PLACE", "Where the archives of a rotated log are; default: where its master put them."
    ),
    "url": _option(
        "url",
        "URL",
        "NATS server of the cluster, or several separated by commas; default: that of the "
        "context, of the running `dorm up`, or nats://127.0.0.1:4222.",
    ),
    "cluster": _option("cluster", "NAME", "Name of the cluster on that server."),
    "user": User,
}
"""Options that say which cluster a command is about and who it is there: by the name of the parameter, in the order of help."""
_NAMING = ("context", "credentials", "archives", "url", "cluster")
"""Those that say which cluster it is: its names are completed for any user."""
_COMPLETION_S = 2.0


class Target(NamedTuple):
    """The cluster of a command, and who the command is there."""

    url: str
    cluster: str
    credentials: str = ""
    """Path of a credentials file; "" for an open cluster."""
    folder: str = ""
    """The cluster's folder, if it is on this machine."""
    named: bool = False
    """Whether the command or its environment names the credentials, apart from a context's."""
    archives: str = ""
    """Place of the log's archives, if the command or its environment names it."""

    def read(self) -> Credentials | None:
        """Raises CredentialsError."""
        if not self.credentials:
            return None
        from events.nats.access import read_credentials

        return read_credentials(Path(self.credentials).expanduser())

    def seal_key(self) -> Path | None:
        """Return the masters' key that `dorm init` made, None if it is not on this machine."""
        places = [Path(self.folder, "security")] if self.folder else []
        places += [Path(self.credentials).expanduser().parent] if self.credentials else []
        return next((place / "seal.nk" for place in places if (place / "seal.nk").exists()), None)

    def as_process(self, name: str) -> Target:
        """Return the same with the credentials of one of the cluster's own processes, `master` or `api`, where the cluster's
        folder is on this machine and the command names no credentials."""
        file = Path(self.folder, "security", f"{name}.json")
        usable = self.folder and not self.named and file.exists()
        return self._replace(credentials=str(file)) if usable else self

    async def connection(self, name: str, *, patient: bool = False, **more: Any) -> Connection:
        """Connect.  Raises the log's errors, and CredentialsError."""
        with _without_websockets(self.url):
            from dorm.history import with_history
            from events.nats.connection import Connection
        credentials = await asyncio.to_thread(self.read)
        connection = await Connection.open(
            self.url, self.cluster, name=name, patient=patient, credentials=credentials, **more
        )
        return with_history(connection, self.archives)


class Cluster(NamedTuple):
    """The cluster of a command, as its options and the environment name it."""

    context: str | None = None
    credentials: str | None = None
    archives: str | None = None
    url: str | None = None
    cluster: str | None = None
    user: str | None = None

    def target(self) -> Target:
        """Return the cluster, from options, environment, context, the cluster running on this machine, and defaults.

        Options and environment win over the context, and that over the cluster that runs on this machine; a URL alone goes
        without credentials, unless it is that cluster's.  Raises SecurityError, CredentialsError."""
        return self._chosen()._replace(named=bool(self.credentials), archives=self.archives or "")

    def _chosen(self) -> Target:
        from dorm.local.home import DEFAULT_CLUSTER, DEFAULT_URL, read_running

        url, cluster, credentials = self.url, self.cluster, self.credentials or ""
        if url:
            _warn_about_password(url)
        context = _context(self.context or "", usual=not url and not credentials)
        if context is not None:
            credentials = credentials or context.credentials
            return Target(url or context.url, cluster or context.cluster, credentials, context.folder)
        if credentials:
            known = Target("", "", credentials).read()
            assert known is not None
            return Target(url or known.url, cluster or known.cluster, credentials)
        running = read_running()
        if url and (running is None or url != running.url):
            return Target(url, cluster or DEFAULT_CLUSTER)
        if running is not None:
            folder = str(Path(running.data, "nats")) if running.credentials else ""
            return Target(running.url, cluster or running.cluster, running.credentials, folder)
        return Target(DEFAULT_URL, cluster or DEFAULT_CLUSTER)

    @contextlib.asynccontextmanager
    async def client(self, *, timeout: float = 5.0) -> AsyncIterator[Client]:
        """Yield a connected client.  Reports on stderr when the connection is lost, and when it is back."""
        target = self.target()
        # The connection's dependencies take longer to import than everything else, so they are imported last.
        with _without_websockets(target.url):
            from dorm.client.opening import open_client
        credentials = await asyncio.to_thread(target.read)
        if credentials is not None and self.user and self.user != credentials.name:
            raise Fail(
                f"your credentials on cluster {credentials.cluster} are those of {credentials.name}, not of {self.user}: leave out --user "
                "and DORM_USER, or name other credentials with --credentials",
                code="credentials.other_user",
            )
        connected = await open_client(
            target.url,
            target.cluster,
            user=self.user,
            timeout=timeout,
            credentials=credentials,
            archives=target.archives,
        )
        connected.report_outages(lambda lost: _report_outage(target.url, lost))
        try:
            yield connected
        finally:
            await connected.close()


def _context(name: str, *, usual: bool) -> Context | None:
    """Return the context of this name, else, with `usual`, the one in use, if any."""
    from dorm.local.home import contexts_file

    if not name and not (usual and contexts_file().exists()):
        return None
    from dorm.security.contexts import read_contexts

    contexts = read_contexts(contexts_file())
    return contexts.find(name or contexts.current) if name or contexts.current else None


@cache
def _warn_about_password(url: str) -> None:
    """Warn once."""
    if "@" in url:
        from dorm.cli.program_logs import json_line, wants_json

        text = (
            "the URL holds a password, which process lists and shell histories show; use credentials "
            "(`dorm context add`, or --credentials)"
        )
        print_line(json_line(text, level="warning") if wants_json() else f"warning: {text}", error=True)


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


def _report_outage(url: str, lost: bool) -> None:
    message = (
        f"the connection to {shown(url)} is lost; trying to reach it again, Ctrl-C ends this"
        if lost
        else f"connected to {shown(url)} again"
    )
    with contextlib.suppress(BrokenPipeError):
        print_line(message, error=True, flush=True)


def complete(context: typer.Context, incomplete: str, names: Callable[[State], Iterable[str]]) -> list[str]:
    """Return matching names in the state of the command's cluster; none if no cluster answers at once: a shell that waits for
    TAB shows no errors."""

    async def ask() -> list[str]:
        given = {name: context.params.get(name) or os.environ.get(f"DORM_{name.upper()}") for name in _NAMING}
        async with Cluster(**given).client(timeout=1.0) as connected:
            return sorted({name for name in names(await connected.state()) if name.startswith(incomplete)})

    try:
        completions: list[str] = run(asyncio.wait_for(ask(), _COMPLETION_S))
    except Exception:
        return []
    return completions


def complete_app(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of apps for tab completion."""
    return complete(ctx, incomplete, lambda state: [app.name for app in state.apps.values()])


def complete_node(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of nodes for tab completion."""
    return complete(ctx, incomplete, lambda state: state.nodes)


def complete_app_or_node(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of apps and nodes for tab completion."""
    return complete(ctx, incomplete, lambda state: [*(app.name for app in state.apps.values()), *state.nodes])


def complete_engine(incomplete: str) -> list[str]:
    """Names of engines for tab completion."""
    from events.spec.engines import ENGINES

    return [name for name in ENGINES if name.startswith(incomplete)]


AppName = Annotated[str, typer.Argument(metavar="APP", help="Name or id of the app.", autocompletion=complete_app)]
AppNames = Annotated[
    list[str], typer.Argument(metavar="APP...", help="Names or ids of the apps.", autocompletion=complete_app)
]
