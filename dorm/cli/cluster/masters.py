"""`dorm masters`: which master leads, and since when."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.output import Format, Output, ago, console, print_table, show_document
from events.log.records import LogError

if TYPE_CHECKING:
    from dorm.client.masters import Leader
    from events.log.leadership import Held, Leadership
    from events.nats.connection import Connection

_SHORTEST_S = 8.0
"""A longer lease than this is watched for half of its duration, in which its holder renews it twice."""
_LOOK_S = 0.1


@command()
async def masters(cx: Cluster, output: Output = Format.table) -> None:
    """Show which master leads, since when, and whether it responds; and which masters follow, and how far behind.

    Masters that follow write nothing to the log, so they are asked; a master that does not answer within a second is
    not listed.  The command warns if the log's copies on several NATS servers are at risk, as they may be on a cluster
    that an earlier release created.

    [bold]Example[/]

      dorm masters -o json
    """

    from dorm.client.client import Client
    from dorm.client.masters import answering, row_of
    from dorm.core.query.views import paused_text

    connection = await cx.target().connection("dorm-client")
    async with Client(connection.log, connection.bus, connection.cluster, connection=connection) as connected:
        first = await connection.leadership.look()
        every, _ = await asyncio.gather(answering(connection), watch_lease(connection.leadership, first))
        state = await connected.state()
        # Looked up again: the lease precedes the election, so its holder may not be on the log yet.
        held = await connection.leadership.look()
        danger = await _danger(connection)
        row = row_of(state, held, await connection.leadership.written_at(), time.time_ns(), seen=held != first)
    row = msgspec.structs.replace(row, danger=danger, masters=every, paused=paused_text(state))
    if output in (Format.json, Format.yaml):
        show_document(row, output)
    else:
        _print(row)
        _print_followers(row)
        if row.paused:
            console.print(Text(f"\n{row.paused}; nothing new is decided until `dorm resume`"))
        if danger:
            console.print(Text(f"\nwarning: {danger}"), soft_wrap=True)


async def _danger(connection: Connection) -> str:
    """Return the danger to the log's copies.  Some users may not query streams: unknown is not healthy."""
    try:
        return await connection.endangered()
    except LogError as error:
        return f"whether the log's copies are compressed is not known: {error}"


async def watch_lease(leadership: Leadership, first: Held | None) -> None:
    """Wait until the lease changes, or should have: the leading master renews it several times before it expires."""
    if first is None or not first.holder:
        return
    loop = asyncio.get_running_loop()
    until = loop.time() + min(first.ttl_s, max(_SHORTEST_S, first.ttl_s / 2))
    while loop.time() < until:
        await asyncio.sleep(min(_LOOK_S, first.ttl_s))
        if await leadership.look() != first:
            return


def _print(row: Leader) -> None:
    if (
        row.condition == "unknown"
        and row.masters is not None
        and not any(one.condition == "leads" for one in row.masters)
    ):
        if not row.masters:
            then = "start one with `dorm master`"
        elif len(row.masters) == 1:
            then = f"{row.masters[0].name} runs, and its log says why it does not lead"
        else:
            then = f"{len(row.masters)} masters run, and their logs say why none leads"
        who = f"{row.last} was elected last, {ago(row.age_s)} ago" if row.last else "nobody ever led"
        console.print(Text(f"nobody leads, and there is no lease: {who}; {then}"))
        return
    if row.condition in ("gone", "silent"):
        from replay.words import moment

        since = ago(max(0.0, time.time() - row.led_until / 1e9))
        who = f"{row.last} led until {moment(row.led_until)}, {since} ago" if row.last else "nobody ever led"
        console.print(Text(f"no master leads ({row.condition}): {who}; start one with `dorm master`"))
        return
    elected = row.condition != "taking over" and bool(row.leader)
    shown = {
        "leader": row.leader or None,
        "condition": row.condition,
        "epoch": row.epoch if elected else None,
        "age": ago(row.age_s) if elected else None,
        "lease_s": row.lease_s,
    }
    columns = [("LEADER", "leader"), ("CONDITION", "condition"), ("EPOCH", "epoch"), ("SINCE", "age")]
    print_table([shown], [*columns, ("LEASE s", "lease_s")])
    if row.condition == "taking over" and row.last:
        console.print(Text(f"\n{row.last} was elected last, {ago(row.age_s)} ago"))


def _print_followers(row: Leader) -> None:
    if row.masters is None:
        console.print(Text("\nwhich masters follow is not known: they may not be asked with these credentials"))
        return
    following = [msgspec.to_builtins(one) for one in row.masters if one.name != row.leader]
    if following:
        console.print()
        print_table(following, [("FOLLOWER", "name"), ("BEHIND", "lag"), ("FOLDED", "seq"), ("BUILD", "build")])
