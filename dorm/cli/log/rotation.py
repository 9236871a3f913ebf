"""`dorm log rotate` and `dorm log show`: the log's past in archives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, User
from dorm.cli.output import Format, Output, console, print_table, show_document
from dorm.cli.sizes import seconds_of
from events.quantities import MEMORY, humanize

if TYPE_CHECKING:
    from events.kinds import LogRotated
    from events.nats.connection import Connection

KeepRecords = Annotated[
    int | None,
    typer.Option(
        "--keep-records", min=0, metavar="N", help="Keep at least this many records; default: the master's setting."
    ),
]
KeepAge = Annotated[
    str | None,
    typer.Option(
        "--keep", metavar="DURATION", help="Keep records younger than this; default: the master's setting, 1d."
    ),
]


@command()
async def rotate(
    cx: Cluster,
    keep: KeepAge = None,
    keep_records: KeepRecords = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the records that would move.")] = False,
    user: User = None,
    output: Output = Format.table,
) -> None:
    """Move the log's sealed past into archives, and remove it from the stream.

    The leading master writes each archive, reads it back, states it on the log,
    and only then removes its records. Commands read archives and stream as one
    log. With --rotate-size or --rotate-age, a master does this by itself.

    [bold]Examples[/]

      dorm log rotate --dry-run

      dorm log rotate

      dorm log rotate --keep 7d
    """
    keep_s = seconds_of("--keep", keep)

    if dry_run:
        await _show_plan(cx, keep_records, keep_s, output)
        return
    from dorm.client.rotation import rotate as asked

    cuts: list[LogRotated] = []
    async with cx.client() as connected:
        async for cut in asked(connected, keep_records=keep_records, keep_s=keep_s):
            cuts.append(cut)
            if output not in (Format.json, Format.yaml):
                _print_cut(cut)
    if output in (Format.json, Format.yaml):
        show_document(cuts, output)


def _print_cut(cut: LogRotated) -> None:
    text = (
        f"records {cut.after + 1:,} to {cut.upto:,} are in {cut.archive} at {cut.place} ({humanize(MEMORY, cut.bytes)})"
    )
    console.print(Text(text), soft_wrap=True)


async def _show_plan(cx: Cluster, keep_records: int | None, keep_s: float | None, output: Format) -> None:
    """Print the records that a rotation would move, by the given or the default values of the part that stays."""
    from dorm.rotation.planning import span_of
    from dorm.rotation.policy import Policy

    connection = await cx.target().connection("dorm-client")
    try:
        policy = Policy().asked(keep_records, keep_s)
        after, upto = await span_of(connection.stream, policy)
        end = await connection.stream.end()
    finally:
        await connection.close()
    moves = max(0, upto - after)
    if output in (Format.json, Format.yaml):
        show_document({"after": after, "upto": max(after, upto), "records": moves, "stay": end - after - moves}, output)
    elif moves:
        text = f"up to {moves:,} records would move, {after + 1:,} to {upto:,} or the last seal before; {end - upto:,} stay"
        console.print(Text(text), soft_wrap=True)
    else:
        text = f"nothing would move: the stream keeps {policy.keep_records:,} records, and {policy.keep_s:g} seconds"
        console.print(Text(text), soft_wrap=True)


@command()
async def show(
    cx: Cluster,
    output: Output = Format.table,
) -> None:
    """List the log's archives and its stream: which records are where.

    [bold]Examples[/]

      dorm log show

      dorm log show --archives /mnt/copies/dorm
    """

    target = cx.target()
    connection = await target.connection("dorm-client")
    try:
        parts = await _parts(connection, target.archives)
    finally:
        await connection.log.close()
        await connection.close()
    if output in (Format.json, Format.yaml):
        show_document(parts, output)
        return
    rows = [{"first": f"{one.first:,}", "last": f"{one.last:,}", "where": one.where} for one in parts]
    print_table(rows, [("FIRST", "first"), ("LAST", "last"), ("WHERE", "where")])


class Part(msgspec.Struct, frozen=True):
    """Some records of the log, and where they are."""

    first: int
    last: int
    where: str
    archive: str = ""
    """The archive's name, "" for the stream."""
    bytes: int | None = None
    """Of the stream."""


async def _parts(connection: Connection, place: str) -> list[Part]:
    """Return the archives, and the stream at the end.  Raises LogError if the archives can't be listed."""
    from events.archive.whole import WholeLog

    found: list[Part] = []
    log = WholeLog(connection.stream, connection.cluster, place=place)
    try:
        archives = await log.archives()
        if archives is not None and (gap := await archives.missing()) is not None:
            raise gap
        for name in await archives.names() if archives is not None else ():
            assert archives is not None
            found.append(Part(name.after + 1, name.upto, f"{archives.place}/{connection.cluster}/{name}", str(name)))
    finally:
        await log.close()
    start, end, room = await connection.stream.start(), await connection.stream.end(), await connection.stream.room()
    return [*found, Part(start + 1, end, f"stream, {humanize(MEMORY, room.taken)}", bytes=room.taken)]
