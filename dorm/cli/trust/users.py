"""`dorm user add|remove|list|key`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import USAGE, Fail
from dorm.cli.output import Format, Output, console, show, show_document
from dorm.cli.terminal import say
from dorm.cli.trust.shared import Folder, acting, apply

app = typer.Typer(
    help="Manage users: who may submit apps, operate the cluster, or change identities.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user: letters, digits and any of _ @ + = -.")]


@app.command("add")
@command()
async def add(
    cx: Cluster,
    name: Name,
    role: Annotated[
        str,
        typer.Option(
            help="reader (only reads), user (submits apps and changes their own), operator (also drains "
            "nodes, changes settings and others' apps) or admin (also changes identities)."
        ),
    ] = "user",
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Owner of the user's apps; default: the user alone.")
    ] = "",
    public_key: Annotated[
        str,
        typer.Option(metavar="KEY", help="The user's public key, from `dorm user key`; default: generate a key here."),
    ] = "",
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the credentials; default: NAME.json.")
    ] = None,
    folder: Folder = None,
) -> None:
    """Add a user, or change a user's role or key; the earlier key becomes invalid.

    The command writes the user's credentials to a file, which is everything that the user needs:
    `dorm context add NAME --credentials FILE`. With --public-key, the private key never leaves the user's machine, and
    the file does not contain it.

    [bold]Examples[/]

      dorm user add alice

      dorm user add olga --role operator --to /root/olga.json

      dorm user add bob --public-key UBZEK6M5QLTGV4PZ6S3D7NQY2H5XCW4JIRNOB7K3F6A2TLGEM5QDVYUS
    """
    import msgspec

    from dorm.security.folder import save_credentials
    from events.kinds import UserAdded
    from events.nats.access.credentials import Credentials, CredentialsError, new_seed
    from events.nats.access.credentials import public_key as public_of

    seed = b"" if public_key else new_seed()
    try:
        user = msgspec.convert(
            {"name": name, "role": role, "tenant": tenant, "public_key": public_key or public_of(seed)}, UserAdded
        )
    except msgspec.ValidationError as error:
        raise Fail(f"this can't be a user: {error}", USAGE, code="user.malformed") from None
    file = to or Path(f"{name}.json")
    if file.exists():
        raise Fail(f"{file} exists; choose another file with --to", code="credentials.file_exists")

    from dorm.security.admin import admitted

    try:
        async with acting(cx, folder) as one:
            await one.admin.add_user(user)
            await apply(one)
            about = one.credentials
            if not seed:
                console.print(Text(_without_key(about.cluster, about.url, name, role)))
                return
            made = Credentials(about.cluster, about.url, name, role, seed, about.ca)
            save_credentials(file, made)
            if one.folder is not None:
                await admitted(made)
            console.print(
                Text(f"{role} {name} is added; the credentials are in {file}: hand them over, and delete them here")
            )

    except CredentialsError as error:
        raise Fail.of(error) from None


def _without_key(cluster: str, url: str, name: str, role: str) -> str:
    return (
        f"{role} {name} is added; on the machine with the key, write it into a file (mode 600) as\n"
        f'{{"cluster": "{cluster}", "url": "{url}", "name": "{name}", "role": "{role}", "seed": "file:KEYFILE", "ca": "…"}}\n'
        "where `ca` is that of your own credentials, if they have one"
    )


@app.command("remove")
@command()
async def remove(cx: Cluster, name: Name, folder: Folder = None) -> None:
    """Remove a user: connections with the user's key end immediately. The user's apps stay; an operator may cancel
    them.

    [bold]Example[/]

      dorm user remove alice
    """

    async with acting(cx, folder) as one:
        await one.admin.remove_user(name)
        await apply(one)
        console.print(Text(f"user {name} is removed"))


@app.command("list")
@command()
async def list_users(
    cx: Cluster,
    apply_: Annotated[
        bool,
        typer.Option("--apply", help="Also write the NATS server's configuration from the log again, and reload it."),
    ] = False,
    output: Output = Format.table,
    folder: Folder = None,
) -> None:
    """List users and nodes with their roles.

    [bold]Example[/]

      dorm user list -o wide
    """

    if apply_:
        async with acting(cx, folder) as one:
            await apply(one)
    async with cx.client() as connected:
        known = await connected.look(lambda state: state.known)
    rows = []
    if known is not None:
        rows += [
            {"name": user.name, "role": user.role, "tenant": user.tenant, "public_key": user.public_key}
            for user in known.users.values()
        ]
        rows += [
            {"name": node.node, "role": "node", "tenant": "", "public_key": node.public_key}
            for node in known.nodes.values()
        ]
    if output in (Format.json, Format.yaml):
        show_document(rows, output)
        return
    if known is None:
        console.print(Text("this cluster is open: it knows no users, and everyone who reaches it may do everything"))
        return
    columns = [("NAME", "name"), ("ROLE", "role"), ("TENANT", "tenant")]
    columns += [("KEY", "public_key")] if output == Format.wide else []
    show(rows, columns, output)


@app.command("key")
def key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File for the key, which only you can read.")],
) -> None:
    """Create your own key and print its public half, for an admin's `dorm user add --public-key`.

    [bold]Example[/]

      dorm user key alice.nk
    """
    from dorm.security.files import write_private
    from events.nats.access.credentials import new_seed, public_key

    if file.exists():
        raise Fail(f"{file} exists; choose another file", code="credentials.file_exists")
    seed = new_seed()
    write_private(file.absolute(), seed + b"\n")
    say(public_key(seed))
