"""Options and other common parts of the commands about webhooks: a cluster, a user, a file of keys.

@command(app, "remove")
async def remove(session: Session, name: Name) -> None:
    async with session.client() as client: ...
"""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from dorm.cli.connect import ClusterName, Url, User, client, target
from dorm.cli.errors import WrongUsage, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from dorm.client.client import Client
    from dorm.webhooks.keys import Keys
    from dorm.webhooks.sending import Network

    Work = Callable[..., Coroutine[Any, Any, None]]

KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="File from which the keys are derived, the same as the deliverer's; created if it does "
        "not exist. Default: webhooks.key in the cluster's data folder, or in the folder of `dorm deploy keys`.",
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NETWORK",
        help="Also deliver to this network (10.1.0.0/16, loopback, private); may be repeated. "
        "Default: public addresses only.",
    ),
]


def networks(texts: list[str] | None) -> tuple[Network, ...]:
    """Raises WrongUsage."""
    from dorm.webhooks.sending import NetworkError, parse_networks

    try:
        return parse_networks(texts or ())
    except NetworkError as error:
        raise WrongUsage.of(error) from None


def keys_of(file: Path | None, url: str | None, cluster: str | None) -> Keys:
    """Return the keys of the cluster that a command goes to.  Raises WebhookKeyError."""
    from dorm.local.home import home, read_running
    from dorm.webhooks.keys import FILE_NAME, open_keys

    found = target(url, cluster)
    running = read_running()
    folder = home() / found.cluster
    if running is not None and (running.url, running.cluster) == (found.url, found.cluster) and running.data:
        folder = Path(running.data)
    deployed = Path(found.folder, "security", FILE_NAME)
    if found.folder and deployed.exists():  # `dorm deploy keys` made it.
        return open_keys(file or deployed, found.cluster)
    return open_keys(file or folder / FILE_NAME, found.cluster)


class Session:
    """The cluster that a command goes to, and in whose name."""

    def __init__(
        self, url: str | None = None, cluster: str | None = None, user: str | None = None, key: Path | None = None
    ) -> None:
        self.url, self.cluster = url, cluster
        self._user, self._key = user, key

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with client(self.url, self.cluster, user=self._user) as connected:
            yield connected

    def keys(self) -> Keys:
        """Raises WebhookKeyError."""
        return keys_of(self._key, self.url, self.cluster)


_OF_SESSION: dict[str, Any] = {"url": Url, "cluster": ClusterName, "user": User, "key": KeyFile}


def command(app: typer.Typer, name: str, *, user: bool = True, keys: bool = False) -> Callable[[Work], Work]:
    """Make a command of a coroutine that takes a `Session` first.  The command gets the session's options: which cluster, with
    `user` in whose name, with `keys` which file of keys."""
    names = ["url", "cluster", *(["user"] if user else []), *(["key"] if keys else [])]

    def register(work: Work) -> Work:
        hints = get_type_hints(work, include_extras=True)
        own = [one.replace(annotation=hints[one.name]) for one in inspect.signature(work).parameters.values()][1:]
        kind = inspect.Parameter.KEYWORD_ONLY
        added = [inspect.Parameter(one, kind, default=None, annotation=_OF_SESSION[one]) for one in names]

        def called(**given: Any) -> None:
            session = Session(**{one: given.pop(one) for one in names})
            run(work(session, **given))

        parameters = [one.replace(kind=kind) for one in own] + added
        # This is where typer looks for the parameters.
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        called.__doc__ = work.__doc__
        app.command(name)(called)
        return work

    return register
