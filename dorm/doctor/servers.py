"""Judges the NATS servers and their streams: whether all answer, and where every copy of the log is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.doctor.findings import Finding, note, ok, unknown, wrong

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from events.nats.streams import ClockState, ServerState, StreamState

_LOG = "DORM-"
"""The prefix of the name of a log's stream; the other streams are beside the log."""
_SLOW_S = 0.25
_ALARM = 0.8
"""The fraction of its limit that a stream may use."""
_AGAIN = "ask again in ten seconds: after a server was lost, the others elect which one answers for the stream"
MOST_AHEAD_S = 2.0
"""Larger differences between clocks confuse people who compare logs; no decision depends on them."""


def judge_servers(servers: Sequence[ServerState]) -> Iterator[Finding]:
    for server in servers:
        if server.error:
            todo = f"look at it: `systemctl status nats` there, and whether {server.address} is reached from here"
            # Further advice of commands, such as another --url, does not apply to a server that belongs to the cluster.
            yield wrong("servers", server.address, f"does not answer: {server.error.partition('; ')[0]}", todo)
            continue
        text = f"NATS {server.version} answers within {server.answers_in_s * 1e3:.0f} ms"
        if server.answers_in_s > _SLOW_S:
            yield wrong("servers", server.name, text, "look at its load, its disk, and the network between")
        else:
            yield ok("servers", server.name or server.address, text)
    versions = sorted({server.version for server in servers if server.version})
    if len(versions) > 1:
        yield note(
            "version", "servers", f"NATS {', '.join(versions)}", "finish the upgrade, one server after the other"
        )


def judge_streams(streams: Sequence[StreamState], servers: int) -> Iterator[Finding]:
    """`servers` is how many of them there are."""
    for stream in streams:
        if stream.error:
            yield unknown("quorum", stream.name, stream.error, _AGAIN)
        elif stream.missing and not stream.name.startswith(_LOG):
            text = "the stream is not there; a cluster that an earlier release made may have another one"
            yield unknown("quorum", stream.name, text)
        elif stream.missing:
            yield wrong(
                "quorum", stream.name, "the stream is gone",
                "put the servers' data back from a backup; start no master before that",
            )  # fmt: skip
        else:
            yield from _copies(stream, servers)
            yield from _room(stream)


def _copies(stream: StreamState, servers: int) -> Iterator[Finding]:
    well = True
    for copy in stream.copies:
        if copy.offline or copy.active_s > 10:
            well = False
            yield wrong(
                "quorum", stream.name, f"the copy on {copy.server} is not heard",
                f"start the NATS server {copy.server} again, before another one fails",
            )  # fmt: skip
        elif not copy.current or copy.lag:
            well, behind = False, f"{copy.lag:,} records behind" if copy.lag else "not current"
            yield wrong(
                "quorum", stream.name, f"the copy on {copy.server} is {behind}",
                f"wait until it has caught up, and restart no other server before; else look at {copy.server}'s log",
            )  # fmt: skip
    if len(stream.copies) < stream.replicas:
        well = False
        yield wrong(
            "quorum", stream.name, f"{len(stream.copies)} of {stream.replicas} copies are placed",
            "see that as many NATS servers run and know each other",
        )  # fmt: skip
    if 2 * stream.heard <= stream.replicas:
        yield wrong(
            "quorum", stream.name, f"{stream.heard} of {stream.replicas} copies are heard: nothing can be stored",
            "start the missing NATS servers; apps run on as long as their nodes' leases",
        )  # fmt: skip
    elif well and stream.replicas == 1 and servers >= 3:
        yield note(
            "quorum", stream.name, f"one copy, on {stream.copies[0].server}, though there are {servers} servers",
            "`dorm master --replicas 3` raises it",
        )  # fmt: skip
    elif well:
        where = ", ".join(copy.server for copy in stream.copies)
        yield ok("quorum", stream.name, f"{_copies_of(stream.replicas)}, all current: {where}")


def _copies_of(count: int) -> str:
    return "1 copy" if count == 1 else f"{count} copies"


def _room(stream: StreamState) -> Iterator[Finding]:
    if stream.limit is None or not stream.name.startswith(_LOG):
        return  # In other streams, new records replace the oldest.
    text = f"takes {stream.size:,} of {stream.limit:,} bytes"
    if stream.size >= _ALARM * stream.limit:
        todo = "make room on the servers' disks and raise the limit with `dorm log limit`; a full log stops the cluster"
        yield wrong("disk", stream.name, text, todo)
    else:
        yield ok("disk", stream.name, text)


def judge_clock(check: str, about: str, clock: ClockState | None, whose: str) -> Finding:
    """Judge another clock; `whose` it is compared with."""
    if clock is None:
        return unknown(check, about, "its clock is not known")
    text = f"its clock is {abs(clock.ahead_s):.1f} s {'ahead of' if clock.ahead_s > 0 else 'behind'} {whose}"
    if abs(clock.ahead_s) - clock.within_s > MOST_AHEAD_S:
        return wrong(check, about, text, "set up time synchronization (chrony, systemd-timesyncd) on both")
    return ok(check, about, text)
