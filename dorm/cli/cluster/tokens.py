"""`dorm token add|list|remove`: bearer tokens of the HTTP API."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import WrongUsage
from dorm.cli.output import Format, Output, console, show, show_document

app = typer.Typer(help="Manage tokens with which programs call the HTTP API as a user.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.")]


@app.command("add")
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
    from dorm.client.identities import change
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


@app.command("list")
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
        {"name": one.name, "user": one.user, "expires_at": one.expires_at or None, "position": str(one.seq)}
        for one in tokens
    ]
    for row in rows if output not in (Format.json, Format.yaml) else ():
        row["expires_at"] = moment(row["expires_at"]) if row["expires_at"] else "never"
    show(rows, [("NAME", "name"), ("USER", "user"), ("EXPIRES", "expires_at"), ("POSITION", "position")], output)


@app.command("remove")
@command(user=True)
async def remove(cx: Cluster, name: Name) -> None:
    """Remove a token: the API no longer accepts it.

    [bold]Example[/]

      dorm token remove alice-notebook
    """

    from dorm.client.identities import change
    from events.kinds import TokenRemoved

    async with cx.client() as connected:
        await change(connected, TokenRemoved(token=name))
    console.print(Text(f"token {name} is removed"))
