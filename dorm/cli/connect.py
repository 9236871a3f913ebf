"""Which cluster a command connects to, and completion of the names in it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import sys
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dorm.cli.errors import Fail, run
from dorm.cli.terminal import say
from events.addresses import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from dorm.client.client import Client
    from dorm.core.state import State
    from dorm.security.contexts import Context
    from events.nats.access import Credentials
    from events.nats.connection import Connection

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="DORM_URL",
        help="NATS server of the cluster, or several separated by commas; default: that of the "
        "context, of the running `dorm up`, or nats://127.0.0.1:4222.",
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", envvar="DORM_CLUSTER", help="Name of the cluster on that server."),
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
_COMPLETION_S = 2.0


class Target(NamedTuple):
    """The cluster of a command, and who the command is there."""

    url: str
    cluster: str
    credentials: str = ""
    """Path of a credentials file; "" for an open cluster."""
    folder: str = ""
    """The cluster's folder, if it is on this machine."""

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
        usable = self.folder and not names_credentials() and file.exists()
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
        return with_history(connection, archives_place())


_given: ContextVar[dict[str, str]] = ContextVar("given")
"""Values of the options that `add_options` gives to commands."""


def add_options(command: Any) -> None:
    """Give a command that names a cluster the options that say who it is there."""
    found = {param.name: param for param in command.params}
    if "url" not in found or "context" in found:
        return
    for name, metavar, meaning in (
        ("context", "NAME", "Cluster and credentials under a name of `dorm context`; default: the one in use."),
        ("credentials", "FILE", "Your credentials on the cluster."),
        ("archives", "PLACE", "Where the archives of a rotated log are; default: where its master put them."),
    ):
        if name in found:
            continue
        option = copy.copy(found["url"])
        option.name, option.opts, option.envvar = name, [f"--{name}"], f"DORM_{name.upper()}"
        option.metavar, option.help = metavar, meaning
        option.expose_value, option.callback = False, _note
        command.params.insert(command.params.index(found["url"]), option)


def _note(_: Any, param: Any, value: str | None) -> str | None:
    others = {name: one for name, one in _given.get({}).items() if name != param.name}
    _given.set({**others, param.name: value} if value else others)
    return value


def archives_place() -> str:
    """Return where the command or its environment says that the log's archives are, "" if neither does."""
    return _given.get({}).get("archives", "")


def names_credentials() -> bool:
    """Return whether the command or its environment names credentials, apart from a context's."""
    return "credentials" in _given.get({})


def where(url: str | None, cluster: str | None) -> tuple[str, str]:
    """Return URL and cluster name, from flags, environment, context, the cluster running on this machine, and defaults."""
    return target(url, cluster)[:2]


def target(url: str | None, cluster: str | None) -> Target:
    """Return the cluster of a command.  Flags and environment win over the context, and that over the cluster that runs on
    this machine; a URL alone goes without credentials, unless it is that cluster's.  Raises SecurityError,
    CredentialsError."""
    from dorm.local.home import DEFAULT_CLUSTER, DEFAULT_URL, read_running

    if url:
        _mind_password(url)
    given = _given.get({})
    credentials = given.get("credentials", "")
    context = _context(given.get("context", ""), usual=not url and not credentials)
    if context is not None:
        credentials = credentials or context.credentials
        return Target(url or context.url, cluster or context.cluster, credentials, context.folder)
    if credentials:
        found = Target("", "", credentials).read()
        assert found is not None
        return Target(url or found.url, cluster or found.cluster, credentials)
    running = read_running()
    if url and (running is None or url != running.url):
        return Target(url, cluster or DEFAULT_CLUSTER)
    if running is not None:
        folder = str(Path(running.data, "nats")) if running.credentials else ""
        return Target(running.url, cluster or running.cluster, running.credentials, folder)
    return Target(DEFAULT_URL, cluster or DEFAULT_CLUSTER)


def _context(name: str, *, usual: bool) -> Context | None:
    """Return the context of this name, else, with `usual`, the one in use, if any."""
    from dorm.local.home import contexts_file

    if not name and not (usual and contexts_file().exists()):
        return None
    from dorm.security.contexts import read_contexts

    contexts = read_contexts(contexts_file())
    return contexts.find(name or contexts.current) if name or contexts.current else None


@cache
def _mind_password(url: str) -> None:
    """Warn once."""
    if "@" in url:
        from dorm.cli.program_logs import json_line, wants_json

        text = (
            "the URL holds a password, which process lists and shell histories show; use credentials "
            "(`dorm context add`, or --credentials)"
        )
        say(json_line(text, level="warning") if wants_json() else f"warning: {text}", error=True)


@contextlib.asynccontextmanager
async def client(
    url: str | None, cluster: str | None, *, user: str | None = None, timeout: float = 5.0
) -> AsyncIterator[Client]:
    """Yield a connected client.  Reports on stderr when the connection is lost, and when it is back."""
    found = target(url, cluster)
    # The connection's dependencies take longer to import than everything else, so they are imported last.
    with _without_websockets(found.url):
        from dorm.client.opening import open_client
    mine = await asyncio.to_thread(found.read)
    if mine is not None and user and user != mine.name:
        raise Fail(
            f"your credentials on cluster {mine.cluster} are those of {mine.name}, not of {user}: leave out --user and "
            "DORM_USER, or name other credentials with --credentials",
            code="credentials.other_user",
        )
    connected = await open_client(
        found.url,
        found.cluster,
        user=user,
        timeout=timeout,
        credentials=mine,
        archives=archives_place(),
    )
    connected.report_outages(lambda lost: _report_outage(found.url, lost))
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


def _report_outage(url: str, lost: bool) -> None:
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
