"""`dorm context add|use|list|show|remove`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from dorm.cli.errors import USAGE, Fail
from dorm.cli.output import Format, Output, console, show, show_document
from dorm.local.home import DEFAULT_CLUSTER, contexts_file

app = typer.Typer(help="Manage contexts: names for clusters and your credentials there.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


@app.command("add")
def add(
    name: Name,
    credentials: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your credentials, which also hold the server's address.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="NATS server; default: that of the credentials.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the cluster; default: that of the credentials.")
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
) -> None:
    """Add a context, or replace the one with this name.

    [bold]Examples[/]

      dorm context add lab --credentials alice.json --use

      dorm context add test --server nats://10.0.0.9:4222 --cluster test
    """
    from dorm.security.contexts import Context, read_contexts, write_contexts
    from events.nats.access.credentials import read_credentials

    path = credentials.expanduser().absolute() if credentials is not None else None
    about = read_credentials(path) if path is not None else None
    address = server or (about.url if about is not None else "")
    if not address:
        raise Fail("a context needs --credentials or --server", USAGE, code="context.no_server")
    if "@" in address:
        raise Fail(
            "a context must not hold a password; use credentials (`dorm user add` creates them)",
            2,
            code="context.password",
        )
    context = Context(
        address,
        cluster or (about.cluster if about is not None else DEFAULT_CLUSTER),
        str(path) if path is not None else "",
    )
    changed = read_contexts(contexts_file()).having(name, context)
    write_contexts(contexts_file(), changed.using(name) if use else changed)
    console.print(Text(f"context {name}: cluster {context.cluster} at {context.url}"), soft_wrap=True)


@app.command("use")
def use(
    name: Annotated[str, typer.Argument(metavar="NAME", help='Name of the context; "" for none.')],
) -> None:
    """Use a context from now on; --context, --url and their environment variables override it.

    [bold]Example[/]

      dorm context use lab
    """
    from dorm.security.contexts import read_contexts, write_contexts

    write_contexts(contexts_file(), read_contexts(contexts_file()).using(name))
    console.print(Text(f"commands go to {name}" if name else "commands use no context"))


@app.command("list")
def list_contexts(output: Output = Format.table) -> None:
    """List contexts.

    [bold]Example[/]

      dorm context list
    """
    from dorm.security.contexts import read_contexts

    found = read_contexts(contexts_file())
    rows: list[dict[str, Any]] = [
        {
            "current": name == found.current,
            "name": name,
            "cluster": one.cluster,
            "url": one.url,
            "credentials": one.credentials,
        }
        for name, one in sorted(found.contexts.items())
    ]
    if output in (Format.json, Format.yaml):
        show_document(rows, output)
        return
    if not rows:
        console.print(Text("there are no contexts; `dorm context add` creates one"))
        return
    shown = [{**row, "current": "*" if row["current"] else ""} for row in rows]
    columns = [
        ("", "current"),
        ("NAME", "name"),
        ("CLUSTER", "cluster"),
        ("URL", "url"),
        ("CREDENTIALS", "credentials"),
    ]
    show(shown, columns, output)


@app.command("show")
def show_context(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the context; default: the one in use.")
    ] = None,
) -> None:
    """Show a context and your identity there. Keys are never printed.

    [bold]Example[/]

      dorm context show lab
    """
    from dorm.security.contexts import read_contexts
    from events.nats.access.credentials import read_credentials

    found = read_contexts(contexts_file())
    wanted = name or found.current
    if not wanted:
        raise Fail("no context is in use; name one, or choose one with `dorm context use`", code="context.none")
    one = found.find(wanted)
    who = str(read_credentials(Path(one.credentials))) if one.credentials else "nobody: the cluster is open"
    show_document(
        {"name": wanted, "cluster": one.cluster, "url": one.url, "identity": who, "credentials": one.credentials},
        Format.yaml,
    )


@app.command("remove")
def remove(name: Name) -> None:
    """Remove a context; the credentials file stays.

    [bold]Example[/]

      dorm context remove lab
    """
    from dorm.security.contexts import read_contexts, write_contexts

    write_contexts(contexts_file(), read_contexts(contexts_file()).without(name))
    console.print(Text(f"context {name} is removed"))
