"""The HTTP API: `dorm serve` runs it, `dorm dashboard` opens its page in a browser, signed in, and `dorm token` manages
tokens with which programs call it as a user.
"""

from __future__ import annotations

import asyncio
import gc
import html
import os
import re
import secrets
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import Fail, WrongUsage
from dorm.cli.output import Format, Output, console, show, show_document
from dorm.cli.program_logs import LogJson, Verbose, configure
from dorm.cli.signals import first_of, run_service
from dorm.local.home import home, read_running
from events.addresses import is_loopback, split

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.api.options import Options
    from dorm.cli.connect import Target
    from dorm.client.client import Client


# --- serve ------------------------------------------------------------------------------------------------------------

_SWITCH_S = 0.001
"""Seconds after which a thread that computes leaves the interpreter to the loop: Python's own 5 ms are a part of an answer's
time on a busy process."""


_SITE = re.compile(r"https?://(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(:[0-9]{1,5})?")
_COLLECT = (10_000, 20, 50)
"""Thresholds of the garbage collector: with Python's own, a busy API is collected a hundred times a second."""


@command(user=True, before="verbose")
async def serve(
    cx: Cluster,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]", envvar="DORM_LISTEN", help="Address to listen on; port 0 takes any free one."
        ),
    ] = "127.0.0.1:4280",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Also answer requests for this host name, such as a proxy's; may be repeated."
        ),
    ] = None,
    embed_in: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE",
            help="Let this site (https://wiki.example) show the dashboard in a frame; may be repeated.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Encrypt connections with this certificate (PEM).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key (PEM).")] = None,
    tls_clients: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Accept client certificates of this authority (PEM) as proof of the user that they name.",
        ),
    ] = None,
    while_stdin_is_open: Annotated[bool, typer.Option("--while-stdin-is-open", hidden=True)] = False,
    verbose: Verbose = 0,
    log_json: LogJson = False,
) -> None:
    """Serve the HTTP API and the dashboard of a cluster.

    The server folds the log like any other reader and asks the master for
    nothing. Any number of these processes can run next to each other, and none
    can harm the cluster. The API is at /v1, described by /v1/openapi.json; the
    dashboard is at /.

    On a cluster that authenticates its users, each request needs a token (dorm
    token add) or a certificate. On an open cluster, everyone who reaches the API
    may do everything that it offers, so it listens only on this machine by
    default. It waits for NATS servers that do not answer yet, and ends on Ctrl-C
    or SIGTERM. New connections use a renewed certificate within seconds, or at
    once after SIGHUP.

    [bold]Examples[/]

      dorm serve

      dorm serve --listen 127.0.0.1:0 --url nats://10.0.0.1:4222 --cluster lab

      curl -s http://127.0.0.1:4280/v1/apps | jq '.items[].name'

      curl -H "Authorization: Bearer $TOKEN" https://lab.example:4280/v1/apps

      curl -N http://127.0.0.1:4280/v1/events/stream
    """
    from dorm.api.options import Options
    from dorm.health.checks import Health

    configure(verbose, log_json)
    host, port = address_of(listen)
    if tls_cert is None and (tls_key is not None or tls_clients is not None):
        raise WrongUsage("--tls-key and --tls-clients need --tls-cert", code="usage.conflict")
    options = Options(
        host=host,
        port=port,
        allow_hosts=tuple(allow_host or ()),
        embed_in=tuple(_site(text) for text in embed_in or ()),
        user=cx.user,
        certificate=tls_cert,
        key=tls_key,
        clients=tls_clients,
    )

    health = Health(f"dorm {version('dorm')}", "the API waits for the NATS servers")
    renewed = asyncio.Event()

    async def work() -> None:
        from dorm.api.resources.process import checks_of
        from dorm.api.serving import serving

        target = cx.target().as_process("api")
        connection = await target.connection("dorm-api", patient=True)
        seen = msgspec.structs.replace(options, pseudonyms=await asyncio.to_thread(_secret, target))
        try:
            async with serving(connection, seen, renewed=renewed) as server:
                server.services.follower.on_ready.append(lambda _state: _freeze_objects())
                health.watch(checks_of(server.services))
                announce(server.url, connection.cluster, options)
                if while_stdin_is_open:
                    await first_of(server.run(), _stdin_closed())
                else:
                    await server.run()
        finally:
            await connection.close()

    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(*_COLLECT)
    await run_service(work(), health, renewed.set)


def _site(text: str) -> str:
    """Return a site that may show the dashboard, as a source of a Content-Security-Policy.  Raises WrongUsage."""
    if not _SITE.fullmatch(text):
        raise WrongUsage(
            f"--embed-in {text[:80]!r} is not a site; write https://wiki.example", code="api.embed.malformed"
        )
    return text


def _secret(target: Target) -> bytes:
    """Return what pseudonyms in users' views are made from: of the masters' key, if it is here, as `dorm views` does."""
    from dorm.master.sealing import pseudonyms_of, read_key

    key = target.seal_key()
    if key is not None and os.access(key, os.R_OK):
        return pseudonyms_of(read_key(key))
    credentials = target.read()
    return credentials.seed if credentials is not None else b""


def _freeze_objects() -> None:
    """Exempt all present objects from garbage collection.  A full collection looks at every object that the modules
    and the state consist of, and stops all threads for a tenth of a second meanwhile."""
    gc.collect()
    gc.freeze()


async def _stdin_closed() -> None:
    """Wait until the program that started this one has ended."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(4096):
        pass


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `[ADDRESS]:PORT`, `HOST` or `:PORT`.  Raises Fail."""
    from dorm.api.options import DEFAULT_PORT

    try:
        host, port = split(text)
    except ValueError:
        raise Fail(
            f"{text[:80]!r} is not an address to listen on; write 127.0.0.1:4280 or [::1]:4280",
            2,
            code="api.listen.malformed",
        ) from None
    return host or "127.0.0.1", DEFAULT_PORT if port is None else port


def announce(url: str, cluster: str, options: Options) -> None:
    """Print its address, and the consequences if others reach it."""
    from dorm.api.identity import warning

    console.print(Text(f"cluster {cluster!r} is at {url}: the dashboard at /, the API at /v1"), soft_wrap=True)
    if not options.loopback:
        console.print(Text(f"warning: {warning(options.host)}", style="yellow"), soft_wrap=True)


# --- dashboard --------------------------------------------------------------------------------------------------------

_PATIENCE_S = 20.0
"""Seconds for a server that is just starting, or has yet to read of the token."""
_PAUSE_S = 0.1
_ANSWER_S = 5.0
_LARGEST = 64 * 1024
_SOON = (401, 502, 503, 504)
"""Statuses of a server that does not know the token yet, or is just starting."""


@command()
async def dashboard(
    cx: Cluster,
    api: Annotated[
        str | None,
        typer.Option(
            "--api", metavar="URL", help="Address of `dorm serve`; default: that of the `dorm up` on this machine."
        ),
    ] = None,
    lasts: Annotated[str, typer.Option(metavar="DURATION", help="How long the browser stays signed in.")] = "12h",
    browser: Annotated[
        bool,
        typer.Option("--browser/--no-browser", help="Open a browser, or print an address that signs in one browser."),
    ] = True,
) -> None:
    """Open the dashboard in a browser, signed in as you.

    On a cluster that authenticates its users, the browser gets a session: a token
    of yours, which `dorm token list` shows and `dorm token remove` ends. No
    secret is in an address that is sent or logged: the browser exchanges a
    one-time code, valid for a minute, for the session's cookie.

    [bold]Examples[/]

      dorm dashboard

      dorm dashboard --no-browser

      dorm dashboard --api https://lab.example:4280 --lasts 1h
    """
    from events.quantities import SECOND, QuantityError, duration

    try:
        seconds = duration(lasts)
    except QuantityError as error:
        raise WrongUsage(f"--lasts: {error}", code=error.code) from None
    where = _address(api)

    async with cx.client() as connected:
        known = await connected.look(lambda state: state.known is not None)
        secret = await _session(connected, time.time_ns() + int(seconds * SECOND)) if known else ""
    address = f"{where}/sign-in#code={await _code(where, secret)}" if secret else f"{where}/"
    if browser and await asyncio.to_thread(_opened, address):
        console.print(Text(f"the dashboard at {where} opens in your browser"), soft_wrap=True)
        return
    once = "; the address is valid once, within a minute" if secret else ""
    console.print(Text(f"open this in a browser{once}:"), soft_wrap=True)
    console.print(Text(f"  {address}"), soft_wrap=True)


def _address(api: str | None) -> str:
    """Raises WrongUsage, Fail."""
    if api is not None:
        if not api.startswith(("http://", "https://")) or "#" in api or "@" in api:
            raise WrongUsage("--api: write an address such as http://127.0.0.1:4280", code="usage.bad_parameter")
        return api.rstrip("/")
    running = read_running()
    if running is None or not running.dashboard:
        raise Fail(
            "no dashboard runs on this machine; start one with `dorm up`, or name one with --api",
            code="page.not_running",
        )
    return running.dashboard


async def _session(connected: Client, ends: int) -> str:
    """Add a token of the user's and return its secret; the user's sessions that are over leave the list."""
    from dorm.api.identity import digest_of, new_secret
    from dorm.client.operator_requests import change
    from events.kinds import TokenAdded, TokenRemoved

    me, prefix = connected.user, f"session-{connected.user[:40]}-"
    over = await connected.look(
        lambda state: [
            each.name
            for each in (state.known.tokens.values() if state.known is not None else ())
            if each.user == me and each.name.startswith(prefix) and 0 < each.expires_at < time.time_ns()
        ]
    )
    for name in over:
        await change(connected, TokenRemoved(token=name))
    secret = new_secret()
    token = f"{prefix}{secrets.token_hex(4)}"
    await change(connected, TokenAdded(token=token, user=me, digest=digest_of(secret), expires_at=ends))
    return secret


async def _code(where: str, secret: str) -> str:
    """Exchange the token for a code, once the server has read of it.  Raises Fail."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return await asyncio.to_thread(_request_code, where, secret)
        except _NotYet as error:
            if time.monotonic() > deadline:
                raise Fail(f"{where} gives no session: {error}", code="page.no_session") from None
        await asyncio.sleep(_PAUSE_S)


class _NotYet(Exception):
    """It may work in a moment."""


def _request_code(where: str, secret: str) -> str:
    request = urllib.request.Request(
        f"{where}/v1/session/codes", data=b"", method="POST", headers={"Authorization": f"Bearer {secret}"}
    )
    # No proxy of the environment gets to see the token of a server on this machine.
    here = is_loopback(urlsplit(where).hostname or "")
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if here else []))
    try:
        with opener.open(request, timeout=_ANSWER_S) as answer:
            return str(msgspec.json.decode(answer.read(_LARGEST))["code"])
    except urllib.error.HTTPError as error:
        if error.code not in _SOON:
            raise Fail(
                f"{where} gives no session: it answers {error.code}; is that the address of `dorm serve`?",
                code="page.no_session",
            ) from None
        raise _NotYet(f"it answers {error.code}") from None
    except OSError as error:
        raise _NotYet(str(getattr(error, "reason", error))) from None
    except (msgspec.MsgspecError, KeyError, TypeError):
        raise _NotYet("its answer can't be read") from None


def _opened(address: str) -> bool:
    """Open a browser at the address, which is in no process list: the browser is given a file that only this user can read,
    and that leads there."""
    from dorm.security.private_files import private_folder, write_private

    file: Path = private_folder(home() / "browser") / "dashboard.html"
    write_private(file, leading_page(address).encode())
    try:
        return webbrowser.open(file.as_uri())
    except webbrowser.Error:
        return False


def leading_page(address: str) -> str:
    """Return a page that leads to an address at once."""
    to = html.escape(address, quote=True)
    return f'<!doctype html>\n<meta charset="utf-8">\n<meta http-equiv="refresh" content="0;url={to}">\n<title>Dorm</title>\n'


# --- tokens of the API ------------------------------------------------------------------------------------------------

tokens = typer.Typer(help="Manage tokens with which programs call the HTTP API as a user.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.")]


@tokens.command("add")
@command(user=True)
async def add(
    cx: Cluster,
    owner: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="USER", help="Owner of the token; default: you. Only admins can create tokens for others."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the token; default: generated.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long it is valid, such as 90d; default: without limit.")
    ] = None,
    output: Output = Format.table,
) -> None:
    """Add a token and print its secret, which is shown only once: the log has only a digest of it.

    [bold]Examples[/]

      dorm token add --expires 90d

      dorm token add --for alice --name alice-notebook
    """
    from events.quantities import SECOND, QuantityError, duration

    try:
        good_for_s = duration(expires) if expires is not None else None
    except QuantityError as error:
        raise WrongUsage(f"--expires: {error}", code=error.code) from None

    from dorm.api.identity import digest_of, new_secret
    from dorm.client.operator_requests import change
    from events.kinds import TokenAdded

    secret = new_secret()
    ends = time.time_ns() + int(good_for_s * SECOND) if good_for_s is not None else 0
    async with cx.client() as connected:
        whose = owner or connected.user
        made = name or f"{whose[:50]}-{secrets.token_hex(4)}"
        await change(connected, TokenAdded(token=made, user=whose, digest=digest_of(secret), expires_at=ends))
    if output in (Format.json, Format.yaml):
        show_document({"name": made, "user": whose, "secret": secret, "expires_at": ends or None}, output)
        return
    console.print(Text(f"token {made} of {whose}; its secret, which is shown only once:\n"), soft_wrap=True)
    console.print(Text(f"  {secret}"), soft_wrap=True)


@tokens.command("list")
@command()
async def list_tokens(cx: Cluster, output: Output = Format.table) -> None:
    """List all tokens, their owners and when they expire. Secrets are not stored.

    [bold]Example[/]

      dorm token list

    JSON: a list of `name`, `user`, `expires_at` (UTC nanoseconds; null for never)
    and `position`, where it was added.
    """

    from replay.words import moment

    async with cx.client() as connected:
        state = await connected.state()
    tokens = list(state.known.tokens.values()) if state.known is not None else []
    rows: list[dict[str, Any]] = [
        {"name": token.name, "user": token.user, "expires_at": token.expires_at or None, "position": str(token.seq)}
        for token in tokens
    ]
    for row in rows if output not in (Format.json, Format.yaml) else ():
        row["expires_at"] = moment(row["expires_at"]) if row["expires_at"] else "never"
    show(rows, [("NAME", "name"), ("USER", "user"), ("EXPIRES", "expires_at"), ("POSITION", "position")], output)


@tokens.command("remove")
@command(user=True)
async def remove(cx: Cluster, name: Name) -> None:
    """Remove a token: the API no longer accepts it.

    [bold]Example[/]

      dorm token remove alice-notebook
    """

    from dorm.client.operator_requests import change
    from events.kinds import TokenRemoved

    async with cx.client() as connected:
        await change(connected, TokenRemoved(token=name))
    console.print(Text(f"token {name} is removed"))
