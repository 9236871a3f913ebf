"""`dorm webhooks`: endpoints to which events are delivered, their secrets, and the process that delivers.

The log holds endpoints but no secrets: these follow from a file of keys, which the deliverer and the commands that print a
secret need.
"""

from __future__ import annotations

import contextlib
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import FAILED, WrongUsage
from dorm.cli.options import Metrics, metrics_address
from dorm.cli.output import Format, Output, console, show, show_document
from dorm.cli.program_logs import LogJson, Verbose, configure
from dorm.cli.signals import run_service

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from dorm.webhooks.sending import Network
    from dorm.webhooks.webhook_keys import Keys

    Work = Callable[..., Coroutine[Any, Any, None]]
    from dorm.webhooks.endpoints import Endpoint


# --- keys and networks ------------------------------------------------------------------------------------------------

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


def keys_of(file: Path | None, cx: Cluster) -> Keys:
    """Return the keys of the cluster that a command goes to.  Raises WebhookKeyError."""
    from dorm.local.home import home, read_running
    from dorm.webhooks.webhook_keys import FILE_NAME, open_keys

    target = cx.target()
    running = read_running()
    folder = home() / target.cluster
    if running is not None and (running.url, running.cluster) == (target.url, target.cluster) and running.data:
        folder = Path(running.data)
    deployed = Path(target.folder, "security", FILE_NAME)
    if target.folder and deployed.exists():  # `dorm deploy keys` made it.
        return open_keys(file or deployed, target.cluster)
    return open_keys(file or folder / FILE_NAME, target.cluster)


# --- the process that delivers ----------------------------------------------------------------------------------------


@command(user=True, before="verbose")
async def run_deliverer(
    cx: Cluster,
    key: KeyFile = None,
    allow: Allow = None,
    metrics: Metrics = None,
    verbose: Verbose = 0,
    log_json: LogJson = False,
) -> None:
    """Deliver the cluster's webhooks until Ctrl-C; `dorm up` does so by itself.

    The log's server keeps the deliverer's position in the log, so nothing is lost
    while it does not run, and several deliverers may run. Requests go only to
    public addresses, unless --allow names a network, and follow no redirects.

    [bold]Examples[/]

      dorm webhooks run --url nats://10.0.0.1:4222 --cluster lab

      dorm webhooks run --allow 10.20.0.0/16

      dorm webhooks run --metrics 9477
    """
    from dorm.health.checks import Health

    configure(verbose, log_json)
    health = Health(f"dorm {version('dorm')}", "the deliverer waits for the NATS servers")
    allowed, serve_at = networks(allow), metrics_address(metrics)

    async def work() -> None:
        from dorm.client.client import login_name
        from dorm.webhooks.deliverer import Deliverer
        from events.subjects import token

        keys = keys_of(key, cx)
        connection = await cx.target().connection("dorm-webhooks", patient=True)
        who = token(cx.user or connection.user or login_name())
        deliverer = Deliverer(connection, keys, who=who, clock=time.time_ns, allowed=allowed)
        health.watch(deliverer.checks)
        try:
            async with contextlib.AsyncExitStack() as stack:
                if serve_at is not None:
                    from dorm.metrics.server import MetricsServer

                    await stack.enter_async_context(MetricsServer(serve_at, [deliverer.metrics], health=health))
                await deliverer.run()
        finally:
            await connection.close()

    await run_service(work(), health)


# --- add, list, remove, rotate, secret, enable, test ------------------------------------------------------------------

app = typer.Typer(
    help="Send events to your own programs over HTTP: an app ended, failed or waits long, a node "
    "is lost, an adjustment.",
    no_args_is_help=True,
)
app.command("run")(run_deliverer)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the webhook.")]
_TEST_S = 30.0


def _seconds(text: str, option: str) -> float:
    from events.quantities import QuantityError, duration

    try:
        return duration(text)
    except QuantityError as error:
        raise WrongUsage(f"{option}: {error}", code=error.code) from None


@app.command("add")
@command(user=True, before="key")
async def add(
    cx: Cluster,
    name: Name,
    to: Annotated[str, typer.Argument(metavar="URL", help="URL to deliver to; everyone who reads the log can see it.")],
    event: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EVENT",
            help="app.ended, app.failed, app.waits, node.lost, node.suspect or adjustment, may be repeated; or app.notify: URLs under this one may be called for apps that ask for it. Default: app.ended, node.lost and node.suspect.",
        ),
    ] = None,
    waits: Annotated[
        str, typer.Option(metavar="DURATION", help="Waiting time after which app.waits reports an app.")
    ] = "1h",
    output: Output = Format.table,
    key: KeyFile = None,
) -> None:
    """Add or change a webhook, and print the secret with which its owner verifies signatures.

    A new webhook delivers events from now on. A changed webhook keeps its secret
    and its position in the log.

    [bold]Examples[/]

      dorm webhooks add pager https://hooks.example.org/dorm --event app.failed --event node.lost

      dorm webhooks add queue https://ops.example.org/waits --event app.waits --waits 30m

      dorm webhooks add teams https://hooks.example.org/teams/ --event app.notify
    """
    waits_s = _seconds(waits, "--waits")

    from dorm.webhooks import webhook_requests

    keys = keys_of(key, cx)
    async with cx.client() as connected:
        made = await webhook_requests.add(
            connected, keys, name, to, event or ["app.ended", "node.lost", "node.suspect"], waits_s
        )
    _show_secret({"name": name, "url": to, "secret": keys.secret(name, made.key)}, output)


def _show_secret(shown: dict[str, str], output: Format) -> None:
    if output in (Format.json, Format.yaml):
        show_document(shown, output)
        return
    console.print(Text(f"webhook {shown['name']} delivers to {shown['url']}"), soft_wrap=True)
    console.print(Text("its secret, with which its owner verifies the signatures:"), soft_wrap=True)
    console.print()
    console.print(Text(f"  {shown['secret']}"), soft_wrap=True)
    console.print(Text(f"\ntry it: dorm webhooks test {shown['name']}"), soft_wrap=True)


@app.command("list")
@command()
async def list_webhooks(cx: Cluster, output: Output = Format.table) -> None:
    """List all webhooks, whether each is active, and how many of its events wait for another attempt.

    [bold]Example[/]

      dorm webhooks list

    JSON: a list of `name`, `url`, `events`, `state` (active or disabled), `code`
    and `reason` (why it is disabled), `changed_at` (UTC nanoseconds), `set_by`,
    `waits_s`, `key`, and `pending` and `unread`: how many records wait for
    another attempt, and how many have not been looked at; null before a deliverer
    has run.
    """

    from dorm.webhooks import webhook_requests
    from dorm.webhooks.deliverer import standing_of

    async with cx.client() as connected:
        endpoints = list(await webhook_requests.all_endpoints(connected))
    connection = await cx.target().connection("dorm-webhooks")
    try:
        rows = []
        for endpoint in endpoints:
            standing = await standing_of(connection.places, endpoint)
            rows.append(_row(endpoint, standing.pending if standing else None, standing.unread if standing else None))
    finally:
        await connection.close()
    if output in (Format.json, Format.yaml):
        show_document(rows, output)
        return
    shown = [{**row, "events": ", ".join(row["events"])} for row in rows]
    columns = [("NAME", "name"), ("STATE", "state"), ("PENDING", "pending"), ("EVENTS", "events"), ("URL", "url")]
    show(shown, columns, output, note=("WHY", "reason"))


def _row(endpoint: Endpoint, pending: int | None, unread: int | None) -> dict[str, Any]:
    return {
        "name": endpoint.name,
        "url": endpoint.url,
        "events": list(endpoint.events),
        "state": endpoint.state,
        "code": endpoint.code,
        "reason": endpoint.reason,
        "changed_at": endpoint.changed_at,
        "set_by": endpoint.set_by,
        "waits_s": endpoint.waits_s,
        "key": endpoint.key,
        "pending": pending,
        "unread": unread,
    }


@app.command("remove")
@command(user=True)
async def remove(cx: Cluster, name: Name) -> None:
    """Remove a webhook; its undelivered events are dropped.

    [bold]Example[/]

      dorm webhooks remove pager
    """

    from dorm.webhooks import webhook_requests

    async with cx.client() as connected:
        await webhook_requests.remove(connected, name)
    console.print(Text(f"webhook {name} is removed"))


@app.command("rotate")
@command(user=True, before="key")
async def rotate(
    cx: Cluster,
    name: Name,
    overlap: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the old secret also signs; 0s if it has leaked.")
    ] = "24h",
    output: Output = Format.table,
    key: KeyFile = None,
) -> None:
    """Give a webhook a new secret, and print it. For a while, both secrets sign, so that its owner can switch at any
    time.

    [bold]Examples[/]

      dorm webhooks rotate pager

      dorm webhooks rotate pager --overlap 0s
    """
    overlap_s = _seconds(overlap, "--overlap")

    from dorm.webhooks import webhook_requests

    keys = keys_of(key, cx)
    async with cx.client() as connected:
        made = await webhook_requests.rotate(connected, keys, name, overlap_s)
    _show_secret({"name": name, "url": made.url, "secret": keys.secret(name, made.key)}, output)


@app.command("secret")
@command(before="key")
async def secret(cx: Cluster, name: Name, output: Output = Format.table, key: KeyFile = None) -> None:
    """Print a webhook's secret again. The command needs the key file, because the log contains no secrets.

    [bold]Example[/]

      dorm webhooks secret pager
    """

    from dorm.webhooks import webhook_requests

    keys = keys_of(key, cx)
    async with cx.client() as connected:
        endpoint = await webhook_requests.find(connected, name)
    _show_secret({"name": name, "url": endpoint.url, "secret": keys.secret(name, endpoint.key)}, output)


@app.command("enable")
@command(user=True)
async def enable(
    cx: Cluster,
    name: Name,
    skip: Annotated[
        bool, typer.Option("--skip", help="Deliver from now on; skip events that happened meanwhile.")
    ] = False,
) -> None:
    """Enable a disabled webhook, from where it stopped.

    [bold]Examples[/]

      dorm webhooks enable pager

      dorm webhooks enable pager --skip
    """

    from dorm.webhooks import webhook_requests

    async with cx.client() as connected:
        await webhook_requests.enable(connected, name, skip=skip)
    console.print(Text(f"webhook {name} is enabled"))


@app.command("test")
@command(user=True)
async def try_out(cx: Cluster, name: Name, output: Output = Format.table) -> None:
    """Make the deliverer send one test event, and print the endpoint's answer; exit code 1 if it fails.

    [bold]Example[/]

      dorm webhooks test pager

    JSON: `delivered`, `status` (of HTTP, 0 for no answer) and `reason`.
    """

    from dorm.webhooks import webhook_requests

    began = time.monotonic()
    async with cx.client() as connected:
        tested = await webhook_requests.try_out(connected, name, _TEST_S)
    shown = {"delivered": tested.delivered, "status": tested.status, "reason": tested.reason}
    if output in (Format.json, Format.yaml):
        show_document(shown, output)
    else:
        took = f"{time.monotonic() - began:.1f} s"
        text = (
            f"delivered in {took}: it answers {tested.status}"
            if tested.delivered
            else f"not delivered: {tested.reason}"
        )
        console.print(Text(text), soft_wrap=True)
    if not tested.delivered:
        raise typer.Exit(FAILED)
