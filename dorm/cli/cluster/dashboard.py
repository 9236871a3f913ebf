"""`dorm dashboard`: open the dashboard in a browser, signed in."""

from __future__ import annotations

import asyncio
import html
import secrets
import time
import urllib.error
import urllib.request
import webbrowser
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import Fail, WrongUsage
from dorm.cli.output import console
from dorm.local.home import home, read_running
from events.addresses import is_loopback

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.client.client import Client

_PATIENCE_S = 20.0
"""For a server that is just starting, or has yet to read of the token."""
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
    address = f"{where}/sign-in#{await _code(where, secret)}" if secret else f"{where}/"
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
    from dorm.client.identities import change
    from events.kinds import TokenAdded, TokenRemoved

    me, prefix = connected.user, f"session-{connected.user[:40]}-"
    over = await connected.look(
        lambda state: [
            one.name
            for one in (state.known.tokens.values() if state.known is not None else ())
            if one.user == me and one.name.startswith(prefix) and 0 < one.expires_at < time.time_ns()
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
            return await asyncio.to_thread(_asked, where, secret)
        except _NotYet as error:
            if time.monotonic() > deadline:
                raise Fail(f"{where} gives no session: {error}", code="page.no_session") from None
        await asyncio.sleep(_PAUSE_S)


class _NotYet(Exception):
    """It may work in a moment."""


def _asked(where: str, secret: str) -> str:
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
    from dorm.security.files import private_folder, write_private

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
