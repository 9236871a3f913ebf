"""`dorm log`: verify that the log is what its masters wrote, seal it, move its past into archives, limit its size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, User
from dorm.cli.errors import WrongUsage
from dorm.cli.log.rotation import rotate, show
from dorm.cli.log.verdicts import Expect, Keys, check_expected, check_keys, show_seals
from dorm.cli.output import Format, Output, console, show_document
from dorm.cli.source import File, log_of, progress_of
from events.quantities import MEMORY, QuantityError, humanize, resource

app = typer.Typer(
    help="Seal the log, verify that no record was changed, removed or moved, move its past into "
    "archives, and limit its size.",
    no_args_is_help=True,
)
app.command()(show)
app.command()(rotate)


@app.command()
@command()
async def seal(
    cx: Cluster,
    user: User = None,
    output: Output = Format.table,
) -> None:
    """Make the master seal the log now, and print the seal.

    The master also seals the log every minute or every thousand records, if there
    are new records, and when it stops.

    [bold]Example[/]

      dorm log seal
    """

    async with cx.client() as connected:
        made = await connected.seal()
    if output in (Format.json, Format.yaml):
        show_document(made, output)
        return
    console.print(Text(f"sealed up to sequence {made.upto} with key {made.key}"), soft_wrap=True)
    console.print(Text(f"keep elsewhere for --expect: {made.upto}:{made.chain}"), soft_wrap=True)


@app.command()
@command()
async def verify(
    cx: Cluster,
    file: File = None,
    key: Keys = None,
    expect: Expect = None,
    output: Output = Format.table,
) -> None:
    """Check every seal; exit with 1 if a record differs from what was sealed.

    A seal is a hash of all records up to it, signed with the master's key.
    Records after the last seal are not covered. Keep the last line of the output
    elsewhere: with --expect, it lets you check later whether these records still
    exist.

    This does not repeat decisions: `dorm replay verify` does both.

    [bold]Examples[/]

      dorm log verify

      dorm log verify --file incident.dorm --key "$KEY"

      dorm log verify --expect "$KEPT"
    """
    keys, expected = check_keys(key), check_expected(expect)

    from replay.audit.seal_checks import verify_seals

    async with log_of(file, cx, tells_damage=True) as log:
        with progress_of("verifying") as report:
            found = await verify_seals(log, keys=keys, expected=expected, progress=report)
    show_seals(found, output)


@app.command()
@command()
async def limit(
    cx: Cluster,
    size: Annotated[
        str | None,
        typer.Argument(
            metavar="[SIZE]",
            help="Limit, such as 50GiB; `none` removes it. Without an argument, print the current limit.",
        ),
    ] = None,
    output: Output = Format.table,
) -> None:
    """Show how large the log is and may become, or limit it.

    The log grows until rotation moves its past into archives (`dorm log rotate`,
    `dorm log show`), which count towards neither this size nor the limit. With a
    limit, a flood fills the log but not the disks: records are refused, apps keep
    running, and there are no decisions until the limit is raised or the log is
    rotated. Masters and `dorm masters` warn from 80% on. With several servers,
    the limit applies to each of them.

    [bold]Examples[/]

      dorm log limit

      dorm log limit 50GiB

      dorm log limit none
    """
    most = None if size in (None, "none") else _bytes(size or "")

    connection = await cx.target().connection("dorm-client")
    try:
        if size is not None:
            await connection.stream.set_limit(most)
        found = await connection.stream.room()
    finally:
        await connection.close()
    if output in (Format.json, Format.yaml):
        show_document({"bytes": found.taken, "limit": found.limit}, output)
        return
    may = f"of {humanize(MEMORY, found.limit)}" if found.limit else "without a limit of its own"
    console.print(Text(f"the log takes {humanize(MEMORY, found.taken)} {may}"), soft_wrap=True)


def _bytes(size: str) -> int:
    """Raises WrongUsage."""
    try:
        return resource(MEMORY, size)
    except QuantityError as error:
        raise WrongUsage(f"SIZE: {error}", code="log.limit.malformed") from None


@app.command()
@command()
async def key(
    cx: Cluster,
    path: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="FILE", help="The master's key; default: where `dorm up` and `dorm master` keep it."
        ),
    ] = None,
    output: Output = Format.table,
) -> None:
    """Print the master's public key, for `dorm log verify --key`.

    Run it on the master's machine.

    [bold]Example[/]

      dorm log key
    """
    from dorm.local.home import key_file
    from dorm.master.sealing import read_key

    found = cx.target()
    public = read_key(path or found.seal_key() or key_file(found.cluster)).public
    if output in (Format.json, Format.yaml):
        show_document({"key": public}, output)
    else:
        console.print(Text(public), soft_wrap=True)
