"""Which master leads a cluster: by its lease, and since when by the log; and which follow, by their own word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from events import subjects
from events.log.records import LogError
from events.requests import MasterStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.state import State
    from events.log.leadership import Held
    from events.nats.connection import Connection

ANSWER_S = 1.0
"""Seconds within which masters answer: they look up the log's end first."""


class MasterRow(msgspec.Struct, frozen=True):
    """A master that answers."""

    name: str
    condition: str
    """`leads` or `follows`."""
    build: str
    seq: int
    """The last record that it has folded."""
    lag: int | None
    """Records of the log that it has yet to fold; None if the log did not report it."""
    lease_left_s: float
    """How long it certainly leads, in seconds; 0 while it follows."""


async def answering(connection: Connection, *, wait_s: float = ANSWER_S) -> list[MasterRow] | None:
    """Ask all masters how they are; None if this identity may not, or the server has older permissions."""
    try:
        answers = await connection.everyone(subjects.ask_masters(connection.cluster), wait_s=wait_s)
    except LogError:
        return None
    return rows_of([status for answer in answers if (status := read_status(answer.body)) is not None])


def read_status(body: bytes) -> MasterStatus | None:
    """Read an answer; None for a text that no master of this or a neighboring release sends."""
    try:
        return msgspec.json.decode(body, type=MasterStatus)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def rows_of(statuses: Iterable[MasterStatus]) -> list[MasterRow]:
    rows = [
        MasterRow(
            name=statuse.name,
            condition="leads" if statuse.leading else "follows",
            build=statuse.build,
            seq=statuse.seq,
            lag=statuse.lag,
            lease_left_s=round(statuse.lease_left_s, 1),
        )
        for statuse in statuses
    ]
    return sorted(rows, key=lambda row: (row.condition != "leads", row.name))


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
    masters: list[MasterRow] | None = None
    """All masters that answer, the leader first; None if they may not be asked."""
    paused: str = ""
    """Who paused scheduling and why; "" while decisions are made."""


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
