"""`dorm masters`: which master leads, and since when."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.text import Text

from dorm.cli.connect import ClusterName, Url, where
from dorm.cli.errors import run
from dorm.cli.output import Format, Output, ago, console, print_table, show_document
from events.log.records import LogError

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.log.leadership import Held, Leadership
    from events.nats.log import Connection

_SHORTEST_S = 8.0
"""A longer lease than this is watched for half of its duration, in which its holder renews it twice."""
_LOOK_S = 0.1


class Leader(msgspec.Struct, frozen=True):
    """Which master leads a cluster, by the lease, and since when, by the log."""

    leader: str
    """Name of the master that has the lease and was seen to renew it; "" for none."""
    condition: str
    """leading; taking over: it has the lease, but its election is not on the log yet; silent: the lease was not seen to be
    renewed; gone: it was given back; unknown: there is none, as with masters of releases before leases, whose last one is the
    leader."""
    last: str
    """The master that was elected last, by the log; "" if none ever was."""
    epoch: int
    """That election's number."""
    elected_at: int
    """UTC nanoseconds, by the log's clock."""
    age_s: float
    """Since then."""
    led_until: int
    """UTC nanoseconds, by the log's clock: when the lease was last written, if no master leads; else 0."""
    lease_s: float
    """The lease duration in seconds, after which another master takes over; 0 if there is no lease."""
    danger: str = ""
    """What threatens the log's copies, and what to do; "" for no known danger."""


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Nodes and the cluster")(masters)


def masters(output: Output = Format.table, url: Url = None, cluster: ClusterName = None) -> None:
    """Show which master leads, since when, and whether it is seen to be there.

    Masters that follow say nothing on the log, so they are not listed. It warns where the log's copies on several NATS servers
    are in danger, as they may be in a cluster that an earlier release made.

    [bold]Example[/]

      dorm masters -o json
    """

    async def work() -> None:
        from dorm.client.client import Client
        from events.nats.log import Connection

        address, name = where(url, cluster)
        connection = await Connection.open(address, name, name="dorm-client")
        async with Client(connection.log, connection.bus, name, connection=connection) as connected:
            first = await connection.leadership.look()
            await _watch(connection.leadership, first)
            state = await connected.state()
            # Looked up again: the lease precedes the election, so its holder may not be on the log yet.
            held = await connection.leadership.look()
            danger = await _danger(connection)
            row = row_of(state, held, await connection.leadership.written_at(), time.time_ns(), seen=held != first)
        row = msgspec.structs.replace(row, danger=danger)
        if output in (Format.json, Format.yaml):
            show_document(row, output)
        else:
            _print(row)
            if danger:
                console.print(Text(f"\nwarning: {danger}"), soft_wrap=True)

    run(work())


async def _danger(connection: Connection) -> str:
    """Return the danger to the log's copies.  Some users may not query streams: unknown is not healthy."""
    try:
        return await connection.endangered()
    except LogError as error:
        return f"whether the log's copies are compressed is not known: {error}"


async def _watch(leadership: Leadership, first: Held | None) -> None:
    """Wait until the lease changes, or should have: the leading master renews it several times before it expires."""
    if first is None or not first.holder:
        return
    loop = asyncio.get_running_loop()
    until = loop.time() + min(first.ttl_s, max(_SHORTEST_S, first.ttl_s / 2))
    while loop.time() < until:
        await asyncio.sleep(min(_LOOK_S, first.ttl_s))
        if await leadership.look() != first:
            return


def row_of(state: State, held: Held | None, written_at: int, now: int, *, seen: bool) -> Leader:
    """Return the row for the lease `held`, written at `written_at` (UTC ns, as `now`); `seen`: whether a renewal was
    observed."""
    if held is None:
        leader, condition = state.leader, "unknown"
    elif not held.holder:
        leader, condition = "", "gone"
    elif not seen:
        leader, condition = "", "silent"
    else:
        leader, condition = held.holder, "leading" if held.holder == state.leader else "taking over"
    return Leader(
        leader=leader,
        condition=condition,
        last=state.leader,
        epoch=state.epoch,
        elected_at=state.elected_at,
        age_s=max(0.0, (now - state.elected_at) / 1e9) if state.leader else 0.0,
        led_until=written_at if condition in ("gone", "silent") else 0,
        lease_s=held.ttl_s if held else 0.0,
    )


def _print(row: Leader) -> None:
    if row.condition in ("gone", "silent"):
        from replay.words import moment

        since = ago(max(0.0, time.time() - row.led_until / 1e9))
        who = f"{row.last} led until {moment(row.led_until)}, {since} ago" if row.last else "nobody ever led"
        console.print(Text(f"nobody leads ({row.condition}): {who}; start one with `dorm master`"))
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
