"""`dorm masters`: who leads, and since when."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
import typer

from dorm.cli.connect import ClusterName, Url, where
from dorm.cli.errors import run
from dorm.cli.output import Format, Output, ago, print_table, show_document

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.leadership import Held, Leadership

_LONGEST_S = 8.0
_LOOK_S = 0.1


class Leader(msgspec.Struct, frozen=True):
    """Who leads a cluster."""

    leader: str
    """Name of the master that was elected last, "" where none ever was."""
    condition: str
    """leading; silent: it has the lease and was not seen to renew it; gone: it gave the lease back; unknown: it has none, as
    masters of releases before leases."""
    epoch: int
    elected_at: int
    """UTC nanoseconds, by the log's clock."""
    age_s: float
    lease_s: float
    """After so long without a sign of it another master takes over; 0 where there is no lease."""


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Nodes and the cluster")(masters)


def masters(output: Output = Format.table, url: Url = None, cluster: ClusterName = None) -> None:
    """Show which master leads, since when, and whether it is seen to be there.

    Masters that follow say nothing on the log, so they are not listed.

    [bold]Example[/]

      dorm masters -o json
    """

    async def work() -> None:
        from dorm.client import Client
        from events.jetstream import Connection

        address, name = where(url, cluster)
        connection = await Connection.open(address, name, name="dorm-client")
        async with Client(connection.log, connection.bus, name, connection=connection) as connected:
            found, condition = await _watch(connection.leadership)
            row = _row(await connected.state(), found, condition)
        if output in (Format.json, Format.yaml):
            show_document(row, output)
            return
        shown = {
            **msgspec.to_builtins(row),
            "age": ago(row.age_s) if row.leader else None,
            "leader": row.leader or None,
        }
        print_table(
            [shown],
            [
                ("LEADER", "leader"),
                ("CONDITION", "condition"),
                ("EPOCH", "epoch"),
                ("SINCE", "age"),
                ("LEASE s", "lease_s"),
            ],
        )

    run(work())


async def _watch(leadership: Leadership) -> tuple[Held | None, str]:
    """The lease, and in a word what can be seen of its holder: one that leads renews it several times before it ends."""
    first = await leadership.look()
    if first is None or not first.holder:
        return first, "unknown" if first is None else "gone"
    loop = asyncio.get_running_loop()
    until = loop.time() + min(first.ttl_s, _LONGEST_S)
    while loop.time() < until:
        await asyncio.sleep(min(_LOOK_S, first.ttl_s))
        found = await leadership.look()
        if found is not None and found != first and found.holder:
            return found, "leading"
    return first, "silent"


def _row(state: State, found: Held | None, condition: str) -> Leader:
    return Leader(
        leader=state.leader,
        condition=condition if state.leader else "unknown",
        epoch=state.epoch,
        elected_at=state.elected_at,
        age_s=max(0.0, time.time() - state.elected_at / 1e9) if state.leader else 0.0,
        lease_s=found.ttl_s if found else 0.0,
    )
